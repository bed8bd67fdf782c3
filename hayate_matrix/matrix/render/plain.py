"""A block as plain text: as it was written, a table laid out, a code block closed."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from hayate_matrix.matrix.render.markdown import find_blocks, find_language
from hayate_matrix.matrix.render.pieces import measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

_WIDEST_COLUMN = 40
"""Columns of a plain table are padded up to this width; wider cells run over, so that one long cell doesn't blow up all rows."""
LONGEST_INFO_BYTES = 80
_TICKS = re.compile(r"`{3,}")


def find_lines(block: Sequence[Token]) -> tuple[int, int]:
    """Return the first line of a block and the one after its last."""
    found = block[0].map or [0, 0]
    return found[0], found[1]


def strip_lines(lines: list[str]) -> str:
    """Return `lines` as one text without blank lines around it."""
    return "\n".join(lines).strip("\n").rstrip()


def write_block(block: Sequence[Token], lines: list[str]) -> str:
    """Return the block as it was written, a table laid out and an open code block closed."""
    kind = block[0].type
    if kind == "fence":
        return write_fence(block[0], block[0].content.removesuffix("\n"))
    if kind == "table_open":
        return lay_out([list_cells(row) for part in find_blocks(block[1:-1]) for row in list_rows(part)])
    start, end = find_lines(block)
    return strip_lines(lines[start:end])  # an open code block within a quote or list ends where that ends


def list_rows(part: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Yield the rows of a table's head or body."""
    return find_blocks(part[1:-1])


def write_fence(token: Token, content: str) -> str:
    """Return `content` as a closed code block in the language of `token`, fenced longer than any fence inside."""
    longest = max((len(found) for found in _TICKS.findall(content)), default=2)
    marks = "`" * max(longest + 1, 3)
    return f"{marks}{find_info(token)}\n{content}\n{marks}"


def find_info(token: Token) -> str:
    """Return what stands beside the fence, or the language alone where that is long or would end the fence's line as code."""
    info = token.info.strip()
    return info if measure(info) <= LONGEST_INFO_BYTES and "`" not in info else find_language(token)


def list_cells(row: Sequence[Token]) -> list[str]:
    """Return the texts of a row's cells."""
    return [token.content for token in row if token.type == "inline"]


def lay_out(rows: list[list[str]]) -> str:
    """Return the rows in columns that line up in a monospaced font, a rule under the first."""
    widths = find_widths(rows)

    def show(row: list[str]) -> str:
        return " | ".join(cell + " " * (widths[n] - count_columns(cell)) for n, cell in enumerate(row)).rstrip()

    return "\n".join([show(rows[0]), "-+-".join("-" * width for width in widths), *(show(row) for row in rows[1:])])


def find_widths(rows: list[list[str]]) -> list[int]:
    """Return the columns that each column of a table is padded to."""
    count = max(len(row) for row in rows)
    return [max(3, min(max((count_columns(row[n]) for row in rows if n < len(row)), default=0), _WIDEST_COLUMN)) for n in range(count)]


def count_columns(text: str) -> int:
    """Return the columns that `text` takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)
