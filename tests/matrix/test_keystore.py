"""`matrix.db` belongs to one device, is never overwritten in doubt, and tells nothing by itself."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.errors import EncryptionError, StoreError
from hayate_matrix.matrix.keystore import KeyStore
from hayate_matrix.store.sealing import Sealer
from tests.support.edge import EdgeWorld, QuickClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fabricated import FabricatedHomeserver, FabricatedRoom
    from tests.support.fabricated.devices import FabricatedUser


async def _open(path: Path, *, user: str = "@bot:x", device: str = "D", key: bytes = b"k" * 32) -> KeyStore:
    store = KeyStore(path / "matrix.db", Sealer(key), QuickClock())
    try:
        await store.open(user, device)
    except BaseException:
        await store.close()
        raise
    return store


@pytest.mark.requirement("E2E-8")
@pytest.mark.parametrize(("user", "device"), [("@other:x", "D"), ("@bot:x", "OTHER")])
async def test_store_of_another_device_or_user_is_refused_and_left_alone(tmp_path: Path, user: str, device: str) -> None:
    """Two logins never share keys: the error names both, the file stays as it was."""
    await (await _open(tmp_path)).close()
    before = (tmp_path / "matrix.db").read_bytes()
    with pytest.raises(EncryptionError, match="belongs to"):
        await _open(tmp_path, user=user, device=device)
    assert (tmp_path / "matrix.db").read_bytes() == before


@pytest.mark.requirement("STO-7", "REL-4")
async def test_damaged_file_is_refused_with_what_to_do_and_left_alone(tmp_path: Path) -> None:
    """Garbage where the database was: no new database is made over it."""
    (tmp_path / "matrix.db").write_bytes(b"not a database at all" * 500)
    before = (tmp_path / "matrix.db").read_bytes()
    with pytest.raises(StoreError, match="backup"):
        await _open(tmp_path)
    assert (tmp_path / "matrix.db").read_bytes() == before


@pytest.mark.requirement("STO-5")
async def test_newer_schema_is_refused(tmp_path: Path) -> None:
    """A file that a newer program wrote is left to it."""
    await (await _open(tmp_path)).close()
    with sqlite3.connect(tmp_path / "matrix.db") as db:
        db.execute("pragma user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="99"):
        await _open(tmp_path)


@pytest.mark.requirement("REL-4", "SEC-4")
async def test_wrong_sealing_key_stops_the_start_and_changes_nothing(world: EdgeWorld) -> None:
    """Without the right key the device's keys do not open, and no new device is made in their place."""
    await world.open()
    await world.close()
    world.key = b"x" * 32
    with pytest.raises(StoreError, match=r"store\.key"):
        await world.open()
    await world.close()
    world.key = b"k" * 32
    await world.open()


@pytest.mark.requirement("STO-7", "REL-4")
async def test_one_damaged_room_key_is_set_aside_and_the_rest_works(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A room key that does not open costs the messages under it, not the start (audit 3.6)."""
    await world.open()
    await world.synced()
    room.says(alice, "one")
    await world.hears("one")
    await world.close()
    with sqlite3.connect(world.home / "matrix.db") as db:
        assert db.execute("update megolminboundsessions set session = x'00'").rowcount >= 1
    db.close()
    await world.open()
    room.says(alice, "unreadable")
    alice.device.new_room_key(room.room_id)
    room.says(alice, "readable")
    await world.hears("one", "readable")
    assert await world.count("undecryptable") == 1


@pytest.mark.requirement("STO-8", "SEC-4", "STO-1")
async def test_copied_file_tells_nothing_that_people_wrote(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """Spool, quarantine, unread events, sends and names are sealed; the file is the bot's user's alone."""
    plain = server.room("!plain:fab.test", members=[alice.user_id, world.login.user_id], name="Platypus room")
    await world.open()
    await world.synced()
    world.heard.accept = _never  # type: ignore[method-assign,assignment]  # the facts stay in the spool
    room.says(alice, "the platypus is in the spool")
    plain.has(alice.user_id, "m.room.message", {"msgtype": 5, "body": "a platypus in quarantine"})
    await world.synced()
    failing = server.answers("PUT", "*/send/*", {"errcode": "M_TOO_LARGE", "error": "no"}, status=413)
    with pytest.raises(Exception, match="M_TOO_LARGE"):
        await world.edge.gateway.deliver(world.delivery(plain.room_id, "a platypus on its way"))
    assert failing.hits
    await world.close()
    assert (world.home / "matrix.db").stat().st_mode & 0o777 == 0o600
    for file in world.home.glob("matrix.db*"):
        assert b"platypus" not in file.read_bytes().lower()


async def _never(_facts: object) -> None:
    import asyncio  # noqa: PLC0415

    await asyncio.Event().wait()


@pytest.mark.requirement("STO-2")
async def test_rolled_back_transaction_leaves_memory_as_the_disk_is(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """Keys that a failed transaction made are gone from memory too: nothing is encrypted with a ratchet that is not on disk."""
    await world.open()
    await world.synced()
    before = await world.keystore.read(lambda: world.edge._machine.account.pickle("x"))

    def spoil() -> None:
        world.edge._machine.account.generate_one_time_keys(5)
        world.keystore.crypto.save_account(world.edge._machine.account)
        found = world.edge.rooms.find(room.room_id)
        found.membership = "ban"
        world.edge.rooms.save(found)
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        await world.keystore.transaction("test.spoil", spoil)
    assert len(await world.keystore.read(lambda: world.edge._machine.account.one_time_keys["curve25519"])) == 0
    assert await world.keystore.read(lambda: world.edge.rooms.find(room.room_id).membership) == "join"
    assert before
