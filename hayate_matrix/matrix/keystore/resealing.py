"""All sealed texts and all keys of `matrix.db` under another sealing key, in one transaction (STO-8)."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

from nio.crypto import InboundGroupSession, OlmAccount, OutboundGroupSession, Session

from hayate_matrix.log import get_logger
from hayate_matrix.matrix.keystore.connection import PICKLE_PURPOSE
from hayate_matrix.matrix.keystore.crypto import PICKLE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hayate_matrix.store.sealing import Sealer

_log = get_logger(__name__)
_KEY_ID = "sealing.key"
_TEXTS = (
    ("to_device", "txn_id", "messages", "to_device.messages"),
    ("uploads", "id", "body", "uploads.body"),
    ("sends", "delivery_id || '/' || part", "content", "sends.content"),
    ("secrets", "name", "value", "matrix.secret"),
    ("intake", "event_id", "fact", "intake.fact"),
    ("undecryptable", "event_id", "raw", "undecryptable.raw"),
    ("quarantine", "id", "raw", "quarantine.raw"),
    ("rooms", "room_id", "name", "room.name"),
)
"""Each sealed column with the id and the logical field that are bound into it."""
_PICKLES: tuple[tuple[str, str, str, Callable[[bytes, str], Any]], ...] = (
    ("accounts", "id", "account", OlmAccount.from_pickle),
    ("olmsessions", "session_id", "session", lambda pickle, key: Session.from_pickle(pickle, None, key)),
    ("megolminboundsessions", "session_id", "session", lambda pickle, key: InboundGroupSession.from_pickle(pickle, "", "", "", key)),
    ("room_keys_out", "room_id", "pickle", OutboundGroupSession.from_pickle),
)
"""nio's pickles, under a key that is derived from the sealing key."""


def reseal(path: Path, old: Sealer, new: Sealer) -> int:
    """Seal every text and key anew and return how many there were; nothing is done where the file is under the new key already.

    Raises:
        StoreError: a text does not open with the old key; nothing was changed.
    """
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("pragma synchronous = full")
        db.execute("pragma secure_delete = on")
        db.execute("begin immediate")
        found = db.execute("select value from meta where name = ?", (_KEY_ID,)).fetchone()
        if found is not None and found[0] == new.key_id:
            return 0
        count = sum(_reseal_texts(db, old, new, *text) for text in _TEXTS)
        keys = (old.derive(PICKLE_PURPOSE).hex(), new.derive(PICKLE_PURPOSE).hex())
        count += sum(_repickle(db, keys, *pickle) for pickle in _PICKLES)
        db.execute("insert or replace into meta (name, value) values (?, ?)", (_KEY_ID, new.key_id))
        db.execute("commit")
        return count


def _reseal_texts(db: sqlite3.Connection, old: Sealer, new: Sealer, table: str, key: str, column: str, field: str) -> int:
    rows = db.execute(f"select {key}, {column} from {table} where {column} is not null").fetchall()  # noqa: S608 - literals
    for row_id, sealed in rows:
        text = old.open(field, str(row_id), sealed)
        db.execute(f"update {table} set {column} = ? where {key} = ?", (new.seal(field, str(row_id), text), row_id))  # noqa: S608
    return len(rows)


def _repickle(db: sqlite3.Connection, keys: tuple[str, str], table: str, key: str, column: str, read: Callable[[bytes, str], Any]) -> int:
    rows = db.execute(f"select {key}, {column} from {table}").fetchall()  # noqa: S608 - literals
    for row_id, pickle in rows:
        try:
            session = read(bytes(pickle), keys[0])
        except PICKLE_ERRORS:
            _log.warning("a damaged key is left as it is", table=table, id=row_id)
            continue
        db.execute(f"update {table} set {column} = ? where {key} = ?", (session.pickle(keys[1]), row_id))  # noqa: S608
    return len(rows)
