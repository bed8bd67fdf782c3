from __future__ import annotations

import pytest

from hayate_matrix.core.hashtags import parse_tags, put_label, read_tag

EXAMPLES = [
    ("Check the #release notes before Friday", "release"),
    ("#rollout and #hashtags, please", "rollout hashtags"),
    ("Let's check the #release notes", ""),
    ("See C#lang, (#x) and #ops:example.org", ""),
    ("> #old\n#new", "new"),
    ("````\n```\n#no\n````\n#yes", "yes"),
    ("Ship #V2.", "v2"),
    ("[#a](https://x.test/#b) #c", "c"),
]
"""The table of the specification."""


@pytest.mark.requirement("TAG-1", "TAG-2", "TAG-3", "TAG-4", "TAG-5", "TAG-6", "TAG-7")
@pytest.mark.parametrize(("message", "tags"), EXAMPLES)
def test_the_examples_of_the_specification_hold(message: str, tags: str) -> None:
    """Each message of the specification's table has exactly the tags that stand beside it."""
    assert parse_tags(message) == tuple(tags.split())


@pytest.mark.requirement("TAG-1")
@pytest.mark.parametrize("tag", ["release", "content-fix", "v2", "a", "a-1-b", "A", "x9y"])
def test_letters_digits_and_single_hyphens_make_a_tag(tag: str) -> None:
    """A tag is a letter, then letters and digits in parts joined by single hyphens."""
    assert parse_tags(f"see #{tag}") == (tag.lower(),)


@pytest.mark.requirement("TAG-1")
@pytest.mark.parametrize(
    "word", ["#2fast", "#a--b", "#a-", "#-a", "#foo_bar", "#Prüfung", "# x", "#", "##a", "#a#b", "#über", "#a\u0301", "＃a"]
)
def test_what_has_another_form_is_no_tag(word: str) -> None:
    """Digits in front, double or loose hyphens, underscores, other alphabets and a blank behind the sign make no tag, nor a shorter one."""
    assert parse_tags(f"see {word} here") == ()


@pytest.mark.requirement("TAG-2", "TAG-9")
@pytest.mark.parametrize("before", ["", "\n", "a\n", "a\r", "a\r\n", "a ", "a\t", "a\u00a0", "a\u2028", "a\u3000", "a\v"])
def test_a_tag_stands_at_the_start_of_a_line_or_after_white_space(before: str) -> None:
    """Lines end with LF, CRLF or CR, and any white space of Unicode may stand in front."""
    assert parse_tags(f"{before}#tag") == ("tag",)


@pytest.mark.requirement("TAG-2")
@pytest.mark.parametrize("before", ["C", "(", ",", "a ,", "/", "#", "\\", "\u200b", "é", "*", "-", "\x1c"])
def test_a_tag_stands_behind_nothing_else(before: str) -> None:
    """A sign right behind a letter, a bracket, punctuation or anything that is no white space begins no tag."""
    assert parse_tags(f"x {before}#tag") == ()


@pytest.mark.requirement("TAG-3")
@pytest.mark.parametrize("behind", ["", " ", "\n", *".,;:!?…)]}", "...", ".)", ":\n", ". x", "?!", ", x", ",x", "…,", ".\u201d"])
def test_a_tag_ends_before_white_space_or_punctuation(behind: str) -> None:
    """White space, the end of the line and ordinary punctuation may follow."""
    assert parse_tags(f"#tag{behind}")[:1] == ("tag",)


@pytest.mark.requirement("TAG-3")
@pytest.mark.parametrize(
    "behind",
    [".2", ".example", ":example.org", ":8", "..x", ".:/", "…x", ".[", "://x", ".é", "/", "@", "'s", '"', "=", "*", "`", "\\", "“"],
)
def test_a_tag_is_no_part_of_a_longer_word(behind: str) -> None:
    """A dot or colon with a letter, a digit, a slash or a bracket behind it goes on, as in a room alias; so does any other character."""
    assert parse_tags(f"see #tag{behind} here") == ()


