"""The device's own keys and the account's identity: on disk before they leave, never overwritten."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hayate_matrix.errors import EncryptionError
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.edge import EdgeWorld
    from tests.support.fabricated import FabricatedHomeserver, FabricatedRoom
    from tests.support.fabricated.devices import FabricatedUser


def _uploaded(server: FabricatedHomeserver) -> list[dict[str, Any]]:
    return [asked.body for asked in server.requests("POST", "*/keys/upload")]


@pytest.mark.requirement("E2E-7")
async def test_lost_answer_to_a_key_upload_sends_the_same_keys_again_after_a_kill(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """The private halves are on disk before the upload; the next process sends that very upload and can use its keys."""

    async def lose(_request: Any, _body: Any) -> Any:
        await asyncio.sleep(3600)

    losing = server.handles("POST", "*/keys/upload", lose)
    starting = asyncio.create_task(world.open())
    await eventually(lambda: _uploaded(server))
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await world.close()
    losing.end()
    await world.open()
    await world.synced()
    bodies = _uploaded(server)
    assert [bodies[1][part] for part in ("one_time_keys", "fallback_keys")] == [
        bodies[0][part] for part in ("one_time_keys", "fallback_keys")
    ]
    room.says(alice, "opens with an uploaded key")
    await world.hears("opens with an uploaded key")


@pytest.mark.requirement("E2E-7")
async def test_keys_the_server_already_has_in_another_form_do_not_stop_the_bot(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """An answer of "already exists" ends that upload; later ones carry new keys."""
    await world.open()
    await world.synced()
    server.answers("POST", "*/keys/upload", {"errcode": "M_UNKNOWN", "error": "One time key already exists"}, status=400, times=1)
    server.one_time_keys[world.login.user_id, world.login.device_id].clear()
    room.says(alice, "wakes the sync")
    await eventually(lambda: len(_uploaded(server)) == 2)
    server.adds_to_sync({})
    await eventually(lambda: server.one_time_keys[world.login.user_id, world.login.device_id])
    first, second = _uploaded(server)[-2:]
    assert not set(first["one_time_keys"]) & set(second["one_time_keys"])


@pytest.mark.requirement("E2E-7")
async def test_empty_pool_of_one_time_keys_is_filled_again(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A count of 0 counts: without keys no new device could send the bot anything."""
    await world.open()
    await world.synced()
    server.one_time_keys[world.login.user_id, world.login.device_id].clear()
    room.says(alice, "wakes the sync")
    await eventually(lambda: len(server.one_time_keys[world.login.user_id, world.login.device_id]) == 50)


