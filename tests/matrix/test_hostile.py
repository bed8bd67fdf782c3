"""A hostile member: nothing it sends changes a room, opens a request in another's name, or stops the bot; each try is counted."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from hayate_matrix.core.facts import Membership, Tombstone
from hayate_matrix.core.ids import RoomId, UserId
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.edge import EdgeWorld
    from tests.support.fabricated import FabricatedHomeserver, FabricatedRoom
    from tests.support.fabricated.devices import FabricatedUser

MALLORY = "@mallory:fab.test"


@pytest.fixture
def mallory(server: FabricatedHomeserver, room: FabricatedRoom) -> FabricatedUser:
    """A member of the room who means no good."""
    made = server.user(MALLORY)
    room.member(MALLORY)
    return made


async def _started(world: EdgeWorld) -> None:
    await world.open()
    await world.synced()


@pytest.mark.requirement("E2E-10", "SEC-2")
@pytest.mark.parametrize(
    ("kind", "content", "state_key"),
    [
        ("m.room.power_levels", {"users": {MALLORY: 100}}, ""),
        ("m.room.member", {"membership": "leave"}, "@alice:fab.test"),
        ("m.room.member", {"membership": "join"}, "@outsider:evil.test"),
        ("m.room.tombstone", {"replacement_room": "!evil:evil.test", "body": "moved"}, ""),
        ("m.room.name", {"name": "Payroll"}, ""),
        ("m.room.encryption", {"algorithm": "none", "rotation_period_msgs": 1}, ""),
        ("m.room.history_visibility", {"history_visibility": "world_readable"}, ""),
    ],
)
async def test_encrypted_state_event_changes_nothing(
    world: EdgeWorld,
    room: FabricatedRoom,
    mallory: FabricatedUser,
    alice: FabricatedUser,
    kind: str,
    content: dict[str, Any],
    state_key: str,
) -> None:
    """A state event inside an encrypted one is no state: the room stays as the clear events made it."""
    await _started(world)

    def picture() -> object:
        found = world.edge.rooms.find(room.room_id)
        members = sorted(world.keystore.rooms.list_members(room.room_id))
        return found, members, world.edge.rooms.find_power(RoomId(room.room_id), UserId(MALLORY))

    before = await world.keystore.read(lambda: repr(picture()))
    room.shares_key(mallory.device)
    room.has(MALLORY, "m.room.encrypted", mallory.device.encrypt(room.room_id, content, kind, state_key=state_key))
    room.has(MALLORY, "m.room.encrypted", mallory.device.encrypt(room.room_id, content, kind))
    room.has(MALLORY, kind, content)
    room.says(alice, "after it")
    await world.hears("after it")
    assert await world.keystore.read(lambda: repr(picture())) == before
    assert await world.count("quarantine.refused-type") == 1
    assert not [fact for fact in world.heard.facts if isinstance(fact, Membership | Tombstone)]


@pytest.mark.requirement("E2E-10")
async def test_room_key_of_one_device_speaks_for_nobody_else(
    world: EdgeWorld, room: FabricatedRoom, mallory: FabricatedUser, alice: FabricatedUser
) -> None:
    """A ciphertext of Alice's room key under Mallory's name, and one of Mallory's under Alice's, are never requests."""
    await _started(world)
    room.shares_key(alice.device)
    room.shares_key(mallory.device)
    said = {"msgtype": "m.text", "body": "delete everything"}
    room.has(MALLORY, "m.room.encrypted", alice.device.encrypt(room.room_id, said))
    room.has(alice.user_id, "m.room.encrypted", mallory.device.encrypt(room.room_id, said))
    room.says(alice, "mine")
    await world.hears("mine")
    await eventually(lambda: world.count("quarantine.foreign-device"))
    assert await world.count("quarantine.foreign-device") == 2
    assert world.heard.texts == ["mine"]


@pytest.mark.requirement("E2E-10")
async def test_replayed_ciphertext_is_refused_also_after_a_restart(world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser) -> None:
    """The same ciphertext as another event is a replay; which event used an index is known over a restart."""
    await _started(world)
    event = room.says(alice, "pay 10")
    await world.hears("pay 10")
    await world.restart()
    room.has(alice.user_id, "m.room.encrypted", event["content"])
    room.says(alice, "next")
    await world.hears("pay 10", "next")
    assert await world.count("quarantine.replay") == 1


@pytest.mark.requirement("E2E-10")
async def test_claims_inside_a_payload_are_dropped(world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser) -> None:
    """Sender, event id, time, unsigned data of a payload are what the envelope says, not what its author wrote."""
    await _started(world)
    room.shares_key(alice.device)
    content = alice.device.encrypt(
        room.room_id,
        {"msgtype": "m.text", "body": "hi"},
        sender=MALLORY,
        event_id="$forged",
        origin_server_ts=1,
        unsigned={"redacted_because": {"sender": "@admin:fab.test"}, "transaction_id": "x"},
    )
    event = room.has(alice.user_id, "m.room.encrypted", content)
    await world.hears("hi")
    fact = world.heard.facts[0]
    assert (fact.sender, fact.event_id, fact.sent_at_ms) == (alice.user_id, event["event_id"], event["origin_server_ts"])


@pytest.mark.requirement("E2E-10", "IN-5")
async def test_encrypted_redaction_removes_nothing(
    world: EdgeWorld, room: FabricatedRoom, mallory: FabricatedUser, alice: FabricatedUser
) -> None:
    """Only the homeserver's own redaction counts: inside an encrypted event it is one member's word."""
    await _started(world)
    event = room.says(alice, "stays")
    room.shares_key(mallory.device)
    room.has(MALLORY, "m.room.encrypted", mallory.device.encrypt(room.room_id, {"redacts": event["event_id"]}, "m.room.redaction"))
    room.says(alice, "after it")
    await world.hears("stays", "after it")
    assert len(world.heard.facts) == 2


@pytest.mark.requirement("E2E-10", "E2E-5")
async def test_clear_message_in_an_encrypted_room_is_no_request(world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser) -> None:
    """In an encrypted room a server could write a clear message in anybody's name: only encrypted ones are requests."""
    await _started(world)
    room.says(alice.user_id, "in clear")
    room.says(alice, "sealed")
    await world.hears("sealed")
    assert await world.count("quarantine.plain") == 1