@pytest.mark.requirement("TAG-4")
def test_a_tag_of_sixty_four_characters_is_the_longest() -> None:
    """A longer run holds no tag, also none that is cut."""
    assert parse_tags(f"#{'a' * 64} #{'b' * 65} #c") == ("a" * 64, "c")


@pytest.mark.requirement("TAG-4")
def test_tags_are_compared_in_lower_case_and_the_first_thirty_two_count() -> None:
    """The same tag in another case is one; of forty different ones the first thirty-two in reading order are taken."""
    assert parse_tags("#Release #RELEASE #release #b") == ("release", "b")
    assert parse_tags(" ".join(f"#t{number} #T{number}" for number in range(40))) == tuple(f"t{number}" for number in range(32))


CONSTRUCTS = [
    ("```\n#no\n```", "backtick fence"),
    ("~~~ text\n#no\n~~~~  ", "tilde fence"),
    ("   ```\n#no\n   ```", "fence behind three blanks"),
    ("- ```\n  #no\n  ```", "fence behind a list marker"),
    ("1. ~~~\n   #no\n   ~~~", "fence behind a number"),
    ("    #no", "indented by four blanks"),
    ("\t#no", "indented by a tab"),
    ("> #no", "quoted line"),
    ("   >#no", "quoted line behind three blanks"),
    ("x `a #no b` y", "inline code"),
    ("x ``a ` #no b`` y", "inline code of two backticks"),
    ('x [a #no](https://x.test "t #no") y', "link"),
    ("x [a [b] #no](<u #no>) y", "link with brackets"),
    ("x [two\nlines #no](u) y", "link across lines"),
    ("x ![a #no](u) y", "image"),
    ("x [a #no][label #no] y", "reference link"),
    ("x [a #no][] y", "collapsed reference link"),
    ("x [a #no] y\n\n[A  #no]: u", "shortcut reference link"),
    ("[label]: u#no 'title #no'", "link definition"),
    ("[label]:\n#no\n'title\n#no'", "link definition across lines"),
    ("x <https://x.test/#no> y", "autolink"),
    ("x https://x.test/?q=(#no y", "bare URL"),
    ("x git+ssh2://x.test/#no y", "bare URL of another scheme"),
    ("x www.x.test/#no y", "bare URL without a scheme"),
    ("x mailto:a@x.test?subject=#no y", "bare mail address"),
    ("x <!-- #no\n #no --> y", "comment across lines"),
    ("x <b> #no </b> y", "source block"),
    ("<b>\n<b>\n</b>\n#no\n</b>", "nested source blocks"),
    ("<b title='>'\n class=\">\" #no>\n#no</b>", "source block with attributes"),
    ("x <b #no/> y", "tag that closes itself"),
]


@pytest.mark.requirement("TAG-5", "TAG-9")
@pytest.mark.parametrize("construct", [construct for construct, _ in CONSTRUCTS], ids=[name for _, name in CONSTRUCTS])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_constructs_are_skipped_whole_and_nothing_else(construct: str, newline: str) -> None:
    """A construct hides the tags within it, and those on the lines before and after it count."""
    message = f"#one\n\n{construct}\n\n#two".replace("\n", newline)
    assert parse_tags(message) == ("one", "two")


@pytest.mark.requirement("TAG-5", "TAG-9")
@pytest.mark.parametrize(
    ("message", "tags"),
    [
        ("````\n```\n#no\n````\n#yes", "yes"),
        ("```\n~~~\n#no\n```\n#yes", "yes"),
        ("```\n``` x\n#no\n```\n#yes", "yes"),
        ("```\n    ```\n#no\n```\n#yes", "yes"),
        ("```\n#no", ""),
        ("``` a`b\n#yes\n", "yes"),
        ("    ```\n#yes", "yes"),
    ],
)
def test_a_fence_is_closed_by_its_like_alone(message: str, tags: str) -> None:
    """A fence ends at one of its own character, at least as long, with nothing behind it; else at the end of the message."""
    assert parse_tags(message) == tuple(tags.split())