@pytest.mark.requirement("E2E-7")
async def test_fallback_key_is_uploaded_and_replaced_after_its_use(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """When the pool is drained a session still begins, with a signed fallback key that is then changed."""
    await world.open()
    await world.synced()
    name = (world.login.user_id, world.login.device_id)
    first = dict(server.fallback_keys[name])
    server.one_time_keys[name].clear()
    server.handles("POST", "*/keys/upload", _refuse_one_time_keys(server), times=1)
    room.says(alice, "through the fallback key")
    await world.hears("through the fallback key")
    del server.fallback_keys[name]
    server.adds_to_sync({})
    await eventually(lambda: server.fallback_keys.get(name))
    assert server.fallback_keys[name] != first


def _refuse_one_time_keys(_server: FabricatedHomeserver) -> Any:
    async def reply(_request: Any, _body: Any) -> Any:
        await asyncio.sleep(0.3)

    return reply


@pytest.mark.requirement("E2E-1")
async def test_first_start_makes_an_identity_and_signs_the_device(world: EdgeWorld, server: FabricatedHomeserver) -> None:
    """After the first start everybody sees the device signed by the account's own identity; later starts change nothing."""
    await world.open()
    user, device = world.login.user_id, world.login.device_id
    shown = server.device_keys[user][device]
    identity = dict(server.cross_signing[user])
    assert len(shown["signatures"][user]) == 2
    await world.restart()
    assert server.cross_signing[user] == identity
    assert len(server.requests("POST", "*/device_signing/upload")) == 1


@pytest.mark.requirement("E2E-1")
async def test_signature_that_the_server_lost_is_repaired(world: EdgeWorld, server: FabricatedHomeserver) -> None:
    """A later start that finds the device unsigned signs it again with the identity it has."""
    await world.open()
    user, device = world.login.user_id, world.login.device_id
    signatures = server.device_keys[user][device]["signatures"][user]
    for key in [name for name in signatures if name != f"ed25519:{device}"]:
        del signatures[key]
    await world.restart()
    assert len(server.device_keys[user][device]["signatures"][user]) == 2


@pytest.mark.requirement("ACC-1", "E2E-1")
async def test_device_that_was_logged_out_is_the_same_after_the_next_login(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A server forgets the keys of a device that it logs out: the next start shows the same ones again, signed, with new one-time keys."""
    await world.open()
    await world.synced()
    name = user, device = world.login.user_id, world.login.device_id
    before = server.device_keys[user][device]
    await world.close()
    del server.device_keys[user][device]
    gone = dict(server.one_time_keys.pop(name)), dict(server.fallback_keys.pop(name))
    await world.open()
    assert server.device_keys[user][device] == before
    assert len(server.one_time_keys[name]) == 50
    assert not set(server.one_time_keys[name]) & set(gone[0])
    assert not set(server.fallback_keys[name]) & set(gone[1])
    room.says(alice, "opens with a new key")
    await world.hears("opens with a new key")


@pytest.mark.requirement("E2E-1")
async def test_signature_upload_that_fails_inside_a_success_stops_the_start(world: EdgeWorld, server: FabricatedHomeserver) -> None:
    """200 with `failures` is no success: the server's copy is what counts."""
    server.answers("POST", "*/keys/signatures/upload", {"failures": {world.login.user_id: {"X": {"errcode": "M_INVALID_SIGNATURE"}}}})
    with pytest.raises(EncryptionError, match="did not keep the signature"):
        await world.open()


@pytest.mark.requirement("E2E-1")
async def test_identity_of_another_client_is_not_overwritten(world: EdgeWorld, server: FabricatedHomeserver) -> None:
    """An account that already has an identity is refused with what to do, and nothing is uploaded over it."""
    server.user(world.login.user_id, devices=0)
    before = dict(server.cross_signing[world.login.user_id])
    with pytest.raises(EncryptionError, match="already has an identity"):
        await world.open()
    assert server.cross_signing[world.login.user_id] == before
    assert server.requests("POST", "*/device_signing/upload") == []


@pytest.mark.requirement("E2E-1")
async def test_identity_that_somebody_replaced_stops_encryption_with_a_clear_message(
    world: EdgeWorld, server: FabricatedHomeserver
) -> None:
    """The bot does not speak under an identity that is not its own."""
    await world.open()
    await world.close()
    server.user(world.login.user_id, devices=0)
    with pytest.raises(EncryptionError, match="replaced"):
        await world.open()


@pytest.mark.requirement("E2E-1")
async def test_identity_is_uploaded_with_the_password_step_where_the_server_asks_for_it(
    world: EdgeWorld, server: FabricatedHomeserver
) -> None:
    """A server that wants the password for the first upload gets it once; without one the error says what to set."""
    from aiohttp import web  # noqa: PLC0415

    def ask(_request: Any, body: Any) -> Any:
        if body and body.get("auth", {}).get("password") == "pw" and body["auth"]["session"] == "s1":
            return None
        return web.json_response({"flows": [{"stages": ["m.login.password"]}], "session": "s1", "params": {}}, status=401)

    server.handles("POST", "*/device_signing/upload", ask)
    with pytest.raises(EncryptionError, match="password"):
        await world.open()
    await world.close()
    await world.open(password="pw")
    assert len(server.device_keys[world.login.user_id][world.login.device_id]["signatures"][world.login.user_id]) == 2


@pytest.mark.requirement("E2E-8")
async def test_lost_store_under_the_same_device_is_refused(world: EdgeWorld, server: FabricatedHomeserver) -> None:
    """Where the server knows other keys for this device than the store has, nothing is uploaded over them."""
    await world.open()
    await world.close()
    for name in ("matrix.db", "matrix.db-wal", "matrix.db-shm"):
        (world.home / name).unlink(missing_ok=True)
    before = dict(server.device_keys[world.login.user_id][world.login.device_id])
    uploads = len(_uploaded(server))
    with pytest.raises(EncryptionError, match="other keys"):
        await world.open()
    assert server.device_keys[world.login.user_id][world.login.device_id] == before
    assert len(_uploaded(server)) == uploads


@pytest.mark.requirement("E2E-4")
async def test_message_whose_key_comes_later_is_heard_once_and_nothing_waits_for_it(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A message without its key is a durable row; newer ones are heard meanwhile; the key brings it, once, also after a restart."""
    await world.open()
    await world.synced()
    other = alice.adds_device("SECOND")
    early_key = other.room_key(room.room_id)
    content = other.encrypt(room.room_id, {"msgtype": "m.text", "body": "late"})
    room.has(alice.user_id, "m.room.encrypted", content)
    room.says(alice, "newer")
    await world.hears("newer")
    assert await world.count("undecryptable") == 1
    await world.restart()
    bot = world.login
    event = other.encrypt_to_device(bot.user_id, bot.device_id, "m.room_key", early_key)
    server.sends_to_device(bot.user_id, bot.device_id, event)
    await world.hears("newer", "late")
    server.sends_to_device(bot.user_id, bot.device_id, other.encrypt_to_device(bot.user_id, bot.device_id, "m.room_key", early_key))
    await world.synced()
    assert world.heard.texts == ["newer", "late"]
    assert await world.count("undecryptable") == 0


@pytest.mark.requirement("E2E-4")
async def test_withheld_reason_is_kept_for_the_operator(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """`m.room_key.withheld` names why a message can't be read; it is counted by its code."""
    await world.open()
    await world.synced()
    content = alice.device.encrypt(room.room_id, {"msgtype": "m.text", "body": "unread"})
    room.has(alice.user_id, "m.room.encrypted", content)
    withheld = {"room_id": room.room_id, "session_id": content["session_id"], "code": "m.unverified", "reason": "unverified"}
    event = {"type": "m.room_key.withheld", "sender": alice.user_id, "content": withheld}
    server.sends_to_device(world.login.user_id, world.login.device_id, event)
    await world.synced()
    assert await world.count("withheld.m.unverified") == 1
    assert await world.count("unread.no-key") == 1


@pytest.mark.requirement("E2E-6")
async def test_message_of_an_unsigned_device_is_heard_when_its_owner_signs_it(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests are taken from cross-signed devices alone, and the operator is told whose; once the device is signed, they are heard."""
    unsigned = alice.adds_device("NEW", cross_signed=False)
    await world.open()
    await world.synced()
    room.says(alice, "from the new device", device=unsigned)
    room.says(alice, "again", device=unsigned)
    room.says(alice, "from the old one")
    await world.hears("from the old one")
    assert await world.count("unsigned") == 2
    assert await world.edge.list_unsigned_senders() == [alice.user_id]
    assert capsys.readouterr().out.count("has not verified the session") == 1
    unsigned.identity = alice.identity
    server.publishes(unsigned)
    await world.hears("from the old one", "from the new device", "again")
    assert await world.count("unsigned") == 0
    assert await world.edge.list_unsigned_senders() == []


@pytest.mark.requirement("E2E-6")
async def test_every_device_may_speak_where_the_operator_says_so(world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser) -> None:
    """With devices = "all" an unsigned device is heard."""
    unsigned = alice.adds_device("NEW", cross_signed=False)
    await world.open(devices="all")
    await world.synced()
    room.says(alice, "hello", device=unsigned)
    await world.hears("hello")


@pytest.mark.requirement("E2E-10", "E2E-6")
async def test_device_that_speaks_before_its_list_is_known_is_heard_after_the_query(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A newcomer who speaks at once is heard as soon as the homeserver lists the device."""
    await world.open()
    await world.synced()
    bob = server.user("@bob:fab.test")
    room.member(bob.user_id)
    room.says(bob, "just joined")
    await world.hears("just joined")
