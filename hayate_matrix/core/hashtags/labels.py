"""The label in front of a reply: its tags, sorted, and a middle dot."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hayate_matrix.core.hashtags.reading import MAX_TAG_CHARS, TAG

if TYPE_CHECKING:
    from collections.abc import Sequence

_LABEL = re.compile(rf"[ \t\n\r]*+(#{TAG}(?: #{TAG})*+) ·(?:[ \t]*+(?:\r?\n|\Z)| )(?:[ \t]*+\r?\n)*+")
"""A label with the white space around it; on a line of its own it may have lost the blank behind its dot."""

_BLOCK = re.compile(
    r"""
    (?:[ ]{4}|[ ]{0,3}\t)                               # indented code
    |[ ]{0,3}(?:
        `{3}|~{3}                                       # fence
        |(?:[-+*]|[0-9]{1,9}[.)])(?:[ \t]|$)            # list item
        |\#{1,6}(?:[ \t]|$)                             # heading
        |>                                              # quote
        |<[A-Za-z/!?]                                   # HTML block
        |([-*_])[ \t]*+(?:\1[ \t]*+){2,}+$              # thematic break
        |\[(?:[^\[\]\\]|\\.){1,999}\]:                  # link definition
        |(?=[^\n|]*+\|)[^\n]*+\n[ ]{0,3}\|?[ \t]*+:?-++:?[ \t]*+(?:\|[ \t]*+(?::?-++:?[ \t]*+)?+)*+$   # table: a row and the rule below it
    )
    """,
    re.VERBOSE | re.MULTILINE,
)
"""The beginning of a Markdown block that works at the start of a line only."""

_BLANK_LINES = re.compile(r"\A(?:[ \t]*+\r?\n)*+(?:[ \t]++\Z)?+")


def put_label(tags: Sequence[str], text: str) -> str:
    """Return `text` with the label of `tags` in front, in the place of any that it begins with; without tags as it is.

    Where the text begins with a block (list, fence, table …) the label stands on a line of its own, so that the block stays one.
    """
    if not tags:
        return text
    label = " ".join(f"#{tag}" for tag in sorted(set(tags))) + " · "
    body = _BLANK_LINES.sub("", _strip_labels(text), count=1)
    return f"{label}\n\n{body}" if _BLOCK.match(body) else label + body


def _strip_labels(text: str) -> str:
    """Return `text` without the labels that it begins with, however many were stacked."""
    start = 0
    while True:
        found = _LABEL.match(text, start)
        if found is None or any(len(tag) > MAX_TAG_CHARS + 1 for tag in found[1].split(" ")):
            return text[start:]
        start = found.end()
