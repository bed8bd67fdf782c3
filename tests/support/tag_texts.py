"""Texts to read tags from: chat as it is written, and what would make a careless reader slow."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SENTENCE = "the rollout starts at nine and we should look into whether those logs from yesterday say anything before anybody else asks"
_WORDS = _SENTENCE.split()
_WORDS_OF_CHAT = (5, 30)
"""A message is one to four lines of a screen."""

HOSTILE = [
    *['"#a ', "'#a ", "“#a ", "”#a ", "‘#a ", "’#a ", "„#a ", "‚#a ", "«#a ", "»#a ", "‹#a ", "›#a ", "「#a ", "」#a ", "『#a ", "』#a "],
    *['"', "'", "“", "‘", "’", "„", "‚", "«", "‹", "「", "『", "\"'", "“„", "“”", '"\n', "’\n#a "],
    *["`", "` ", "`` ", "` `` ``` ", "`a", "``a ", "```a", "`` ` x", "```` `\n"],
    *[
        "[",
        "]",
        "[]",
        "][",
        "](",
        "[](",
        "![](",
        "[a](",
        "[a](b ",
        "[a][",
        "[a](b)",
        "](b)",
        "](a](b)",
        "](<",
        '](a "',
        "](((",
        "[[]",
        "[\\]",
        "[ #a ]",
    ],
    *[
        "<",
        "<a",
        "<a ",
        "<a>",
        "</a>",
        "<a></a>",
        "<a/>",
        '<a ="',
        '<a ="<a" ',
        "<a =' <a =\" ",
        "<a =",
        "<a>b<c>",
        "<a:b>",
        "<a@",
        "<http://",
        "<a\n",
    ],
    *["<!--", "<!-- -->", "<!-- -", "<!-", "--", "-->"],
    *["#", "#a", " #a", "#a.", "#a:", "#a-", "#a…", "#a #", "(#a) ", "aaaaaaaa"],
    *["> a\n", ">", "    a\n", "> ```\n", "```\n", "~~~\n", "- ", "1. ", "- ```\n", "\n", "\r", "\n ", " ", "\t", "- - - ~~\n"],
    *["[a]: b\n", "[a]:", '[a]: b "\n', "[a]:\n", "[a]: <", "[a]\n", "[a #b]\n"],
    *["www.", "www. ", "http://", "h:// ", "1://", "11://", "mailto:", ":", ".", "https://a.b/[c ", "a@b.c "],
    *["\\", "\\[", "\x00", "\U0001f600 ", "ü ä ", "words and "],
]
"""Pieces of which many make a text in which something never ends, or something always might."""
ARMS = ('[x <b "’', " --> ' \" > ”’ `` ] ](u) </a>\n\n[a]: b\n")
"""In front and behind: what keeps a reader from knowing at once that nothing can end."""


def repeat(piece: str, size: int, *, is_armed: bool = False) -> str:
    """Return `piece` over and over, `size` characters with a tag in front and behind."""
    before, after = (f"#one {ARMS[0]}", f"{ARMS[1]} #two") if is_armed else ("#one ", " #two")
    count = size - len(before) - len(after)
    return before + (piece * (count // len(piece) + 1))[:count] + after


def chat(seed: int = 1) -> Iterator[str]:
    """Yield messages with a tag, a quotation and inline code in each, for ever the same."""
    dice = random.Random(seed)
    while True:
        words = dice.choices(_WORDS, k=dice.randint(*_WORDS_OF_CHAT))
        for part in (f'"{" ".join(dice.choices(_WORDS, k=3))}"', f"`{'_'.join(dice.choices(_WORDS, k=2))}`", f"#{dice.choice(_WORDS)}"):
            words.insert(dice.randint(0, len(words)), part)
        yield " ".join(words)


def prose(size: int, seed: int = 1) -> str:
    """Return plain lines of words with a tag at the end of each, `size` characters in all."""
    dice = random.Random(seed)
    lines: list[str] = []
    while sum(map(len, lines[-1000:])) < 100_000 and len(lines) < 1000:
        lines.append(" ".join(dice.choices(_WORDS, k=15)) + f" #{dice.choice(_WORDS)}\n")
    text = "".join(lines)
    return (text * (size // len(text) + 1))[:size]
