"""One delivery is one message: never none, never two, never in clear where it must not be."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from hayate_matrix.core.deliveries import Delivery
from hayate_matrix.core.ids import EventId, RoomId, UserId
from hayate_matrix.errors import DeliveryHeld, DeliveryRefused, DeliveryUncertain
from hayate_matrix.matrix.facts import DELIVERY_KEY
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.edge import EdgeWorld
    from tests.support.fabricated import FabricatedHomeserver, FabricatedRoom
    from tests.support.fabricated.devices import FabricatedUser


@pytest.fixture
def plain(server: FabricatedHomeserver, alice: FabricatedUser, world: EdgeWorld) -> FabricatedRoom:
    """A room that is not encrypted."""
    return server.room("!plain:fab.test", members=[alice.user_id, world.login.user_id])


async def _started(world: EdgeWorld, **options: Any) -> None:
    await world.open(**options)
    await world.synced()


def _puts(server: FabricatedHomeserver) -> list[tuple[str, str]]:
    return [(asked.path, json.dumps(asked.body, sort_keys=True)) for asked in server.requests("PUT", "*/send/*")]


@pytest.mark.requirement("E2E-7", "OUT-1")
async def test_retry_after_a_lost_answer_and_a_kill_sends_the_same_ciphertext(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A delivery whose answer was lost is put again by the next process: same path, same bytes, one message."""
    await _started(world)
    lost: list[int] = []

    async def lose(_request: Any, _body: Any) -> Any:
        if not lost:
            lost.append(1)
            await asyncio.sleep(3600)

    server.handles("PUT", "*/send/*", lose)
    delivery = world.delivery(room.room_id, "once")
    sending = asyncio.create_task(world.edge.gateway.deliver(delivery))
    await eventually(lambda: lost)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await world.restart()
    sent = await world.edge.gateway.deliver(delivery)
    again = await world.edge.gateway.deliver(delivery)
    assert again == sent
    assert len(set(_puts(server))) == 1
    assert len(server.sent) == 1


@pytest.mark.requirement("OUT-2")
@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (502, "<html>bad gateway</html>", {}),
        (200, "<html>portal</html>", {}),
        (403, "<html>forbidden by the CDN</html>", {}),
        (500, {"errcode": "M_UNKNOWN"}, {}),
        (429, {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 2000}, {}),
        (429, {"errcode": "M_LIMIT_EXCEEDED"}, {"Retry-After": "3"}),
        (429, "<html>slow down</html>", {"Retry-After": "3"}),
    ],
)
async def test_weather_is_waited_out_and_only_a_matrix_error_ends_a_row(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, status: int, body: Any, headers: dict[str, str]
) -> None:
    """Gateway pages of any status, server errors and rate limits delay a message and lose none."""
    await _started(world)
    server.answers("PUT", "*/send/*", body, status=status, headers=headers, times=3)
    await world.edge.gateway.deliver(world.delivery(room.room_id, "through"))
    assert len(server.sent) == 1
    assert len(set(_puts(server))) == 1
    assert len(_puts(server)) == 4


@pytest.mark.requirement("OUT-2")
async def test_rate_limit_waits_the_time_that_the_server_names(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom
) -> None:
    """`Retry-After` counts before the body; what is no answer is left out meanwhile."""
    await _started(world)
    server.answers(
        "PUT", "*/send/*", {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 1}, status=429, headers={"Retry-After": "20"}, times=1
    )
    began = world.clock.monotonic()
    sending = asyncio.create_task(world.edge.gateway.deliver(world.delivery(room.room_id)))
    await eventually(lambda: world.http.is_limited)
    await world.edge.gateway.show_typing(RoomId(room.room_id), is_typing=True)
    await world.edge.gateway.mark_read(RoomId(room.room_id), EventId("$x"))
    await sending
    assert world.clock.monotonic() - began >= 20
    assert server.requests("PUT", "*/typing/*") == []
    assert server.requests("POST", "*/receipt/*") == []


@pytest.mark.requirement("OUT-2")
async def test_no_room_waits_for_another(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, plain: FabricatedRoom
) -> None:
    """A message that the server takes its time with holds up no other room."""
    await _started(world)

    async def slow(_request: Any, _body: Any) -> Any:
        await asyncio.sleep(3600)

    server.handles("PUT", "*/!room:fab.test/send/*", slow)
    stuck = asyncio.create_task(world.edge.gateway.deliver(world.delivery(room.room_id)))
    await eventually(lambda: server.requests("PUT", "*/!room:fab.test/send/*"))
    await world.edge.gateway.deliver(world.delivery(plain.room_id))
    assert not stuck.done()
    stuck.cancel()