@pytest.mark.requirement("TAG-5", "TAG-9")
@pytest.mark.parametrize(
    ("message", "tags"),
    [
        ("> quoted\n#lazy", "lazy"),
        ("   #three-blanks", "three-blanks"),
        ("`a\nb` #x", ""),
        ("#yes [a] #b", "yes b"),
        ("[see #a] and (b)", "a"),
        ("[a\n\n #b](c)", "b"),
        ("\\[a #b](c)", "b"),
        ("[a\\] #b](c) #d", "d"),
        ("\\`a` #b", "b"),
        ('\\"a" #b', "b"),
        ("a < b #c", "c"),
        ("<3 #c", "c"),
        ("i <b #c", "c"),
        ("<b/> #c", "c"),
        ("</b> #c", "c"),
        ("#a <br> #no\n\n#no", "a"),
        ("#a <!-- #no\n\n#no", "a"),
        ("<B> #no </b> #no", ""),
        ("<b>#no</b>#no #c", "c"),
        ("<b> <b/> #no </b> #c", "c"),
        ("<b><!-- </b> --> #no </b> #c", "c"),
        ("://x #c", "c"),
        ("www. #c", "c"),
        ("x-www.y #c", "c"),
    ],
)
def test_constructs_end_where_they_end(message: str, tags: str) -> None:
    """What only looks like a construct hides nothing, and what is never closed hides the rest of its line or of the message."""
    assert parse_tags(message) == tuple(tags.split())


@pytest.mark.requirement("TAG-9")
@pytest.mark.parametrize(
    "message", ["#a`b`", "`b`#a", "#a<b>c</b>", "<b>c</b>#a", "#a[b](c)", "[b](c)#a", "#a<!-- -->", "#a![b](c)", "#a.[b](c)", '"b"#a']
)
def test_a_tag_that_touches_a_construct_is_none(message: str) -> None:
    """White space must stand between a tag and a construct, or punctuation behind the tag."""
    assert parse_tags(message) == ()


@pytest.mark.requirement("TAG-9")
@pytest.mark.parametrize(
    "message",
    [
        "`don't` #a",
        "[don't](u) #a",
        "<!-- don't --> #a",
        "<b>don't</b> #a",
        "https://x.test/don't #a",
        '`"` #a "b"',
        "> don't\n#a",
        "[a](u 'b') #a",
    ],
)
def test_marks_within_constructs_are_nobodys_partners(message: str) -> None:
    """An apostrophe or quotation mark in code, a link, a comment, a block or a URL hides nothing outside."""
    assert parse_tags(message) == ("a",)


@pytest.mark.requirement("TAG-9")
def test_constructs_come_before_marks() -> None:
    """A source block within a quotation is one, and one that is never closed hides the rest of the message."""
    assert parse_tags('"<b>" #no\n#no') == ()
    assert parse_tags('"`"` #no\n#yes') == ("yes",)


QUOTATIONS = ['"#"', "'#'", "“#”", "‘#’", "’#’", "„#“", "„#”", "‚#‘", "‚#’", "«#»", "»#«", "‹#›", "›#‹", "「#」", "『#』"]


@pytest.mark.requirement("TAG-6", "TAG-9")
@pytest.mark.parametrize("marks", QUOTATIONS)
def test_a_quotation_hides_its_text_and_ends_on_its_line(marks: str) -> None:
    """Between a mark and its partner no tag counts, behind it tags count; without it the rest of the line is ignored, and no more."""
    opener, closer = marks.split("#")
    assert parse_tags(f"#a {opener}x #no y{closer} #b") == ("a", "b")
    assert parse_tags(f"#a {opener}x #no y #no\n#b") == ("a", "b")
    assert parse_tags(f"{opener}x\ny{closer} #no\n#b") == ("b",)


