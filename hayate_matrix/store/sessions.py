"""Sessions and their entries: the transcripts. At most one session is active in a focus (SES-1, SES-2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hayate_matrix.core.ids import ConversationId, EntryId, EventId, Focus, SessionId, TaskId, make_uuid7
from hayate_matrix.core.transcript import Element, Request, Resolved, dump_element, get_kind, load_element
from hayate_matrix.store.schema import HAS_TEXT, IS_ACTIVE, IS_OPEN, IS_REQUEST, entries, move, sessions, tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from sqlalchemy import Connection, Row

    from hayate_matrix.core.transcript import Pointer
    from hayate_matrix.core.turns import SessionState
    from hayate_matrix.store.database import Database
    from hayate_matrix.store.sealing import Sealer

PAGE_SIZE = 10
"""Sessions on a page (SES-2)."""
TITLE_CHARACTERS = 90
"""Of an opening message that serves as a title, and the longest name (SES-1)."""

_ID_CHARACTERS = 36
"""Of a UUID with its hyphens."""
_FIELD = "entries.content"
_NAME = "sessions.name"

_OF_CONVERSATION = sessions.c.conversation_id == sa.bindparam("_conversation_id")
_ACTIVE = (_OF_CONVERSATION, sessions.c.focus == sa.bindparam("_focus"), IS_ACTIVE)
_IS_KEPT = sessions.c.state != "removed"
_other = sessions.alias("other")
_NEXT_TOUCH = (
    sa.select(sa.func.coalesce(sa.func.max(_other.c.touched), 0) + 1)
    .where(_other.c.conversation_id == sa.bindparam("_conversation_id"))
    .scalar_subquery()
)
_USE_ACTIVE = (
    sa.update(sessions)
    .where(*_ACTIVE, sessions.c.used_at_ms >= sa.bindparam("_since_ms", type_=sa.BigInteger))
    .values(used_at_ms=sa.bindparam("now_ms"), touched=_NEXT_TOUCH)
    .returning(sessions.c.id)
)
_FIND_ACTIVE = sa.select(sessions).where(*_ACTIVE)
_FIND_PART = (
    sa.select(sessions)
    .where(
        _OF_CONVERSATION,
        (sa.func.substr(sessions.c.id, 1, sa.bindparam("length", type_=sa.Integer)) == sa.bindparam("part"))
        | (sa.func.substr(sessions.c.id, _ID_CHARACTERS + 1 - sa.bindparam("length", type_=sa.Integer)) == sa.bindparam("part")),
    )
    .order_by(sa.case((_IS_KEPT, 0), else_=1))
    .limit(2)
)
_TOUCH = (
    sa.update(sessions)
    .where(sessions.c.id == sa.bindparam("_id"), _OF_CONVERSATION)
    .values(used_at_ms=sa.bindparam("now_ms"), touched=_NEXT_TOUCH)
)
_RENAME = sa.update(sessions).where(sessions.c.id == sa.bindparam("_id")).values(name=sa.bindparam("name"))
_OPEN = sa.insert(sessions).values(touched=_NEXT_TOUCH)
_MESSAGES = (
    sa.select(sa.func.count())
    .select_from(entries)
    .where(entries.c.session_id == sessions.c.id, IS_REQUEST)
    .correlate(sessions)
    .scalar_subquery()
)
_LIST_PAGE = (
    sa.select(sessions, _MESSAGES.label("messages"))
    .where(_OF_CONVERSATION, _IS_KEPT)
    .order_by(sessions.c.touched.desc())
    .limit(PAGE_SIZE)
    .offset(sa.bindparam("skipped", type_=sa.Integer))
)
_COUNT = sa.select(sa.func.count()).select_from(sessions).where(_OF_CONVERSATION, _IS_KEPT)
_HAS_NO_TASK = ~sa.exists().where(tasks.c.session_id == sessions.c.id, IS_OPEN)
_IS_UNUSED = (sessions.c.used_at_ms < sa.bindparam("before_ms", type_=sa.BigInteger), _HAS_NO_TASK)
_FIRST = sa.bindparam("limit", type_=sa.Integer)
_LIST_IDLE = sa.select(sessions).where(IS_ACTIVE, *_IS_UNUSED).order_by(sessions.c.used_at_ms).limit(_FIRST)
_LIST_OLD = sa.select(sessions).where(HAS_TEXT, *_IS_UNUSED).order_by(sessions.c.state, sessions.c.used_at_ms).limit(_FIRST)
"""In the order of the index, so that only what is returned is read."""
_APPEND = sa.insert(entries)
_READ = sa.select(entries.c.id, entries.c.kind, entries.c.content)
_OF_SESSION = entries.c.session_id == sa.bindparam("_session_id")
_READ_LAST = _READ.where(_OF_SESSION).order_by(entries.c.seq.desc()).limit(sa.bindparam("limit", type_=sa.Integer))
_READ_OPENING = _READ.where(_OF_SESSION, IS_REQUEST).order_by(entries.c.seq).limit(1)
_READ_TASK = _READ.where(entries.c.task_id == sa.bindparam("task_id")).order_by(entries.c.seq)
_READ_STEERS = _READ_TASK.where(entries.c.kind == "steer").offset(sa.bindparam("skip", type_=sa.Integer))
_IS_MEANT = entries.c.event_id.in_(sa.bindparam("event_ids", expanding=True))
_FIND_CHANGED = sa.select(entries.c.session_id).where(_IS_MEANT).distinct()
_FIND_MEANT = sa.select(entries.c.id, entries.c.kind, entries.c.content, entries.c.session_id).where(_IS_MEANT)
_REPLACE = sa.update(entries).where(entries.c.id == sa.bindparam("_id")).values(content=sa.bindparam("content"))
_REMOVE_TEXT = sa.update(entries).where(_IS_MEANT).values(content=None)
_REMOVE_ENTRIES = sa.delete(entries).where(_OF_SESSION, entries.c.kind != "request")
_REMOVE_REQUESTS = sa.update(entries).where(_OF_SESSION).values(content=None)
_RESOLVE = (
    sa.select(entries.c.id, entries.c.kind, entries.c.content, entries.c.event_id, entries.c.session_id, sessions.c.state)
    .join(sessions, sessions.c.id == entries.c.session_id)
    .where(_OF_CONVERSATION, entries.c.id.in_(sa.bindparam("entry_ids", expanding=True)))
)
_RESOLVE_SESSIONS = sa.select(sessions.c.id).where(_OF_CONVERSATION, _IS_KEPT, sessions.c.id.in_(sa.bindparam("ids", expanding=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session, with the state and epoch that it was read with."""

    id: SessionId
    conversation_id: ConversationId
    focus: Focus
    """Where it is active, or was last."""
    state: SessionState
    epoch: int
    used_at_ms: int
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A session as a list shows it."""

    session: Session
    title: str
    """Its name, or the beginning of its opening message; empty where it has neither."""
    messages: int
    """How many messages of people it holds."""


class Sessions:
    """Reads and writes transcripts within the caller's transaction."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def use_active(
        self, connection: Connection, conversation_id: ConversationId, focus: Focus, now: datetime, *, idle_s: float
    ) -> SessionId:
        """Return the active session of a focus, marked as used; a fresh one where there is none or it was idle for `idle_s` (SES-3)."""
        now_ms = _to_ms(now)
        wanted = {"_conversation_id": conversation_id, "_focus": focus, "_since_ms": now_ms - int(idle_s * 1000), "now_ms": now_ms}
        found = connection.scalar(_USE_ACTIVE, wanted)
        return SessionId(found) if found is not None else self.open_new(connection, conversation_id, focus, now)

    def open_new(
        self, connection: Connection, conversation_id: ConversationId, focus: Focus, now: datetime, *, name: str | None = None
    ) -> SessionId:
        """Open a fresh session and make it the active one of the focus; the one before is closed."""
        active = self.find_active(connection, conversation_id, focus)
        if active is not None:
            self.move(connection, active, "closed")
        session_id = SessionId(make_uuid7(now))
        connection.execute(
            _OPEN,
            {
                "_conversation_id": conversation_id,
                "id": session_id,
                "conversation_id": conversation_id,
                "focus": focus,
                "state": "active",
                "epoch": 0,
                "made_at_ms": _to_ms(now),
                "used_at_ms": _to_ms(now),
                "name": None if name is None else self._sealer.seal(_NAME, session_id, name),
            },
        )
        return session_id

    def activate(self, connection: Connection, session: Session, focus: Focus, now: datetime) -> None:
        """Make a session the active one of a focus, whose own is closed; where it was active elsewhere it no longer is."""
        active = self.find_active(connection, session.conversation_id, focus)
        if active is not None and active.id != session.id:
            self.move(connection, active, "closed")
        if active is None or active.id != session.id:
            move(connection, sessions, session.id, state=session.state, epoch=session.epoch, to="active", focus=focus)
        self.touch(connection, session.conversation_id, session.id, now)

    def touch(self, connection: Connection, conversation_id: ConversationId, session_id: SessionId, now: datetime) -> None:
        """Mark a session of this conversation as used."""
        connection.execute(_TOUCH, {"_id": session_id, "_conversation_id": conversation_id, "now_ms": _to_ms(now)})

    def move(self, connection: Connection, session: Session, to: SessionState) -> None:
        """Bring `session` to the state `to`; StaleTransition where somebody else moved it."""
        move(connection, sessions, session.id, state=session.state, epoch=session.epoch, to=to)

    def rename(self, connection: Connection, session_id: SessionId, name: str) -> None:
        """Give a session a name."""
        connection.execute(_RENAME, {"_id": session_id, "name": self._sealer.seal(_NAME, session_id, name)})

    def find_active(self, connection: Connection, conversation_id: ConversationId, focus: Focus) -> Session | None:
        """Return the active session of a focus, however long it has been idle."""
        row = connection.execute(_FIND_ACTIVE, {"_conversation_id": conversation_id, "_focus": focus}).one_or_none()
        return None if row is None else self._read_session(row)

    def find(self, connection: Connection, conversation_id: ConversationId, part: str) -> list[Session]:
        """Return sessions of a conversation whose ids begin or end with `part`: at most two, removed ones last.

        Those of other conversations are none.
        """
        wanted = {"_conversation_id": conversation_id, "part": part, "length": len(part)}
        return [self._read_session(row) for row in connection.execute(_FIND_PART, wanted)]

    def list_page(self, connection: Connection, conversation_id: ConversationId, number: int) -> tuple[list[Listed], int]:
        """Return a page (from 1) of a conversation's sessions, the last used first, and the number of the last page."""
        wanted = {"_conversation_id": conversation_id, "skipped": (number - 1) * PAGE_SIZE}
        count = connection.scalar(_COUNT, wanted) or 0
        listed = []
        for row in connection.execute(_LIST_PAGE, wanted).all():
            session = self._read_session(row)
            listed.append(Listed(session=session, title=self.find_title(connection, session), messages=row.messages))
        return listed, -(-count // PAGE_SIZE)

    def find_title(self, connection: Connection, session: Session) -> str:
        """Return a session's name, or the beginning of its opening message; empty where it has neither (SES-1)."""
        if session.name:
            return session.name
        row = connection.execute(_READ_OPENING, {"_session_id": session.id}).first()
        element = None if row is None else self._read(row.id, row.kind, row.content)
        return " ".join(element.text.split())[:TITLE_CHARACTERS] if isinstance(element, Request) else ""

    def list_idle(self, connection: Connection, now: datetime, *, idle_s: float, limit: int) -> list[Session]:
        """Return active sessions that nobody used for `idle_s` seconds and that no turn works in, the oldest first."""
        wanted = {"before_ms": _to_ms(now) - int(idle_s * 1000), "limit": limit}
        return [self._read_session(row) for row in connection.execute(_LIST_IDLE, wanted)]

    def list_old(self, connection: Connection, now: datetime, *, keep_days: int, limit: int) -> list[Session]:
        """Return sessions that nobody used for `keep_days` days and that no turn works in: active ones first, then the oldest."""
        before_ms = _to_ms(now) - keep_days * 86_400_000
        return [self._read_session(row) for row in connection.execute(_LIST_OLD, {"before_ms": before_ms, "limit": limit})]

    def remove(self, connection: Connection, session: Session) -> None:
        """Take the text of a session away; the session and its requests stay as stones, so that pointers can say so (STO-10)."""
        move(connection, sessions, session.id, state=session.state, epoch=session.epoch, to="removed", name=None)
        connection.execute(_REMOVE_ENTRIES, {"_session_id": session.id})
        connection.execute(_REMOVE_REQUESTS, {"_session_id": session.id})

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
                "made_at_ms": _to_ms(now),
                "content": self._sealer.seal(_FIELD, entry_id, dump_element(element)),
            },
        )
        return entry_id

    def read_last(self, connection: Connection, session_id: SessionId, limit: int) -> list[Element]:
        """Return the last `limit` elements of a transcript, oldest first."""
        rows = connection.execute(_READ_LAST, {"_session_id": session_id, "limit": limit}).all()
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

    def remove_references(self, connection: Connection, event_ids: Iterable[EventId]) -> list[SessionId]:
        """Take the text replied to out of the requests of these events, and return the sessions that changed."""
        changed = []
        for row in connection.execute(_FIND_MEANT, {"event_ids": list(event_ids)}).all():
            element = self._read(row.id, row.kind, row.content)
            if isinstance(element, Request) and element.reference is not None:
                sealed = self._sealer.seal(_FIELD, row.id, dump_element(replace(element, reference=None)))
                connection.execute(_REPLACE, {"_id": row.id, "content": sealed})
                changed.append(SessionId(row.session_id))
        return changed

    def resolve(self, connection: Connection, conversation_id: ConversationId, pointers: Sequence[Pointer]) -> list[Resolved]:
        """Return what each pointer leads to, as `SessionProvider.resolve` promises."""
        wanted = {"_conversation_id": conversation_id, "entry_ids": [pointer.entry_id for pointer in pointers]}
        rows = {row.id: row for row in connection.execute(_RESOLVE, wanted)}
        alone = [pointer.session_id for pointer in pointers if pointer.entry_id not in rows]
        kept = set(connection.scalars(_RESOLVE_SESSIONS, {"_conversation_id": conversation_id, "ids": alone})) if alone else set()
        return [self._resolve(pointer, rows.get(pointer.entry_id), kept) for pointer in pointers]

    def _resolve(self, pointer: Pointer, row: Row[*tuple[Any, ...]] | None, kept: set[str]) -> Resolved:
        if row is None or row.session_id != pointer.session_id:
            return Resolved(missing="message removed" if pointer.session_id in kept else "session removed")
        if row.state == "removed":
            return Resolved(missing="session removed", event_id=row.event_id)
        if row.content is None:
            return Resolved(missing="message redacted", event_id=row.event_id)
        element = self._read(row.id, row.kind, row.content)
        if not isinstance(element, Request):
            return Resolved(missing="message removed", event_id=row.event_id)
        return Resolved(text=element.text, event_id=row.event_id)

    def _read_session(self, row: Row[*tuple[Any, ...]]) -> Session:
        return Session(
            id=row.id,
            conversation_id=row.conversation_id,
            focus=row.focus,
            state=row.state,
            epoch=row.epoch,
            used_at_ms=row.used_at_ms,
            name=None if row.name is None else self._sealer.try_open(_NAME, row.id, row.name),
        )

    def _read(self, entry_id: str, kind: str, content: bytes | None) -> Element:
        return load_element(kind, None if content is None else self._sealer.try_open(_FIELD, entry_id, content))


class StoredSessions:
    """The built-in session provider: the sessions of the database (SES-4)."""

    def __init__(self, database: Database, sessions: Sessions) -> None:
        self._database = database
        self._sessions = sessions

    async def resolve(self, conversation_id: ConversationId, pointers: Sequence[Pointer]) -> list[Resolved]:
        """Return what each pointer leads to, in order."""
        return await self._database.read(lambda connection: self._sessions.resolve(connection, conversation_id, pointers))


def _to_ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