@pytest.mark.requirement("OUT-2", "ROOM-3")
@pytest.mark.parametrize(
    ("errcode", "status", "outcome"),
    [("M_FORBIDDEN", 403, DeliveryHeld), ("M_TOO_LARGE", 413, DeliveryRefused), ("M_BAD_JSON", 400, DeliveryRefused)],
)
async def test_refusal_ends_or_holds_the_row_by_its_code(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, errcode: str, status: int, outcome: type[Exception]
) -> None:
    """Muted or out of the room: held. Too large or malformed: refused."""
    await _started(world)
    server.answers("PUT", "*/send/*", {"errcode": errcode, "error": "no"}, status=status)
    with pytest.raises(outcome):
        await world.edge.gateway.deliver(world.delivery(room.room_id))


@pytest.mark.requirement("OUT-2", "ROOM-10")
@pytest.mark.parametrize("why", ["muted", "refused"])
async def test_room_where_something_is_held_is_told_when_it_looks_open(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, why: str
) -> None:
    """Muted: not before the bot may speak again. Refused without a reason that shows: at once, and then once a minute at most."""
    await _started(world)
    reopened: list[float] = []

    async def note(room_id: str) -> None:
        assert room_id == room.room_id
        reopened.append(world.clock.monotonic())
        with pytest.raises(DeliveryHeld):
            await world.edge.gateway.deliver(world.delivery(room.room_id))

    world.edge.set_on_reopened(note)
    levels = {"users": {alice.user_id: 100}, "users_default": 0}
    if why == "muted":
        room.has(alice.user_id, "m.room.power_levels", {**levels, "events_default": 50}, state_key="")
        await world.synced()
    server.answers("PUT", "*/send/*", {"errcode": "M_FORBIDDEN", "error": "no"}, status=403)
    with pytest.raises(DeliveryHeld):
        await world.edge.gateway.deliver(world.delivery(room.room_id))
    for number in range(3):
        room.says(alice, f"noise {number}")
        await world.synced()
    if why == "muted":
        assert reopened == []
        room.has(alice.user_id, "m.room.power_levels", levels, state_key="")
    await eventually(lambda: len(reopened) >= 2)
    assert reopened[1] - reopened[0] >= 60


@pytest.mark.requirement("OUT-2")
async def test_duplicate_reaction_is_a_success(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """The reaction is there: that is all that was wanted."""
    event = room.says(alice, "hi")
    await _started(world)
    server.answers("PUT", "*/send/*", {"errcode": "M_DUPLICATE_ANNOTATION", "error": "twice"}, status=400)
    await world.edge.gateway.deliver(world.delivery(room.room_id, "✅", kind="reaction", request=event["event_id"]))


@pytest.mark.requirement("OUT-1")
async def test_after_half_a_day_the_room_is_searched_before_anything_is_sent_again(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom
) -> None:
    """Past 12 h the server may have forgotten the transaction: what is in the room counts as sent, what is not is sent."""
    await _started(world)
    there, not_there = world.delivery(room.room_id, "there"), world.delivery(room.room_id, "not there")
    first = await world.edge.gateway.deliver(there)
    lost = server.answers("PUT", "*/send/*", {"errcode": "M_UNKNOWN"}, status=500)
    sending = asyncio.create_task(world.edge.gateway.deliver(not_there))
    await eventually(lambda: lost.hits)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    lost.end()
    server.transactions.clear()
    world.clock.skip(13 * 3600)
    assert await world.edge.gateway.deliver(there) == first
    await world.edge.gateway.deliver(not_there)
    assert len(server.sent) == 2


@pytest.mark.requirement("OUT-1")
async def test_room_that_can_not_be_searched_leaves_the_row_to_the_operator(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom
) -> None:
    """Where it can't be known whether it was sent, nothing is sent."""
    await _started(world)
    delivery = world.delivery(room.room_id)
    await world.edge.gateway.deliver(delivery)
    world.clock.skip(13 * 3600)
    server.answers("GET", "*/messages", {"errcode": "M_FORBIDDEN", "error": "no"}, status=403)
    puts = len(_puts(server))
    with pytest.raises(DeliveryUncertain):
        await world.edge.gateway.deliver(delivery)
    assert len(_puts(server)) == puts


@pytest.mark.requirement("E2E-5")
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {}),
        (200, {"algorithm": None}),
        (403, {"errcode": "M_FORBIDDEN", "error": "no"}),
        (401, {"errcode": "M_UNRECOGNIZED", "error": "?"}),
    ],
)
async def test_nothing_is_sent_where_it_is_not_known_whether_the_room_is_encrypted(
    world: EdgeWorld, server: FabricatedHomeserver, plain: FabricatedRoom, status: int, body: Any
) -> None:
    """Only the server's clear "there is none" makes a room plain; anything else sends nothing."""
    server.answers("GET", "*/state/m.room.encryption/", body, status=status)
    await _started(world)
    with pytest.raises(DeliveryHeld, match="not known"):
        await world.edge.gateway.deliver(world.delivery(plain.room_id))
    assert server.sent == []


