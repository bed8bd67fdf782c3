"""What of `matrix.db` may live on in a backup, and how a new device begins with it.

Promise: no private key of the old device and no ratchet that it moved leaves with a backup, since an old copy of either must never be used
again; identity and room keys do, sealed as they are.
How: a copy of the database without those rows; a new device gets an account of its own and the room keys are put under it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

from nio.crypto import OlmAccount

from hayate_matrix.matrix.keystore.connection import PICKLE_PURPOSE

if TYPE_CHECKING:
    from pathlib import Path

    from hayate_matrix.store.sealing import Sealer

_OLD_DEVICES = (
    "olmsessions",
    "room_keys_out",
    "shares",
    "to_device",
    "uploads",
    "sends",
    "gaps",
    "undecryptable",
    "quarantine",
    "counters",
)
"""Tables that mean nothing, or harm, under another device."""


def strip_copy(path: Path) -> None:
    """Take out of a copy of `matrix.db` what only the old device may use; what was removed is overwritten."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("pragma secure_delete = on")
        for table in _OLD_DEVICES:
            db.execute(f"delete from {table}")  # noqa: S608 - literals
        db.execute("update accounts set account = x'', shared = 0")
        db.execute("delete from meta where name in ('position', 'synced_at_server_ms', 'device_id')")
        # Rooms are learned anew; what stays is that a room was encrypted once, which no server can take back.
        db.execute("update rooms set membership = '', members_known = 0, joined_event = null")
        db.execute("delete from members")
        db.execute("delete from recent")
        db.commit()
        db.execute("vacuum")


def adopt_copy(path: Path, sealer: Sealer, *, user_id: str, device_id: str, now_ms: int) -> None:
    """Make a stripped copy the key store of a new device, with keys of its own."""
    account = OlmAccount()
    pickle = account.pickle(sealer.derive(PICKLE_PURPOSE).hex())
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("update accounts set account = ?, device_id = ?, shared = 0 where user_id = ?", (pickle, device_id, user_id))
        db.execute("insert or replace into meta (name, value) values ('device_id', ?)", (device_id,))
        # What was owed before this moment may have been sent after the backup was made: the room is searched first (OUT-1).
        db.execute("insert or replace into meta (name, value) values ('restored_at_ms', ?)", (str(now_ms),))
        db.commit()
