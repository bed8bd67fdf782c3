"""Who gets a room key: everybody who may read, nobody else, whatever happens in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.edge import EdgeWorld
    from tests.support.fabricated import FabricatedHomeserver, FabricatedRoom
    from tests.support.fabricated.devices import FabricatedDevice, FabricatedUser

BOB = "@bob:fab.test"


async def _started(world: EdgeWorld) -> None:
    await world.open()
    await world.synced()


async def _say(world: EdgeWorld, room: FabricatedRoom, text: str = "answer") -> None:
    await world.edge.gateway.deliver(world.delivery(room.room_id, text))


def _read(server: FabricatedHomeserver, room: FabricatedRoom, device: FabricatedDevice) -> list[str]:
    """Return what the device can read of the bot's messages, `?` for what it can't."""
    device.reads_to_device()
    texts = []
    for event in server.sent:
        try:
            texts.append(str(device.reads(event["content"])["content"]["body"]))
        except (KeyError, ValueError, AssertionError):
            texts.append("?")
    return texts


def _sessions(server: FabricatedHomeserver) -> list[str]:
    return [event["content"]["session_id"] for event in server.sent]


@pytest.mark.requirement("E2E-6", "E2E-11")
async def test_running_key_survives_a_restart_and_a_new_device_gets_it_at_its_index(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A restart, a display name and a new device change no room key; the new device reads from where it came."""
    await _started(world)
    await _say(world, room, "one")
    await world.restart()
    room.member(alice.user_id, displayname="Alice A.")
    await world.synced()
    await _say(world, room, "two")
    second = alice.adds_device("SECOND")
    await world.synced()
    await _say(world, room, "three")
    assert len(set(_sessions(server))) == 1
    assert _read(server, room, alice.device) == ["one", "two", "three"]
    assert _read(server, room, second) == ["?", "?", "three"]


@pytest.mark.requirement("E2E-6")
@pytest.mark.parametrize(
    "change",
    ["leave", "kick of an invited one", "removed device", "history visibility"],
)
async def test_room_key_changes_when_somebody_may_not_read_on(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, change: str
) -> None:
    """Whoever left, was uninvited, or lost a device can't read what comes after."""
    bob = server.user(BOB)
    room.member(BOB, "invite" if change == "kick of an invited one" else "join", sender=alice.user_id)
    extra = alice.adds_device("OLD")
    await _started(world)
    await _say(world, room, "one")
    if change == "removed device":
        alice.loses_device(extra)
    elif change == "history visibility":
        room.has(alice.user_id, "m.room.history_visibility", {"history_visibility": "joined"}, state_key="")
    else:
        room.member(BOB, "leave", sender=alice.user_id)
    await world.synced()
    await _say(world, room, "two")
    assert len(set(_sessions(server))) == 2
    assert _read(server, room, alice.device) == ["one", "two"]
    if change in ("leave", "kick of an invited one"):
        assert _read(server, room, bob.device) == ["one", "?"]


@pytest.mark.requirement("E2E-6")
async def test_rooms_own_rotation_settings_are_followed(world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser) -> None:
    """After as many messages, or as much time, as the room says, a new key is used."""
    short = server.room(
        "!short:fab.test", members=[alice.user_id, world.login.user_id], encrypted=True, encryption={"rotation_period_msgs": 2}
    )
    aged = server.room(
        "!aged:fab.test", members=[alice.user_id, world.login.user_id], encrypted=True, encryption={"rotation_period_ms": 7_200_000}
    )
    await _started(world)
    for number in range(4):
        await _say(world, short, f"m{number}")
    assert len(set(_sessions(server))) == 2
    assert _read(server, short, alice.device) == ["m0", "m1", "m2", "m3"]
    server.sent.clear()
    await _say(world, aged, "young")
    world.clock.skip(7_300)
    await _say(world, aged, "old")
    assert len(set(_sessions(server))) == 2