@pytest.mark.requirement("TAG-7", "TAG-9")
@pytest.mark.parametrize("mark", sorted({char for pair in QUOTATIONS for char in pair if char != "#"} | {"`", "``", "```x"}))
def test_a_mark_without_a_partner_ends_its_line(mark: str) -> None:
    """Every mark, a closing one too, and a stray run of backticks: tags in front of it count, those behind it don't."""
    assert parse_tags(f"#a x{mark} #no\n#b") == ("a", "b")
    assert parse_tags(f"#a (x{mark} #no, y)\r#b") == ("a", "b")


@pytest.mark.requirement("TAG-9")
@pytest.mark.parametrize(
    ("message", "tags"),
    [
        ("“a “b #no” c #no” #d", "d"),
        ("\"a 'b #no' c #no\" #d", "d"),
        ("'a \"b 'c #no", ""),
        ('"it\'s" #no', ""),
        ("„a “b” #no", ""),
        ("”a” #no", ""),
        ("«a »b« #no", ""),
        ("“a ‘b” c’ #no", ""),
        ('"a \'b "c" d\' e" #no', ""),
        ("“a 'b'”#no", ""),
    ],
)
def test_pairs_of_different_characters_nest(message: str, tags: str) -> None:
    """A quotation within a quotation is one; where marks cross or one is left over the rest of the line is ignored."""
    assert parse_tags(message) == tuple(tags.split())


@pytest.mark.requirement("IDX-6")
def test_a_commands_argument_names_a_tag() -> None:
    """The sign may be left out and the case does not matter; what is no tag is None."""
    assert [read_tag(word) for word in ("#Release", "release", "A-b", "#" + "a" * 64)] == ["release", "release", "a-b", "a" * 64]
    assert [read_tag(word) for word in ("", "#", "##a", "2", "a_b", "#a.", "a b", "ä", "a" * 65, "a\n")] == [None] * 10


@pytest.mark.requirement("LBL-1", "LBL-2")
@pytest.mark.parametrize(
    ("tags", "text", "labelled"),
    [
        (("rollout", "hashtags"), "The rollout starts at nine.", "#hashtags #rollout · The rollout starts at nine."),
        ((), "#old · as it is", "#old · as it is"),
        (("a",), "#a · same", "#a · same"),
        (("a",), "#Old #b-2 · other", "#a · other"),
        (("a",), "#b · #c #d · #a · stacked", "#a · stacked"),
        (("release",), "#release is out", "#release · #release is out"),
        (("a",), "#b  #c · two blanks", "#a · #b  #c · two blanks"),
        (("a",), "#b_c · no tag", "#a · #b_c · no tag"),
        (("a",), f"#{'b' * 65} · too long", f"#a · #{'b' * 65} · too long"),
        (("a",), "#b · one\n#c · two", "#a · one\n#c · two"),
        (("a",), "#b·no blank", "#a · #b·no blank"),
        (("a",), "", "#a · "),
    ],
)
def test_a_label_is_put_in_front_and_never_stacked(tags: tuple[str, ...], text: str, labelled: str) -> None:
    """The sorted tags stand in front, whatever label the text began with is gone, and without tags nothing is touched."""
    assert put_label(tags, text) == labelled


BLOCKS = [
    "- a",
    "1. a",
    "# a",
    "> a",
    "```\na\n```",
    "~~~\na\n~~~",
    "    a",
    "\ta",
    "a | b\n--- | ---\n1 | 2",
    "<table>",
    "---",
    "* * *",
    "[a]: b",
]


@pytest.mark.requirement("LBL-1", "LBL-2")
@pytest.mark.parametrize("block", BLOCKS)
def test_a_label_leaves_a_block_at_the_start_of_its_line(block: str) -> None:
    """In front of a list, a fence, a table and the like the label is a paragraph of its own, and it is known there when it is put anew."""
    labelled = put_label(["a"], block)
    assert labelled == f"#a · \n\n{block}"
    assert put_label(["b"], labelled) == f"#b · \n\n{block}"
    assert put_label(["b"], f"#a ·\n\n{block}") == f"#b · \n\n{block}"
    assert put_label(["b"], f"#a · {block}") == f"#b · \n\n{block}"
