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


class Sessions:
    """Reads and writes transcripts within the caller's transaction."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def use_active(self, connection: Connection, conversation_id: ConversationId, focus: Focus, now: datetime) -> SessionId:
        """Return the active session of a focus, opened if there is none, and mark it as used."""
        now_ms = int(now.timestamp() * 1000)
        query = sa.select(sessions.c.id).where(
            sessions.c.conversation_id == conversation_id, sessions.c.focus == focus, sessions.c.state == "active"
        )
        found = connection.scalar(query)
        if found is not None:
            connection.execute(sa.update(sessions).where(sessions.c.id == found).values(used_at_ms=now_ms))
            return SessionId(found)
        session_id = SessionId(make_uuid7(now))
        connection.execute(
            sa.insert(sessions).values(
                id=session_id, conversation_id=conversation_id, focus=focus, state="active", epoch=0, made_at_ms=now_ms, used_at_ms=now_ms
            )
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
            sa.insert(entries),
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
        query = sa.select(entries.c.id, entries.c.kind, entries.c.content).where(entries.c.session_id == session_id)
        rows = connection.execute(query.order_by(entries.c.seq.desc()).limit(limit)).all()
        return [self._read(row.id, row.kind, row.content) for row in reversed(rows)]

    def read_task(self, connection: Connection, task_id: TaskId) -> list[Element]:
        """Return what one task has put into its transcript so far, oldest first."""
        query = sa.select(entries.c.id, entries.c.kind, entries.c.content).where(entries.c.task_id == task_id)
        return [self._read(row.id, row.kind, row.content) for row in connection.execute(query.order_by(entries.c.seq))]

    def read_steers(self, connection: Connection, task_id: TaskId, skip: int) -> list[Element]:
        """Return what people steered into this task, oldest first, without the first `skip`."""
        query = sa.select(entries.c.id, entries.c.kind, entries.c.content).where(entries.c.task_id == task_id, entries.c.kind == "steer")
        return [self._read(row.id, row.kind, row.content) for row in connection.execute(query.order_by(entries.c.seq).offset(skip))]

    def remove_text(self, connection: Connection, event_ids: Iterable[EventId]) -> list[SessionId]:
        """Leave stones in the place of what these events put into transcripts, and return the sessions that changed."""
        is_meant = entries.c.event_id.in_(list(event_ids))
        changed = [SessionId(found) for found in connection.scalars(sa.select(entries.c.session_id).where(is_meant).distinct())]
        if changed:
            connection.execute(sa.update(entries).where(is_meant).values(content=None))
        return changed

    def _read(self, entry_id: str, kind: str, content: bytes | None) -> Element:
        return load_element(kind, None if content is None else self._sealer.open(_FIELD, entry_id, content))
