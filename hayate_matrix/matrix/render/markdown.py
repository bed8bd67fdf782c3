"""Markdown parsed into blocks, and blocks shown as the HTML that Matrix allows."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DEEPEST_BRACKETS = 40
"""Square brackets open at once before a run of text is shown as it was written: the parser's work grows with their square."""
DEEPEST_BLOCK = 40
"""Quotes and lists nested deeper are shown as they were written."""
_MOST_NESTING = 60
"""Where the parser stops; it would drop what is inside, so it must be more than `DEEPEST_BLOCK`."""

_TAGS = (
    {"h1", "h2", "h3", "h4", "h5", "h6", "p", "div", "blockquote", "pre", "ul", "ol", "li", "hr"}
    | {"table", "thead", "tbody", "tr", "th", "td"}
    | {"a", "b", "strong", "i", "em", "u", "s", "del", "sup", "sub", "code", "span", "br"}
)
_ATTRIBUTES: dict[str, set[str]] = {"*": set(), "a": {"href"}, "ol": {"start"}, "code": {"class"}}
_SCHEMES = {"https", "http", "ftp", "mailto", "magnet"}
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,40}")
_BRACKETS = re.compile(r"[\[\]]")


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


PARSER = _make_parser()
BLOCKS = _make_parser().disable("inline")
"""Finds the blocks alone: what is inside one is parsed when it is known to fit, so that no part of the text is parsed many times."""


def find_blocks(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Yield the slices of `tokens` that make up the outermost blocks."""
    start = depth = 0
    for number, token in enumerate(tokens):
        depth += token.nesting
        if depth == 0:
            yield tokens[start : number + 1]
            start = number + 1


def show_block(block: Sequence[Token], env: dict[str, Any]) -> str:
    """Return a whole block, or an item or a row of one, as HTML."""
    if block[0].type in ("fence", "code_block"):
        return show_code(block[0], block[0].content)
    for token in block:
        if token.type == "inline" and not token.children:
            token.children = _parse_text(token.content, env)
    return str(PARSER.renderer.render(block, PARSER.options, env)).strip("\n")


def show_text(text: str, env: dict[str, Any]) -> str:
    """Return running text as HTML, its marks resolved with the link definitions of `env`."""
    return str(PARSER.renderer.render(_parse_text(text, env), PARSER.options, env))


def _parse_text(text: str, env: dict[str, Any]) -> list[Token]:
    deepest = depth = 0
    for mark in _BRACKETS.findall(text):
        depth = depth + 1 if mark == "[" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    if deepest > _DEEPEST_BRACKETS:
        return [Token("text", "", 0, content=text)]
    return PARSER.parseInline(text, env)[0].children or []


def find_language(token: Token) -> str:
    """Return the language that a code block names, or nothing where its first word can't be one."""
    language = token.info.split(maxsplit=1)[0] if token.info.strip() else ""
    return language if _LANGUAGE.fullmatch(language) else ""


def show_code(token: Token, content: str) -> str:
    """Return `content` as a code block in the language of `token`."""
    language = find_language(token)
    kind = f' class="language-{language}"' if language else ""
    return f"<pre><code{kind}>{html.escape(content, quote=False).removesuffix(chr(10))}\n</code></pre>"


def clean(markup: str) -> str:
    """Return `markup` with only the tags, attributes and addresses that Matrix lists."""
    return nh3.clean(
        markup.strip("\n"),
        tags=_TAGS,
        attributes={name: set(kept) for name, kept in _ATTRIBUTES.items()},
        attribute_filter=_keep_attribute,
        url_schemes=set(_SCHEMES),
        url_relative="deny",
        link_rel=None,
    )


def _keep_attribute(tag: str, attribute: str, value: str) -> str | None:
    if tag == "code" and attribute == "class":
        return value if _LANGUAGE.fullmatch(value.removeprefix("language-")) and value.startswith("language-") else None
    return value
