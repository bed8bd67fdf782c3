"""A reply cut into messages at its safe places."""

from __future__ import annotations

import dataclasses
import functools
import html
from typing import TYPE_CHECKING, Any

from hayate_matrix.matrix.render.markdown import BLOCKS, DEEPEST_BLOCK, clean, find_blocks, find_language, show_block, show_code, show_text
from hayate_matrix.matrix.render.pieces import KEYS_BYTES, LEAST_BYTES, MAX_PARTS, Piece, Rendered, leave_rest, measure
from hayate_matrix.matrix.render.plain import (
    count_columns,
    find_info,
    find_lines,
    find_widths,
    lay_out,
    list_cells,
    list_rows,
    strip_lines,
    write_block,
    write_fence,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

_FENCE_BYTES = 100
"""Two fences of three, their line breaks, the tags and what joins the piece to the one before (82 bytes)."""
_BREAK_BYTES = 4
"""A line break in both texts."""
_FENCES = ("```", "~~~")
"""No piece of running text begins with one, where there is another place to cut: it would open a code block."""
_SHORTEST_CUT = 64
"""A run of text this short that is still too large as HTML (a link with a huge address) is shown as it was written."""


def render(markdown: str) -> Rendered:
    """Return `markdown` as one message, however long it is."""
    return _join(list(_cut_blocks(markdown, None)))


def split_reply(markdown: str, *, max_bytes: int) -> list[Rendered]:
    """Return `markdown` as one to five messages, each with body and HTML together under `max_bytes` of JSON.

    Where five are not enough, four are returned and the last carries `overflow`: a file with the whole text makes the fifth.

    Raises:
        ValueError: `max_bytes` is under 400.
    """
    if max_bytes < LEAST_BYTES:
        message = f"max_bytes is {max_bytes}; it takes at least {LEAST_BYTES}"
        raise ValueError(message)
    budget = max_bytes - KEYS_BYTES
    groups: list[list[Piece]] = [[]]
    cost = 0
    for piece in _cut_blocks(markdown, budget):
        if groups[-1] and cost + piece.cost > budget:
            if len(groups) == MAX_PARTS:
                return leave_rest([_join(group) for group in groups[: MAX_PARTS - 1]], markdown)
            groups.append([])
            cost = 0
        groups[-1].append(piece)
        cost += piece.cost
    return [_join(group) for group in groups]


def _join(pieces: list[Piece]) -> Rendered:
    body = "".join(
        piece.body if number == 0 else ("\n" if piece.follows_closely else "\n\n") + piece.body for number, piece in enumerate(pieces)
    )
    markup = clean("\n".join(piece.markup for piece in pieces if piece.markup))
    inner = markup.removeprefix("<p>").removesuffix("</p>")
    is_one_paragraph = markup == f"<p>{inner}</p>" and "<p>" not in inner
    is_plain = not markup or (is_one_paragraph and "<" not in inner and html.unescape(inner) == body)
    return Rendered(body, None if is_plain else inner if is_one_paragraph else markup)


def _cut_blocks(markdown: str, budget: int | None) -> Iterator[Piece]:
    """Yield the text as pieces in order, none costing more than `budget`."""
    text = markdown.encode("utf-8", "replace").decode().replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    lines = text.split("\n")
    env: dict[str, Any] = {}
    tokens = BLOCKS.parse(text, env)
    done = 0
    for block in find_blocks(tokens):
        start, end = find_lines(block)
        loose = strip_lines(lines[done:start])  # what is no block: the definitions of reference links
        if loose:
            yield from _cut_text(loose, env, budget, is_shown=False)
        is_close = 0 < done == start
        pieces = _cut_block(block, lines, env, budget)
        for number, piece in enumerate(pieces):
            yield dataclasses.replace(piece, follows_closely=is_close) if number == 0 else piece
        done = max(done, end)
    loose = strip_lines(lines[done:])
    if loose:
        yield from _cut_text(loose, env, budget, is_shown=False)


def _cut_block(block: Sequence[Token], lines: list[str], env: dict[str, Any], budget: int | None) -> Iterator[Piece]:
    body = write_block(block, lines)
    if any(token.level > DEEPEST_BLOCK for token in block):
        yield from _cut_text(body, env, budget, is_markdown=False)
        return
    if budget is None or measure(body) <= budget:
        piece = Piece(body, show_block(block, env))
        if budget is None or piece.cost <= budget:
            yield piece
            return
    kind = block[0].type
    if kind in ("fence", "code_block"):
        yield from _cut_code(block[0], budget)
    elif kind == "table_open":
        yield from _cut_table(block, env, budget)
    elif kind.endswith("list_open"):
        yield from _cut_list(block, lines, env, budget)
    elif kind in ("blockquote_open", "list_item_open"):
        for inner in find_blocks(block[1:-1]):
            yield from _cut_block(inner, lines, env, budget)
    elif len(block) > 1:
        yield from _cut_text(block[1].content, env, budget)
    else:
        yield from _cut_text(body, env, budget)


def _cut_list(block: Sequence[Token], lines: list[str], env: dict[str, Any], budget: int) -> Iterator[Piece]:
    """Yield a list item by item, each a list of its own that keeps its number."""
    is_ordered = block[0].type == "ordered_list_open"
    number = int(block[0].attrs.get("start", 1)) if is_ordered else 0
    for item in find_blocks(block[1:-1]):
        opening = f'<ol start="{number}">' if is_ordered else "<ul>"
        number += 1
        body = write_block(item, lines)
        if measure(body) <= budget:
            piece = Piece(body, f"{opening}{show_block(item, env)}</{'ol' if is_ordered else 'ul'}>", follows_closely=True)
            if piece.cost <= budget:
                yield piece
                continue
        yield from _cut_block(item, lines, env, budget)


def _cut_table(block: Sequence[Token], env: dict[str, Any], budget: int) -> Iterator[Piece]:
    """Yield a table in groups of rows, the head on each; a row that is too long alone becomes paragraphs."""
    head, *body = find_blocks(block[1:-1])
    names = list_cells(head)
    top = show_block(head, env)
    group: list[Sequence[Token]] = []
    cost = 0

    def close() -> Iterator[Piece]:
        if group:
            shown = "".join(show_block(row, env) for row in group)
            markup = f"<table>{top}<tbody>{shown}</tbody></table>"
            piece = Piece(lay_out([names, *(list_cells(row) for row in group)]), markup)
            if piece.cost <= budget:
                yield piece
            else:
                for row in group:
                    for name, cell in zip(names, list_cells(row), strict=False):
                        yield from _cut_text(f"{name}: {cell}", env, budget)
            group.clear()

    rows = [row for part in body for row in list_rows(part)]
    widths = find_widths([names, *(list_cells(row) for row in rows)])
    room = budget - measure(top) - sum(max(measure(name), width) + width + 8 for name, width in zip(names, widths, strict=True)) - 60
    for row in rows:
        row_cost = measure(show_block(row, env)) + 2
        row_cost += sum(
            max(measure(cell), width + measure(cell) - count_columns(cell)) + 3
            for cell, width in zip(list_cells(row), widths, strict=False)
        )
        if cost + row_cost > room:
            yield from close()
            cost = 0
        group.append(row)
        cost += row_cost
    yield from close()


def _cut_code(token: Token, budget: int) -> Iterator[Piece]:
    """Yield a code block in runs of lines, closed and opened again with its language."""
    room = budget - measure(find_info(token)) - len(find_language(token)) - _FENCE_BYTES
    for content in _cut_lines(token.content.removesuffix("\n"), room):
        yield Piece(write_fence(token, content), show_code(token, content))


def _cut_lines(text: str, room: int) -> Iterator[str]:
    """Yield code in runs of whole lines that cost at most `room`; a line that is longer alone is cut after a blank, else anywhere."""
    run: list[str] = []
    cost = 0
    for line in text.split("\n"):
        for piece in _chop(line, room - _BREAK_BYTES):
            piece_cost = _measure_code(piece) + _BREAK_BYTES
            if run and cost + piece_cost > room:
                yield "\n".join(run)
                run, cost = [], 0
            run.append(piece)
            cost += piece_cost
    yield "\n".join(run)


def _chop(line: str, room: int) -> Iterator[str]:
    """Yield `line` whole where it fits, else in pieces that do, each as long as its characters allow."""
    start = blank = cost = since_blank = 0
    for place, character in enumerate(line):
        character_cost = _measure_character(character)
        if cost + character_cost > room and place > start:
            is_near = blank > start and since_blank * 2 <= cost
            yield line[start : blank if is_near else place]
            start, cost = (blank, since_blank) if is_near else (place, 0)
        cost += character_cost
        since_blank += character_cost
        if character in " \t":
            blank, since_blank = place + 1, 0
    yield line[start:]


def _measure_code(text: str) -> int:
    """Return the bytes of `text` in both texts of a code block; a backtick may make each fence one longer."""
    return measure(text) + measure(html.escape(text, quote=False)) + 2 * text.count("`")


_measure_character = functools.lru_cache(maxsize=1024)(_measure_code)


def _cut_text(text: str, env: dict[str, Any], budget: int | None, *, is_shown: bool = True, is_markdown: bool = True) -> Iterator[Piece]:
    """Yield running text in pieces, cut at a line's end, else after a sentence, else between words, else anywhere."""
    waiting = [text]
    while waiting:
        now = waiting.pop()
        if budget is None or measure(now) <= budget:
            as_written = f"<p>{html.escape(now, quote=False)}</p>"
            piece = Piece(now, "" if not is_shown else f"<p>{show_text(now, env)}</p>" if is_markdown else as_written)
            if budget is not None and piece.cost > budget and len(now) <= _SHORTEST_CUT:
                piece = Piece(now, as_written)
            if budget is None or piece.cost <= budget:
                yield piece
                continue
        middle = _find_cut(now)
        waiting += [now[middle:].lstrip(" \n"), now[:middle].rstrip(" \n")]


def _find_cut(text: str) -> int:
    """Return where to halve `text`: the safest place in its middle third, else the blank nearest to it."""
    third = max(len(text) // 3, 1)
    for mark in ("\n", ". ", " "):
        found = text.rfind(mark, third, 2 * third)
        while found >= 0 and text.startswith(_FENCES, found + len(mark)):
            found = text.rfind(mark, third, found)
        if found >= 0:
            return found + len(mark)
    before, after = text.rfind(" ", 0, third), text.find(" ", 2 * third)
    nearest = min((place for place in (before, after) if place > 0), key=lambda place: abs(len(text) // 2 - place), default=-1)
    return nearest + 1 if 0 < nearest < len(text) - 1 else max(len(text) // 2, 1)
