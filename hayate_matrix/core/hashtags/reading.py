"""Reading tags out of a message.

Promise: linear in the text on any input; what is doubtful is no tag.
How: `constructs.mask` leaves one character for each construct, then each line is read once: marks (quotations) are paired on a stack, and a
tag counts where none is open. The first mark without a partner ends its line.
"""

from __future__ import annotations

import re

from hayate_matrix.core.hashtags.constructs import WHITE, mask

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

_TOKEN = re.compile(
    rf"""["'“”‘’„‚«»‹›「」『』`]|(?:^|(?<=[{WHITE}]))#({TAG})(?=[{WHITE}.,;:!?…)\]}}]|$)(?![.:…]++(?:[^\W_]|[/\[]))""",
)
"""A mark, or a tag; a backtick that `mask` left has no partner."""
_WORD = re.compile(rf"#?({TAG})")


def parse_tags(text: str) -> tuple[str, ...]:
    """Return the tags that a message sets: in lower case, in reading order, each once, at most `MAX_TAGS`."""
    tags: dict[str, None] = {}
    for line in mask(text).split("\n"):
        if "#" not in line:
            continue
        for tag in _read_line(line):
            tags[tag] = None
            if len(tags) == MAX_TAGS:
                return tuple(tags)
    return tuple(tags)


def read_tag(word: str) -> str | None:
    """Return the tag that a command's argument names, in lower case and without `#`; None where it is no tag."""
    found = _WORD.fullmatch(word)
    return found[1].lower() if found is not None and len(found[1]) <= MAX_TAG_CHARS else None


def _read_line(line: str) -> list[str]:
    """Return the tags of one line outside of quotations, up to the first mark without a partner."""
    tags: list[str] = []
    is_open: list[str] = []
    closers = dict.fromkeys(_ANY_CLOSER, 0)
    for found in _TOKEN.finditer(line):
        mark = found[0]
        if mark[0] == "#":
            if not is_open and len(mark) <= MAX_TAG_CHARS + 1:
                tags.append(found[1].lower())
        elif is_open and mark in _CLOSES[is_open[-1]]:
            for closer in _CLOSES[is_open.pop()]:
                closers[closer] -= 1
        elif mark not in _CLOSES or closers.get(mark):
            break
        else:
            is_open.append(mark)
            for closer in _CLOSES[mark]:
                closers[closer] += 1
    return tags
