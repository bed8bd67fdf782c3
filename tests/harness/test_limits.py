"""Limits per person and per room: what is asked beyond one is left out, said once, and nothing that was accepted is lost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import pytest

from hayate_matrix.app import _make_limits
from hayate_matrix.harness.rules import Limits
from hayate_matrix.settings.model import Settings
from tests.support.desk import ALICE, BOB, DIRECT, ROOM
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.harness.conftest import MakeDesk

HOUR_S = 3600.0
"""The clock of the tests begins at 19:34 on 2026-11-01."""
LEFT_OUT = "I leave this message out: the limit of "


@pytest.mark.requirement("CORE-6")
async def test_requests_an_hour_of_a_person(make_desk: MakeDesk) -> None:
    """The request beyond it is told the limit, the figure and the end; the next hour of the clock begins anew; other people go on."""
    desk = await make_desk(person_limits=Limits(requests_hour=2))
    assert [await desk.ask(f"echo {number}") for number in range(3)] == [
        ["0"],
        ["1"],
        [f"{LEFT_OUT}2 requests an hour for one person is reached. It ends at 20:00 UTC on 2026-11-01."],
    ]
    assert await desk.ask("echo mine", sender=BOB) == ["mine"]
    desk.clock.jump(25 * 60)
    assert await desk.ask("echo still") == []
    desk.clock.jump(60)
    assert await desk.ask("echo again") == ["again"]


@pytest.mark.requirement("CORE-6")
async def test_a_flood_is_not_answered_with_a_flood(make_desk: MakeDesk) -> None:
    """A person is told of a limit once in its window, however much more is asked, in one batch or many; in the next window again."""
    desk = await make_desk(person_limits=Limits(requests_hour=1))
    await desk.accept(*(desk.message(f"echo {number}") for number in range(40)))
    await desk.idle()
    for number in range(10):
        await desk.ask(f"echo more {number}")
    texts = desk.gateway.get_texts(DIRECT)
    assert sorted(texts) == sorted(["0", f"{LEFT_OUT}1 request an hour for one person is reached. It ends at 20:00 UTC on 2026-11-01."])
    desk.clock.jump(HOUR_S)
    assert await desk.ask("echo a") == ["a"]
    assert [text[: len(LEFT_OUT)] for text in await desk.ask("echo b")] == [LEFT_OUT]
    assert await desk.ask("echo c") == []


@pytest.mark.requirement("CORE-6")
async def test_a_limit_of_the_room_is_told_to_each_person_once(make_desk: MakeDesk) -> None:
    """What a room may ask is shared by its people; each who meets the limit hears of it once, and another room goes on."""
    desk = await make_desk(room_limits=Limits(requests_hour=1), trigger="always")
    assert await desk.ask("echo 1", room=ROOM, sender=ALICE) == ["1"]
    for sender in (BOB, ALICE):
        told = f"{LEFT_OUT}1 request an hour for this room is reached. It ends at 20:00 UTC on 2026-11-01."
        assert await desk.ask("echo 2", room=ROOM, sender=sender) == [told]
        assert desk.gateway.room[-1].mention == sender
        assert await desk.ask("echo 3", room=ROOM, sender=sender) == []
    assert await desk.ask("echo 4", room=DIRECT) == ["4"]


@pytest.mark.requirement("CORE-6")
@pytest.mark.parametrize(
    ("limits", "words"),
    [(Limits(tokens_day=1000), "1,000 tokens a day"), (Limits(money_day=0.001), "0.001 in money a day")],
    ids=["tokens", "money"],
)
@pytest.mark.parametrize("whose", ["person", "room"])
async def test_tokens_and_money_a_day(make_desk: MakeDesk, limits: Limits, words: str, whose: str) -> None:
    """What the runtime reports counts up to the limit and over it, of every step; the day of the clock ends it, a restart does not."""
    desk = await make_desk(**{f"{whose}_limits": limits})
    assert await desk.ask("spend 400 a") == ["a"]
    assert await desk.ask("tool nothing x\nspend 299 b") == ["b"]  # two steps
    assert await desk.ask("spend 2 c") == ["c"]
    who = "one person" if whose == "person" else "this room"
    assert await desk.ask("echo d") == [f"{LEFT_OUT}{words} for {who} is reached. It ends at 00:00 UTC on 2026-11-02."]
    await desk.stop()
    await desk.start()
    desk.clock.jump(4 * HOUR_S)
    assert await desk.ask("echo e") == []
    desk.clock.jump(HOUR_S)
    assert await desk.ask("echo f") == ["f"]


@pytest.mark.requirement("CORE-6")
@pytest.mark.parametrize("whose", ["person", "room"])
async def test_requests_in_the_queue(make_desk: MakeDesk, whose: str) -> None:
    """What waits and what runs counts; what was accepted is answered, and when it is, more is taken. Commands are no requests."""
    desk = await make_desk(**{f"{whose}_limits": Limits(queue=2)})
    await desk.say("slow 5 first")
    await eventually(lambda: desk.clock.waits)
    assert await desk.ask_now("!name what waits behind it") == "That comes right after the answer that I am working on. `!stop` ends it."
    await desk.say("echo second")
    await desk.say("echo third")
    who = "one person" if whose == "person" else "this room"
    await eventually(lambda: len(desk.gateway.get_texts(DIRECT)) == 2)
    told = f"{LEFT_OUT}2 requests at a time for {who} is reached. It ends when one of them is answered."
    assert desk.gateway.get_texts(DIRECT)[1] == told
    await desk.ask_now("!status")
    assert await desk.count("SELECT count(*) FROM inbox WHERE state = 'noted'") == 1
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(5)
    await desk.idle()
    assert [text for text in desk.gateway.get_texts(DIRECT)[2:] if text in {"first", "second", "third"}] == ["first", "second"]
    assert await desk.ask("echo fourth") == ["fourth"]


@pytest.mark.requirement("CORE-6")
async def test_the_queue_of_a_person_is_that_of_all_rooms(make_desk: MakeDesk) -> None:
    """Whoever waits in one room is over the limit in another too; others are not."""
    desk = await make_desk(person_limits=Limits(queue=1), trigger="always")
    await desk.say("slow 5 first")
    await desk.say("echo second", room=ROOM)
    await eventually(lambda: desk.gateway.get_texts(ROOM))
    assert desk.gateway.get_texts(ROOM)[0].startswith(LEFT_OUT)
    await desk.say("echo mine", room=ROOM, sender=BOB)
    await eventually(lambda: "mine" in desk.gateway.get_texts(ROOM))


@pytest.mark.requirement("CORE-6")
async def test_a_limit_that_ends_later_is_the_one_that_is_told(make_desk: MakeDesk) -> None:
    """Where several are reached the sentence names one that does not end before the others of that person."""
    desk = await make_desk(person_limits=Limits(requests_hour=1, tokens_day=10))
    assert await desk.ask("spend 10 a") == ["a"]
    assert ["10 tokens a day" in text for text in await desk.ask("echo b")] == [True]


@pytest.mark.requirement("CORE-6", "IN-4")
async def test_an_edit_that_would_be_a_request_counts_as_one(make_desk: MakeDesk) -> None:
    """Editing an answered message again and again is no way around a limit."""
    desk = await make_desk(person_limits=Limits(requests_hour=2))
    message = await desk.say("echo a")
    await desk.idle()
    for number in range(3):
        await desk.accept(desk.edit(message, f"echo {number}"))
        await desk.idle()
    assert desk.gateway.get_texts(DIRECT)[:2] == ["a", "Edited: 0"]
    assert [text.startswith(LEFT_OUT) for text in desk.gateway.get_texts(DIRECT)[2:]] == [True]
    assert await desk.count("SELECT count(*) FROM inbox WHERE kind = 'edit' AND target = ?", message.event_id) == 2


@pytest.mark.requirement("CORE-6", "LBL-1")
async def test_the_sentence_answers_the_message(make_desk: MakeDesk) -> None:
    """It refers to what was left out, in its thread, under its tags."""
    desk = await make_desk(person_limits=Limits(requests_hour=1))
    await desk.ask("echo a")
    left_out = await desk.say("echo #release b", thread="$root")
    await desk.idle()
    told = desk.gateway.room[-1]
    assert (told.request, told.thread, told.mention, told.kind) == (left_out.event_id, "$root", ALICE, "notice")
    assert told.text.startswith("#release · ")


@pytest.mark.requirement("CORE-6")
async def test_without_limits_nothing_is_counted(make_desk: MakeDesk) -> None:
    """No row is written for what nobody limits; with one limit, only what it needs."""
    desk = await make_desk()
    assert await desk.ask("spend 5 a") == ["a"]
    assert await desk.count("SELECT count(*) FROM spending") == 0
    await desk.stop()
    desk.rules = dataclasses.replace(desk.rules, person_limits=Limits(requests_hour=5))
    await desk.start()
    assert await desk.ask("spend 5 b") == ["b"]
    assert await desk.count("SELECT count(*) FROM spending") == 1
    assert await desk.count("SELECT sum(tokens) FROM spending") == 0
    await desk.stop()
    desk.rules = dataclasses.replace(desk.rules, person_limits=Limits(), room_limits=Limits(tokens_day=500))
    await desk.start()
    assert await desk.ask("spend 5 c") == ["c"]
    assert await desk.count("SELECT sum(requests) FROM spending") == 1
    assert await desk.count("SELECT sum(tokens) FROM spending") == 5


@pytest.mark.requirement("CORE-6")
async def test_what_no_limit_looks_at_any_more_is_forgotten(make_desk: MakeDesk) -> None:
    """The tables hold two days, however long the bot runs."""
    desk = await make_desk(person_limits=Limits(requests_hour=1))
    for _ in range(6):
        await desk.ask("echo a")
        await desk.ask("echo b")
        desk.clock.jump(24 * HOUR_S)
    await desk.ask("echo a")
    assert await desk.count("SELECT count(*) FROM spending") == 3
    assert await desk.count("SELECT count(*) FROM refusals") == 2


@pytest.mark.requirement("CORE-6", "CFG-1")
@pytest.mark.parametrize("whose", ["person", "room"])
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Limits)])
def test_each_limit_is_a_setting(whose: Literal["person", "room"], name: str) -> None:
    """What is set under `limits` is what the harness is given, and unset is no limit."""
    settings = Settings(limits={f"{whose}_{name}": 7})
    assert _make_limits(settings.limits, whose) == Limits(**{name: 7})
    assert not _make_limits(Settings().limits, whose).is_set
