"""What an event says, and what it only seems to say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hayate_matrix.core.facts import AnyFact, Message, dump_fact, load_fact
from hayate_matrix.core.ids import RoomId, UserId
from hayate_matrix.matrix.facts import DELIVERY_KEY, read_fact, read_pills, strip_reply_fallback
from hayate_matrix.matrix.sync.guard import normalise

BOT = UserId("@bot:x")


def _read(content: dict[str, Any], kind: str = "m.room.message", **more: Any) -> AnyFact | None:
    event = {"type": kind, "content": content, "sender": "@a:x", "event_id": "$e", "origin_server_ts": 5, **more}
    return read_fact(event, RoomId("!r:x"), own_user_id=BOT, is_direct=False, is_encrypted=False)


def _message(content: dict[str, Any]) -> Message:
    fact = _read({"msgtype": "m.text", "body": "b", **content})
    assert isinstance(fact, Message)
    return fact


@pytest.mark.requirement("ROOM-4", "IN-9")
def test_notices_and_own_messages_are_no_facts() -> None:
    """`m.notice` is never acted on, nor is anything that the bot said."""
    assert _read({"msgtype": "m.notice", "body": "hi"}) is None
    assert _read({"msgtype": "m.text", "body": "hi"}, sender=BOT) is None
    assert _message({DELIVERY_KEY: "x/0"}).loop_marker


@pytest.mark.requirement("IN-6")
def test_reply_inside_a_thread_is_told_from_its_fallback() -> None:
    """`is_falling_back` makes a reply relation the fallback of a thread and nothing else."""
    relation = {"rel_type": "m.thread", "event_id": "$root", "m.in_reply_to": {"event_id": "$last"}}
    fallback = _message({"m.relates_to": {**relation, "is_falling_back": True}})
    real = _message({"m.relates_to": {**relation, "is_falling_back": False}})
    assert (fallback.thread, fallback.reply_to) == ("$root", None)
    assert (real.thread, real.reply_to) == ("$root", "$last")


@pytest.mark.requirement("IN-6", "TAG-8")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("> <@a:x> old words\n> more\n\nnew words", "new words"),
        ("> * <@a:x> waves\n\nnew", "new"),
        ("> just a quotation\nand mine", "> just a quotation\nand mine"),
        ("plain", "plain"),
        ("> <@a:x> only", ""),
    ],
)
def test_reply_fallback_is_removed_and_quotations_are_not(body: str, expected: str) -> None:
    """Only the block that older clients put before a reply is taken away."""
    assert strip_reply_fallback(body) == expected


@pytest.mark.requirement("IN-7", "TAG-8")
def test_caption_is_the_text_and_a_file_name_is_not() -> None:
    """A body beside a file name of its own is a caption; alone it is the name."""
    captioned = _read({"msgtype": "m.image", "body": "look #here", "filename": "a.png"})
    bare = _read({"msgtype": "m.file", "body": "../../etc/passwd"})
    same = _read({"msgtype": "m.file", "body": "a.png", "filename": "a.png"})
    assert [(fact.body, fact.file_name) for fact in (captioned, bare, same) if isinstance(fact, Message)] == [
        ("look #here", "a.png"),
        ("", "../../etc/passwd"),
        ("", "a.png"),
    ]


@pytest.mark.requirement("ROOM-5")
def test_mentions_are_read_where_they_are_written() -> None:
    """No `m.mentions` is not an empty one; pills are read from links, escaped and percent-encoded ones too."""
    assert _message({}).mentions is None
    assert _message({"m.mentions": {}}).mentions == ()
    assert _message({"m.mentions": {"user_ids": ["@b:x", 5]}}).mentions == ("@b:x",)
    html = '<a href="https://matrix.to/#/@bot:x">Bot</a> <a href=\'https://matrix.to/#/%40c%3Ax?via=x\'>c</a> <a href="https://evil/#/@d:x">d</a>'
    assert read_pills(html.replace("%40c%3Ax", "@c%3Ax")) == ("@bot:x", "@c:x")


@pytest.mark.requirement("IN-4")
def test_edit_without_new_content_is_nothing() -> None:
    """An edit is what its `m.new_content` says; the fallback text is never a request."""
    relation = {"rel_type": "m.replace", "event_id": "$old"}
    assert _read({"msgtype": "m.text", "body": "* x", "m.relates_to": relation}) is None


_KEYS = [
    "type", "content", "sender", "event_id", "origin_server_ts", "state_key", "unsigned", "prev_content", "membership", "msgtype", "body",
    "m.relates_to", "rel_type", "m.in_reply_to", "m.new_content", "m.mentions", "user_ids", "formatted_body", "format", "redacts", "key",
    "rooms", "join", "leave", "invite", "timeline", "events", "limited", "prev_batch", "state", "to_device", "device_lists", "changed",
]  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_KEYS) | st.text(max_size=4), inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.requirement("SEC-2")
@given(
    event=st.fixed_dictionaries(
        {"type": st.sampled_from(["m.room.message", "m.room.member", "m.reaction", "m.room.redaction"])},
        optional={
            "content": _JSON,
            "sender": st.just("@a:x") | _JSON,
            "event_id": st.just("$e") | _JSON,
            "origin_server_ts": st.just(1) | _JSON,
            "state_key": _JSON,
            "unsigned": _JSON,
            "redacts": _JSON,
        },
    )
)
def test_any_event_is_a_fact_nothing_or_refused(event: dict[str, Any]) -> None:
    """Whatever JSON an event holds, reading it ends in a fact that can be stored, in nothing, or in an error that sets it aside."""
    try:
        fact = read_fact(event, RoomId("!r:x"), own_user_id=BOT, is_direct=False, is_encrypted=False)
    except (KeyError, TypeError, ValueError, AttributeError):
        return
    if fact is not None:
        assert load_fact(dump_fact(fact)) == fact


@pytest.mark.requirement("SEC-2", "STO-2")
@given(raw=st.dictionaries(st.sampled_from(_KEYS), _JSON, max_size=6))
def test_any_sync_answer_is_brought_into_shape(raw: dict[str, Any]) -> None:
    """Whatever JSON a server answers, every section that comes out has the shape that is relied on."""
    answer = normalise({**raw, "next_batch": "s1"})
    assert all(isinstance(event["content"], dict) for event in answer.to_device)
    assert all(event["event_id"] and isinstance(event["content"], dict) for part in answer.joined for event in part.timeline)
