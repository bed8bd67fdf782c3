"""The power is cut at instants that nobody chose: what was not synced is gone, which no SIGKILL shows (REL-1)."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from tests.recovery.conversation import Conversation
from tests.support.missing import stop_without
from tests.support.unsynced import HOW_TO_GET_IT, Unsynced, compile_library, find_compiler

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bot import Bot
    from tests.support.plugin import MakeBot, MakePerson

CUTS = 8
LONGEST_LIFE_S = 2.0
"""From nothing, or from readiness, to some seconds of work."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that keeps what was synced."""
    compiler = find_compiler()
    if compiler is None:
        stop_without(HOW_TO_GET_IT)
    return compile_library(compiler, tmp_path_factory.mktemp("unsynced"))


def _watch(bot: Bot, library: Path) -> Unsynced:
    disk = Unsynced(library, bot.home, bot.home.with_suffix(".kept"))
    disk.begin()
    bot.variables |= disk.environment
    return disk


@pytest.mark.requirement("REL-1", "E2E-7", "OUT-1", "STO-2", "STO-3")
@pytest.mark.timeout(300)
async def test_power_cut_at_random_instants_loses_nothing_and_repeats_nothing(person: MakePerson, make_bot: MakeBot, library: Path) -> None:
    """From the first start on everything unsynced is lost again and again: one answer to each message, no key index used twice."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    bot = await make_bot(settings={"matrix.loop_breaker": "1000"})  # talking on without a pause, a person looks like a program (IN-9)
    disk = _watch(bot, library)
    conversation = Conversation(await person("alice"), bot)
    is_over = asyncio.Event()

    async def chatter() -> None:
        await conversation.open()
        number = 0
        while number == 0 or not is_over.is_set():
            number += 1
            await conversation.says(f"tool any thing\necho number {number}", f"number {number}")
            await asyncio.sleep(chance.uniform(0.1, 0.6))  # how fast a person types, not a wait for a state

    talk = asyncio.create_task(chatter())
    lost: list[list[str]] = []
    for life in range(CUTS):
        await bot.start(is_ready=life % 2 == 1)  # every other one from nothing
        await asyncio.sleep(chance.uniform(0, LONGEST_LIFE_S))  # the instant is what is drawn
        await bot.kill()
        lost.append(disk.cut_power())
    is_over.set()
    await bot.start()
    try:
        await talk
        await conversation.is_judged()
    except AssertionError as error:
        error.add_note(f"the seed of the instants was {seed}; what each cut took: {lost}")
        raise


@pytest.mark.requirement("REL-1")
async def test_power_cut_shows_a_missing_sync(person: MakePerson, make_bot: MakeBot, library: Path) -> None:
    """The cut takes the keys of a bot whose databases commit without a sync, and it can't go on: the test above is able to fail."""
    bot = await make_bot()
    disk = _watch(bot, library)
    alice = await person("alice")
    bot.prelude = "from tests.support.unsynced import forget_to_sync; forget_to_sync()"
    await bot.start()
    room = await alice.direct_message(bot.user_id)
    await alice.sees_member(room, bot.user_id)
    await alice.is_answered(await alice.say(room, "echo before"))
    await bot.kill()
    assert {"hayate.db", "matrix.db"} <= set(disk.cut_power())
    bot.prelude = ""
    await bot.start(is_ready=False)
    assert await bot.has_ended() == 78
    assert "knows other keys for device" in bot.read_log()
