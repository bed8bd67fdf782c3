"""The bot and a person on another implementation of the cryptography (PEER-1): mautrix-python with libolm, in its strict mode."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.plugin import MakeBot, MakePerson


@pytest.mark.requirement("PEER-1", "E2E-1", "E2E-6")
async def test_first_start_is_read_and_answers_a_strict_peer(person: MakePerson, make_bot: MakeBot) -> None:
    """From its first start the bot gets a strict peer's key, and its answer comes from a device that its own account has signed."""
    alice = await person("alice")
    bot = await (await make_bot()).start()
    room = await alice.create_room(invite=[bot.user_id])
    await alice.sees_member(room, bot.user_id)
    asked = await alice.say(room, "echo hello", mention=bot.user_id)
    answer = await alice.is_answered(asked)
    assert answer.body == "hello"
    assert answer.msgtype == "m.text"
    assert answer.trust == "cross-signed-tofu"
    assert answer.content["m.mentions"] == {"user_ids": [alice.user_id]}
    alice.check_strictly(room)


@pytest.mark.requirement("PEER-1", "E2E-11")
async def test_restart_goes_on_with_the_same_keys(person: MakePerson, make_bot: MakeBot) -> None:
    """After a kill the bot reads messages of the running room key, and its own room key goes on at the next index."""
    alice = await person("alice")
    bot = await (await make_bot()).start()
    room = await alice.direct_message(bot.user_id)
    await alice.sees_member(room, bot.user_id)
    before = await alice.is_answered(await alice.say(room, "echo before"))
    await bot.kill()
    waiting = await alice.say(room, "echo while down")
    await bot.start()
    during = await alice.is_answered(waiting)
    after = await alice.is_answered(await alice.say(room, "echo after"))
    assert [before.body, during.body, after.body] == ["before", "while down", "after"]
    assert {before.session_id, during.session_id, after.session_id} == {before.session_id}
    assert [before.index, during.index, after.index] == [0, 1, 2]
    alice.check_strictly(room)


@pytest.mark.requirement("PEER-1", "E2E-6")
async def test_unsigned_device_gets_no_key_and_is_told_so(person: MakePerson, make_bot: MakeBot) -> None:
    """A device that its owner has not signed can't read the answer and gets `m.room_key.withheld`; a signed second device can."""
    alice = await person("alice")
    bot = await (await make_bot()).start()
    room = await alice.direct_message(bot.user_id)
    await alice.sees_member(room, bot.user_id)
    signed = await alice.second_device()
    unsigned = await alice.second_device(cross_signed=False)
    try:
        answer = await alice.is_answered(await alice.say(room, "echo secret"))
        await signed.sees(room, "secret", sender=bot.user_id)
        await eventually(lambda: unsigned.withheld, what=unsigned.describe)
        await unsigned.catches_up()
        assert unsigned.withheld[0]["code"] == "m.unverified"
        assert answer.event_id in {one.event_id for one in unsigned.unread}
    finally:
        await signed.close()
        await unsigned.close()


@pytest.mark.requirement("PEER-1", "CORE-2", "IN-2")
async def test_burst_while_down_and_while_syncing_is_answered_in_order(person: MakePerson, make_bot: MakeBot) -> None:
    """Fifty messages while the bot is down and fifty more while it catches up: a hundred answers, each once, in the order asked."""
    alice = await person("alice")
    # Once it has caught up, each further message follows an answer within a second, as a program's would (IN-9).
    bot = await (await make_bot(settings={"matrix.loop_breaker": "1000"})).start()
    room = await alice.direct_message(bot.user_id)
    await alice.sees_member(room, bot.user_id)
    await alice.is_answered(await alice.say(room, "echo first"))
    await bot.kill()
    asked = [await alice.say(room, f"echo down {number}") for number in range(50)]
    starting = asyncio.create_task(bot.start())
    asked += [await alice.say(room, f"echo up {number}") for number in range(50)]
    await starting
    await alice.finds(lambda: len([one for one in asked if alice.answers(one)]) == len(asked), what="a hundred answers", timeout_s=90)
    await alice.catches_up()
    answers = [one for one in alice.messages(room, sender=bot.user_id) if one.reply_to in set(asked)]
    assert [one.reply_to for one in answers] == asked
    assert [one.body for one in answers] == [f"down {number}" for number in range(50)] + [f"up {number}" for number in range(50)]
    alice.check_strictly(room)