@pytest.mark.requirement("SEC-2", "STO-2")
@pytest.mark.parametrize(
    "content",
    [
        {},
        {"algorithm": "m.megolm.v1.aes-sha2"},
        {"algorithm": "m.megolm.v1.aes-sha2", "session_id": 5, "ciphertext": None},
        {"algorithm": "m.megolm.v1.aes-sha2", "session_id": "unknown", "ciphertext": "%%%", "sender_key": None, "device_id": []},
        {"algorithm": "m.olm.v1.curve25519-aes-sha2", "ciphertext": {}},
    ],
)
async def test_malformed_encrypted_event_stops_nothing(
    world: EdgeWorld, room: FabricatedRoom, mallory: FabricatedUser, alice: FabricatedUser, content: dict[str, Any]
) -> None:
    """Whatever an encrypted event holds, the next message is heard."""
    await _started(world)
    room.has(MALLORY, "m.room.encrypted", content)
    room.says(alice, "after it")
    await world.hears("after it")


@pytest.mark.requirement("SEC-2", "E2E-10")
@pytest.mark.parametrize(
    "plaintext",
    [
        b"\xff\xfe not utf-8",
        b"[" * 100_000 + b"]" * 100_000,
        b"[1, 2]",
        b'"text"',
        b'{"type": "m.room.message", "content": {}, "room_id": "!other:fab.test"}',
        b'{"type": 5, "content": [], "room_id": "!room:fab.test"}',
        b'{"a":' * 200 + b"1" + b"}" * 200,
    ],
)
async def test_hostile_plaintext_is_set_aside(
    world: EdgeWorld, room: FabricatedRoom, mallory: FabricatedUser, alice: FabricatedUser, plaintext: bytes
) -> None:
    """A payload that is no event of this room is counted and never more than that."""
    await _started(world)
    room.shares_key(mallory.device)
    room.has(MALLORY, "m.room.encrypted", mallory.device.encrypt_bytes(room.room_id, plaintext))
    room.says(alice, "after it")
    await world.hears("after it")
    assert await world.count("quarantine.malformed") == 1


@pytest.mark.requirement("SEC-2", "E2E-11")
async def test_hostile_to_device_messages_stop_nothing_and_use_up_no_one_time_key(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, mallory: FabricatedUser
) -> None:
    """Malformed Olm messages are counted one by one; a real pre-key message made with the same one-time key still opens."""
    await _started(world)
    bot = world.login
    curve = server.device_keys[bot.user_id][bot.device_id]["keys"][f"curve25519:{bot.device_id}"]
    real = mallory.device.encrypt_to_device(bot.user_id, bot.device_id, "m.room_key", mallory.device.room_key(room.room_id))
    body = real["content"]["ciphertext"][curve]["body"]
    raw = bytearray(base64.b64decode(body + "=="))
    raw[-1] ^= 1  # the message's MAC
    broken = base64.b64encode(bytes(raw)).decode().rstrip("=")
    for kind, text in ((0, broken), (0, "%%%"), (0, ""), (1, "%%%"), (1, "AAAA"), (7, body), (0, None)):
        content = {**real["content"], "ciphertext": {curve: {"type": kind, "body": text}}}
        server.sends_to_device(bot.user_id, bot.device_id, {**real, "content": content})
    await world.synced()
    assert await world.count("quarantine.olm") == 7
    server.sends_to_device(bot.user_id, bot.device_id, real)
    room.has(MALLORY, "m.room.encrypted", mallory.device.encrypt(room.room_id, {"msgtype": "m.text", "body": "opened"}))
    room.says(alice, "after it")
    await world.hears("opened", "after it")


