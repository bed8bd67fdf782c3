"""What people and the model said, taken out of the store as it is: sessions, their entries, and the index of hashtags (SES-4).

Promise: all of it is of one moment, nothing is changed or removed, and no key, token or row of work is in it.
Not here: the lines and the file that they become (cli/export).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hayate_matrix.errors import StoreError
from hayate_matrix.store.database.look import read_schema
from hayate_matrix.store.database.opening import SCHEMA_REVISION
from hayate_matrix.store.schema import READ_KEY_ID, conversations, entries, sessions, tags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Row

    from hayate_matrix.store.sealing import Sealer

_ROWS_A_STEP = 500
"""Rows held in memory at a time: an entry is at most some 100 KB."""

_CONVERSATIONS = sa.select(conversations).order_by(conversations.c.made_at_ms, conversations.c.id)
_SESSIONS = sa.select(sessions).where(sessions.c.conversation_id == sa.bindparam("id")).order_by(sessions.c.made_at_ms, sessions.c.id)
_ENTRIES = sa.select(entries).where(entries.c.session_id == sa.bindparam("id")).order_by(entries.c.seq)
_TAGS = sa.select(tags).where(tags.c.conversation_id == sa.bindparam("id")).order_by(tags.c.tag, tags.c.ordinal)


class Export:
    """The records of one database, each a dict of plain values with its `type`."""

    def __init__(self, connection: Connection, sealer: Sealer, *, room_id: str | None = None) -> None:
        """Look at what there is.

        Raises:
            StoreError: the database has another schema or was sealed with another key, or the room has no conversation.
        """
        self._connection = connection
        self._sealer = sealer
        schema = read_schema(connection, "to be exported")
        if schema != SCHEMA_REVISION:
            problem = f"The database has the schema {schema}; this program writes {SCHEMA_REVISION}."
            raise StoreError(problem, remedy="Start the bot once, which brings it up to date.")
        key_id = connection.scalar(READ_KEY_ID)
        if key_id not in (None, sealer.key_id):
            problem = f"The database is sealed with the key {key_id}; the key here is {sealer.key_id}."
            raise StoreError(problem, remedy="Put the store.key back that belongs to it.")
        wanted = _CONVERSATIONS if room_id is None else _CONVERSATIONS.where(conversations.c.room_id == room_id)
        self._conversations = connection.execute(wanted).all()
        if room_id is not None and not self._conversations:
            problem = f"The room {room_id} has no conversation here."
            raise StoreError(
                problem, allowed="Allowed: a room id such as !abc:example.org.", remedy="`hayate-matrix export` names the room of each."
            )
        of_room = conversations.c.room_id == room_id if room_id is not None else sa.true()
        self.total = len(self._conversations) + sum(
            connection.scalar(sa.select(sa.func.count()).select_from(rows).where(of_room)) or 0
            for rows in (
                sessions.join(conversations),
                entries.join(sessions, sessions.c.id == entries.c.session_id).join(conversations),
                tags.join(conversations, conversations.c.id == tags.c.conversation_id),
            )
        )
        """How many records there will be."""
        self.damaged = 0
        """How many texts did not open, so far; they are left out and logged."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each conversation, then its sessions with the entries of each, then its index, all in the order in which they came."""
        for conversation in self._conversations:
            yield {
                "type": "conversation",
                "id": conversation.id,
                "room_id": conversation.room_id,
                "made_at": _read_time(conversation.made_at_ms),
            }
            for session in self._connection.execute(_SESSIONS, {"id": conversation.id}).all():
                yield self._read_session(session)
                for entry in self._connection.execute(_ENTRIES, {"id": session.id}, execution_options={"yield_per": _ROWS_A_STEP}):
                    yield self._read_entry(entry)
            for tag in self._connection.execute(_TAGS, {"id": conversation.id}, execution_options={"yield_per": _ROWS_A_STEP}):
                yield {
                    "type": "tag",
                    "conversation_id": tag.conversation_id,
                    "tag": tag.tag,
                    "session_id": tag.session_id,
                    "entry_id": tag.entry_id,
                    "indexed_at": _read_time(tag.indexed_at_ms),
                }

    def _read_session(self, row: Row[*tuple[Any, ...]]) -> dict[str, Any]:
        return {
            "type": "session",
            "id": row.id,
            "conversation_id": row.conversation_id,
            "focus": row.focus,
            "state": row.state,
            "name": self._open("sessions.name", row.id, row.name),
            "made_at": _read_time(row.made_at_ms),
            "used_at": _read_time(row.used_at_ms),
        }

    def _read_entry(self, row: Row[*tuple[Any, ...]]) -> dict[str, Any]:
        text = self._open("entries.content", row.id, row.content)
        return {
            "type": "entry",
            "id": row.id,
            "session_id": row.session_id,
            "task_id": row.task_id,
            "kind": row.kind,
            "event_id": row.event_id,
            "made_at": _read_time(row.made_at_ms),
            "content": None if text is None else json.loads(text),
        }

    def _open(self, field: str, row_id: str, sealed: bytes | None) -> str | None:
        if sealed is None:
            return None
        text = self._sealer.try_open(field, row_id, sealed)
        self.damaged += text is None
        return text


def _read_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
