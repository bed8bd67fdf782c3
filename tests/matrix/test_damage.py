"""Damaged rows of `matrix.db` cost what they held, never the start and never what stands beside them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.errors import StoreError
from hayate_matrix.matrix.keystore.schema import TABLES
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hayate_matrix.core.facts import AnyFact
    from tests.support.edge import EdgeWorld
    from tests.support.fabricated import FabricatedHomeserver, FabricatedRoom
    from tests.support.fabricated.devices import FabricatedUser

COLUMNS = {
    "intake": "fact",
    "undecryptable": "raw",
    "quarantine": "raw",
    "to_device": "messages",
    "uploads": "body",
    "room_keys_out": "pickle",
    "sends": "content",
    "rooms": "name",
    "olmsessions": "session",
    "megolminboundsessions": "session",
}
"""Every column whose content only the sealing key opens, but the account's own keys and its identity: those end the start."""
IRREPLACEABLE = {"secrets": "value", "accounts": "account"}


def _damage(world: EdgeWorld, table: str, column: str) -> int:
    with contextlib.closing(sqlite3.connect(world.home / "matrix.db")) as db, db:
        statement = f"update {table} set {column} = cast(substr({column}, 1, 20) || x'00' || substr({column}, 22) as blob)"  # noqa: S608
        return db.execute(f"{statement} where {column} is not null").rowcount


async def _fill(world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser) -> None:
    """Leave a row in every table."""
    await world.open()
    await world.synced()
    room.has(alice.user_id, "m.room.name", {"name": "Platypus room"}, state_key="")
    room.says(alice, "before")
    await world.hears("before")
    await world.edge.gateway.deliver(world.delivery(room.room_id, "first"))
    alice.device.reads_to_device()
    # From here on: facts stay in the spool, uploads, to-device messages and sends are owed, a message waits for its key.
    taken = asyncio.Event()

    async def never(_facts: Sequence[AnyFact]) -> None:
        taken.set()
        await asyncio.Event().wait()

    async def hang(_request: object, _body: object) -> None:
        await asyncio.Event().wait()

    accept = world.heard.accept
    world.heard.accept = never  # type: ignore[method-assign,assignment]
    hanging = [server.handles("*", path, hang) for path in ("*/keys/upload", "*/sendToDevice/*")]
    bot = world.login
    server.one_time_keys[bot.user_id, bot.device_id] = {}
    room.has(alice.user_id, "m.room.message", {"msgtype": "m.text", "body": "in clear: quarantined"})
    other = alice.adds_device("SECOND")
    room.has(alice.user_id, "m.room.encrypted", other.encrypt(room.room_id, {"msgtype": "m.text", "body": "its key never comes"}))
    room.says(alice, "lost in the spool")
    await taken.wait()
    owed = asyncio.create_task(world.edge.gateway.deliver(world.delivery(room.room_id, "owed")))
    await eventually(lambda: hanging[1].hits)
    owed.cancel()
    await asyncio.gather(owed, return_exceptions=True)
    await eventually(lambda: hanging[0].hits)
    await world.close()
    world.heard.accept = accept  # type: ignore[method-assign]
    for answer in hanging:
        answer.end()


def test_every_sealed_column_is_damaged_here() -> None:
    """A new table with a sealed column belongs into these tests."""
    sealed = {text.split(" exists ")[1].split()[0] for text in TABLES if " blob" in text}
    assert sealed == {table for table in COLUMNS | IRREPLACEABLE if table not in {"olmsessions", "megolminboundsessions", "accounts"}}


@pytest.mark.requirement("STO-7", "REL-4")
@pytest.mark.parametrize("table", COLUMNS)
async def test_damaged_rows_are_set_aside_and_the_rest_goes_on(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, table: str
) -> None:
    """Whatever table is damaged, the bot starts, hears what is said from then on, and its answer can be read."""
    await _fill(world, server, room, alice)
    assert _damage(world, table, COLUMNS[table]) > 0
    await world.open()
    alice.device.new_room_key(room.room_id)
    if table == "olmsessions":
        alice.device.sessions.clear()  # as a client does that starts another session after a broken one
    room.says(alice, "afterwards")
    await eventually(lambda: world.heard.texts[-1] == "afterwards")
    assert ("lost in the spool" in world.heard.texts) == (table != "intake")
    await world.edge.gateway.deliver(world.delivery(room.room_id, "answer"))
    assert alice.device.reads(server.sent[-1]["content"])["content"]["body"] == "answer"
    bot = world.login
    await eventually(lambda: server.one_time_keys[bot.user_id, bot.device_id])
    watch = asyncio.ensure_future(world.edge.watch())
    await world.synced()
    assert not watch.done()
    watch.cancel()


@pytest.mark.requirement("STO-7", "E2E-8")
@pytest.mark.parametrize("table", IRREPLACEABLE)
async def test_damaged_identity_ends_the_start(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, table: str
) -> None:
    """Without the device's own keys nothing can go on, and nothing is made in their place."""
    await _fill(world, server, room, alice)
    assert _damage(world, table, IRREPLACEABLE[table]) > 0
    with pytest.raises(StoreError):
        await world.open()


@pytest.mark.requirement("STO-7", "OUT-1")
async def test_damaged_event_on_its_way_is_made_again_under_the_same_id(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """The homeserver has the message, its receipt was lost and its row is damaged: another try is still one message."""
    await world.open()
    await world.synced()
    delivery = world.delivery(room.room_id, "once")
    first = await world.edge.gateway.deliver(delivery)
    await world.close()
    assert _damage(world, "sends", "content") == 1
    await world.open()
    assert await world.edge.gateway.deliver(delivery) == first
    assert [alice.device.reads(event["content"])["content"]["body"] for event in server.sent] == ["once"]
