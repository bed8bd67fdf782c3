"""The patterns of what a message holds besides plain text.

Promise: no pattern backtracks over what it has read: repetitions are possessive, and a search that may fail is bounded by the character
that it looks for, which also begins the next search.
How: `choose_event` gives the pattern of the next construct. Most are matched whole; one that needs counting or memory has a group, by whose
name `constructs` knows what to do. Each alternative starts with a literal, which lets the search skip plain text fast.
"""

from __future__ import annotations

import re
from functools import cache

WHITE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White space of Unicode (property White_Space), for a character class; Python's own has four separators more."""

_SPACES = f"[{WHITE}]*+"
_WORD_END = f"(?![^{WHITE}])"
_CONTROL = r"\x00-\x20\x7f"
"""What ends the address of a link in CommonMark."""

# Lines. All patterns are for a text whose first line has a line end in front.
_ITEM = r"(?:[ ]{0,3}(?:[-+*]|[0-9]{1,9}[.)])(?:[ ]{1,4}|\t))*+"
_FENCE = r"(?:`{3,}+(?=[^`\n]*+(?:\n|\Z))|~{3,}+)"
_FLAT_FENCE = "|".join(rf"{mark}[^`~\n]*+(?:\n(?![ ]{{0,3}}{mark})[^\n]*+)*+\n{mark}[ \t]*+(?=\n|\Z)" for mark in ("```", "~~~"))
"""A fence in its usual form; where it is another one the next alternative has the same work once more, and no more than that."""
_QUOTED = r"[ ]{0,3}>"
_INDENTED = r"(?:[ ]{4}|[ ]{0,3}\t)"
BREAK = rf"\n(?=[ \t]*+(?:\n|\Z)|{_QUOTED}|{_ITEM}[ ]{{0,3}}{_FENCE})"
"""Where a paragraph ends; no link crosses it."""

# Links.
_GAP = r"[ \t]*+(?:\n[ \t]*+)?+"
_ANGLED = r"<[^<>\n]*+>"
_PLAIN = rf"(?:[^()\\{_CONTROL}]++|\\[()]?+)"
_NESTED = rf"(?:{_PLAIN}|\((?:{_PLAIN}|\((?:{_PLAIN}|\({_PLAIN}*+\))*+\))*+\))++"
_TITLE = r"""(?:"[^"]*+"|'[^']*+'|\((?:[^()\\]++|\\[()]?+)*+\))"""
_LABEL = r"(?:[^\[\]\\]|\\[\[\]]?+)"
_TAIL = (
    rf"(?:\({_GAP}(?:(?:{_ANGLED}|(?!<){_NESTED})(?:(?=[ \t\n]){_GAP}{_TITLE})?+{_GAP})?+\)"
    rf"|\[{_LABEL}{{0,999}}+\])"
)
"""What makes a text in brackets a link: `(address "title")` or `[label]`."""
_FLAT_TAIL = r"""(?:\([^()\[\]<>\\"' \t\n]*+(?: "[^"\n]*+")?+\)|\[[^\[\]\\\n]{0,999}+\])"""
"""The same in its usual forms, on one line."""
_FLAT_DEFINITION = (
    rf"[ ]{{0,3}}\[[^\[\]\\\n]{{1,999}}+\]:[ \t]*+(?:\n(?=[A-Za-z\[/#.]))?+[^<{_CONTROL}][^{_CONTROL}]*+"
    rf"""(?:[ \t]++"[^"\n]*+"[ \t]*+(?=\n|\Z)|[ \t]*+(?=\n|\Z)(?!\n[ \t]*+["'(]))"""
)
_DEFINITION = (
    rf"[ ]{{0,3}}\[{_LABEL}{{1,999}}+\]:{_GAP}(?:{_ANGLED}|(?!<)[^{_CONTROL}]++)"
    rf"(?:(?=[ \t\n]){_GAP}{_TITLE}[ \t]*+(?=\n|\Z)|[ \t]*+(?=\n|\Z))"
)

# Source blocks, comments, autolinks.
_NAME = rf"[^\W\d][\w.:\-]*+(?=[>{WHITE}]|/>)"
_ATTRIBUTES = rf"""[^<>=]*+(?:=(?!{_SPACES}["'])[^<>=]*+)*+"""
"""The rest of a tag up to its end or to a quoted value."""
_AUTOLINK = rf"(?:[A-Za-z][A-Za-z0-9+.\-]{{1,31}}:[^<>{_CONTROL}]*+|[^<>@{WHITE}]++@[^<>@{WHITE}]++)>"
MARKUP = re.compile(rf"<(?:(?P<comment>!--)|(?P<closes>/?)(?P<name>{_NAME}){_ATTRIBUTES}[>=])")
TO_TAG_END = re.compile(_ATTRIBUTES)
_QUOTED_VALUE = rf"""={_SPACES}(?:"[^"]*+"|'[^']*+')?+"""
QUOTED_VALUE = re.compile(_QUOTED_VALUE)

_URL_REST = rf"(?:[^{WHITE}\]]*+{_WORD_END}"
_MAILTO = r":(?<=[Mm][Aa][Ii][Ll][Tt][Oo]:)(?<![^\W_][Mm][Aa][Ii][Ll][Tt][Oo]:)"
_WWW = r"\.(?<=[Ww][Ww][Ww]\.)(?<![^\W_][Ww][Ww][Ww]\.)"

