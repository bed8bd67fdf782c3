"""SIGKILL at every durable step, with a real Synapse and an encrypted room, judged by what the room saw (REL-1, E2E-7, OUT-1)."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from tests.recovery.conversation import Conversation, naming
from tests.support.crashing import Crash, Step
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.bot import Bot
    from tests.support.plugin import MakeBot, MakePerson


def _requests(*names: str) -> list[Step]:
    return [Step("request", name) for name in names]


def _transactions(*names: str) -> list[Step]:
    return [Step("transaction", name) for name in names]


MEETING = [
    *_requests("sync", "join", "keys_query", "keys_claim", "to_device", "send"),
    *_transactions("sync.apply", "room.joined", "intake.accept", "edge.handed", "command.run"),
    *_transactions("turn.open", "turn.step", "turn.result", "turn.end", "turn.fail", "delivery.settle"),
    *_transactions("keys.track", "keys.devices", "keys.claim", "keys.share", "keys.to_device.settle", "send.keep", "edge.chores"),
]
"""Reached when somebody new invites the bot into an encrypted room and talks to it."""
FIRST_START = [
    *_requests("account.whoami", "own_keys_query", "identity_upload", "identity_sign", "keys_upload"),
    *_transactions("edge.open", "keys.identity.make", "keys.upload.make", "keys.upload.settle", "sync.apply"),
]
"""Reached by the first start of a device."""
ELSEWHERE: dict[str, str] = {}
"""Steps that other tests of this folder kill at, and where."""
READS_ONLY = {
    "account.flows": "login asks what the server offers; nothing was made yet",
    "doctor.keys": "doctor changes nothing",
    "doctor.versions": "doctor changes nothing",
    "doctor.whoami": "doctor changes nothing",
}


def _lives(steps: list[Step], seed: int) -> list[Crash]:
    """Return a crash before and one after each step, in an order that the seed gives."""
    crashes = [Crash(step, when) for step in steps for when in ("before", "after")]
    random.Random(seed).shuffle(crashes)
    return crashes


async def _dies(bot: Bot, crash: Crash, *, timeout_s: float = 30.0) -> None:
    """Return when the bot has killed itself at `crash`."""
    await eventually(lambda: not bot.is_running, timeout_s=timeout_s, what=lambda: f"the bot reaches {crash}:\n{bot.read_log()}")
    assert await bot.has_ended() == -9, f"at {crash} it ended otherwise:\n{bot.read_log()}"


@pytest.mark.requirement("REL-1", "E2E-7", "OUT-1", "CORE-3", "STO-2", "STO-3")
@pytest.mark.timeout(420)
async def test_killed_at_every_step_of_a_conversation_it_answers_each_message_once(person: MakePerson, make_bot: MakeBot) -> None:
    """One home lives through a kill before and after each step, with a new conversation in each life: each message has one answer."""
    bot = await make_bot()
    await bot.start()
    await bot.stop()
    conversations: dict[str, Conversation] = {}
    talks: list[asyncio.Task[None]] = []
    for crash in _lives(MEETING, seed=1):
        await bot.start(is_ready=False, crash=crash)
        conversation = conversations[str(crash)] = Conversation(await person("alice"), bot)
        if "claim" in crash.step.name:
            # The bot can answer over the session that a speaking device made; one that says nothing is claimed a key for.
            await (await conversation.who.second_device()).close()
        talks.append(asyncio.create_task(conversation.says_everything()))
        await _dies(bot, crash)
    await bot.start()
    await asyncio.gather(*talks)
    for name, conversation in conversations.items():
        with naming(f"in the life that ended at {name}"):
            await conversation.is_judged()
