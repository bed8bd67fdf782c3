"""What a person may ask the bot itself, and how it is told from ordinary text (IN-8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One line of the help, and an example for whoever got it wrong."""

    line: str
    example: str
    power: int = 0
    """The power level that it needs unless `commands.power` says otherwise."""
    is_ordered: bool = False
    """Whether it waits for the requests before it in its focus, since what they find would be another."""


COMMANDS: Mapping[str, Usage] = {
    "close": Usage(line="!close · end the session; the next message begins a fresh one", example="!close", is_ordered=True),
    "hashtags": Usage(line="!hashtags [#TAG] [PAGE] · the hashtags of this room, or the messages under one", example="!hashtags #release"),
    "help": Usage(line="!help · what you can ask", example="!help"),
    "name": Usage(line="!name NAME · give the session a name", example="!name Release 2", is_ordered=True),
    "new": Usage(line="!new [NAME] · begin a fresh session", example="!new Release 2", is_ordered=True),
    "pause": Usage(line="!pause · answer nothing in this room until !unpause (moderators)", example="!pause", power=50),
    "resume": Usage(line="!resume ID · go on with an earlier session", example="!resume 01a1989a", is_ordered=True),
    "sessions": Usage(line="!sessions [PAGE] · the sessions of this room, the last used first", example="!sessions 2"),
    "status": Usage(line="!status · what runs and what waits in this room", example="!status"),
    "steer": Usage(line="!steer TEXT · tell the running answer something", example="!steer only the German ones"),
    "stop": Usage(line="!stop · end the running answer", example="!stop"),
    "unpause": Usage(line="!unpause · answer again (moderators)", example="!unpause", power=50),
}
"""Invariant: sorted by name, which is the order in which the help shows them."""

_MARKS = ("//", "/", "!")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A known command as it was written."""

    name: str
    arguments: str


def parse_command(text: str) -> Command | None:
    """Return the command that `text` is, or None for ordinary text; unknown words are ordinary text.

    `text` has its leading mention removed (`triggers.strip_mention`).
    """
    text = text.strip()
    mark = next((mark for mark in _MARKS if text.startswith(mark)), None)
    if mark is None:
        return None
    word, *rest = text[len(mark) :].split(maxsplit=1)[:2] or [""]
    name = word.lower()
    if name not in COMMANDS or not text[len(mark) :].startswith(word):
        return None
    return Command(name=name, arguments=rest[0].strip() if rest else "")
