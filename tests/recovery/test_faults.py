"""Faults between the bot and its homeserver: nothing lost, nothing twice, no busy loop (REL-3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator  # noqa: TC003  read by pytest
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.recovery.conversation import naming
from tests.support import proxy as faults
from tests.support.proxy import FaultProxy, Rule

if TYPE_CHECKING:
    from hayate_matrix.demo.homeserver import Homeserver
    from tests.support.bot import Bot
    from tests.support.person import Person
    from tests.support.plugin import MakeBot, MakePerson

WINDOW_S = 4.0
"""How long each fault lasts: three tries with the pauses of 1 s and 2 s between; longer ones differ in the pauses alone."""
RATE = 2.0
"""Most requests a second while failing (REL-3)."""
FAULTS = {
    "429 without a time": faults.rate_limited(),
    "429 with a header": faults.rate_limited(1),
    "429 with a time in the body": faults.rate_limited(1, where="body"),
    "502 with a page": faults.bad_gateway(),
    "500 from Matrix": faults.server_error(),
    "200 with a page": faults.page_with_200(),
    "a hanging server": faults.hangs(),
    "refused connections": faults.refuses(),
    "lost answers": faults.loses_answer(),
    "bodies that end early": faults.cuts_body(),
}


@pytest.fixture
def between(homeserver: Homeserver) -> Iterator[FaultProxy]:
    """The proxy between bot and homeserver; people speak past it."""
    with FaultProxy(homeserver.url) as running:
        yield running


async def _settle(alice: Person, make_bot: MakeBot, between: FaultProxy) -> tuple[Bot, str]:
    bot = await (await make_bot(url=between.url)).start()
    room = await alice.direct_message(bot.user_id)
    await alice.sees_member(room, bot.user_id)
    await alice.is_answered(await alice.say(room, "echo before"))
    return bot, room


async def _check_answers(alice: Person, room: str, asked: dict[str, str]) -> None:
    await alice.finds(lambda: all(alice.answers(event) for event in asked), what="an answer to each", timeout_s=90)
    await alice.catches_up()
    answers = [one for one in alice.messages(room) if one.reply_to in asked]
    assert [(one.reply_to, one.body) for one in answers] == list(asked.items())
    alice.check_strictly(room)


def _was_met(rule: Rule) -> bool:
    return rule.hits > 0


@pytest.mark.requirement("REL-3", "OUT-1", "OUT-2")
@pytest.mark.timeout(300)
async def test_every_fault_is_waited_out_slowly_and_costs_no_message(person: MakePerson, make_bot: MakeBot, between: FaultProxy) -> None:
    """Under each fault the bot asks at most twice a second, and afterwards each message has one answer, in order."""
    alice = await person("alice")
    bot, room = await _settle(alice, make_bot, between)
    for name, fault in FAULTS.items():
        with naming(name):
            asked = {await alice.say(room, f"echo before {name}"): f"before {name}"}
            rule = between.fails(fault)
            asked[await alice.say(room, f"echo ends the long poll under {name}")] = f"ends the long poll under {name}"
            await alice.finds(partial(_was_met, rule), what="a request that meets the fault")
            await asyncio.sleep(1)  # what was under way when it began to fail is not counted
            begins = time.monotonic()
            asked |= {await alice.say(room, f"echo {number} under {name}"): f"{number} under {name}" for number in range(3)}
            await asyncio.sleep(WINDOW_S)  # the length of the fault, not a wait for a state
            rate = between.rate(since=begins)
            rule.end()
            assert rate <= RATE, f"{rate:.1f} requests a second"
            assert bot.is_running, bot.read_log()
            await _check_answers(alice, room, asked)


@pytest.mark.requirement("REL-3", "OUT-1")
async def test_lost_answer_of_a_send_is_one_message(person: MakePerson, make_bot: MakeBot, between: FaultProxy) -> None:
    """The message arrived and its receipt did not: the next try carries the same transaction id and ciphertext."""
    alice = await person("alice")
    _, room = await _settle(alice, make_bot, between)
    # The connection itself tries a request that it may repeat a second time, so that two answers have to be lost.
    between.fails(faults.loses_answer(), method="PUT", path="*/send/m.room.encrypted/*", times=3)
    since = time.monotonic()
    asked = {await alice.say(room, "echo once"): "once"}
    await _check_answers(alice, room, {**asked, await alice.say(room, "echo after"): "after"})
    tries = [one for one in between.seen("PUT", "*/send/*", since=since) if one.fault]
    assert len(tries) == 3
    assert len({(one.path, one.body) for one in tries}) == 1


@pytest.mark.requirement("REL-3", "ACC-1")
async def test_soft_logout_is_a_login_for_the_same_device(person: MakePerson, make_bot: MakeBot, between: FaultProxy) -> None:
    """An expired token is renewed with the password, and the device with its keys stays."""
    alice = await person("alice")
    bot, room = await _settle(alice, make_bot, between)
    before = alice.messages(room, sender=bot.user_id)[-1]
    await bot.stop()
    password_file = bot.home.parent / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(bot.password)
    bot.settings["matrix.password_file"] = str(password_file)
    await bot.start()
    between.fails(faults.unknown_token(soft_logout=True), path="*/sync*", times=1)
    asked = await alice.say(room, "echo still here")  # ends the long poll; the next one is refused
    await alice.finds(lambda: between.seen("POST", "*/login"), what="a login")
    answer = await alice.is_answered(asked)
    assert (answer.session_id, answer.trust) == (before.session_id, before.trust)
    alice.check_strictly(room)


@pytest.mark.requirement("REL-3", "ACC-1")
async def test_hard_logout_ends_with_78_and_a_sentence(person: MakePerson, make_bot: MakeBot, between: FaultProxy) -> None:
    """A device that was logged out for good stops; it doesn't hammer."""
    alice = await person("alice")
    bot, _ = await _settle(alice, make_bot, between)
    since = time.monotonic()
    between.fails(faults.unknown_token())
    await alice.say(await alice.direct_message(bot.user_id), "echo wakes the long poll")
    assert await bot.has_ended(timeout_s=40) == 78
    assert "log" in bot.read_log().splitlines()[-1].lower()
    assert len([one for one in between.seen(since=since) if one.fault]) <= 4


