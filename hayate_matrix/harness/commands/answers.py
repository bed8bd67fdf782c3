"""What a command answers, what else it asks for, and how its arguments are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hayate_matrix.core.commands import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from hayate_matrix.core.ids import ConversationId, EventId, SessionId

EXCERPT_CHARACTERS = 180
"""Of a message, as lists show it (IDX-6)."""
_NEAR_CHARACTERS = 30
"""How far before the limit a cut between two words is looked for."""
_MOST_PAGES = 10**9
"""A larger number is no page of anything that fits a disk."""


@dataclass(slots=True)
class Effects:
    """What a command asks the rest of the harness to do after its commit."""

    conversation_id: ConversationId | None = None
    stopped: list[EventId] = field(default_factory=list)
    changed: set[SessionId] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command says: a sentence in Markdown, or lines that are shown exactly as they are."""

    text: str
    is_listing: bool = False
    links: Sequence[tuple[str, EventId]] | None = None
    """Of a listing that shows messages: words that lead to events of the room."""


def refuse(name: str, problem: str) -> Answer:
    """Return the sentence for a wrong use, with an example (CMD-2)."""
    return Answer(f"{problem} For example: `{COMMANDS[name].example}`")


def read_page(word: str) -> int | None:
    """Return the number of a page, from 1; None where `word` is none."""
    if not word.isascii() or not word.isdigit() or len(word) > len(str(_MOST_PAGES)):
        return None
    return int(word) or None


def write_time(at: datetime) -> str:
    """Return a UTC time to the millisecond, as lists show it."""
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def fold(text: str) -> str:
    """Return `text` in one line, runs of white space as one blank."""
    return " ".join(text.split())


def cut(text: str) -> str:
    """Return `text` in one line of at most 180 characters, cut at a word where one is near."""
    line = fold(text)
    if len(line) <= EXCERPT_CHARACTERS:
        return line
    kept = line[: EXCERPT_CHARACTERS - 1]
    end = kept.rfind(" ", len(kept) - _NEAR_CHARACTERS)
    if line[len(kept)] != " " and end > 0:
        kept = kept[:end]
    return f"{kept.rstrip()}…"
