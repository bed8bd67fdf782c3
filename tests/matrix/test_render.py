"""Markdown to Matrix: what a client shows, what fits in an event, and what a hostile text can't do."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from hayate_matrix.core.hashtags import put_label
from hayate_matrix.matrix.render import MAX_PARTS, Rendered, render, split_reply

BUDGETS = st.integers(min_value=400, max_value=3000)
WORDS = st.lists(st.integers(0, 9999).map(lambda n: f"w{n}x"), min_size=1, max_size=40)


def _bytes(part: Rendered) -> int:
    content = {"body": part.body, "format": "org.matrix.custom.html", "formatted_body": part.formatted_body or ""}
    return len(json.dumps(content).encode())


class _Reader(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("br", "hr"):
            self.open.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> was never opened"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _block(kind: str, words: list[str]) -> str:
    text = " ".join(words)
    lines = "\n".join(words)
    made = {
        "paragraph": text,
        "lines": lines,
        "strong": f"**{text}**",
        "heading": f"## {text}",
        "fence": f"```python\n{lines}\n```",
        "open list": "\n".join(f"- {word}" for word in words),
        "ordered": "\n".join(f"{n}. {word}" for n, word in enumerate(words, 7)),
        "quote": "\n".join(f"> {word}" for word in words),
        "table": "| head | head |\n|---|--:|\n" + "\n".join(f"| {word} | `-` |" for word in words),
        "nested": f"- item\n\n  ```sh\n  {text}\n  ```\n\n  > {text}",
        "code line": f"    {text}",
        "open quote": "\n".join(["> ```", *(f"> {word}" for word in words)]),
        "open item": "\n".join(["1. item", "   ~~~py", *(f"   {word}" for word in words)]),
        "tildes": f"~~~ a`b\n{lines}\n```\n{text}\n~~~",
        "link": f"[{text}](https://example.org/a?b=c&d=e)",
    }
    return made[kind]


KINDS = ["paragraph", "lines", "strong", "heading", "fence", "open list", "ordered", "quote", "table", "nested", "code line", "link"]
KINDS += ["open quote", "open item", "tildes"]
TWICE = {"nested", "tildes"}
DOCUMENTS = st.lists(st.tuples(st.sampled_from(KINDS), WORDS), min_size=1, max_size=8)


def _words(text: str) -> list[str]:
    return re.findall(r"w\d+x", text)


@pytest.mark.requirement("OUT-3")
def test_plain_text_needs_no_html() -> None:
    """A reply without any markup is a plain body alone."""
    assert render("just words, 3 < 4 & so on") == Rendered("just words, 3 < 4 & so on", None)


@pytest.mark.requirement("OUT-3")
def test_markup_becomes_matrix_html() -> None:
    """Emphasis, code with its language, lists and links are shown; the body stays as a person would write it."""
    shown = render("*a* **b** ~~c~~\n\n```rust\nlet x = 1 < 2;\n```\n\n3. three\n4. four\n\n[home](https://example.org)")
    assert shown.formatted_body is not None
    for part in (
        "<em>a</em> <strong>b</strong> <del>c</del>",
        '<pre><code class="language-rust">let x = 1 &lt; 2;\n</code></pre>',
        '<ol start="3">',
        '<a href="https://example.org">home</a>',
    ):
        assert part in shown.formatted_body
    assert shown.body.startswith("*a* **b** ~~c~~\n\n```rust\nlet x = 1 < 2;\n```\n\n3. three")


@pytest.mark.requirement("OUT-3")
def test_table_is_readable_in_both_texts() -> None:
    """A table is a table in HTML and lines up in the plain body, wide characters counted as two columns."""
    shown = render("|name|n|\n|-|-:|\n|a long one|1|\n|日本|22|")
    assert shown.body.split("\n") == ["name       | n", "-----------+----", "a long one | 1", "日本       | 22"]
    assert shown.formatted_body is not None
    assert shown.formatted_body.count("<td>") == 4


@pytest.mark.requirement("OUT-3")
def test_tag_at_the_start_of_a_line_is_no_heading() -> None:
    """`#release` stays text, while `# Release` is a heading."""
    assert render("#release #nightly").formatted_body is None
    assert render("# Release").formatted_body == "<h1>Release</h1>"


@pytest.mark.requirement("OUT-3", "SEC-2")
@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "![x](https://example.org/track.png)",
        "![x](data:image/svg+xml;base64,PHN2Zz4=)",
        '[x](https://e.org "title\\" onclick=alert(1)")',
        '```py" onclick="alert(1)\nx\n```',
        "<mx-reply>fake</mx-reply>",
        "[x](vbscript:x) <https://e.org> <javascript:x>",
        "[x](//e.org/a) [y](/etc/passwd)",
    ],
)
def test_hostile_text_is_inert(text: str) -> None:
    """No tag, attribute or address outside Matrix's own list comes out, and no image is loaded from elsewhere."""
    shown = _Reader(render(text).formatted_body or "")
    assert not {"script", "img", "mx-reply", "svg"} & set(shown.tags)
    for tag, name, value in shown.attributes:
        assert (tag, name) in {("a", "href"), ("ol", "start"), ("code", "class")}
        if name == "href":
            assert value.startswith(("https://", "http://"))
        if name == "class":
            assert re.fullmatch(r"language-[\w+#.-]+", value)


