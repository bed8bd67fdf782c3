"""The tags of a message once more: character by character, no regular expression, slow and plain; the oracle of `parse_tags`."""

from __future__ import annotations

import string

WHITE = set("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(code) for code in range(0x2000, 0x200B)}
LETTERS = set(string.ascii_letters)
LETTERS_AND_DIGITS = LETTERS | set(string.digits)
PAIRS = ['""', "''", "“”", "‘’", "’’", "„“", "„”", "‚‘", "‚’", "«»", "»«", "‹›", "›‹", "「」", "『』"]
MARKS = set("".join(PAIRS))
OPENERS = {pair[0] for pair in PAIRS}
GONE = "\x00"
GONE_BRACKET = "["


def slow_tags(text: str) -> tuple[str, ...]:
    """Return what `parse_tags` must return."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    found: list[str] = []
    for line in _Reader(text).without_constructs().split("\n"):
        found += [tag for tag in _line_tags(line) if tag not in found]
        found = list(dict.fromkeys(found))
    return tuple(found[:32])


def _line_tags(line: str) -> list[str]:
    """TAG-1 to TAG-4, TAG-6 and TAG-7 for one line."""
    quotations: list[str] = []
    tags = []
    for i, char in enumerate(line):
        if char == "`":
            break
        if char in MARKS:
            if quotations and quotations[-1] + char in PAIRS:
                quotations.pop()
            elif any(opener + char in PAIRS for opener in quotations) or char not in OPENERS:
                break
            else:
                quotations.append(char)
        elif char == "#" and not quotations and (i == 0 or line[i - 1] in WHITE):
            tags += _tag_at(line, i + 1)
    return tags


def _tag_at(line: str, start: int) -> list[str]:
    end = start
    while end < len(line) and line[end] in LETTERS_AND_DIGITS | {"-"}:
        end += 1
    word, rest = line[start:end], line[end:]
    if word[:1] not in LETTERS or "" in word.split("-") or len(word) > 64:
        return []
    if rest and rest[0] not in WHITE and rest[0] not in ".,;:!?…)]}":
        return []
    behind = rest.lstrip(".:…")
    if behind != rest and behind and (behind[0].isalnum() or behind[0] in "/["):
        return []
    return [word.lower()]


class _Reader:
    """TAG-5 and TAG-9: the constructs, from left to right, whatever begins first."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.labels: set[str] = set()
        self.out: list[tuple[int, int]] = []
        self.brackets: list[int] = []
        self.shortcuts: list[tuple[int, int]] = []

    def without_constructs(self) -> str:
        text = self.text
        i = 0
        while i < len(text):
            if i == 0 or text[i - 1] == "\n":
                end = self.line_construct(i)
                if end is not None:
                    i = self.take(i, end)
                    if i < len(text):
                        i += 1  # over the line end
                    continue
            i = self.inline(i)
        marked: list[str | None] = list(text)
        for start, end in self.shortcuts:
            if _fold(text[start + 1 : end - 1].removeprefix("[")) in self.labels:
                self.out.append((start, end))
        for start, end in sorted(self.out):
            for k in range(start, end):
                marked[k] = "\n" if text[k] == "\n" else GONE
            if end > start and text[start] == "[":
                marked[start] = GONE_BRACKET
        return "".join(char or "" for char in marked)

    def take(self, start: int, end: int) -> int:
        self.out.append((start, end))
        return end

    def line_end(self, i: int) -> int:
        while i < len(self.text) and self.text[i] != "\n":
            i += 1
        return i

    # The kinds of lines

    def line_construct(self, i: int) -> int | None:
        """Return the end of the construct that this line begins, None where it is text."""
        line = self.text[i : self.line_end(i)]
        if not line.strip(" \t"):
            self.brackets.clear()
            return None
        if _is_indented(line):
            return self.line_end(i)
        if line.lstrip(" ").startswith(">"):
            self.brackets.clear()
            return self.line_end(i)
        fence = _opening_fence(line)
        if fence:
            self.brackets.clear()
            return self.fence_end(self.line_end(i) + 1, *fence)
        return self.definition_end(i)

    def fence_end(self, i: int, width: int, char: str, size: int) -> int:
        while i < len(self.text):
            line = self.text[i : self.line_end(i)]
            closing = line.lstrip(" ").rstrip(" \t")
            if set(closing) == {char} and len(closing) >= size and len(line) - len(line.lstrip(" ")) <= width + 3:
                return self.line_end(i)
            i = self.line_end(i) + 1
        return len(self.text)

    def definition_end(self, start: int) -> int | None:
        i = self.blanks_end(start)
        label_end = self.label_end(i)
        if label_end is None or label_end - i < 3 or self.text[label_end : label_end + 1] != ":":
            return None
        label = self.text[i + 1 : label_end - 1]
        i = self.space_end(label_end + 1)
        if self.text[i : i + 1] == "<":
            end = self.angled_end(i)
        else:
            end = next((k for k in range(i, len(self.text)) if _is_control(self.text[k])), len(self.text))
        if end is None or end == i:
            return None
        after = self.space_end(end)
        title = self.title_end(after) if after > end else None
        stop = self.blanks_end(end if title is None else title)
        if title is not None and stop != self.line_end(stop):
            stop = self.blanks_end(end)
        if stop != self.line_end(stop) or self.crosses_block(start, stop):
            return None
        self.labels.add(_fold(label))
        return stop

    def blanks_end(self, i: int) -> int:
        while self.text[i : i + 1] in ("\t", " "):
            i += 1
        return i

    # What may begin anywhere

    def inline(self, i: int) -> int:
        """Take out what begins here; return where to go on."""
        char = self.text[i]
        if char == "`":
            return self.code(i)
        if char == "<":
            return self.angle(i)
        if char == "[" and self.text[i - 1 : i] != "\\":
            self.brackets.append(i)
        elif char == "]" and self.text[i - 1 : i] != "\\" and self.brackets:
            return self.close_bracket(i)
        elif char in ":.":
            return self.url(i)
        return i + 1

    def code(self, i: int) -> int:
        end = i
        while self.text[end : end + 1] == "`":
            end += 1
        size = end - i
        k = end
        while k < self.line_end(i):
            if self.text[k] != "`":
                k += 1
                continue
            run = k
            while self.text[k : k + 1] == "`":
                k += 1
            if k - run == size:
                return self.take(i, k)
        return end

    def angle(self, i: int) -> int:
        if self.text.startswith("<!--", i):
            return self.take(i, self.comment_end(i))
        tag = self.markup(i)
        if tag is None:
            end = self.autolink_end(i)
            return i + 1 if end is None else self.take(i, end)
        name, kind, end, is_plain = tag
        if kind == "closes":
            return self.take(i, end) if is_plain else i + 1
        if kind == "is empty":
            return self.take(i, end)
        depth = 1
        while depth:
            if end >= len(self.text):
                return self.take(i, len(self.text))
            if self.text.startswith("<!--", end):
                end = self.comment_end(end)
                continue
            inner = self.markup(end) if self.text[end] == "<" else None
            if inner is None:
                end += 1
                continue
            if inner[0] == name:
                depth += {"opens": 1, "closes": -1, "is empty": 0}[inner[1]]
            end = inner[2]
        return self.take(i, end)

    def comment_end(self, i: int) -> int:
        end = self.text.find("-->", i + 4)
        return len(self.text) if end < 0 else end + 3

    def markup(self, i: int) -> tuple[str, str, int, bool] | None:
        """Read one tag: its name, what it does, where it ends, whether it has nothing but its name."""
        k = i + 1
        closes = self.text[k : k + 1] == "/"
        k += closes
        start = k
        while k < len(self.text) and (self.text[k].isalnum() or self.text[k] in "_.:-"):
            k += 1
        name = self.text[start:k]
        if not name or not (name[0].isalpha() or name[0] == "_" or (name[0].isalnum() and not name[0].isdecimal())):
            return None
        if not (self.text[k : k + 1] == ">" or self.text[k : k + 1] in WHITE or self.text[k : k + 2] == "/>"):
            return None
        after = k
        while True:
            if k >= len(self.text) or self.text[k] == "<":
                return None
            if self.text[k] == ">":
                break
            if self.text[k] == "=":
                value = k + 1
                while self.text[value : value + 1] in WHITE and value < len(self.text):
                    value += 1
                quote = self.text[value : value + 1]
                if quote in ("'", '"') and self.text.find(quote, value + 1) >= 0:
                    k = self.text.find(quote, value + 1)
            k += 1
        kind = "closes" if closes else "is empty" if self.text[k - 1] == "/" else "opens"
        return name, kind, k + 1, not set(self.text[after:k]) - WHITE

    def autolink_end(self, i: int) -> int | None:
        end = self.text.find(">", i)
        inside = self.text[i + 1 : end] if end > 0 else ""
        if "<" in inside:
            return None
        scheme, colon, address = inside.partition(":")
        is_scheme = 2 <= len(scheme) <= 32 and scheme[0] in LETTERS and not set(scheme) - LETTERS_AND_DIGITS - set("+.-")
        if colon and is_scheme and not any(_is_control(char) for char in address):
            return end + 1
        person, at, server = inside.partition("@")
        if at and person and server and not set(inside) & WHITE and "@" not in server:
            return end + 1
        return None

    def close_bracket(self, i: int) -> int:
        start = self.brackets.pop()
        end = self.tail_or_label_end(i + 1)
        if end is not None:
            return self.take(start - (self.text[start - 1 : start] == "!"), end)
        inside = self.text[start + 1 : i].replace("\\[", "").replace("\\]", "")
        if not set(inside) & set("[]"):
            self.shortcuts.append((start, i + 1))
        return i + 1

    def begins_url(self, i: int) -> bool:
        text = self.text
        if text.startswith("://", i):
            k = i
            while k > 0 and text[k - 1] in LETTERS_AND_DIGITS | set("+.-"):
                k -= 1
            return bool(set(text[k:i]) & LETTERS)
        for word in ("mailto:", "www."):
            start = i + 1 - len(word)
            if start >= 0 and text[start : i + 1].lower() == word and not text[max(start - 1, 0) : start].isalnum():
                return text[i + 1 : i + 2] not in WHITE | {""}
        return False

    def url(self, i: int) -> int:
        text = self.text
        if not self.begins_url(i):
            return i + 1
        end = i
        while end < len(text) and text[end] not in WHITE:
            end += 1
        depth = 0
        for k in range(i, end):
            if text[k - 1] == "\\" or text[k] not in "[]":
                continue
            if text[k] == "[":
                depth += 1
            elif depth:
                depth -= 1
            elif self.brackets and self.tail_or_label_end(k + 1) is not None:
                return self.close_bracket(k)
        return self.take(i, end)

    # Parts of links

    def crosses_block(self, start: int, end: int) -> bool:
        """Whether a blank line, a quoted line or a fence begins behind one of these characters."""
        for k in range(start, end):
            if self.text[k] == "\n":
                line = self.text[k + 1 : self.line_end(k + 1)]
                quoted = line.lstrip(" ").startswith(">") and not line.startswith("    ")
                if not line.strip(" \t") or quoted or _opening_fence(line):
                    return True
        return False

    def space_end(self, i: int) -> int:
        """Return the end of blanks with at most one line end."""
        lines = 0
        while i < len(self.text) and (self.text[i] in " \t" or (self.text[i] == "\n" and not lines)):
            lines += self.text[i] == "\n"
            i += 1
        return i

    def label_end(self, i: int) -> int | None:
        if self.text[i : i + 1] != "[":
            return None
        k, size = i + 1, 0
        while k < len(self.text) and size <= 999:
            if self.text[k : k + 2] in ("\\[", "\\]"):
                k += 1
            elif self.text[k] == "]":
                return k + 1
            elif self.text[k] == "[":
                return None
            k, size = k + 1, size + 1
        return None

    def angled_end(self, i: int) -> int | None:
        for k in range(i + 1, self.line_end(i)):
            if self.text[k] == ">":
                return k + 1
            if self.text[k] == "<":
                return None
        return None

    def title_end(self, i: int) -> int | None:
        opener = self.text[i : i + 1]
        if opener in ("'", '"') and opener:
            end = self.text.find(opener, i + 1)
            return None if end < 0 else end + 1
        if opener != "(":
            return None
        k = i + 1
        while k < len(self.text):
            if self.text[k : k + 2] in ("\\(", "\\)"):
                k += 1
            elif self.text[k] == ")":
                return k + 1
            elif self.text[k] == "(":
                return None
            k += 1
        return None

    def tail_or_label_end(self, i: int) -> int | None:
        """Return the end of what makes a text in brackets a link."""
        end = self.tail_end(i)
        if end is None:
            end = self.label_end(i)
        return None if end is None or self.crosses_block(i, end) else end

    def tail_end(self, i: int) -> int | None:
        """Return the end of `(address "title")`."""
        text = self.text
        if text[i : i + 1] != "(":
            return None
        k = self.space_end(i + 1)
        if text[k : k + 1] == ")":
            return k + 1
        end = self.angled_end(k) if text[k : k + 1] == "<" else self.address_end(k)
        if end is None:
            return None
        k = self.space_end(end)
        if k > end:
            title = self.title_end(k)
            if title is not None:
                k = self.space_end(title)
        return k + 1 if text[k : k + 1] == ")" else None

    def address_end(self, i: int) -> int | None:
        """Return the end of an address without blanks, with its parentheses in balance, at most three deep."""
        k, depth = i, 0
        while k < len(self.text) and not _is_control(self.text[k]):
            if self.text[k : k + 2] in ("\\(", "\\)"):
                k += 1
            elif self.text[k] == "(":
                depth += 1
                if depth > 3:
                    return None
            elif self.text[k] == ")":
                if not depth:
                    break
                depth -= 1
            k += 1
        return None if depth or k == i else k


def _opening_fence(line: str) -> tuple[int, str, int] | None:
    """Return the width of the list markers in front, the character and the length of the fence that this line opens."""
    width = 0
    while True:
        rest = line[width:]
        body = rest.lstrip(" ")
        if len(rest) - len(body) > 3:
            return None
        for char in "`~":
            size = len(body) - len(body.lstrip(char))
            if size >= 3 and not (char == "`" and "`" in body[size:]):
                return width, char, size
        if body[:1] in ("-", "+", "*"):
            after = body[1:]
        else:
            digits = len(body) - len(body.lstrip(string.digits))
            if not 1 <= digits <= 9 or body[digits : digits + 1] not in (".", ")"):
                return None
            after = body[digits + 1 :]
        if after.startswith("\t"):
            width = len(line) - len(after) + 1
        elif after.startswith(" "):
            width = len(line) - len(after) + min(4, len(after) - len(after.lstrip(" ")))
        else:
            return None


def _is_indented(line: str) -> bool:
    blanks = len(line) - len(line.lstrip(" "))
    return blanks >= 4 or line[blanks : blanks + 1] == "\t"


def _is_control(char: str) -> bool:
    return char <= " " or char == "\x7f"


def _fold(label: str) -> str:
    return " ".join(label.split()).casefold()
