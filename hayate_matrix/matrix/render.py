"""Markdown as a person wrote it, turned into what a Matrix client shows, and cut into messages that fit.

Promise: no part is larger than its budget, the text stays whole and in order, a code block is never left open, and the HTML holds only
tags and links of Matrix's own list, whatever the Markdown says.
How: the text is parsed once into blocks; each block is rendered once to HTML and to its plain lines, and parts are filled block by block,
so the work grows with the length of the text. A block that is too long alone is cut inside: a table between rows, a list between items,
a code block between lines (closed and opened again), a paragraph between words.
Not here: relations, mentions and the file that carries a reply too long for five messages (matrix/send).
"""

from __future__ import annotations

import dataclasses
import html
import json
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


MAX_PARTS = 5
"""Messages for one reply; what needs more goes as a file (OUT-4)."""
ENCRYPTED_MAX_BYTES = 40_000
"""Content before encryption: base64 and the envelope bring it to 53.6 kB of the 65,536 an event may have (OUT-4)."""
PLAIN_MAX_BYTES = 55_000
LEAST_BYTES = 400
"""Smallest budget: room for a table's head or a fence besides some text."""
_KEYS_BYTES = 80
"""`"body":"","format":"org.matrix.custom.html","formatted_body":"",` around the two texts."""
_WIDEST_COLUMN = 40
"""Columns of a plain table are padded up to this width; wider cells run over, so that one long cell doesn't blow up all rows."""
_DEEPEST_BRACKETS = 40
"""Square brackets open at once before a run of text is shown as it was written: the parser's work grows with their square."""
_DEEPEST_BLOCK = 40
"""Quotes and lists nested deeper are shown as they were written."""
_MOST_NESTING = 60
"""Where the parser stops; it would drop what is inside, so it must be more than `_DEEPEST_BLOCK`."""
_SHORTEST_CUT = 64
"""A run of text this short that is still too large as HTML (a link with a huge address) is shown as it was written."""

_TAGS = frozenset(
    [
        "del",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "blockquote",
        "p",
        "a",
        "ul",
        "ol",
        "sup",
        "sub",
        "li",
        "b",
        "i",
        "u",
        "strong",
        "em",
        "s",
        "code",
        "hr",
        "br",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "pre",
        "span",
    ]
)
_ATTRIBUTES: dict[str, set[str]] = {"*": set(), "a": {"href"}, "ol": {"start"}, "code": {"class"}}
_SCHEMES = {"https", "http", "ftp", "mailto", "magnet"}
_LANGUAGE = re.compile(r"language-[\w+#.-]{1,40}")
_TICKS = re.compile(r"`{3,}")
_BRACKETS = re.compile(r"[\[\]]")


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
class _Piece:
    """A block, or a part of one: what is added to a message at once."""

    body: str
    markup: str
    follows_closely: bool = False
    """No blank line stood before it."""

    @property
    def cost(self) -> int:
        return _size(self.body) + _size(self.markup) + 6  # two line breaks in the body, one in the HTML, as JSON


def _size(text: str) -> int:
    """Return the bytes of `text` inside JSON with everything but ASCII escaped, the largest form that a serialiser gives it."""
    return len(json.dumps(text)) - 2


def _make_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": _MOST_NESTING}).enable(["table", "strikethrough"])
    parser.add_render_rule("image", _show_image)
    parser.add_render_rule("s_open", lambda *_: "<del>")
    parser.add_render_rule("s_close", lambda *_: "</del>")
    return parser


def _show_image(_renderer: object, tokens: Sequence[Token], index: int, *_: object) -> str:
    """Show an image as a link: clients load nothing but `mxc:` addresses, and an address of elsewhere would tell who reads."""
    token = tokens[index]
    address = html.escape(str(token.attrs.get("src", "")))
    return f'<a href="{address}">{html.escape(token.content or "image")}</a>'


