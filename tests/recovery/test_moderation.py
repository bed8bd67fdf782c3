"""Moderators act while the bot works: what ends, ends; what is owed goes out when it may (ROOM-10)."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.bot import Bot
    from tests.support.plugin import MakeBot, MakePerson


def _count_held(bot: Bot) -> int:
    database = sqlite3.connect(bot.home / "hayate.db")
    try:
        return int(database.execute("SELECT count(*) FROM outbox WHERE state = 'held'").fetchone()[0])
    finally:
        database.close()


@pytest.mark.requirement("ROOM-10", "E2E-6")
@pytest.mark.parametrize("is_down", [False, True], ids=["in the middle of a turn", "while it is down"])
async def test_kicked_and_asked_in_again_it_works_as_before(person: MakePerson, make_bot: MakeBot, *, is_down: bool) -> None:
    """The turn ends without an answer, the new invite is taken, and everybody in the room can read what is answered from then on."""
    alice = await person("alice")
    bot = await (await make_bot()).start()
    room = await alice.create_room(invite=[bot.user_id])
    await alice.sees_member(room, bot.user_id)
    await alice.is_answered(await alice.say(room, "echo before", mention=bot.user_id))
    cut_off = await alice.say(room, "slow 60 never", mention=bot.user_id)
    await alice.finds(lambda: bot.user_id in alice.typing.get(room, []), what="the bot to type")
    if is_down:
        await bot.kill()
    await alice.kick(room, bot.user_id)
    await alice.invite(room, bot.user_id)
    if is_down:
        await bot.start()
    await alice.sees_member(room, bot.user_id)
    answer = await alice.is_answered(await alice.say(room, "echo again", mention=bot.user_id))
    assert answer.body == "again"
    assert alice.answers(cut_off) == []
    alice.check_strictly(room)


@pytest.mark.requirement("ROOM-10", "OUT-2")
async def test_muted_and_unmuted_it_says_what_it_owes(person: MakePerson, make_bot: MakeBot) -> None:
    """What could not be said is held, and goes out in order once the bot may speak again, without a restart."""
    alice = await person("alice")
    bot = await (await make_bot()).start()
    room = await alice.create_room(invite=[bot.user_id])
    await alice.sees_member(room, bot.user_id)
    status, levels = await alice.request("GET", f"/_matrix/client/v3/rooms/{room}/state/m.room.power_levels/")
    assert status == 200, levels
    await alice.put_state(room, "m.room.power_levels", {**levels, "events_default": 50})
    asked = [await alice.say(room, f"echo {number}", mention=bot.user_id) for number in range(3)]
    await eventually(lambda: _count_held(bot) == 3)
    await alice.put_state(room, "m.room.power_levels", levels)
    for event in asked:
        await alice.is_answered(event)
    assert [one.body for one in alice.messages(room, sender=bot.user_id)] == ["0", "1", "2"]
    alice.check_strictly(room)
