"""Reading tags out of a message.

Promise: linear in the text on any input; what is doubtful is no tag.
How: `constructs.mask` leaves one character for each construct, then each line is read once: marks (quotations) are paired on a stack, and a
tag counts where none is open. The first mark without a partner ends its line.
"""

from __future__ import annotations

import re

from hayate_matrix.core.hashtags.constructs import mask
from hayate_matrix.core.hashtags.grammar import WHITE

MAX_TAG_CHARS = 64
"""Longest tag, without its `#`; a longer run holds none."""
MAX_TAGS = 32
"""Most distinct tags of one message, the first in reading order."""

TAG = r"[A-Za-z][A-Za-z0-9]*+(?:-[A-Za-z0-9]++)*+"

_CLOSES = {
    '"': '"',
    "'": "'",
    "“": "”",
    "‘": "’",
    "’": "’",
    "„": "“”",
    "‚": "‘’",
    "«": "»",
    "»": "«",
    "‹": "›",
    "›": "‹",
    "「": "」",
    "『": "』",
}
"""For each mark that opens a quotation those that close it."""

_ANY_CLOSER = frozenset("".join(_CLOSES.values()))
_TO_CLOSER = {mark: re.compile(f"[{closers}]") for mark, closers in _CLOSES.items()}
_MARKS = "".join(sorted(_CLOSES.keys() | _ANY_CLOSER))

_IN_PLACE = f"(?<![^{WHITE}])#{TAG}(?=[{WHITE},;!?)\\]}}}}]|[.:…]++(?![^\\W_]|[/\\[])|\\Z)"
_TOKEN = re.compile(
    rf"(?:[^{_MARKS}`#]++|(?<=[^{WHITE}])#)*+"
    rf"(?:{'|'.join(f'{mark}[^{_MARKS}`{chr(10)}]*+[{closers}]' for mark, closers in _CLOSES.items())}"
    rf"|({_IN_PLACE}|[{_MARKS}`][^\n]*+)|#|\Z)",
)
"""Plain text, then a quotation without marks within, or (the group) a tag or the rest of a line from any other mark on.

A backtick that `mask` left has no partner. Every character is taken by some alternative, so no search begins twice at one place.
"""
_PART = re.compile(rf"[{_MARKS}`]|{_IN_PLACE}")
_WORD = re.compile(rf"#?({TAG})")
_MAX_DEPTH = 1000
"""Quotations within quotations that are followed; deeper ones end the line like a mark without a partner."""


def parse_tags(text: str) -> tuple[str, ...]:
    """Return the tags that a message sets: in lower case, in reading order, each once, at most `MAX_TAGS`."""
    if "#" not in text:
        return ()
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    tags: dict[str, None] = {}
    for token in dict.fromkeys(_TOKEN.findall(mask("\n" + text))):
        if token[:1] == "#":
            if len(token) <= MAX_TAG_CHARS + 1:
                tags[token[1:].lower()] = None
        elif "#" in token:
            tags.update(_read_nested(token))
    return tuple(tags)[:MAX_TAGS]


def read_tag(word: str) -> str | None:
    """Return the tag that a command's argument names, in lower case and without `#`; None where it is no tag."""
    found = _WORD.fullmatch(word)
    return found[1].lower() if found is not None and len(found[1]) <= MAX_TAG_CHARS else None


def _read_nested(line: str) -> dict[str, None]:
    """Return the tags of the rest of a line: outside of quotations, up to the first mark without a partner."""
    tags: dict[str, None] = {}
    is_open: list[str] = []
    closers = dict.fromkeys(_ANY_CLOSER, 0)
    for found in _PART.finditer(line):
        mark = found[0]
        if mark[0] == "#":
            if not is_open and len(mark) <= MAX_TAG_CHARS + 1:
                tags[mark[1:].lower()] = None
        elif is_open and mark in _CLOSES[is_open[-1]]:
            for closer in _CLOSES[is_open.pop()]:
                closers[closer] -= 1
        elif (
            mark not in _CLOSES
            or closers.get(mark)
            or len(is_open) == _MAX_DEPTH
            or (not is_open and _TO_CLOSER[mark].search(line, found.end()) is None)
        ):
            break
        else:
            is_open.append(mark)
            for closer in _CLOSES[mark]:
                closers[closer] += 1
    return tags
