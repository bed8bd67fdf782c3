"""Tags of texts that nobody would write, against a reader that is slow and plain."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hayate_matrix.core.hashtags import parse_tags, put_label, read_tag
from tests.support.slow_tags import slow_tags
from tests.support.tag_texts import HOSTILE, repeat

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


ANY_TEXTS = st.text(st.characters(), max_size=60) | st.text(
    st.sampled_from("#a-\x00\ud800\udfff\"'`<>[]()!:/.\\\n\r \u2028\U0001f600"), max_size=60
)
SHORT = 8_000
LONG = 8 * SHORT
MOST = 24
"""How many times as long a text that is eight times as long may take: a quadratic reader takes 64 times."""


@pytest.mark.requirement("TAG-1", "TAG-2", "TAG-3", "TAG-4", "TAG-5", "TAG-6", "TAG-7", "TAG-9")
@settings(max_examples=2000)
@given(TEXTS)
def test_tags_are_those_of_a_plain_reader(text: str) -> None:
    """Whatever pieces a message is made of, the fast reader and the plain one find the same tags."""
    assert parse_tags(text) == slow_tags(text)


@pytest.mark.requirement("TAG-1", "TAG-2", "TAG-3", "TAG-4", "TAG-5", "TAG-6", "TAG-7", "TAG-9", "SEC-2")
@settings(max_examples=500)
@given(ANY_TEXTS)
def test_any_text_at_all_is_read(text: str) -> None:
    """Lone surrogates, NUL and every other character are read without an error, and as the plain reader reads them."""
    assert parse_tags(text) == slow_tags(text)
    assert read_tag(text) is None or parse_tags(f"#{text.removeprefix('#')}") == (read_tag(text),)


@pytest.mark.requirement("LBL-2", "SEC-2")
@settings(max_examples=500)
@given(st.lists(st.sampled_from(["a", "b-2", "c"]), max_size=3, unique=True), TEXTS | ANY_TEXTS)
def test_a_label_put_twice_stands_once(tags: list[str], text: str) -> None:
    """Whatever the text, putting a label on a labelled text gives the text with that label alone."""
    labelled = put_label(tags, text)
    assert put_label(tags, labelled) == labelled
    assert put_label(["other"], labelled) == put_label(["other"], text)
    assert labelled == text if not tags else labelled.startswith(" ".join(f"#{tag}" for tag in sorted(tags)) + " · ")


def measure(text: str) -> float:
    """Return the processor time of one reading, the best of three, so that what else runs does not count."""
    times = []
    for _ in range(3):
        started = time.process_time()
        parse_tags(text)
        put_label(["a"], text)
        times.append(time.process_time() - started)
    return min(times)


@pytest.mark.requirement("PERF-7", "TAG-5")
@pytest.mark.parametrize("is_armed", [False, True], ids=["bare", "armed"])
@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
def test_reading_takes_time_linear_in_the_text(piece: str, is_armed: bool) -> None:
    """A hostile text that is eight times as long takes about eight times as long, never nearly its square."""
    short, long = (repeat(piece, size, is_armed=is_armed) for size in (SHORT, LONG))
    assert measure(long) <= MOST * (measure(short) + 0.0005)


@pytest.mark.requirement("SEC-2", "PERF-7")
@pytest.mark.parametrize("piece", ["“\ud800", "<a ='", "[\x00](", "`\n` ``", "#a-"], ids=repr)
def test_a_megabyte_is_read(piece: str) -> None:
    """A text of a megabyte is read to its end."""
    assert parse_tags(repeat(piece, 1_000_000))[:1] == ("one",)
