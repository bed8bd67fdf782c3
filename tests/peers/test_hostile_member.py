"""A member of an encrypted room who sends what no honest client does, on a real homeserver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.plugin import MakeBot, MakePerson


@pytest.mark.requirement("E2E-10", "SEC-2", "ROOM-10", "STO-2")
async def test_hostile_member_changes_nothing_stops_nothing_and_is_counted(person: MakePerson, make_bot: MakeBot) -> None:
    """Encrypted state, rubbish for ciphertexts and another person's ciphertext: the room stays as it was and others are answered."""
    alice, mallory = await person("alice"), await person("mallory")
    bot = await (await make_bot()).start()
    room = await alice.create_room(invite=[bot.user_id, mallory.user_id])
    await mallory.join(room)
    await alice.sees_member(room, bot.user_id)
    await alice.sees_member(room, mallory.user_id)
    await alice.is_answered(await alice.say(room, "echo before", mention=bot.user_id))

    await mallory.send(room, "m.room.power_levels", {"users": {mallory.user_id: 100}, "users_default": 100})
    await mallory.send(room, "m.room.member", {"membership": "leave"})
    await mallory.send(room, "m.room.tombstone", {"body": "moved", "replacement_room": "!elsewhere:world.test"})
    sealed = await mallory.encrypt(room, "m.room.message", {"msgtype": "m.text", "body": "echo broken"})
    broken: object
    for broken in ("", "AAAA", "not base64 !", sealed["ciphertext"][:-8], [], {"a": 1}):
        await mallory.send_clear(room, "m.room.encrypted", {**sealed, "ciphertext": broken})
    stolen = await alice.encrypt(
        room, "m.room.message", {"msgtype": "m.text", "body": "echo stolen", "m.mentions": {"user_ids": [bot.user_id]}}
    )
    under_another_name = await mallory.send_clear(room, "m.room.encrypted", stolen)
    await mallory.send_clear(room, "m.room.message", {"msgtype": "m.text", "body": f"{bot.user_id}: echo in clear"})
    to_device = {"messages": {bot.user_id: {"*": {"algorithm": "m.olm.v1.curve25519-aes-sha2", "sender_key": "x", "ciphertext": {"y": 7}}}}}
    await mallory.ask("PUT", "/_matrix/client/v3/sendToDevice/m.room.encrypted/hostile", to_device)

    after = await alice.is_answered(await alice.say(room, "echo after", mention=bot.user_id))
    assert after.body == "after"
    # Her next message under another index still counts as hers, and mallory still has no power: `!pause` needs 50.
    honest = await mallory.is_answered(await mallory.say(room, "echo honest", mention=bot.user_id))
    assert honest.body == "honest"
    await alice.catches_up()
    assert not alice.answers(under_another_name)
    assert [one.body for one in alice.messages(room, sender=bot.user_id)] == ["before", "after", "honest"]
    assert bot.is_running
    alice.check_strictly_but_for(mallory.user_id)
    await bot.stop()
    _, told = await bot.command("doctor")
    assert "set aside" in told
