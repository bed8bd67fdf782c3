"""Tags of texts that nobody would write, against a reader that is slow and plain."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hayate_matrix.core.hashtags import parse_tags
from tests.support.slow_tags import slow_tags

PIECES = [
    *"\"'“”‘’„‚«»‹›「」『』",
    *["`", "``", "```", "````", "~~~", "~~~~", "\n", "\n", "\n", "\r\n", "\r", "\n\n", " ", " ", " ", "  ", "    ", "\t", "\u2028", "\xa0"],
    *["#a", "#b", "#C-d", "#x1", " #y", " #z ", "\n#w", "#", "#a--b", "#a-", "#2", "#ü", "#é#"],
    *[".", ":", "…", ",", ";", "!", "?", ")", "]", "}", "/", "_", "-", "a", "ü", "7", "\\", "(", "[", "{", "=", "|"],
    *["[", "]", "](", "][", ")", "![", "](u)", "](<u v>)", '](u "t")', "[r]", "[r]: u", "\n[r]: u\n", "[ #r ]", '"t"', "<u>"],
    *["<", ">", "<a>", "</a>", "<a/>", "<b x='>'>", "</b>", "<a ", "<A>", "='", '="', "<!--", "-->", "<3", "<a@b>", "<u:v>", "</a"],
    *[
        "http://",
        "www.",
        "WWW.x",
        "mailto:",
        "1://",
        "x",
        "h+2://",
        "> ",
        "\n> ",
        "\n- ```\n",
        "\n1. ~~~\n",
        "\n```\n",
        "\n~~~ \n",
        "- ",
        "1) ",
    ],
    *[
        "\n    ```\n",
        "\\]",
        "\\[",
        "\\(",
        "\\)",
        "[R]",
        "awww.x",
        "amailto:x",
        "](<u)",
        "\n[r]: u 't\n",
        "'\n",
        "(((",
        ")))",
        "é",
        "&",
        "*",
    ],
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)


@pytest.mark.requirement("TAG-1", "TAG-2", "TAG-3", "TAG-4", "TAG-5", "TAG-6", "TAG-7", "TAG-9")
@settings(max_examples=2000)
@given(TEXTS)
def test_tags_are_those_of_a_plain_reader(text: str) -> None:
    """Whatever pieces a message is made of, the fast reader and the plain one find the same tags."""
    assert parse_tags(text) == slow_tags(text)
