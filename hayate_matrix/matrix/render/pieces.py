"""What a message and a part of one are, and how much room they take."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

MAX_PARTS = 5
"""Messages for one reply; what needs more goes as a file (OUT-4)."""
ENCRYPTED_MAX_BYTES = 40_000
"""Content before encryption: base64 and the envelope bring it to 53.6 kB of the 65,536 an event may have (OUT-4)."""
PLAIN_MAX_BYTES = 55_000
KEYS_BYTES = 80
"""`"body":"","format":"org.matrix.custom.html","formatted_body":"",` around the two texts."""
LEAST_BYTES = 400
"""Smallest budget: room for a table's head or a fence besides some text."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """The reply is longer than five messages: about `left_bytes` of its `total_bytes` (Markdown, UTF-8) are in none of the parts."""

    left_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """One message: a plain body and, where there is anything to show, Matrix HTML."""

    body: str
    formatted_body: str | None
    overflow: Overflow | None = None
    """On the last part of a reply that is too long: send the whole text as a file after it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A block, or a part of one: what is added to a message at once."""

    body: str
    markup: str
    follows_closely: bool = False
    """No blank line stood before it."""

    @property
    def cost(self) -> int:
        """Bytes that the piece adds to a message, what joins it to the one before included."""
        return measure(self.body) + measure(self.markup) + 6  # two line breaks in the body, one in the HTML, as JSON


def measure(text: str) -> int:
    """Return the bytes of `text` inside JSON with everything but ASCII escaped, the largest form that a serialiser gives it."""
    return len(json.dumps(text)) - 2


def leave_rest(parts: list[Rendered], text: str) -> list[Rendered]:
    """Return `parts`, the last of them told how much of `text` is in none."""
    total = len(text.encode("utf-8", "replace"))
    shown = sum(len(part.body.encode()) for part in parts)
    parts[-1] = replace(parts[-1], overflow=Overflow(left_bytes=max(total - shown, 1), total_bytes=total))
    return parts
