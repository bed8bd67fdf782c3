"""Kills at instants that nobody chose: what no list of steps can hold (REL-1)."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from tests.recovery.conversation import Conversation

if TYPE_CHECKING:
    from tests.support.plugin import MakeBot, MakePerson

LIVES = 12
LONGEST_LIFE_S = 2.5
"""From nothing (the interpreter starts) to some seconds of work: a start takes a little over a second."""


@pytest.mark.requirement("REL-1", "E2E-7", "OUT-1", "CORE-1", "IN-11")
@pytest.mark.timeout(300)
async def test_killed_at_random_instants_it_answers_each_message_once_and_in_order(person: MakePerson, make_bot: MakeBot) -> None:
    """Two people talk without a pause while the bot is killed again and again: one answer to each message, in the order asked."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    # Talking on without a pause, a person looks like a program (IN-9).
    bot = await (await make_bot(settings={"matrix.loop_breaker": "1000"})).start()
    conversations = [Conversation(await person(name), bot) for name in ("alice", "ben")]
    for conversation in conversations:
        await conversation.open()
    is_over = asyncio.Event()

    async def chatter(conversation: Conversation) -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            text = f"{'tool any thing' if number % 3 == 0 else ''}\necho number {number}".strip()
            await conversation.says(text, f"number {number}")
            await asyncio.sleep(chance.uniform(0.05, 0.4))  # how fast a person types, not a wait for a state

    talks = [asyncio.create_task(chatter(conversation)) for conversation in conversations]
    for _ in range(LIVES):
        await asyncio.sleep(chance.uniform(0, LONGEST_LIFE_S))  # the instant is what is drawn
        await bot.kill()
        await bot.start(is_ready=False)
    is_over.set()
    await asyncio.gather(*talks)
    try:
        for conversation in conversations:
            await conversation.is_judged()
            answers = [one.reply_to for one in conversation.who.messages(conversation.room, sender=bot.user_id)]
            assert answers == list(conversation.asked)
    except AssertionError as error:
        error.add_note(f"the seed of the instants was {seed}")
        raise