@pytest.mark.requirement("REL-3", "IN-3", "IN-11")
@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(hours=-1)], ids=["ahead", "behind"])
async def test_clock_an_hour_off_changes_nothing(person: MakePerson, make_bot: MakeBot, between: FaultProxy, by: timedelta) -> None:
    """The homeserver's clock differs by an hour, over a restart: messages meanwhile are answered once, in order."""
    alice = await person("alice")
    between.fails(faults.shifts_clock(by))
    bot, room = await _settle(alice, make_bot, between)
    await bot.kill()
    asked = {await alice.say(room, f"echo {number}"): f"{number}" for number in range(3)}
    await bot.start()
    await _check_answers(alice, room, asked)


def _garble_rooms(garbled: set[str]) -> faults.Fault:
    """Make the parts of these rooms in sync answers unusable."""

    def change(answer: Any) -> Any:
        for room_id in garbled & set((answer.get("rooms") or {}).get("join") or {}):
            answer["rooms"]["join"][room_id] = {"timeline": {"events": [None, 7, {"type": []}], "prev_batch": None}, "state": "no"}
        return answer

    return faults.changes(change)


@pytest.mark.requirement("REL-3", "STO-2")
async def test_malformed_room_spoils_no_other_room(person: MakePerson, make_bot: MakeBot, between: FaultProxy) -> None:
    """One room's part of each sync answer is rubbish: the other room is answered as ever, and the bot goes on."""
    alice = await person("alice")
    bot, room = await _settle(alice, make_bot, between)
    other = await alice.direct_message(bot.user_id)
    await alice.sees_member(other, bot.user_id)
    await alice.is_answered(await alice.say(other, "echo fine yet"))
    rule = between.fails(_garble_rooms({other}), path="*/sync*")
    await alice.say(other, "echo lost in rubbish")
    for number in range(3):
        answer = await alice.is_answered(await alice.say(room, f"echo {number}"))
        assert answer.body == str(number)
    assert rule.hits
    rule.end()
    assert bot.is_running
    alice.check_strictly()


def _repeat_events(answer: Any) -> Any:
    """Give each timeline event twice, and the second time in reverse."""
    for part in ((answer.get("rooms") or {}).get("join") or {}).values():
        events = part.get("timeline", {}).get("events", [])
        events += list(reversed(events))
    return answer


@pytest.mark.requirement("REL-3", "IN-1")
async def test_duplicate_and_reordered_events_are_answered_once(person: MakePerson, make_bot: MakeBot, between: FaultProxy) -> None:
    """Each event comes twice, the second time in another order: one answer each, in the order of the first."""
    alice = await person("alice")
    _, room = await _settle(alice, make_bot, between)
    between.fails(faults.changes(_repeat_events), path="*/sync*")
    asked = {await alice.say(room, f"echo {number}"): f"{number}" for number in range(5)}
    await _check_answers(alice, room, asked)


@pytest.mark.requirement("REL-3")
async def test_doctor_says_what_is_wrong_with_the_homeserver(person: MakePerson, make_bot: MakeBot, between: FaultProxy) -> None:
    """While a gateway answers in the homeserver's place, doctor fails and names it."""
    alice = await person("alice")
    bot, _ = await _settle(alice, make_bot, between)
    between.fails(faults.bad_gateway())
    code, output = await bot.command("doctor")
    assert code == 1
    assert "502" in output
