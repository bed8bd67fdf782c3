"""What a message holds besides plain text: code, quoted lines, links, comments and source blocks, taken out whole.

Promise: linear in the text on any input; a construct that is never closed costs one look to the end of the text.
How: one pass from left to right; whatever begins first wins. What `grammar` does not match whole is decided by `_Pass`, which keeps
what failed searches learnt: runs of backticks, attributes, brackets.
Not here: quotation marks and the tags themselves (reading).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hayate_matrix.core.hashtags.grammar import (
    BRACKETS,
    DEFINED,
    FENCE_END,
    LINK_END,
    LONG_RUN,
    LONGEST_KNOWN_RUN,
    MARKUP,
    PARAGRAPH_END,
    QUOTED_VALUE,
    SHORTCUT,
    TO_TAG_END,
    URL_REST,
    choose_event,
)

if TYPE_CHECKING:
    import re

_OUT = "\x00"
"""Stands for a construct: no white space, no punctuation, no mark, so a tag that touches it is none."""
_OUT_BRACKET = "["
"""Stands for a construct that begins with a bracket, which TAG-3 names."""

Span = tuple[int, int]


def mask(text: str) -> str:
    """Return `text` with one character in the place of each construct.

    A construct that crosses lines leaves a line end, so that what follows it is on a line of its own.

    Args:
        text: a line end, then the message, whose lines end with LF.
    """
    search = choose_event(text).search
    event = search(text)
    if event is None:
        return text
    spans: list[Span] = []
    reader: _Pass | None = None
    while event is not None:
        if event.lastgroup is None:
            start, position = event.span()
            spans.append((start + 1, position) if text[start] == "\n" else (start, position))
        else:
            reader = reader or _Pass(text, spans)
            position = reader.handle(event)
        event = search(text, position)
    return _cut(text, reader.finish() if reader is not None else spans)


def _cut(text: str, spans: list[Span]) -> str:
    pieces: list[str] = []
    kept = 0
    has_lines = "\n" in text[1:]
    for start, end in spans:
        pieces += (text[kept:start], _OUT_BRACKET if text[start] == "[" else _OUT)
        if has_lines and text.find("\n", start, end) >= 0:
            pieces.append("\n" + _OUT)
        kept = end
    pieces.append(text[kept:])
    return "".join(pieces)


class _Pass:
    """What one pass over one text has to remember."""

    def __init__(self, text: str, spans: list[Span]) -> None:
        self._text = text
        self._spans = spans
        """Constructs so far, in order, none within another."""
        self._labels: set[str] = set()
        """Labels that are defined anywhere in the text."""
        self._failed: set[int] = set()
        """Places of `=` from which no tag ends; another tag that comes by ends there too."""
        self._runs: dict[int, int] = {}
        """For each long run of backticks of a line where its partner ends; without one where it ends itself, negative."""
        self._runs_end = -1
        self._openers: list[Span] = []
        """Runs of brackets that are open in this paragraph, as far as was looked."""
        self._looked_at = 0
        self._spans_passed = 0

    def handle(self, event: re.Match[str]) -> int:
        """Decide what has begun here; return where to go on."""
        start, end = event.span()
        match event.lastgroup:
            case "backticks":
                return self._skip_code(start, end)
            case "comment":
                end = self._find_comment_end(end)
            case "flat":
                pass
            case "tag":
                end = self._skip_block(event["tag"], end)
            case "tail":
                return self._close_link(start, start, end) or start + 1
            case "definitions" | "definition" as kind:
                start += 1
                end = self._define(event[kind], start, end, is_one=kind == "definition")
            case "fence":
                start += 1
                end = self._find_fence_end(len(event["item"]), event["fence"], end)
            case kind:
                if kind == "odd_url":
                    end = self._find_url_end(start)
                if end > start and (after := self._close_within(start, end)):
                    return after
        return self._take(start, end) if end > start else start + 1

    def finish(self) -> list[Span]:
        """Return all constructs in order, with those that only the whole text shows: `[label]` where the label is defined."""
        if not self._labels:
            return self._spans
        labels = {_fold_label(label) for label in self._labels}
        known: dict[str, bool] = {}
        shortcuts: list[Span] = []
        spans = iter([*self._spans, (len(self._text), len(self._text))])
        begin, stop = next(spans)
        for found in SHORTCUT.finditer(self._text):
            label = found["label"]
            if label not in known:
                known[label] = _fold_label(label) in labels
            if known[label]:
                start, end = found.span()
                while stop <= start:
                    begin, stop = next(spans)
                is_free = begin > start
                while stop < end:
                    begin, stop = next(spans)
                if is_free and begin >= end:
                    shortcuts.append((start, end))
        return _merge(sorted(self._spans + shortcuts)) if shortcuts else self._spans

    def _take(self, start: int, end: int) -> int:
        """Write a construct down, in the place of those within it; return its end."""
        spans = self._spans
        while spans and spans[-1][0] >= start:
            spans.pop()
        spans.append((start, end))
        return end

    # Lines

    def _define(self, lines: str, start: int, end: int, *, is_one: bool) -> int:
        """Remember the labels of these definitions; return where they end, 0 where they are none."""
        if PARAGRAPH_END.search(self._text, start, end):
            return 0
        labels = DEFINED.findall(lines)
        self._labels.update(labels[:1] if is_one else labels)
        return end

    def _find_fence_end(self, indent: int, mark: str, start: int) -> int:
        for found in FENCE_END.finditer(self._text, start):
            if found[2][0] == mark[0] and len(found[2]) >= len(mark) and len(found[1]) <= indent + 3:
                return found.end()
        return len(self._text)

    # Inline code

    def _skip_code(self, start: int, end: int) -> int:
        """Take inline code out; a run without a partner stays, as a mark without one. Shorter runs that have one the grammar knows."""
        if end - start <= LONGEST_KNOWN_RUN:
            return end
        if start >= self._runs_end:
            self._look_at_runs(start)
        end = self._runs[start]
        return self._take(start, end) if end > start else -end

    def _look_at_runs(self, start: int) -> None:
        """Find the partner of each long run of backticks from here to the end of the line."""
        end = self._text.find("\n", start)
        self._runs_end = end if end >= 0 else len(self._text)
        self._runs.clear()
        last: dict[int, int] = {}
        for begin, stop in reversed([found.span() for found in LONG_RUN.finditer(self._text, start, self._runs_end)]):
            self._runs[begin] = last.get(stop - begin, -stop)
            last[stop - begin] = stop

    # Source blocks

    def _find_comment_end(self, start: int) -> int:
        end = self._text.find("-->", start)
        return end + 3 if end >= 0 else len(self._text)

    def _skip_block(self, name: str, end: int) -> int:
        """Return where a source block ends, or a tag that closes itself; -1 where none has begun."""
        end = self._find_tag_end(end)
        return end if end < 0 or self._text[end - 2] == "/" else self._find_block_end(name, end)

    def _find_tag_end(self, end: int) -> int:
        """Return where the tag ends that was read up to `end`: to its end, or to the `=` of a quoted value; -1 where it does not end."""
        text = self._text
        seen: list[int] = []
        while text[end - 1] != ">":
            if text[end - 1] != "=" or end in self._failed:
                self._failed.update(seen)
                return -1
            seen.append(end)
            value = QUOTED_VALUE.match(text, end - 1)
            rest = TO_TAG_END.match(text, value.end() if value is not None else end)
            end = rest.end() + 1 if rest is not None else end
            if end > len(text):
                self._failed.update(seen)
                return -1
        return end

    def _find_block_end(self, name: str, position: int) -> int:
        """Return where the block of this name ends; the end of the text where it does not."""
        text = self._text
        if text.find("</" + name, position) < 0:
            return len(text)
        depth = 1
        found = MARKUP.search(text, position)
        while found is not None:
            position = end = found.end()
            if found.lastgroup == "comment":
                position = self._find_comment_end(position)
            elif text[end - 1] != ">" and (end := self._find_tag_end(end)) < 0:
                position = found.end("name")
            else:
                position = end
                if found["name"] == name:
                    depth += -1 if found["closes"] else text[end - 2] != "/"
                    if not depth:
                        return end
            found = MARKUP.search(text, position)
        return len(text)

    # Links and URLs

    def _close_link(self, at: int, known: int, end: int) -> int:
        """Take the link out whose text ends at `at` and which ends at `end`; return its end, 0 where none has begun.

        Brackets are paired up to `known` and no further.
        """
        self._pair_brackets(known)
        if not self._openers or PARAGRAPH_END.search(self._text, at, end):
            return 0
        start = _pop(self._openers)
        self._take(start - 1 if self._text[start - 1] == "!" else start, end)
        self._looked_at = end
        self._spans_passed = len(self._spans)
        return end

    def _pair_brackets(self, end: int) -> None:
        """Go on with pairing brackets outside of constructs, up to `end`."""
        text, spans, openers = self._text, self._spans, self._openers
        if not openers and text.find("[", self._looked_at, end) < 0:
            self._looked_at = max(end, self._looked_at)
            return
        passed = self._spans_passed
        for found in BRACKETS.finditer(text, self._looked_at):
            start = found.start()
            if start >= end:
                break
            while passed < len(spans) and spans[passed][1] <= start:
                passed += 1
            if passed < len(spans) and spans[passed][0] <= start:
                continue
            char = text[start]
            if char == "\n":
                openers.clear()
            elif char == "[" and text[found.end() - 1] == "[":
                # the last of a run may begin a construct
                openers.append((start, min(found.end(), spans[passed][0]) if passed < len(spans) else found.end()))
            elif char == "[" and found.end() > end:  # this pair is closed at `end`
                openers.append((start, start + 1))
            elif char == "]" and openers:
                _pop(openers)
        self._spans_passed = passed
        self._looked_at = max(end, self._looked_at)

    def _close_within(self, start: int, end: int) -> int:
        """Return the end of the link whose text ends within this URL, 0 without one: the link began first."""
        inner = 0
        for found in LINK_END.finditer(self._text, start):
            at = found.start()
            if at >= end:
                break
            if self._text[at] == "[":
                inner += 1
            elif inner:
                inner -= 1
            elif found["tail"] is not None and (after := self._close_link(at, start, found.end())):
                return after
        return 0

    def _find_url_end(self, at: int) -> int:
        """Return where the URL ends whose `://` is here; 0 where no letter begins what stands in front, so that it is no scheme."""
        before = at - 1
        while self._text[before] in "0123456789+.-":
            before -= 1
        is_scheme = self._text[before].isascii() and self._text[before].isalpha()
        rest = URL_REST.match(self._text, at) if is_scheme else None
        return rest.end() if rest is not None else 0


def _pop(openers: list[Span]) -> int:
    """Take the last open bracket off and return its place."""
    first, end = openers.pop()
    if end - 1 > first:
        openers.append((first, end - 1))
    return end - 1


def _fold_label(label: str) -> str:
    """Return a label as it is compared: case and white space don't count."""
    return " ".join(label.split()).casefold()


def _merge(spans: list[Span]) -> list[Span]:
    """Return sorted spans with those that overlap as one."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
