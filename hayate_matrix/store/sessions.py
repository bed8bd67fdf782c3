"""Sessions and their entries: the transcripts. One session is active in a focus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from hayate_matrix.core.ids import ConversationId, EntryId, EventId, Focus, SessionId, TaskId, make_uuid7
from hayate_matrix.core.transcript import Element, dump_element, get_kind, load_element
from hayate_matrix.store.schema import entries, sessions

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from sqlalchemy import Connection

    from hayate_matrix.store.sealing import Sealer

_FIELD = "entries.content"

_FIND_ACTIVE = sa.select(sessions.c.id).where(
    sessions.c.conversation_id == sa.bindparam("conversation_id"), sessions.c.focus == sa.bindparam("focus"), sessions.c.state == "active"
)
_USE = sa.update(sessions).where(sessions.c.id == sa.bindparam("_id")).values(used_at_ms=sa.bindparam("now_ms"))
_OPEN = sa.insert(sessions)
_APPEND = sa.insert(entries)
_READ = sa.select(entries.c.id, entries.c.kind, entries.c.content)
_READ_LAST = (
    _READ.where(entries.c.session_id == sa.bindparam("session_id"))
    .order_by(entries.c.seq.desc())
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_READ_TASK = _READ.where(entries.c.task_id == sa.bindparam("task_id")).order_by(entries.c.seq)
_READ_STEERS = _READ_TASK.where(entries.c.kind == "steer").offset(sa.bindparam("skip", type_=sa.Integer))
_IS_MEANT = entries.c.event_id.in_(sa.bindparam("event_ids", expanding=True))
_FIND_CHANGED = sa.select(entries.c.session_id).where(_IS_MEANT).distinct()
_REMOVE_TEXT = sa.update(entries).where(_IS_MEANT).values(content=None)


class Sessions:
    """Reads and writes transcripts within the caller's transaction."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def use_active(self, connection: Connection, conversation_id: ConversationId, focus: Focus, now: datetime) -> SessionId:
        """Return the active session of a focus, opened if there is none, and mark it as used."""
        now_ms = int(now.timestamp() * 1000)
        found = connection.scalar(_FIND_ACTIVE, {"conversation_id": conversation_id, "focus": focus})
        if found is not None:
            connection.execute(_USE, {"_id": found, "now_ms": now_ms})
            return SessionId(found)
        session_id = SessionId(make_uuid7(now))
        connection.execute(
            _OPEN,
            {
                "id": session_id,
                "conversation_id": conversation_id,
                "focus": focus,
                "state": "active",
                "epoch": 0,
                "made_at_ms": now_ms,
                "used_at_ms": now_ms,
            },
        )
        return session_id

    def append(
        self,
        connection: Connection,
        session_id: SessionId,
        task_id: TaskId,
        element: Element,
        now: datetime,
        *,
        event_id: EventId | None = None,
    ) -> EntryId:
        """Add one element at the end of a transcript; `event_id` is the message in the room that it came from."""
        entry_id = EntryId(make_uuid7(now))
        connection.execute(
            _APPEND,
            {
                "id": entry_id,
                "session_id": session_id,
                "task_id": task_id,
                "kind": get_kind(element),
                "event_id": event_id,
                "made_at_ms": int(now.timestamp() * 1000),
                "content": self._sealer.seal(_FIELD, entry_id, dump_element(element)),
            },
        )
        return entry_id

    def read_last(self, connection: Connection, session_id: SessionId, limit: int) -> list[Element]:
        """Return the last `limit` elements of a transcript, oldest first."""
        rows = connection.execute(_READ_LAST, {"session_id": session_id, "limit": limit}).all()
        return [self._read(row.id, row.kind, row.content) for row in reversed(rows)]

    def read_task(self, connection: Connection, task_id: TaskId) -> list[Element]:
        """Return what one task has put into its transcript so far, oldest first."""
        return [self._read(row.id, row.kind, row.content) for row in connection.execute(_READ_TASK, {"task_id": task_id})]

    def read_steers(self, connection: Connection, task_id: TaskId, skip: int) -> list[Element]:
        """Return what people steered into this task, oldest first, without the first `skip`."""
        rows = connection.execute(_READ_STEERS, {"task_id": task_id, "skip": skip})
        return [self._read(row.id, row.kind, row.content) for row in rows]

    def remove_text(self, connection: Connection, event_ids: Iterable[EventId]) -> list[SessionId]:
        """Leave stones in the place of what these events put into transcripts, and return the sessions that changed."""
        meant = {"event_ids": list(event_ids)}
        changed = [SessionId(found) for found in connection.scalars(_FIND_CHANGED, meant)]
        if changed:
            connection.execute(_REMOVE_TEXT, meant)
        return changed

    def _read(self, entry_id: str, kind: str, content: bytes | None) -> Element:
        return load_element(kind, None if content is None else self._sealer.try_open(_FIELD, entry_id, content))
