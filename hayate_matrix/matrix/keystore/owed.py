"""What is owed to the homeserver: bodies whose making moved a ratchet, kept until they are acknowledged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nio.crypto import OutboundGroupSession

from hayate_matrix.core.ids import DeliveryId, RoomId
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.keystore.crypto import PICKLE_ERRORS

if TYPE_CHECKING:
    from hayate_matrix.matrix.keystore.connection import KeyStore

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ToDevice:
    """One request to `/sendToDevice`, with the transaction id that every try uses."""

    seq: int
    txn_id: str
    event_type: str
    messages: dict[str, dict[str, Any]] | None
    """None for a damaged row."""


@dataclass(frozen=True, slots=True)
class Send:
    """One event on its way to a room, exactly as it leaves."""

    delivery_id: DeliveryId
    part: int
    txn_id: str
    room_id: RoomId
    event_type: str
    content: dict[str, Any]
    is_encrypted: bool
    device_id: str
    made_at_ms: int


@dataclass(slots=True)
class RoomKeyOut:
    """The room key that the bot encrypts with in one room."""

    room_id: RoomId
    session: OutboundGroupSession
    made_at_ms: int
    messages: int
    is_stale: bool
    """Whether somebody who holds it may not read on: the next message makes a new one."""


class Owed:
    """The rows; every call in the edge's thread, writes in a transaction."""

    def __init__(self, keystore: KeyStore) -> None:
        self._keystore = keystore

    # -- to-device -----------------------------------------------------------------------------------------------------------

    def add_to_device(self, event_type: str, messages: dict[str, dict[str, Any]]) -> None:
        """Owe one request with these messages (user → device → content)."""
        txn_id = uuid4().hex
        sealed = self._keystore.sealer.seal("to_device.messages", txn_id, json.dumps(messages))
        self._keystore.db.execute("insert into to_device (txn_id, event_type, messages) values (?, ?, ?)", (txn_id, event_type, sealed))

    def first_to_device(self) -> ToDevice | None:
        """Return the oldest request that is owed."""
        row = self._keystore.db.execute("select seq, txn_id, event_type, messages from to_device order by seq limit 1").fetchone()
        if row is None:
            return None
        text = self._keystore.sealer.try_open("to_device.messages", row[1], row[3])
        return ToDevice(row[0], row[1], row[2], None if text is None else json.loads(text))

    def settle_to_device(self, owed: ToDevice) -> None:
        """Forget a request that the homeserver took; one that is damaged may have held room keys, so all are made anew."""
        self._keystore.db.execute("delete from to_device where seq = ?", (owed.seq,))
        if owed.messages is None:
            self._keystore.db.execute("update room_keys_out set is_stale = 1")

    def last_to_device(self) -> int:
        """Return the number of the newest request that is owed, 0 if none is."""
        return int(self._keystore.db.execute("select coalesce(max(seq), 0) from to_device").fetchone()[0])

    # -- key uploads ---------------------------------------------------------------------------------------------------------

    def add_upload(self, kind: str, body: dict[str, Any]) -> None:
        """Owe one upload of the device's keys."""
        row = self._keystore.db.execute("insert into uploads (kind, body) values (?, x'') returning id", (kind,)).fetchone()
        sealed = self._keystore.sealer.seal("uploads.body", str(row[0]), json.dumps(body))
        self._keystore.db.execute("update uploads set body = ? where id = ?", (sealed, row[0]))

    def first_upload(self) -> tuple[int, str, dict[str, Any] | None] | None:
        """Return the oldest owed upload as (id, kind, body); the body of a damaged one is None."""
        row = self._keystore.db.execute("select id, kind, body from uploads order by id limit 1").fetchone()
        if row is None:
            return None
        text = self._keystore.sealer.try_open("uploads.body", str(row[0]), row[2])
        return row[0], row[1], None if text is None else json.loads(text)

    def settle_upload(self, upload_id: int) -> None:
        """Forget an upload that the homeserver took."""
        self._keystore.db.execute("delete from uploads where id = ?", (upload_id,))

    # -- the room key in use -------------------------------------------------------------------------------------------------

    def read_room_key_out(self, room_id: str) -> RoomKeyOut | None:
        """Return the room key in use; None where there is none, or it is damaged: a new one is made then."""
        row = self._keystore.db.execute(
            "select pickle, made_at_ms, messages, is_stale from room_keys_out where room_id = ?", (room_id,)
        ).fetchone()
        if row is None:
            return None
        try:
            session = OutboundGroupSession.from_pickle(bytes(row[0]), self._keystore.crypto.pickle_key)
        except PICKLE_ERRORS:
            _log.warning("the room key in use does not open and is made anew", room=room_id)
            return None
        return RoomKeyOut(RoomId(room_id), session, row[1], row[2], bool(row[3]))

    def save_room_key_out(self, key: RoomKeyOut) -> None:
        """Write the room key as it is now, its ratchet with it."""
        self._keystore.db.execute(
            "insert or replace into room_keys_out (room_id, room_key_id, pickle, made_at_ms, messages, is_stale) values (?, ?, ?, ?, ?, ?)",
            (
                key.room_id,
                key.session.id,
                key.session.pickle(self._keystore.crypto.pickle_key),
                key.made_at_ms,
                key.messages,
                int(key.is_stale),
            ),
        )

    def mark_stale(self, room_id: str) -> None:
        """Let the next message in the room make a new room key."""
        self._keystore.db.execute("update room_keys_out set is_stale = 1 where room_id = ?", (room_id,))

    # -- events on their way -------------------------------------------------------------------------------------------------

    def add_send(self, send: Send) -> None:
        """Keep an event before its first try, in the transaction that moved the ratchet."""
        sealed = self._keystore.sealer.seal(
            "sends.content", f"{send.delivery_id}/{send.part}", json.dumps(send.content, ensure_ascii=False)
        )
        self._keystore.db.execute(
            "insert or replace into sends (delivery_id, part, txn_id, room_id, event_type, content, is_encrypted, device_id, made_at_ms) "
            "values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                send.delivery_id,
                send.part,
                send.txn_id,
                send.room_id,
                send.event_type,
                sealed,
                int(send.is_encrypted),
                send.device_id,
                send.made_at_ms,
            ),
        )

    def list_sends(self, delivery_id: str) -> list[Send]:
        """Return the events of a delivery, in order of its parts; none where one is damaged: they are made again under the same ids."""
        rows = self._keystore.db.execute(
            "select part, txn_id, room_id, event_type, content, is_encrypted, device_id, made_at_ms from sends "
            "where delivery_id = ? order by part",
            (delivery_id,),
        ).fetchall()
        sends: list[Send] = []
        for part, txn_id, room_id, event_type, sealed, is_encrypted, device_id, made_at_ms in rows:
            text = self._keystore.sealer.try_open("sends.content", f"{delivery_id}/{part}", sealed)
            if text is None:
                return []
            content, room = json.loads(text), RoomId(room_id)
            sends.append(Send(DeliveryId(delivery_id), part, txn_id, room, event_type, content, bool(is_encrypted), device_id, made_at_ms))
        return sends

    def drop_older(self, made_before_ms: int) -> None:
        """Forget events made before a time; their deliveries are found in the room itself if they are asked for again."""
        self._keystore.db.execute("delete from sends where made_at_ms < ?", (made_before_ms,))

    def drop_sent(self, delivery_id: str) -> None:
        """Forget the events of a delivery that the harness has settled."""
        self._keystore.db.execute("delete from sends where delivery_id = ?", (delivery_id,))