_PARSER = _make_parser()
_BLOCKS = _make_parser().disable("inline")
"""Finds the blocks alone: what is inside one is parsed when it is known to fit, so that no part of the text is parsed many times."""


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
    budget = max_bytes - _KEYS_BYTES
    groups: list[list[_Piece]] = [[]]
    cost = 0
    for piece in _cut_blocks(markdown, budget):
        if groups[-1] and cost + piece.cost > budget:
            if len(groups) == MAX_PARTS:
                return _leave_rest([_join(group) for group in groups[: MAX_PARTS - 1]], markdown)
            groups.append([])
            cost = 0
        groups[-1].append(piece)
        cost += piece.cost
    return [_join(group) for group in groups]


def _leave_rest(parts: list[Rendered], markdown: str) -> list[Rendered]:
    total = len(markdown.encode("utf-8", "replace"))
    shown = sum(len(part.body.encode()) for part in parts)
    parts[-1] = dataclasses.replace(parts[-1], overflow=Overflow(left_bytes=max(total - shown, 1), total_bytes=total))
    return parts


def _join(pieces: list[_Piece]) -> Rendered:
    body = "".join(
        piece.body if number == 0 else ("\n" if piece.follows_closely else "\n\n") + piece.body for number, piece in enumerate(pieces)
    )
    markup = _clean("\n".join(piece.markup for piece in pieces if piece.markup))
    inner = markup.removeprefix("<p>").removesuffix("</p>")
    is_one_paragraph = markup == f"<p>{inner}</p>" and "<p>" not in inner
    is_plain = not markup or (is_one_paragraph and "<" not in inner and html.unescape(inner) == body)
    return Rendered(body, None if is_plain else inner if is_one_paragraph else markup)


# --- blocks


def _cut_blocks(markdown: str, budget: int | None) -> Iterator[_Piece]:
    """Yield the text as pieces in order, none costing more than `budget`."""
    text = markdown.encode("utf-8", "replace").decode().replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    lines = text.split("\n")
    env: dict[str, Any] = {}
    tokens = _BLOCKS.parse(text, env)
    done = 0
    for block in _find_blocks(tokens):
        start, end = _lines_of(block)
        loose = _strip_lines(lines[done:start])  # what is no block: the definitions of reference links
        if loose:
            yield from _cut_text(loose, env, budget, is_shown=False)
        is_close = 0 < done == start
        pieces = _cut_block(block, lines, env, budget)
        for number, piece in enumerate(pieces):
            yield dataclasses.replace(piece, follows_closely=is_close) if number == 0 else piece
        done = max(done, end)
    loose = _strip_lines(lines[done:])
    if loose:
        yield from _cut_text(loose, env, budget, is_shown=False)


