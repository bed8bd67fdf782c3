"""What a message holds besides plain text: code, quoted lines, links, comments and source blocks, taken out whole.

Promise: linear in the text on any input; a construct that is never closed costs one look to the end of the text.
How: one pass from left to right; whatever begins first wins. At each line the kind of the line is decided, within it `_EVENT` finds the
next place where something may begin. A search that may fail keeps what it learnt (failed attributes, runs of backticks, defined labels).
Not here: quotation marks and the tags themselves (reading).
"""

from __future__ import annotations

import re

WHITE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White space of Unicode (property White_Space), for a character class; Python's own has four separators more."""

_OUT = "\x00"
"""Stands for a construct: no white space, no punctuation, no mark, so a tag that touches it is none."""
_OUT_BRACKET = "["
"""Stands for a construct that begins with a bracket, which TAG-3 names."""

_ITEM = r"(?:[ ]{0,3}(?:[-+*]|[0-9]{1,9}[.)])(?:[ ]{1,4}|\t))*+"
_FENCE = r"`{3,}+(?=[^`\n]*+(?:\n|\Z))|~{3,}+"
_LINE = re.compile(
    rf"""
    (?P<blank>[ \t]*+(?:\n|\Z))
    |(?P<indented>[ ]{{4}}|[ ]{{0,3}}\t)
    |[ ]{{0,3}}(?P<quote>>)
    |[ ]{{0,3}}(?P<definition>\[)
    |(?P<fence>(?P<item>{_ITEM})[ ]{{0,3}}(?P<mark>{_FENCE}))
    """,
    re.VERBOSE,
)
"""Lines that are more than text; a fence may stand behind list markers."""
_BREAK = re.compile(rf"\n(?:[ \t]*+(?:\n|\Z)|[ ]{{0,3}}>|{_ITEM}[ ]{{0,3}}(?:{_FENCE}))")
"""A line that ends a paragraph, which no link crosses."""
_FENCE_END = re.compile(r"\n([ ]*+)(`{3,}+|~{3,}+)[ \t]*+(?=\n|\Z)")

_EVENT = re.compile(
    r"`|<|\[|\]"
    r"|:(?=//)(?<=[A-Za-z0-9+.\-]:)|:(?<=[Mm][Aa][Ii][Ll][Tt][Oo]:)(?<![^\W_][Mm][Aa][Ii][Ll][Tt][Oo]:)"
    r"|\.(?<=[Ww][Ww][Ww]\.)(?<![^\W_][Ww][Ww][Ww]\.)"
    r"|\n(?=[ \t\n>`~\-+*0-9\[]|\Z)",
)
"""A place where a construct may begin or a link's text may end; each alternative starts with a literal, which makes the search fast."""
_RUN = re.compile(r"`++")
_NOT_WHITE = re.compile(rf"[^{WHITE}]++")
_SCHEME_TAIL = "0123456789+.-"

_CONTROL = r"\x00-\x20\x7f"
"""What ends the address of a link in CommonMark."""
_AUTOLINK = re.compile(rf"<(?:[A-Za-z][A-Za-z0-9+.\-]{{1,31}}:[^<>{_CONTROL}]*+|[^<>@{WHITE}]++@[^<>@{WHITE}]++)>")
_NAME = rf"([^\W\d][\w.:\-]*+)(?=[>{WHITE}]|/>)"
_TAG_OPEN = re.compile(rf"<{_NAME}")
_TAG_CLOSE = re.compile(rf"</{_NAME}[{WHITE}]*+>")
_MARKUP = re.compile(rf"<(?:!--|(/?){_NAME})")
_TO_TAG_END = re.compile(r"[^<>=]*+")
_ATTRIBUTE = re.compile(rf"""=[{WHITE}]*+(?:"[^"]*+"|'[^']*+')?+""")

_SPACE = r"[ \t]*+(?:\n[ \t]*+)?+"
_ANGLED = r"<(?:[^<>\n])*+>"
_PLAIN = rf"(?:[^()\\{_CONTROL}]++|\\[()]?+)"
_NESTED = rf"(?:{_PLAIN}|\((?:{_PLAIN}|\((?:{_PLAIN}|\({_PLAIN}*+\))*+\))*+\))"
_TITLE = r"""(?:"[^"]*+"|'[^']*+'|\((?:[^()\\]|\\[()]|\\)*+\))"""
_LINK_TAIL = re.compile(rf"\({_SPACE}(?:(?:{_ANGLED}|(?!<){_NESTED}++)(?:(?=\s){_SPACE}{_TITLE})?+{_SPACE})?+\)")
_LABEL = re.compile(r"\[(?:[^\[\]\\]|\\[\[\]]|\\){0,999}+\]")
_DEFINITION = re.compile(
    rf"[ ]{{0,3}}\[((?:[^\[\]\\]|\\[\[\]]|\\){{1,999}}+)\]:{_SPACE}(?:{_ANGLED}|(?!<)[^{_CONTROL}]++)"
    rf"(?:(?=\s){_SPACE}{_TITLE}[ \t]*+(?=\n|\Z)|[ \t]*+(?=\n|\Z))",
)