@pytest.mark.requirement("E2E-11")
async def test_one_time_key_opens_one_session(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, mallory: FabricatedUser
) -> None:
    """A second first message made with a one-time key that was used is refused, also after a restart."""
    await _started(world)
    bot = world.login
    claimed = server.claim(bot.user_id, bot.device_id)
    for user in (alice, mallory):
        server.handles("POST", "*/never", lambda *_: None)
        user.device.sessions.clear()
    real_claim = server.claim
    server.claim = lambda *_: claimed  # type: ignore[method-assign]
    room.shares_key(alice.device)
    await world.synced()
    await world.restart()
    room.shares_key(mallory.device)
    server.claim = real_claim  # type: ignore[method-assign]
    room.has(MALLORY, "m.room.encrypted", mallory.device.encrypt(room.room_id, {"msgtype": "m.text", "body": "no"}))
    room.says(alice, "yes")
    await world.hears("yes")
    assert await world.count("quarantine.olm") == 1


@pytest.mark.requirement("SEC-2", "E2E-10")
@pytest.mark.parametrize(
    "changed",
    [
        {"sender": "@alice:fab.test"},
        {"recipient": "@someone:else"},
        {"recipient_keys": {"ed25519": "A" * 43}},
        {"recipient_keys": None},
        {"keys": {}},
        {"keys": {"ed25519": "short"}},
        {"content": None},
        {"type": None},
    ],
)
async def test_olm_payload_with_false_claims_brings_no_key(
    world: EdgeWorld,
    server: FabricatedHomeserver,
    room: FabricatedRoom,
    alice: FabricatedUser,
    mallory: FabricatedUser,
    changed: dict[str, Any],
) -> None:
    """A to-device message that names another sender, recipient or device than its envelope is set aside."""
    await _started(world)
    bot = world.login
    key = mallory.device.room_key(room.room_id)
    content = changed.get("content", key)
    event = mallory.device.encrypt_to_device(
        bot.user_id,
        bot.device_id,
        changed.get("type", "m.room_key"),
        content,
        **{k: v for k, v in changed.items() if k not in ("type", "content")},
    )
    server.sends_to_device(bot.user_id, bot.device_id, event)
    room.has(MALLORY, "m.room.encrypted", mallory.device.encrypt(room.room_id, {"msgtype": "m.text", "body": "no"}))
    room.says(alice, "yes")
    await world.hears("yes")
    assert await world.count("quarantine.olm") == 1


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("session_key", ["", "%%%", "A" * 300, 5, None])
async def test_malformed_room_key_stops_nothing(
    world: EdgeWorld,
    server: FabricatedHomeserver,
    room: FabricatedRoom,
    alice: FabricatedUser,
    mallory: FabricatedUser,
    session_key: object,
) -> None:
    """A room key that is none is counted."""
    await _started(world)
    bot = world.login
    content = {**mallory.device.room_key(room.room_id), "session_key": session_key}
    server.sends_to_device(bot.user_id, bot.device_id, mallory.device.encrypt_to_device(bot.user_id, bot.device_id, "m.room_key", content))
    room.says(alice, "after it")
    await world.hears("after it")
    assert await world.count("quarantine.olm") == 1


@pytest.mark.requirement("E2E-10", "E2E-6")
async def test_another_device_can_not_replace_a_room_key(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, mallory: FabricatedUser
) -> None:
    """A copy of Alice's room key sent by Mallory changes nothing; a later index of it, sent by Alice herself, neither (audit 2.9)."""
    await _started(world)
    bot = world.login
    early = room.says(alice, "one")
    await world.hears("one")
    copied = alice.device.room_key(room.room_id)
    server.sends_to_device(bot.user_id, bot.device_id, mallory.device.encrypt_to_device(bot.user_id, bot.device_id, "m.room_key", copied))
    server.sends_to_device(bot.user_id, bot.device_id, alice.device.encrypt_to_device(bot.user_id, bot.device_id, "m.room_key", copied))
    await world.synced()

    def first_index() -> tuple[int, str]:
        found = world.edge._machine.inbound_group_store.find(RoomId(room.room_id), early["content"]["session_id"])
        assert found is not None
        return found.first_known_index, found.sender_key

    assert await world.keystore.read(first_index) == (0, alice.device.curve25519)


