"""Faults between the bot and its homeserver: nothing lost, nothing twice, no busy loop (REL-3)."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import time
from collections.abc import Iterator  # noqa: TC003  read by pytest
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.recovery.conversation import naming
from tests.support import proxy as faults
from tests.support.proxy import FaultProxy

if TYPE_CHECKING:
    from hayate_matrix.demo.homeserver import Homeserver
    from tests.support.bot import Bot
    from tests.support.person import Person
    from tests.support.plugin import MakeBot, MakePerson

HELD_S = 120.0
"""How long the faults last (REL-3)."""
RATE = 2.0
"""Most requests a second while failing (REL-3)."""
WINDOW_S = 10.0
"""Any ten seconds of them: a burst must not hide in the mean of two minutes."""
_DOWN = "gets no answer from the homeserver"
_LIMITED = "limited by the homeserver just now"
_CUT = "The connection to http://127.0.0.1"
FAULTS = {
    "429 without a time": (faults.rate_limited(), "limits how often it is asked", _LIMITED),
    "429 with a header": (faults.rate_limited(1), "limits how often it is asked", _LIMITED),
    "429 with a time in the body": (faults.rate_limited(1, where="body"), "limits how often it is asked", _LIMITED),
    "502 with a page": (faults.bad_gateway(), "status 502", _DOWN),
    "500 from Matrix": (faults.server_error(), "status 500", _DOWN),
    "200 with a page": (faults.page_with_200(), "status 200 and a body that is no JSON object", _DOWN),
    "a hanging server": (faults.hangs(), "did not answer", _DOWN),
    "refused connections": (faults.refuses(), _CUT, _DOWN),
    "lost answers": (faults.loses_answer(), _CUT, _DOWN),
    "bodies that end early": (faults.cuts_body(), _CUT, _DOWN),
}
"""Each with what doctor says of the homeserver and of the bot."""


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
    await alice.finds(lambda: all(alice.answers(event) for event in asked), what="an answer to each", timeout_s=150)
    await alice.catches_up()
    answers = [one for one in alice.messages(room) if one.reply_to in asked]
    assert [(one.reply_to, one.body) for one in answers] == list(asked.items())
    alice.check_strictly(room)


@dataclass
class _Held:
    """A bot behind a proxy that fails in one way for two minutes, and what was asked of it."""

    name: str
    between: FaultProxy
    bot: Bot
    room: str
    asked: dict[str, str]

    async def asks(self, alice: Person, text: str, answer: str) -> None:
        self.asked[await alice.say(self.room, text)] = answer

    def find_busiest(self, since: float, until: float) -> float:
        """Return the highest rate of requests in any window between the two."""
        times = [one.at for one in self.between.seen(since=since) if one.at <= until]
        return max((bisect.bisect_left(times, at + WINDOW_S) - number for number, at in enumerate(times)), default=0) / WINDOW_S


async def _begin_failing(name: str, alice: Person, make_bot: MakeBot, between: FaultProxy) -> _Held:
    """Return a bot that has begun to fail with one answer under way."""
    bot, room = await _settle(alice, make_bot, between)
    held = _Held(name, between, bot, room, {})
    await held.asks(alice, "slow 2 under way", "under way")
    await alice.finds(lambda: bot.user_id in alice.typing.get(room, []), what="the bot to type")
    rule = between.fails(FAULTS[name][0])
    await held.asks(alice, "echo ends the long poll", "ends the long poll")
    await alice.finds(lambda: rule.hits, what="a request that meets the fault")
    return held


@pytest.mark.requirement("REL-3", "OUT-1", "OUT-2")
@pytest.mark.timeout(600)
async def test_two_minutes_of_each_fault_are_waited_out_slowly_and_cost_no_message(
    person: MakePerson, make_bot: MakeBot, homeserver: Homeserver
) -> None:
    """Every fault lasts two minutes, each for a bot of its own: at most two requests a second, doctor names it, one answer each."""
    alice = await person("alice")
    few = asyncio.Semaphore(3)  # processes that start at the same time
    with contextlib.ExitStack() as proxies:

        async def begin(name: str) -> _Held:
            async with few:
                return await _begin_failing(name, alice, make_bot, proxies.enter_context(FaultProxy(homeserver.url)))

        async def check_doctor(held: _Held) -> None:
            async with few:
                code, output = await held.bot.command("doctor")
            with naming(held.name):
                assert code == 1
                for said in FAULTS[held.name][1:]:
                    assert said in output, output

        helds = await asyncio.gather(*(begin(name) for name in FAULTS))
        await asyncio.sleep(1)  # what was under way when the last one began to fail is not counted
        begins = time.monotonic()
        for number in range(4):
            for held in helds:
                await held.asks(alice, f"echo {number}", f"{number}")
            await asyncio.sleep(max(begins + HELD_S * (number + 1) / 4 - time.monotonic(), 0))  # the length of the fault
        ends = time.monotonic()
        for held in helds:
            with naming(held.name):
                assert held.bot.is_running, held.bot.read_log()
                assert held.find_busiest(begins, ends) <= RATE
        await asyncio.gather(*(check_doctor(held) for held in helds))
        for held in helds:
            held.between.heals()
        for held in helds:
            with naming(held.name):
                await _check_answers(alice, held.room, held.asked)


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
