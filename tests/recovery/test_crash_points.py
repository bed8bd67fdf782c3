"""SIGKILL at every durable step, with a real Synapse and an encrypted room, judged by what the room saw (REL-1, E2E-7, OUT-1)."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import TYPE_CHECKING

import pytest

from tests.recovery.conversation import Conversation, naming
from tests.recovery.scenes import SCENES, Stage
from tests.support.bot import Bot
from tests.support.crashing import Crash, Step, find_steps

if TYPE_CHECKING:
    from pathlib import Path

    from hayate_matrix.demo.homeserver import Homeserver
    from tests.support.plugin import MakeBot, MakePerson


def _requests(*names: str) -> list[Step]:
    return [Step("request", name) for name in names]


def _transactions(*names: str) -> list[Step]:
    return [Step("transaction", name) for name in names]


MEETING = [
    *_requests("probe", "sync", "join", "keys_query", "keys_claim", "to_device", "send"),
    *_transactions("sync.apply", "room.joined", "intake.accept", "command.run", "delivery.release"),
    *_transactions("turn.open", "turn.step", "turn.result", "turn.end", "turn.fail", "delivery.settle"),
    *_transactions("keys.track", "keys.devices", "keys.claim", "keys.late_device", "keys.share", "keys.to_device.settle"),
    *_transactions("send.keep", "edge.chores"),
]
"""Reached when somebody new invites the bot into an encrypted room and talks to it."""
FIRST_START = [
    *_requests("account.login", "account.whoami", "own_keys_query", "identity_upload", "identity_sign", "keys_upload", "display_name"),
    *_transactions("edge.open", "keys.identity.make", "keys.upload.make", "keys.upload.settle", "edge.name", "sync.apply"),
]
"""Reached by the login and the first start of a device."""
NOT_HERE = {
    "account.flows": "asks what the server offers; nothing was made yet",
    "doctor.keys": "doctor changes nothing",
    "doctor.versions": "doctor changes nothing",
    "doctor.whoami": "doctor changes nothing",
    "identity_upload_auth": "Synapse takes the first identity without the password step; tests/matrix has a server that doesn't",
    "edge.handed": "reached with 500 facts that were handed over; what a kill there hands over again changes nothing, tests/matrix",
    "store.reseal": "is run by an operator while the bot stands still; tests/cli cuts it off at each of its steps",
    "command.fail": "a command that breaks is a fault of the program; its end is one transaction like command.run",
    "turn.give_up": "a turn that breaks while it is opened; tests/property kills there",
    "delivery.end": "an honest homeserver refuses nothing that was cut to fit; tests/harness ends such rows",
    "room.encrypted": "only where the server knew and the sync did not tell; tests/matrix",
    "room.join_failed": "a join that fails is asked again after a pause; tests/matrix",
    "sync.gap.overdue": "after the deadline of a gap, ten minutes; tests/matrix",
    "upload": "an upload that is made again is another file; the event that names it is one of the sends; tests/matrix",
    "sessions.close_idle": "after an hour without a message at least; the same look finds the same sessions again, tests/harness",
    "sessions.remove": "after days without a message; the same look finds the same sessions again, tests/harness",
    "sync.set_aside": "what is set aside is never answered; tests/matrix",
}
"""Steps at which no test of this file kills, and why."""


PARTS = 3
"""Long chains of lives are cut into so many tests, which the workers share."""


def _lives(steps: list[Step], seed: int) -> list[Crash]:
    """Return a crash before and one after each step, in an order that the seed gives."""
    crashes = [Crash(step, when) for step in steps for when in ("before", "after")]
    random.Random(seed).shuffle(crashes)
    return crashes


@pytest.mark.requirement("REL-1", "E2E-7", "OUT-1", "CORE-3", "STO-2", "STO-3")
@pytest.mark.timeout(420)
@pytest.mark.parametrize("part", range(PARTS))
async def test_killed_at_every_step_of_a_conversation_it_answers_each_message_once(
    person: MakePerson, make_bot: MakeBot, part: int
) -> None:
    """A kill before and after each step, one home through a third of them, a new conversation in each life: each message has one answer."""
    # A turn of an early conversation may be cut off by the kills of several later ones.
    bot = await make_bot(settings={"harness.turn_retries": "20"})
    await bot.start()
    await bot.stop()
    conversations: dict[str, Conversation] = {}
    talks: list[asyncio.Task[None]] = []
    for crash in _lives(MEETING, seed=1)[part::PARTS]:
        await bot.start(is_ready=False, crash=crash)
        conversation = conversations[str(crash)] = Conversation(await person("alice"), bot)
        if "claim" in crash.step.name:
            # The bot can answer over the session that a speaking device made; one that says nothing is claimed a key for.
            await (await conversation.who.second_device()).close()
        talks.append(asyncio.create_task(conversation.says_everything()))
        await bot.dies_at(crash)
    await bot.start()
    await asyncio.gather(*talks)
    for name, conversation in conversations.items():
        with naming(f"in the life that ended at {name}"):
            await conversation.is_judged()


@pytest.mark.requirement("REL-1", "E2E-1", "E2E-7")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
async def test_killed_at_every_step_of_a_first_start_it_has_one_identity_and_answers(
    person: MakePerson, homeserver: Homeserver, tmp_path: Path, part: int
) -> None:
    """A device that dies before a step of its making, then after it, is whole then: a strict peer reads it, no key is used twice."""
    alice = await person("alice")
    together = asyncio.Semaphore(2)  # as many as there are cores to start on

    async def live(crashes: list[Crash]) -> None:
        async with together:
            is_login = crashes[0].step.name == "account.login"
            bot = await Bot.make(homeserver, tmp_path, login_crash=crashes[0] if is_login else None)
            try:
                for crash in [] if is_login else crashes:
                    await bot.start(is_ready=False, crash=crash)
                    await bot.dies_at(crash)
                await bot.start()
                room = await alice.direct_message(bot.user_id)
                await alice.sees_member(room, bot.user_id)
                with naming(f"after {[str(crash) for crash in crashes]}"):
                    asked = [await alice.say(room, f"echo {number}") for number in range(3)]
                    for event in asked:
                        await alice.is_answered(event)
                    await alice.catches_up()
                    assert [one.body for one in alice.messages(room)] == ["0", "1", "2"]
                    alice.check_strictly(room)
            finally:
                await bot.kill()

    # A kill before a step leaves the step to the next start, so the same home can die after it; a login is one process and dies once.
    lives = [[Crash(step, "before"), Crash(step, "after")] for step in FIRST_START if step.name != "account.login"]
    lives += [[Crash(step, when)] for step in FIRST_START if step.name == "account.login" for when in ("before", "after")]
    await asyncio.gather(*(live(crashes) for crashes in lives[part::PARTS]))


@pytest.mark.requirement("REL-1", "E2E-4", "E2E-7", "OUT-1", "IN-2", "ROOM-3")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(SCENES))
async def test_killed_at_every_step_of_a_scene_it_answers_each_message_once(
    person: MakePerson, make_bot: MakeBot, homeserver: Homeserver, name: str
) -> None:
    """The steps that only a particular situation reaches: one home lives through a kill before and after each."""
    scene = SCENES[name]
    stage = Stage(person, await make_bot(settings=scene.settings), homeserver)
    await scene.prepare(stage)
    for crash in _lives(scene.steps, seed=3):
        with naming(str(crash)):
            await scene.play(stage, dataclasses.replace(crash, also=scene.also))
    await stage.bot.start()
    await stage.is_judged()


@pytest.mark.requirement("REL-1")
def test_every_durable_step_of_the_code_has_its_kill() -> None:
    """The list of steps is read from the code: a new one is killed at, or it is said why not."""
    killed = {*MEETING, *FIRST_START, *(step for scene in SCENES.values() for step in scene.steps)}
    found = set(find_steps())
    assert {step.name for step in found - killed} == NOT_HERE.keys() & {step.name for step in found}
    assert not killed - found, "these steps are no longer in the code"
    assert not {step.name for step in killed} & NOT_HERE.keys()