@pytest.mark.requirement("OUT-4", "SEC-2")
@given(text=st.text(st.sampled_from("ab \n#*_~`[]()!<>|-:\\&\t\"'1.+😀é\0")), budget=BUDGETS)
@settings(max_examples=200, deadline=None)
def test_any_text_fits_and_is_well_formed(text: str, budget: int) -> None:
    """Whatever characters come, each part is under its budget, its HTML is well-formed, and nothing raises."""
    parts = split_reply(text, max_bytes=budget)
    assert 1 <= len(parts) <= MAX_PARTS
    for part in parts:
        assert _bytes(part) <= budget
        assert not _Reader(part.formatted_body or "").open


@pytest.mark.requirement("OUT-4")
@given(blocks=DOCUMENTS, budget=BUDGETS)
@example(blocks=[("nested", [f"w{number}x" for number in range(1000, 1040)])], budget=400)
@settings(max_examples=200, deadline=None)
def test_text_is_whole_and_in_order(blocks: list[tuple[str, list[str]]], budget: int) -> None:
    """The parts together say every word once and in order, in the body and in the HTML; a reply that is too long says its beginning."""
    said = [word for kind, words in blocks for word in (words * 2 if kind in TWICE else words)]
    parts = split_reply("\n\n".join(_block(kind, words) for kind, words in blocks), max_bytes=budget)
    heard = [word for part in parts for word in _words(part.body)]
    shown = [word for part in parts for word in _words(_Reader(part.formatted_body).text if part.formatted_body else part.body)]
    if parts[-1].overflow is None:
        assert heard == said
    else:
        assert len(parts) == MAX_PARTS - 1
        assert heard == said[: len(heard)]
    assert shown == heard


@pytest.mark.requirement("OUT-4")
@given(blocks=DOCUMENTS, budget=BUDGETS)
@example(blocks=[("open quote", ["w1x"])], budget=3000)
@example(blocks=[("open item", ["w1x"])], budget=3000)
@example(blocks=[("tildes", ["w1x"])], budget=3000)
@settings(max_examples=100, deadline=None)
def test_no_part_leaves_a_code_block_open(blocks: list[tuple[str, list[str]]], budget: int) -> None:
    """After each part's plain body a new paragraph would still be a paragraph."""
    for part in split_reply("\n\n".join(_block(kind, words) for kind, words in blocks), max_bytes=budget):
        last = MarkdownIt("commonmark").enable("table").parse(f"{part.body}\n\nthe end")[-2]
        assert (last.type, last.content) == ("inline", "the end"), part.body


@pytest.mark.requirement("OUT-4")
def test_code_block_is_closed_and_opened_again_with_its_language() -> None:
    """A long code block is cut between lines, and each part is a code block of the same language."""
    code = "\n".join(f"print({number})" for number in range(150))
    parts = split_reply(f"Look:\n\n```python\n{code}\n```\n\nDone.", max_bytes=3000)
    assert len(parts) > 1
    for part in parts:
        assert part.body.count("```") == 2
        assert part.formatted_body is not None
        assert '<code class="language-python">' in part.formatted_body
    lines = [line for part in parts for line in part.body.split("\n") if line.startswith("print")]
    assert lines == code.split("\n")


@pytest.mark.requirement("OUT-4")
def test_table_is_cut_between_rows_with_its_head_on_each_part() -> None:
    """Each part of a long table begins with the head."""
    rows = "\n".join(f"| {number} | value {number} |" for number in range(60))
    parts = split_reply(f"| key | value |\n|---|---|\n{rows}", max_bytes=3000)
    assert len(parts) > 1
    assert all(part.body.startswith("key | value") for part in parts)
    assert all(part.formatted_body and part.formatted_body.count("<th>") == 2 for part in parts)