@pytest.mark.requirement("E2E-5")
async def test_encrypted_room_stays_encrypted_whatever_the_server_says(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom
) -> None:
    """Seen encrypted once, over restarts, redactions and servers that deny it: nothing leaves in clear."""
    await _started(world)
    await world.close()
    del room.state["m.room.encryption", ""]
    room.has("@alice:fab.test", "m.room.encryption", {}, state_key="")
    server.answers("GET", "*/state/m.room.encryption/", {"errcode": "M_NOT_FOUND", "error": "none"}, status=404)
    await _started(world)
    await world.edge.gateway.deliver(world.delivery(room.room_id, "secret"))
    assert [event["type"] for event in server.sent] == ["m.room.encrypted"]


@pytest.mark.requirement("E2E-5", "OUT-1")
async def test_clear_message_that_waits_is_encrypted_when_the_room_becomes_so(
    world: EdgeWorld, server: FabricatedHomeserver, plain: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A row that was kept in clear is made again, encrypted, once the room is encrypted."""
    await _started(world)
    failing = server.answers("PUT", "*/send/*", {"errcode": "M_UNKNOWN"}, status=500)
    delivery = world.delivery(plain.room_id, "secret")
    sending = asyncio.create_task(world.edge.gateway.deliver(delivery))
    await eventually(lambda: failing.hits)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await world.close()
    plain.has(alice.user_id, "m.room.encryption", {"algorithm": "m.megolm.v1.aes-sha2"}, state_key="")
    failing.end()
    await _started(world)
    await world.edge.gateway.deliver(delivery)
    assert [event["type"] for event in server.sent] == ["m.room.encrypted"]


@pytest.mark.requirement("E2E-5")
async def test_encryption_off_leaves_encrypted_rooms_alone(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, plain: FabricatedRoom
) -> None:
    """With encryption off only plain rooms get answers."""
    await _started(world, is_encryption_on=False)
    with pytest.raises(DeliveryHeld, match="off"):
        await world.edge.gateway.deliver(world.delivery(room.room_id))
    await world.edge.gateway.deliver(world.delivery(plain.room_id))
    assert [event["type"] for event in server.sent] == ["m.room.message"]


@pytest.mark.requirement("ROOM-3")
async def test_denied_room_gets_no_message_no_typing_no_receipt(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A room off the list is silent in every way, and what is owed is held until it is allowed again."""
    await _started(world, rooms=[])
    room.says(alice, "hello?")
    await world.synced()
    assert world.heard.facts == []
    delivery = world.delivery(room.room_id)
    with pytest.raises(DeliveryHeld, match="empty list"):
        await world.edge.gateway.deliver(delivery)
    await world.edge.gateway.show_typing(RoomId(room.room_id), is_typing=True)
    await world.edge.gateway.mark_read(RoomId(room.room_id), EventId("$x"))
    assert [asked.path for asked in server.asked if room.room_id in asked.path and asked.method != "GET"] == []
    await world.restart(rooms=[room.room_id])
    await world.edge.gateway.deliver(delivery)
    assert len(server.sent) == 1


@pytest.mark.requirement("OUT-3", "OUT-7", "IN-9")
async def test_content_of_a_reply(world: EdgeWorld, server: FabricatedHomeserver, plain: FabricatedRoom, alice: FabricatedUser) -> None:
    """A reply refers to its request, mentions its sender alone, carries HTML and body and the delivery's id; a notice is m.notice."""
    event = plain.says(alice, "hi")
    await _started(world)
    delivery = Delivery(
        id=world.delivery(plain.room_id).id,
        room_id=RoomId(plain.room_id),
        kind="reply",
        text="**bold** and `code`",
        request=EventId(event["event_id"]),
        mention=UserId(alice.user_id),
        created_at_ms=1,
    )
    await world.edge.gateway.deliver(delivery)
    await world.edge.gateway.deliver(world.delivery(plain.room_id, "status", kind="notice"))
    content = server.sent[0]["content"]
    assert content["msgtype"] == "m.text"
    assert content["m.relates_to"] == {"m.in_reply_to": {"event_id": event["event_id"]}}
    assert content["m.mentions"] == {"user_ids": [alice.user_id]}
    assert "<strong>bold</strong>" in content["formatted_body"]
    assert content[DELIVERY_KEY] == f"{delivery.id}/0"
    assert (server.sent[1]["content"]["msgtype"], server.sent[1]["content"]["m.mentions"]) == ("m.notice", {})


@pytest.mark.requirement("OUT-3")
async def test_reply_in_a_thread_stays_in_the_thread(
    world: EdgeWorld, server: FabricatedHomeserver, plain: FabricatedRoom, alice: FabricatedUser
) -> None:
    """The thread's root and the request are both named."""
    root = plain.says(alice, "root")
    await _started(world)
    base = world.delivery(plain.room_id)
    delivery = Delivery(
        id=base.id,
        room_id=base.room_id,
        kind="reply",
        text="in thread",
        thread=EventId(root["event_id"]),
        request=EventId("$req"),
        created_at_ms=1,
    )
    await world.edge.gateway.deliver(delivery)
    assert server.sent[0]["content"]["m.relates_to"] == {
        "rel_type": "m.thread",
        "event_id": root["event_id"],
        "is_falling_back": False,
        "m.in_reply_to": {"event_id": "$req"},
    }


@pytest.mark.requirement("OUT-4")
async def test_long_reply_is_cut_into_events_that_fit(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """Each event of a long reply stays under 65,536 bytes as sent, parts in order, all found again by their delivery."""
    await _started(world)
    text = "\n\n".join(f"Paragraph {number}. " + "word " * 150 for number in range(80))
    sent = await world.edge.gateway.deliver(world.delivery(room.room_id, text))
    assert len(sent.event_ids) == len(server.sent) > 1
    assert all(len(json.dumps(event)) < 65_536 for event in server.sent)
    alice.device.reads_to_device()
    bodies = [alice.device.reads(event["content"])["content"]["body"] for event in server.sent]
    assert [line for body in bodies for line in body.split("\n") if line.startswith("Paragraph")] != []
    assert "Paragraph 79." in bodies[-1]


@pytest.mark.requirement("OUT-4", "E2E-5")
@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_reply_that_five_messages_do_not_hold_comes_as_a_file_too(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, plain: FabricatedRoom, alice: FabricatedUser, is_encrypted: bool
) -> None:
    """The whole text is uploaded once, as ciphertext in an encrypted room, and the last message carries it."""
    from aiohttp import web  # noqa: PLC0415
    from nio.crypto.attachments import decrypt_attachment  # noqa: PLC0415

    uploads: list[bytes] = []

    async def take(request: Any, _body: Any) -> Any:
        uploads.append(await request.read())
        return web.json_response({"content_uri": "mxc://fab.test/file"})

    server.handles("POST", "*/media/v3/upload", take)
    await _started(world)
    text = "\n\n".join(f"Paragraph {number}. " + "word " * 200 for number in range(500))
    target = room if is_encrypted else plain
    delivery = world.delivery(target.room_id, text)
    await world.edge.gateway.deliver(delivery)
    await world.edge.gateway.deliver(delivery)
    assert len(server.sent) <= 5
    alice.device.reads_to_device()
    contents = [alice.device.reads(event["content"])["content"] if is_encrypted else event["content"] for event in server.sent]
    assert contents[-1]["msgtype"] == "m.file"
    assert len(uploads) == 1
    if is_encrypted:
        file = contents[-1]["file"]
        assert uploads[0] != text.encode()
        assert decrypt_attachment(uploads[0], file["key"]["k"], file["hashes"]["sha256"], file["iv"]) == text.encode()
    else:
        assert uploads[0] == text.encode()


@pytest.mark.requirement("STO-7", "OUT-1")
async def test_what_a_backup_still_owes_is_looked_for_before_it_is_sent(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom
) -> None:
    """What is older than the restore is in the room already, or sent now, or left to the operator where the bot's own words are unread."""
    await _started(world)
    there, missing = world.delivery(room.room_id, "there"), world.delivery(room.room_id, "missing")
    first = await world.edge.gateway.deliver(there)
    after = str(world.keystore.now_ms() + 3_600_000)

    def forget() -> None:
        world.keystore.write_meta("restored_at_ms", after)
        world.keystore.db.execute("delete from sends")

    await world.keystore.transaction("test.restore", forget)
    assert await world.edge.gateway.deliver(there) == first
    await world.edge.gateway.deliver(missing)
    assert len(server.sent) == 2
    await world.restart()
    await world.keystore.transaction("test.lose_keys", lambda: world.keystore.db.execute("delete from megolminboundsessions"))
    await world.restart()
    with pytest.raises(DeliveryUncertain, match="can't read"):
        await world.edge.gateway.deliver(world.delivery(room.room_id, "unknown"))