_WORDS = r"[\w ]*+"
"""What may stand between two constructs that are taken out as one: nothing in it could be a tag or a mark."""


def _repeat(construct: str) -> str:
    return rf"{construct}(?:{_WORDS}{construct})*+"


LONGEST_KNOWN_RUN = 3
"""Backticks of inline code that `_CODE` matches to its end; a run of these that it leaves has no partner."""
_CODE = "|".join(
    [
        _repeat(r"`(?!`)[^`\n]*+(?:``++[^`\n]*+)*+`(?!`)"),
        _repeat(r"``(?!`)[^`\n]*+(?:(?:```++|`(?!`))[^`\n]*+)*+``(?!`)"),
        _repeat(r"```(?!`)[^`\n]*+(?:(?:````++|`{1,2}(?!`))[^`\n]*+)*+```(?!`)"),
        r"`(?P<backticks>`*+)",
    ]
)
_COMMENT = _repeat(r"<!--(?:[^\-]++|-(?!->))*+-->").removeprefix("<")
_CLOSING_TAG = _repeat(rf"</{_NAME}{_SPACES}>").removeprefix("<")
_EMPTY_TAG = _repeat(rf"<{_NAME}[^<>=]*+(?<=/)>").removeprefix("<")
_FLAT_BLOCK = rf"(?P<flat>{_NAME})>[^<]*+</(?P=flat)>"
_TAG = rf"(?P<tag>{_NAME}){_ATTRIBUTES}(?:>|(?==){_QUOTED_VALUE}{_ATTRIBUTES}[>=])"
_ANGLES = (
    rf"<(?![<>={WHITE}])(?:{_COMMENT}|(?P<comment>!--)|(?={_NAME}[^<>=]*+[>=])(?:{_EMPTY_TAG}|{_FLAT_BLOCK}|{_TAG})"
    rf"|{_CLOSING_TAG}|{_AUTOLINK})"
)
_FLAT_LINK = rf"\[[^\[\]`<\\\n]*+\]{_FLAT_TAIL}"
_LINKS = rf"\[(?<![\\!]\[)[^\[\]`<\\\n]*+\]{_FLAT_TAIL}(?:{_FLAT_LINK})*+|!{_FLAT_LINK}|\](?<!\\\])(?P<tail>{_TAIL})"
_URLS = (
    rf":(?:(?<=[A-Za-z]:)|(?<=[A-Za-z][0-9+.\-]:))//{_URL_REST}|(?P<url>[^{WHITE}]*+))"
    rf"|:(?<=[0-9+.\-][0-9+.\-]:)(?P<odd_url>//)"
    rf"|{_MAILTO}(?=[^{WHITE}]){_URL_REST}|(?P<mailto>[^{WHITE}]*+))"
    rf"|{_WWW}(?=[^{WHITE}]){_URL_REST}|(?P<www>[^{WHITE}]*+))"
)
_LINES = (
    rf"\n(?=[ \t>`~\[\-+*0-9])(?:{_QUOTED}[^\n]*+(?:\n{_QUOTED}[^\n]*+)*+|{_INDENTED}[^\n]*+(?:\n{_INDENTED}[^\n]*+)*+"
    rf"|{_FLAT_FENCE}|(?P<definitions>{_FLAT_DEFINITION}(?:\n{_FLAT_DEFINITION})*+)"
    rf"|(?P<definition>{_DEFINITION})|(?P<item>{_ITEM})[ ]{{0,3}}(?P<fence>{_FENCE}))"
)


@cache
def _compile_event(*, has_angles: bool, has_links: bool) -> re.Pattern[str]:
    return re.compile("|".join([_CODE, *([_ANGLES] * has_angles), *([_LINKS] * has_links), _URLS, _LINES]))


def choose_event(text: str) -> re.Pattern[str]:
    """Return the pattern of the next construct in `text`, without what can't be in it.

    What has no group is matched whole, a line from the line end in front of it on.
    """
    has_links = "[" in text and ("](" in text or "][" in text or "]:" in text)
    return _compile_event(has_angles="<" in text and (">" in text or "<!--" in text), has_links=has_links)


BRACKETS = re.compile(rf"\[\w*+\]|\\[\[\]]|\[++|\]|{BREAK}")
"""What pairs brackets: pairs around a word, escaped ones, runs, and the ends of paragraphs."""
LONG_RUN = re.compile(rf"`{{{LONGEST_KNOWN_RUN + 1},}}+")
FENCE_END = re.compile(r"\n([ ]*+)(`{3,}+|~{3,}+)[ \t]*+(?=\n|\Z)")
LINK_END = re.compile(rf"(?<!\\)(?:\[|\](?P<tail>{_TAIL})?+)")
URL_REST = re.compile(rf"[^{WHITE}]*+")
DEFINED = re.compile(rf"(?:\A|\n) {{0,3}}\[({_LABEL}{{1,999}}+)\]:")
SHORTCUT = re.compile(rf"(?<!\\)\[(?P<label>{_LABEL}{{1,999}}+)\]")
PARAGRAPH_END = re.compile(BREAK)