@pytest.mark.requirement("OUT-4")
def test_code_block_that_was_never_closed_is_closed() -> None:
    """A model that was cut off in a code block leaves no open one behind."""
    assert render("a\n\n```sh\nls").body == "a\n\n```sh\nls\n```"


@pytest.mark.requirement("OUT-4")
@pytest.mark.parametrize("line", ["word " * 2000, "日本 " * 2000, "😀 " * 2000], ids=["ascii", "wide", "outside the basic plane"])
def test_long_line_of_code_is_cut_between_words_as_late_as_it_can(line: str) -> None:
    """A code line that fits in no message is cut after a blank, and each part but the last is filled."""
    parts = split_reply(f"```\n{line}\n```", max_bytes=50_000)
    inside = [part.body.removeprefix("```\n").removesuffix("\n```") for part in parts]
    assert "".join(inside) == line
    assert {word for text in inside for word in text.split()} == {line.split(maxsplit=1)[0]}
    assert all(_bytes(part) > 49_000 for part in parts[:-1])


@pytest.mark.requirement("OUT-4")
def test_sentence_is_cut_beside_a_word_that_fills_its_middle() -> None:
    """Where the middle of a text is one long word, the cut is before or after it."""
    word = "x" * 250
    parts = split_reply(f"a few words before it {word} and some after", max_bytes=660)
    assert len(parts) > 1
    assert any(word in part.body for part in parts)


@pytest.mark.requirement("OUT-4", "SEC-2")
@pytest.mark.parametrize("budget", [400, 20_000, 40_000])
@pytest.mark.parametrize(
    "text",
    [
        "    " + "`" * 100_000,
        "```" + "😀" * 200 + "\n" + "text " * 20_000,
        "```" + "l" * 50_000 + "\n" + "text " * 20_000,
        "```\n" + '<"&' * 30_000,
        "words ``` more words ~~~ " * 5000,
    ],
    ids=["backticks", "wide words beside a fence", "a long language", "escapes", "marks in a sentence"],
)
def test_code_that_costs_more_than_it_is_long_fits(text: str, budget: int) -> None:
    """What a fence, its language and the escapes add is counted, so that no part is larger than its budget, and no part is empty."""
    for part in split_reply(text, max_bytes=budget):
        assert _bytes(part) <= budget
        assert _bytes(part) > min(budget // 3, 250)
        last = MarkdownIt("commonmark").parse(f"{part.body}\n\nthe end")[-2]
        assert (last.type, last.content) == ("inline", "the end")


@pytest.mark.requirement("OUT-4")
def test_reply_longer_than_five_messages_says_so() -> None:
    """Four parts come, and the last tells how much is left for the file."""
    text = "word " * 50_000
    parts = split_reply(text, max_bytes=40_000)
    assert len(parts) == MAX_PARTS - 1
    assert [part.overflow is not None for part in parts] == [False, False, False, True]
    overflow = parts[-1].overflow
    assert overflow is not None
    assert overflow.total_bytes == 250_000
    assert 0 < overflow.left_bytes < 250_000


@pytest.mark.requirement("LBL-5")
@pytest.mark.parametrize("text", ["word " * 600, "- item\n" * 600, "```\n" + "print(1)\n" * 400 + "```"], ids=["words", "list", "code"])
def test_of_several_parts_the_first_alone_has_the_label(text: str) -> None:
    """A long reply under tags is cut behind its label, which is not repeated, neither in the body nor in the HTML."""
    parts = split_reply(put_label(["release", "nightly"], text), max_bytes=3000)
    assert len(parts) > 1
    assert parts[0].body.startswith("#nightly #release ·")
    assert [part.body.count("#") for part in parts] == [2] + [0] * (len(parts) - 1)
    assert not any("#" in (part.formatted_body or "") for part in parts[1:])


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(
    "piece", ["[", "![", "> ", "> - ", "*a ", "**a", "`", "|a|b|\n|-|-|\n", "- ", "\\", "[](", "<a ", "~~a", "[a]: b\n", "&"]
)
def test_hostile_repetition_stays_within_the_budget(piece: str) -> None:
    """A hundred kilobytes of one construct give parts that fit; the text of deep nesting is shown as it was written."""
    text = piece * (100_000 // len(piece))
    parts = split_reply(text, max_bytes=40_000)
    assert all(_bytes(part) <= 40_000 for part in parts)
    assert parts[0].body.strip()


def test_budget_too_small_is_refused() -> None:
    """A budget without room for a fence is a mistake of the caller."""
    with pytest.raises(ValueError, match="400"):
        split_reply("x", max_bytes=100)