def _find_blocks(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Yield the slices of `tokens` that make up the outermost blocks."""
    start = depth = 0
    for number, token in enumerate(tokens):
        depth += token.nesting
        if depth == 0:
            yield tokens[start : number + 1]
            start = number + 1


def _lines_of(block: Sequence[Token]) -> tuple[int, int]:
    found = block[0].map or [0, 0]
    return found[0], found[1]


def _strip_lines(lines: list[str]) -> str:
    return "\n".join(lines).strip("\n").rstrip()


def _cut_block(block: Sequence[Token], lines: list[str], env: dict[str, Any], budget: int | None) -> Iterator[_Piece]:
    body = _plain(block, lines)
    if any(token.level > _DEEPEST_BLOCK for token in block):
        yield from _cut_text(body, env, budget, is_markdown=False)
        return
    if budget is None or _size(body) <= budget:
        piece = _Piece(body, _render(block, env))
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
        for inner in _find_blocks(block[1:-1]):
            yield from _cut_block(inner, lines, env, budget)
    elif len(block) > 1:
        yield from _cut_text(block[1].content, env, budget)
    else:
        yield from _cut_text(body, env, budget)


def _cut_list(block: Sequence[Token], lines: list[str], env: dict[str, Any], budget: int) -> Iterator[_Piece]:
    """Yield a list item by item, each a list of its own that keeps its number."""
    is_ordered = block[0].type == "ordered_list_open"
    number = int(block[0].attrs.get("start", 1)) if is_ordered else 0
    for item in _find_blocks(block[1:-1]):
        opening = f'<ol start="{number}">' if is_ordered else "<ul>"
        number += 1
        body = _plain(item, lines)
        if _size(body) <= budget:
            piece = _Piece(body, f"{opening}{_render(item, env)}</{'ol' if is_ordered else 'ul'}>", follows_closely=True)
            if piece.cost <= budget:
                yield piece
                continue
        yield from _cut_block(item, lines, env, budget)


def _cut_table(block: Sequence[Token], env: dict[str, Any], budget: int) -> Iterator[_Piece]:
    """Yield a table in groups of rows, the head on each; a row that is too long alone becomes paragraphs."""
    head, *body = _find_blocks(block[1:-1])
    names = _cells(head)
    top = _render(head, env)
    group: list[Sequence[Token]] = []
    cost = 0

    def close() -> Iterator[_Piece]:
        if group:
            shown = "".join(_render(row, env) for row in group)
            markup = f"<table>{top}<tbody>{shown}</tbody></table>"
            piece = _Piece(_layout([names, *(_cells(row) for row in group)]), markup)
            if piece.cost <= budget:
                yield piece
            else:
                for row in group:
                    for name, cell in zip(names, _cells(row), strict=False):
                        yield from _cut_text(f"{name}: {cell}", env, budget)
            group.clear()

    rows = [row for part in body for row in _rows(part)]
    widths = _widths([names, *(_cells(row) for row in rows)])
    room = budget - _size(top) - sum(max(_size(name), width) + width + 8 for name, width in zip(names, widths, strict=True)) - 60
    for row in rows:
        row_cost = _size(_render(row, env)) + 2
        row_cost += sum(max(_size(cell), width + _size(cell) - _width(cell)) + 3 for cell, width in zip(_cells(row), widths, strict=False))
        if cost + row_cost > room:
            yield from close()
            cost = 0
        group.append(row)
        cost += row_cost
    yield from close()


def _cut_code(token: Token, budget: int) -> Iterator[_Piece]:
    """Yield a code block in runs of lines, closed and opened again with its language."""
    room = budget - 2 * (_size(token.info[:80]) + 40) - 40
    for content in _cut_lines(token.content.removesuffix("\n"), room, lambda text: _size(text) + _size(html.escape(text))):
        yield _Piece(_fence(token, content), _show_code(token, content))


def _cut_lines(text: str, room: int, cost_of: Any) -> Iterator[str]:
    """Yield `text` in runs of whole lines that cost at most `room`; a line that is longer alone is cut anywhere."""
    run: list[str] = []
    cost = 0
    for line in text.split("\n"):
        for piece in _chop(line, room, cost_of):
            piece_cost = cost_of(piece) + 4
            if run and cost + piece_cost > room:
                yield "\n".join(run)
                run, cost = [], 0
            run.append(piece)
            cost += piece_cost
    yield "\n".join(run)


def _chop(line: str, room: int, cost_of: Any) -> Iterator[str]:
    """Yield `line` whole where it fits, else in pieces that do, each as long as the worst character allows."""
    if cost_of(line) + 4 <= room:
        yield line
        return
    worst = 24  # bytes of one character outside the basic plane in both texts
    step = max((room - 4) // worst, 1)
    for start in range(0, len(line), step):
        yield line[start : start + step]


def _cut_text(text: str, env: dict[str, Any], budget: int | None, *, is_shown: bool = True, is_markdown: bool = True) -> Iterator[_Piece]:
    """Yield running text in pieces, cut at a line's end, else after a sentence, else between words, else anywhere."""
    waiting = [text]
    while waiting:
        now = waiting.pop()
        if budget is None or _size(now) <= budget:
            as_written = f"<p>{html.escape(now, quote=False)}</p>"
            piece = _Piece(now, "" if not is_shown else f"<p>{_render_text(now, env)}</p>" if is_markdown else as_written)
            if budget is not None and piece.cost > budget and len(now) <= _SHORTEST_CUT:
                piece = _Piece(now, as_written)
            if budget is None or piece.cost <= budget:
                yield piece
                continue
        middle = _find_cut(now)
        waiting += [now[middle:].lstrip(" \n"), now[:middle].rstrip(" \n")]


def _find_cut(text: str) -> int:
    """Return where to halve `text`: the safest place in its middle third."""
    third = max(len(text) // 3, 1)
    middle = text[third : 2 * third]
    for mark in ("\n", ". ", " "):
        found = middle.rfind(mark)
        if found >= 0:
            return third + found + len(mark)
    return max(len(text) // 2, 1)


# --- the two texts of a block


def _render(block: Sequence[Token], env: dict[str, Any]) -> str:
    if block[0].type in ("fence", "code_block"):
        return _show_code(block[0], block[0].content)
    for token in block:
        if token.type == "inline" and not token.children:
            token.children = _parse_text(token.content, env)
    return str(_PARSER.renderer.render(block, _PARSER.options, env)).strip("\n")


def _parse_text(text: str, env: dict[str, Any]) -> list[Token]:
    deepest = depth = 0
    for mark in _BRACKETS.findall(text):
        depth = depth + 1 if mark == "[" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    if deepest > _DEEPEST_BRACKETS:
        return [Token("text", "", 0, content=text)]
    return _PARSER.parseInline(text, env)[0].children or []


def _render_text(text: str, env: dict[str, Any]) -> str:
    return str(_PARSER.renderer.render(_parse_text(text, env), _PARSER.options, env))


def _show_code(token: Token, content: str) -> str:
    language = token.info.split(maxsplit=1)[0] if token.info.strip() else ""
    kind = f' class="language-{html.escape(language)}"' if language else ""
    return f"<pre><code{kind}>{html.escape(content, quote=False).removesuffix(chr(10))}\n</code></pre>"


def _clean(markup: str) -> str:
    return nh3.clean(
        markup.strip("\n"),
        tags=set(_TAGS),
        attributes={name: set(kept) for name, kept in _ATTRIBUTES.items()},
        attribute_filter=_keep_attribute,
        url_schemes=set(_SCHEMES),
        url_relative="deny",
        link_rel=None,
    )


def _keep_attribute(tag: str, attribute: str, value: str) -> str | None:
    if tag == "code" and attribute == "class":
        return value if _LANGUAGE.fullmatch(value) else None
    return value


def _plain(block: Sequence[Token], lines: list[str]) -> str:
    """Return the block as it was written, a table laid out and an open code block closed."""
    kind = block[0].type
    if kind == "fence" and block[0].level == 0:
        return _fence(block[0], block[0].content.removesuffix("\n"))
    if kind == "table_open":
        return _layout([_cells(row) for part in _find_blocks(block[1:-1]) for row in _rows(part)])
    start, end = _lines_of(block)
    body = _strip_lines(lines[start:end])
    if kind == "fence" or any(token.type == "fence" for token in block):
        # Within quotes and lists the closing line is found by its marks; one that is missing is added.
        ticks = sum(1 for line in body.split("\n") if re.match(r"[\s>*+\-\d.)]*(`{3,}|~{3,})", line))
        body += "\n```" if ticks % 2 else ""
    return body


def _rows(part: Sequence[Token]) -> Iterator[Sequence[Token]]:
    return _find_blocks(part[1:-1])


def _fence(token: Token, content: str) -> str:
    longest = max((len(found) for found in _TICKS.findall(content)), default=2)
    marks = "`" * max(longest + 1, 3)
    return f"{marks}{token.info.strip()[:80]}\n{content}\n{marks}"


def _cells(row: Sequence[Token]) -> list[str]:
    return [token.content for token in row if token.type == "inline"]


def _layout(rows: list[list[str]]) -> str:
    """Return the rows in columns that line up in a monospaced font, a rule under the first."""
    widths = _widths(rows)

    def show(row: list[str]) -> str:
        return " | ".join(cell + " " * (widths[n] - _width(cell)) for n, cell in enumerate(row)).rstrip()

    return "\n".join([show(rows[0]), "-+-".join("-" * width for width in widths), *(show(row) for row in rows[1:])])


def _widths(rows: list[list[str]]) -> list[int]:
    count = max(len(row) for row in rows)
    return [max(3, min(max((_width(row[n]) for row in rows if n < len(row)), default=0), _WIDEST_COLUMN)) for n in range(count)]


def _width(text: str) -> int:
    """Return the columns that `text` takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)