@pytest.mark.requirement("E2E-6")
async def test_unsigned_device_is_left_out_told_so_once_and_counted(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A device that its owner has not cross-signed gets no key but `m.room_key.withheld` with m.unverified, once a key."""
    unsigned = alice.adds_device("UNSIGNED", cross_signed=False)
    await _started(world)
    await _say(world, room, "one")
    await _say(world, room, "two")
    assert _read(server, room, unsigned) == ["?", "?"]
    withheld = [body["messages"] for body in server.outgoing_to_device if body["type"] == "m.room_key.withheld"]
    assert len(withheld) == 1
    told = withheld[0][alice.user_id]["UNSIGNED"]
    assert (told["code"], told["room_id"], told["session_id"]) == ("m.unverified", room.room_id, _sessions(server)[0])
    assert await world.count("withheld_devices") == 1


@pytest.mark.requirement("E2E-6")
async def test_device_that_is_signed_later_gets_the_running_key(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """Once its owner signs it, a device that was told `withheld` gets the key with the next message."""
    unsigned = alice.adds_device("UNSIGNED", cross_signed=False)
    await _started(world)
    await _say(world, room, "one")
    unsigned.identity = alice.identity
    server.publishes(unsigned)
    await world.synced()
    await _say(world, room, "two")
    assert _read(server, room, unsigned) == ["?", "two"]
    assert len(set(_sessions(server))) == 1


@pytest.mark.requirement("E2E-6")
async def test_user_whose_verified_identity_changed_gets_nothing(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """After the operator verified somebody, another identity of theirs gets no key until the operator says so."""
    await _started(world)
    await _say(world, room, "one")
    trust = world.keystore.trust
    await world.keystore.transaction("test.verify", lambda: trust.write_verified(alice.user_id, trust.read_identity(alice.user_id).master))
    await _say(world, room, "two")
    await world.keystore.transaction("test.verify_other", lambda: trust.write_verified(alice.user_id, "A" * 43))
    await _say(world, room, "three")
    assert _read(server, room, alice.device) == ["one", "two", "?"]


@pytest.mark.requirement("E2E-6")
async def test_blacklisted_device_gets_nothing_even_where_all_are_let_in(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """Devices = "all" means every device that is not blacklisted."""
    unsigned = alice.adds_device("UNSIGNED", cross_signed=False)
    await world.open(devices="all")
    await world.synced()
    await _say(world, room, "one")
    assert _read(server, room, unsigned) == ["one"]
    await world.keystore.transaction(
        "test.blacklist", lambda: world.keystore.db.execute("update devices set is_blacklisted = 1 where device_id = 'UNSIGNED'")
    )
    await _say(world, room, "two")
    assert _read(server, room, unsigned) == ["one", "?"]


@pytest.mark.requirement("E2E-6")
async def test_newcomer_who_speaks_at_once_can_read_the_answer(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """The device list of a new member is asked for before the answer is encrypted (audit 2.6)."""
    await _started(world)
    await _say(world, room, "before")
    bob = server.user(BOB)
    room.member(BOB)
    room.says(bob, "hello, I am new")
    await world.hears("hello, I am new")
    await _say(world, room, "welcome")
    assert _read(server, room, bob.device) == ["?", "welcome"]


@pytest.mark.requirement("E2E-7", "E2E-11")
@pytest.mark.parametrize(
    ("status", "body"), [(500, {"errcode": "M_UNKNOWN"}), (502, "<html>bad gateway</html>"), (200, "<html>portal</html>")]
)
async def test_share_that_fails_is_repeated_and_the_message_waits_for_it(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, status: int, body: Any
) -> None:
    """A key that did not reach the server is never taken for shared; the access token stays (audit 2.3, 1.12)."""
    await _started(world)
    server.answers("PUT", "*/sendToDevice/*", body, status=status, times=2)
    await _say(world, room, "after trouble")
    assert _read(server, room, alice.device) == ["after trouble"]
    assert len({asked.path for asked in server.requests("PUT", "*/sendToDevice/*")}) == 1
    assert world.http.access_token == world.login.access_token


@pytest.mark.requirement("E2E-11", "E2E-7")
async def test_share_that_a_crash_cut_off_is_finished_by_the_next_process(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """What is owed to devices is a row: the next process sends the same bytes under the same transaction id, then the message."""

    async def lose(_request: Any, _body: Any) -> Any:
        await asyncio.sleep(3600)

    await _started(world)
    losing = server.handles("PUT", "*/sendToDevice/*", lose)
    delivery = world.delivery(room.room_id, "finally")
    sending = asyncio.create_task(world.edge.gateway.deliver(delivery))
    await eventually(lambda: server.requests("PUT", "*/sendToDevice/*"))
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await world.close()
    losing.end()
    await world.open()
    await world.edge.gateway.deliver(delivery)
    asked = server.requests("PUT", "*/sendToDevice/*")
    assert {(one.path, str(one.body)) for one in asked} == {(asked[0].path, str(asked[0].body))}
    assert _read(server, room, alice.device) == ["finally"]


@pytest.mark.requirement("E2E-6")
async def test_cancelled_or_failing_claim_blocks_no_later_message(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A send that is cancelled during the claim leaves nothing behind that later sends wait for (audit 2.4)."""

    async def hang(_request: Any, _body: Any) -> Any:
        await asyncio.sleep(3600)

    await _started(world)
    hanging = server.handles("POST", "*/keys/claim", hang)
    sending = asyncio.create_task(_say(world, room, "cancelled"))
    await eventually(lambda: server.requests("POST", "*/keys/claim"))
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    hanging.end()
    await _say(world, room, "next")
    assert _read(server, room, alice.device)[-1] == "next"


@pytest.mark.requirement("E2E-6", "SEC-2")
@pytest.mark.parametrize(
    "key", [{"key": "short"}, {"key": "A" * 43}, {}, None, {"key": "A" * 43, "signatures": {"@alice:fab.test": {"ed25519:DEVICE0": "x"}}}]
)
async def test_malformed_or_unsigned_one_time_key_keeps_nobody_else_from_reading(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, key: Any
) -> None:
    """A device with a bad one-time key is left out and asked again later, not in every turn; the others read."""
    bob = server.user(BOB)
    room.member(BOB)
    await _started(world)

    def lie(_request: Any, body: Any) -> Any:
        from aiohttp import web  # noqa: PLC0415

        name, good = bob.device.one_time_key()
        keys = {BOB: {"DEVICE0": {name: good}}} if BOB in body["one_time_keys"] else {}
        return web.json_response({"one_time_keys": {**keys, alice.user_id: {"DEVICE0": {"signed_curve25519:AAAA": key}}}})

    server.handles("POST", "*/keys/claim", lie)
    await _say(world, room, "one")
    await _say(world, room, "two")
    assert _read(server, room, bob.device) == ["one", "two"]
    assert len(server.requests("POST", "*/keys/claim")) == 1


@pytest.mark.requirement("E2E-6")
async def test_device_without_one_time_keys_gets_the_key_when_it_has_some(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """Nobody waits for a device that can't be reached; it gets the running key later (audit 2.3 d)."""
    await _started(world)
    empty = server.answers("POST", "*/keys/claim", {"one_time_keys": {}, "failures": {}})
    await _say(world, room, "one")
    assert _read(server, room, alice.device) == ["?"]
    empty.end()
    world.clock.skip(120)
    await _say(world, room, "two")
    assert _read(server, room, alice.device) == ["?", "two"]


@pytest.mark.requirement("E2E-6")
async def test_member_who_leaves_while_the_key_is_shared_can_not_read(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """Between share and encryption the room is looked at again: a change means another key (audit 2.5)."""
    bob = server.user(BOB)
    room.member(BOB)
    await _started(world)
    left: list[int] = []

    async def leave_meanwhile(_request: Any, _body: Any) -> Any:
        if not left:
            left.append(1)
            room.member(BOB, "leave")
            await world.synced()

    server.handles("PUT", "*/sendToDevice/*", leave_meanwhile)
    await _say(world, room, "for those who stayed")
    assert _read(server, room, alice.device) == ["for those who stayed"]
    assert _read(server, room, bob.device) == ["?"]


@pytest.mark.requirement("E2E-6")
async def test_device_called_like_the_bots_own_gets_keys_too(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """Only the bot's own device is left out, not every device of that name (audit 2.10)."""
    same = alice.adds_device(world.login.device_id)
    await _started(world)
    await _say(world, room, "hello")
    assert _read(server, room, same) == ["hello"]


@pytest.mark.requirement("E2E-11")
async def test_to_device_messages_go_out_a_hundred_a_request(world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom) -> None:
    """250 devices take three requests."""
    server.user(BOB, devices=249)
    room.member(BOB)
    await _started(world)
    await _say(world, room, "hello")
    sizes = [
        sum(len(devices) for devices in body["messages"].values())
        for body in server.outgoing_to_device
        if body["type"] == "m.room.encrypted"
    ]
    assert sorted(sizes, reverse=True) == [100, 100, 50]


@pytest.mark.requirement("E2E-6")
async def test_users_of_a_dead_server_do_not_hold_up_a_message(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A server listed under `failures` is asked again with growing pauses, not before each message (audit 2.14)."""
    room.member("@gone:dead.test")
    await _started(world)

    def fail(_request: Any, body: Any) -> Any:
        from aiohttp import web  # noqa: PLC0415

        if "@gone:dead.test" not in body["device_keys"]:
            return None
        keys = {alice.user_id: server.device_keys[alice.user_id]}
        identity = server.cross_signing[alice.user_id]
        found = {"device_keys": keys, "failures": {"dead.test": {}}}
        for kind in ("master", "self_signing"):
            found[f"{kind}_keys"] = {alice.user_id: identity[f"{kind}_key" if f"{kind}_key" in identity else kind]}
        return web.json_response(found)

    server.handles("POST", "*/keys/query", fail)
    server.marks_changed(alice.user_id)
    server.marks_changed("@gone:dead.test")
    await world.synced()
    before = len(server.requests("POST", "*/keys/query"))
    for number in range(3):
        await _say(world, room, f"m{number}")
    assert _read(server, room, alice.device) == ["m0", "m1", "m2"]
    assert len(server.requests("POST", "*/keys/query")) <= before + 1