def mask(text: str) -> str:
    """Return `text` with one character in the place of each construct and LF at the end of each line.

    A construct that crosses lines leaves a line end, so that what follows it is on a line of its own.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if _LINE.match(text) is None and _EVENT.search(text) is None:
        return text
    return _Pass(text).run()


class _Pass:
    """One pass over one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._spans: list[tuple[int, int]] = []
        """Constructs, in order, none within another."""
        self._brackets: list[int] = []
        """Where links or images may have begun in this paragraph."""
        self._innermost = -1
        """The bracket that has no other behind it so far."""
        self._shortcuts: list[tuple[int, int, str]] = []
        """Texts in brackets that are links if their label is defined anywhere."""
        self._labels: set[str] = set()
        self._failed: set[int] = set()
        """Places of `=` from which no tag ends; another tag that comes by ends there too."""
        self._runs: dict[int, int] = {}
        """For each run of backticks of the lines looked at where its partner ends, 0 without one."""
        self._runs_end = -1

    def run(self) -> str:
        """Return the masked text."""
        text, size = self._text, len(self._text)
        position = self._begin_line(0)
        while position < size:
            event = _EVENT.search(text, position)
            if event is None:
                break
            at = event.start()
            char = text[at]
            if char == "\n":
                position = self._begin_line(at + 1)
            elif char == "`":
                position = self._skip_code(at)
            elif char == "<":
                position = self._skip_angle(at)
            elif char == "[":
                position = at + 1
                self._open_bracket(at)
            elif char == "]":
                position = self._close_bracket(at)
            else:
                position = self._skip_url(at)
        return self._cut()

    def _begin_line(self, start: int) -> int:
        """Take a line out that is more than text; return where to go on."""
        text = self._text
        found = _LINE.match(text, start)
        if found is None:
            return start
        kind = found.lastgroup
        if kind == "definition":
            return self._take_definition(start)
        if kind != "indented":
            self._brackets.clear()
        if kind == "blank":
            return self._find_line_end(start)
        if kind == "fence":
            return self._take(start, self._find_fence_end(len(found["item"]), found["mark"], found.end()))
        return self._take(start, self._find_line_end(start))

    def _take_definition(self, start: int) -> int:
        definition = _DEFINITION.match(self._text, start)
        if definition is None or _BREAK.search(self._text, start, definition.end()):
            return start
        self._labels.add(_fold_label(definition[1]))
        return self._take(start, definition.end())

    def _find_line_end(self, start: int) -> int:
        end = self._text.find("\n", start)
        return end if end >= 0 else len(self._text)

    def _find_fence_end(self, indent: int, mark: str, start: int) -> int:
        for found in _FENCE_END.finditer(self._text, start):
            if found[2][0] == mark[0] and len(found[2]) >= len(mark) and len(found[1]) <= indent + 3:
                return found.end()
        return len(self._text)

    def _skip_code(self, start: int) -> int:
        """Take inline code out; a run without a partner stays, as a mark without one."""
        if start >= self._runs_end:
            self._look_at_runs(start)
        end = self._runs[start]
        if end > 0:
            self._spans.append((start, end))
            return end
        return -end

    def _look_at_runs(self, start: int) -> None:
        """Find the partner of each run of backticks from here to the end of the line."""
        text = self._text
        self._runs_end = self._find_line_end(start)
        self._runs.clear()
        last: dict[int, int] = {}
        for run in reversed([found.span() for found in _RUN.finditer(text, start, self._runs_end)]):
            size = run[1] - run[0]
            self._runs[run[0]] = last.get(size, -run[1])
            last[size] = run[1]

    def _skip_angle(self, start: int) -> int:
        """Take a comment, an autolink or a source block out."""
        text = self._text
        if text.startswith("<!--", start):
            return self._take(start, self._find_comment_end(start + 4))
        tag = _TAG_OPEN.match(text, start)
        if tag is None:
            alone = _AUTOLINK.match(text, start) or _TAG_CLOSE.match(text, start)
            return start + 1 if alone is None else self._take(start, alone.end())
        end = self._find_tag_end(tag.end())
        if end < 0:
            return start + 1
        return self._take(start, end if text[end - 2] == "/" else self._find_block_end(tag[1], end))

    def _find_comment_end(self, start: int) -> int:
        end = self._text.find("-->", start)
        return end + 3 if end >= 0 else len(self._text)

    def _find_tag_end(self, position: int) -> int:
        """Return where the tag ends whose name ends at `position`, -1 where it does not."""
        text, size = self._text, len(self._text)
        seen: list[int] = []
        while True:
            found = _TO_TAG_END.match(text, position)
            position = found.end() if found is not None else size
            char = text[position : position + 1]
            if char == ">":
                return position + 1
            if char != "=" or position in self._failed:
                self._failed.update(seen)
                return -1
            seen.append(position)
            value = _ATTRIBUTE.match(text, position)
            position = value.end() if value is not None else size

    def _find_block_end(self, name: str, position: int) -> int:
        """Return where the block of this name ends; the end of the text where it does not."""
        text = self._text
        depth = 1
        while True:
            found = _MARKUP.search(text, position)
            if found is None:
                return len(text)
            position = found.end()
            if found[2] is None:
                position = self._find_comment_end(position)
                continue
            end = self._find_tag_end(position)
            if end < 0:
                continue
            position = end
            if found[2] == name:
                depth += -1 if found[1] else text[end - 2] != "/"
                if not depth:
                    return end

    def _open_bracket(self, at: int) -> None:
        before = self._text[at - 1] if at else ""
        if before == "\\":
            return
        self._brackets.append(at - 1 if before == "!" else at)
        self._innermost = at

    def _close_bracket(self, at: int) -> int:
        """Take a link out whose text ends here; return where to go on."""
        text = self._text
        if not self._brackets or text[at - 1] == "\\":
            return at + 1
        start = self._brackets.pop()
        tail = _LINK_TAIL.match(text, at + 1) or _LABEL.match(text, at + 1)
        if tail is not None and not _BREAK.search(text, at + 1, tail.end()):
            return self._take(start, tail.end())
        if start in (self._innermost, self._innermost - 1) and at - start <= _MAX_LABEL_CHARS:
            self._shortcuts.append((start, at + 1, text[self._innermost + 1 : at]))
        return at + 1

    def _skip_url(self, at: int) -> int:
        """Take a bare URL out, from its `://`, `www.` or `mailto:` up to white space."""
        text = self._text
        if text.startswith("://", at):
            before = at - 1
            while before >= 0 and text[before] in _SCHEME_TAIL:
                before -= 1
            if before < 0 or not (text[before].isascii() and text[before].isalpha()):
                return at + 1
        found = _NOT_WHITE.match(text, at)
        end = found.end() if found is not None else at + 1
        return self._close_within(at, end) or self._take(at, end)

    def _close_within(self, start: int, end: int) -> int:
        """Return the end of the link whose text ends within this URL, 0 without one: the link began first."""
        inner = 0
        for bracket in _BRACKET.finditer(self._text, start, end) if self._brackets else ():
            if bracket[0] == "[":
                inner += 1
            elif inner:
                inner -= 1
            else:
                after = self._close_bracket(bracket.start())
                if after > bracket.end():
                    return after
        return 0

    def _take(self, start: int, end: int) -> int:
        """Write a construct down, in the place of those within it; return its end."""
        spans = self._spans
        while spans and spans[-1][0] >= start:
            spans.pop()
        spans.append((start, end))
        return end

    def _cut(self) -> str:
        """Return the text with the constructs taken out."""
        text, spans = self._text, self._spans
        if self._labels and self._shortcuts:
            defined = [(start, end) for start, end, label in self._shortcuts if _fold_label(label) in self._labels]
            spans = _merge(spans, defined)
        pieces: list[str] = []
        kept = 0
        for start, end in spans:
            pieces.append(text[kept:start])
            pieces.append(_OUT_BRACKET if text[start] == "[" else _OUT)
            if text.find("\n", start, end) >= 0:
                pieces.append("\n" + _OUT)
            kept = end
        pieces.append(text[kept:])
        return "".join(pieces)


_MAX_LABEL_CHARS = 1001
_BRACKET = re.compile(r"(?<!\\)[\[\]]")


def _fold_label(label: str) -> str:
    """Return a label as it is compared: case and white space don't count."""
    return " ".join(label.split()).casefold()


def _merge(spans: list[tuple[int, int]], more: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return all spans in order, those that overlap as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans + more):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