@pytest.mark.requirement("E2E-6", "SEC-2")
@pytest.mark.parametrize(
    "change",
    [
        {"keys": {}},
        {"keys": {"ed25519:EVIL": "short", "curve25519:EVIL": "short"}},
        {"user_id": "@alice:fab.test"},
        {"user_id": None},
        {"device_id": "OTHER"},
        {"algorithms": None},
    ],
)
async def test_malformed_device_spoils_no_other(
    world: EdgeWorld,
    server: FabricatedHomeserver,
    room: FabricatedRoom,
    alice: FabricatedUser,
    mallory: FabricatedUser,
    change: dict[str, Any],
) -> None:
    """A device with nonsense for keys is not believed; its owner's other devices and other users are, and the answer reaches them."""
    evil = mallory.adds_device("EVIL")
    server.publishes(evil, {**evil.device_keys(), **change})
    await _started(world)
    room.says(alice, "hello")
    await world.hears("hello")
    await world.edge.gateway.deliver(world.delivery(room.room_id))
    receivers = [
        (user, device)
        for body in server.outgoing_to_device
        if body["type"] == "m.room.encrypted"
        for user in body["messages"]
        for device in body["messages"][user]
    ]
    assert (alice.user_id, "DEVICE0") in receivers
    assert (MALLORY, "DEVICE0") in receivers
    assert (MALLORY, "EVIL") not in receivers


@pytest.mark.requirement("E2E-6")
async def test_device_that_changes_its_keys_is_not_believed(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, mallory: FabricatedUser
) -> None:
    """New identity keys under a known device id are an attack or a broken client: they get nothing, and it is counted."""
    await _started(world)
    await world.edge.gateway.deliver(world.delivery(room.room_id))
    other = mallory.adds_device("TEMP")
    server.publishes(mallory.device, {**other.device_keys(), "device_id": mallory.device.device_id})
    await world.synced()
    await eventually(lambda: world.count("quarantine.device"))


@pytest.mark.requirement("SEC-2")
async def test_event_under_another_senders_name_in_clear_rooms_is_the_servers_word(
    world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser
) -> None:
    """In a clear room the sender is what the homeserver says; malformed events between are counted."""
    plain = server.room("!plain:fab.test", members=[alice.user_id, world.login.user_id])
    await _started(world)
    for change in ({"origin_server_ts": "soon"}, {"origin_server_ts": -5}, {"event_id": None}):
        plain.has(alice.user_id, "m.room.message", {"msgtype": "m.text", "body": "no"}, **change)
    for content in ({"msgtype": 5, "body": "no"}, {"msgtype": "m.text", "body": None}, {"msgtype": "m.text"}, {"body": "no"}):
        plain.has(alice.user_id, "m.room.message", content)
    plain.says(alice, "fine")
    await world.hears("fine")
    assert await world.count("quarantined") >= 6


@pytest.mark.requirement("ROOM-8", "E2E-4", "SEC-1")
async def test_redaction_in_another_room_loses_no_message_that_waits_for_its_key(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, mallory: FabricatedUser
) -> None:
    """Whoever is in two rooms names in one of them a message of the other: it is heard all the same when its key comes."""
    other = server.room("!mallorys:fab.test", members=[mallory.user_id, world.login.user_id])
    await _started(world)
    device = alice.adds_device("SECOND")
    key = device.room_key(room.room_id)
    late = room.has(alice.user_id, "m.room.encrypted", device.encrypt(room.room_id, {"msgtype": "m.text", "body": "late"}))
    await eventually(lambda: world.count("undecryptable"))
    other.has(MALLORY, "m.room.redaction", {"redacts": late["event_id"]})
    await eventually(lambda: len(world.heard.facts) == 1)
    bot = world.login
    server.sends_to_device(bot.user_id, bot.device_id, device.encrypt_to_device(bot.user_id, bot.device_id, "m.room_key", key))
    await world.hears("late")


@pytest.mark.requirement("SEC-2")
async def test_names_that_strangers_make_up_fill_no_table(world: EdgeWorld, server: FabricatedHomeserver, mallory: FabricatedUser) -> None:
    """Unknown kinds of to-device messages, and codes, are counted together, however many there are."""
    await _started(world)
    bot = world.login
    for number in range(30):
        for event in (
            {"type": f"org.evil.{number}", "content": {}},
            {"type": "m.room_key.withheld", "content": {"code": f"evil.{number}", "session_id": "x"}},
            mallory.device.encrypt_to_device(bot.user_id, bot.device_id, f"org.evil.{number}", {}),
        ):
            server.sends_to_device(bot.user_id, bot.device_id, {"sender": MALLORY, **event})

    async def has_all() -> bool:
        counts = await world.edge.read_counts()
        return [counts.get(name) for name in ("to_device.ignored.other", "withheld.other", "olm.ignored.other")] == [30, 30, 30]

    await eventually(has_all)
    assert not [name for name in await world.edge.read_counts() if "evil" in name]
