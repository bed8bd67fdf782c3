"""The inbox: every fact once, and of those that ask for work the text and how far it is.

Promise: a fact that was taken is never taken again; its row outlives its text (IN-1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import sqlalchemy as sa

from hayate_matrix.core.ids import EventId, RoomId
from hayate_matrix.core.transcript import Request, dump_element, load_element
from hayate_matrix.store.schema import HAS_WORK, conversations, inbox, move, tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection, Row

    from hayate_matrix.core.ids import ConversationId, Focus, SessionId, UserId
    from hayate_matrix.core.turns import RequestState
    from hayate_matrix.store.sealing import Sealer

InboxKind = Literal["request", "command", "ordered", "edit", "redaction", "other"]
"""`ordered` is a command that waits for the requests before it in its focus."""

_FIELD = "inbox.content"
_LOOKUP_SIZE = 500
"""Event ids asked for in one query; SQLite takes 32,766 parameters, PostgreSQL 65,535."""

_IN_CONVERSATION = inbox.c.conversation_id == sa.bindparam("conversation_id")
_FIND_KNOWN = sa.select(inbox.c.event_id, inbox.c.target).where(
    inbox.c.event_id.in_(sa.bindparam("event_ids", expanding=True)) | inbox.c.target.in_(sa.bindparam("event_ids", expanding=True))
)
_FIND_ONE = sa.select(inbox.c.event_id, inbox.c.target).where(
    (inbox.c.event_id == sa.bindparam("id")) | (inbox.c.target == sa.bindparam("id"))
)
_INSERT = sa.insert(inbox)
_CLAIM = (
    sa.update(inbox)
    .where(inbox.c.event_id == sa.bindparam("_event_id"), inbox.c.kind == "request", inbox.c.state == "queued")
    .values(state="running", epoch=inbox.c.epoch + 1)
    .returning(*inbox.c)
)
_FIND = sa.select(inbox).where(inbox.c.event_id == sa.bindparam("event_id"))
_FIND_ABOUT = sa.select(inbox).where(inbox.c.target == sa.bindparam("target"), _IN_CONVERSATION).order_by(inbox.c.seq)
_FIND_REPLIES = sa.select(inbox.c.event_id).where(inbox.c.reply_to == sa.bindparam("reply_to"), _IN_CONVERSATION)
_ASK_REDACTION = (
    sa.select(inbox.c.seq)
    .where(
        _IN_CONVERSATION,
        inbox.c.focus == sa.literal_column("''"),
        inbox.c.kind == sa.literal_column("'redaction'"),
        inbox.c.seq > sa.bindparam("seq", type_=sa.BigInteger),
    )
    .limit(1)
)
_FIND_LAST = sa.select(sa.func.max(inbox.c.seq))
_OPEN = sa.select(*(column for column in inbox.c if column.name != "content"), sa.null().label("content"))
_LIST_OPEN = _OPEN.where(HAS_WORK).order_by(inbox.c.seq + 0)
"""Without `+ 0` SQLite walks the whole table in this order, in place of the few rows that have work."""
_LIST_OPEN_OF = _OPEN.where(HAS_WORK, _IN_CONVERSATION).order_by(inbox.c.seq)
_ASK_WORK = sa.select(inbox.c.seq).where(_IN_CONVERSATION, HAS_WORK).limit(1)
_COUNT_WAITING = (
    sa.select(conversations.c.room_id, sa.func.count().label("number"))
    .join(conversations, conversations.c.id == inbox.c.conversation_id)
    .where(HAS_WORK, inbox.c.kind == "request")
    .group_by(conversations.c.room_id)
)
_COUNT_WAITING_OF = {
    "person": _COUNT_WAITING.where(inbox.c.sender == sa.bindparam("subject")),
    "room": _COUNT_WAITING.where(inbox.c.conversation_id == sa.bindparam("subject")),
}
_ASK_THREAD = sa.select(inbox.c.seq).where(_IN_CONVERSATION, inbox.c.focus == sa.bindparam("thread"), inbox.c.kind == "request").limit(1)
_ASK_ROOT = sa.select(inbox.c.seq).where(_IN_CONVERSATION, inbox.c.event_id == sa.bindparam("thread"), inbox.c.kind == "request")
_REPLACE = (
    sa.update(inbox)
    .where(inbox.c.event_id == sa.bindparam("_event_id"), inbox.c.state == "queued", inbox.c.epoch == sa.bindparam("_epoch"))
    .values(content=sa.bindparam("content"), tags=sa.bindparam("tags"), epoch=inbox.c.epoch + 1)
)
_REMOVE_TEXT = sa.update(inbox).where(inbox.c.event_id.in_(sa.bindparam("event_ids", expanding=True))).values(content=None)

_REMOVE_SESSION = (
    sa.update(inbox)
    .where(inbox.c.event_id.in_(sa.select(tasks.c.request_event_id).where(tasks.c.session_id == sa.bindparam("session_id"))))
    .values(content=None)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRow:
    """One fact. `content` is None for a fact that asks for no work, once the text was removed, and where it is damaged."""

    event_id: EventId
    conversation_id: ConversationId
    kind: InboxKind
    state: RequestState
    focus: Focus
    sender: UserId
    answers: EventId
    """The event that a reply refers to: of an edit the message that it changes."""
    target: EventId | None = None
    """The event that an edit or a redaction is about."""
    reply_to: EventId | None = None
    sent_at_ms: int
    received_at_ms: int
    content: Request | None = None
    tags: tuple[str, ...] = ()
    """Of a request, in reading order (SRC-3)."""
    epoch: int = 0
    seq: int = 0
    """The order of arrival; given by `put`."""


class Inbox:
    """Reads and writes inbox rows within the caller's transaction."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def find_known(self, connection: Connection, event_ids: Sequence[EventId]) -> tuple[set[EventId], set[EventId]]:
        """Return those of `event_ids` that were taken before, and those that edits and redactions taken before are about."""
        known: set[EventId] = set()
        targets: set[EventId] = set()
        for start in range(0, len(event_ids), _LOOKUP_SIZE):
            some = event_ids[start : start + _LOOKUP_SIZE]
            # A list of parameters makes the statement anew each time: one message alone, the usual case, goes without.
            is_one = len(some) == 1
            for row in connection.execute(_FIND_ONE if is_one else _FIND_KNOWN, {"id": some[0]} if is_one else {"event_ids": some}):
                known.add(row.event_id)
                targets.add(row.target)
        wanted = set(event_ids)
        return known & wanted, targets & wanted

    def put(self, connection: Connection, row: InboxRow) -> int:
        """Add a fact that is not known yet and return its `seq`."""
        sealed = None if row.content is None else self._seal(row.event_id, row.content)
        result = connection.execute(
            _INSERT,
            {
                "event_id": row.event_id,
                "conversation_id": row.conversation_id,
                "kind": row.kind,
                "state": row.state,
                "epoch": row.epoch,
                "focus": row.focus,
                "sender": row.sender,
                "answers": row.answers,
                "target": row.target,
                "reply_to": row.reply_to,
                "sent_at_ms": row.sent_at_ms,
                "received_at_ms": row.received_at_ms,
                "content": sealed,
                "tags": " ".join(row.tags),
            },
        )
        key = result.inserted_primary_key
        return int(key[0]) if key is not None else 0

    def claim(self, connection: Connection, event_id: EventId) -> InboxRow | None:
        """Bring a queued request to `running` and return it so; None for whatever is no queued request."""
        row = connection.execute(_CLAIM, {"_event_id": event_id}).one_or_none()
        return self._read(row) if row is not None else None

    def find(self, connection: Connection, event_id: EventId) -> InboxRow | None:
        """Return the row of an event, or None for one that was never taken."""
        row = connection.execute(_FIND, {"event_id": event_id}).one_or_none()
        return self._read(row) if row is not None else None

    def find_about(self, connection: Connection, conversation_id: ConversationId, target: EventId) -> list[InboxRow]:
        """Return the edits and redactions about `target`, in order of arrival; those of other rooms can name it too and are nothing."""
        return [self._read(row) for row in connection.execute(_FIND_ABOUT, {"target": target, "conversation_id": conversation_id})]

    def find_replies(self, connection: Connection, conversation_id: ConversationId, event_id: EventId) -> list[EventId]:
        """Return the messages of a conversation that reply to an event."""
        return [EventId(found) for found in connection.scalars(_FIND_REPLIES, {"reply_to": event_id, "conversation_id": conversation_id})]

    def has_redaction_since(self, connection: Connection, conversation_id: ConversationId, seq: int) -> bool:
        """Tell whether a message of the conversation was removed in the room after the fact with this `seq` came."""
        return connection.execute(_ASK_REDACTION, {"conversation_id": conversation_id, "seq": seq}).first() is not None

    def find_last(self, connection: Connection) -> int:
        """Return the `seq` of the newest fact."""
        return int(connection.scalar(_FIND_LAST) or 0)

    def list_open(self, connection: Connection, conversation_id: ConversationId | None = None) -> list[InboxRow]:
        """Return requests and commands that are queued or running, in order of arrival, without their content."""
        if conversation_id is None:
            return [self._read(row) for row in connection.execute(_LIST_OPEN)]
        return [self._read(row) for row in connection.execute(_LIST_OPEN_OF, {"conversation_id": conversation_id})]

    def has_work(self, connection: Connection, conversation_id: ConversationId) -> bool:
        """Tell whether a request or command of the conversation is queued or running."""
        return connection.execute(_ASK_WORK, {"conversation_id": conversation_id}).first() is not None

    def count_waiting(self, connection: Connection, whose: Literal["person", "room"], subject: str) -> dict[RoomId, int]:
        """Return how many requests of a person in any room, or of a conversation, are queued or running, by their room."""
        return {RoomId(row.room_id): row.number for row in connection.execute(_COUNT_WAITING_OF[whose], {"subject": subject})}

    def is_addressed(self, connection: Connection, conversation_id: ConversationId, thread: EventId) -> bool:
        """Tell whether the bot was asked something in this thread, or by the message that the thread hangs on."""
        asked = {"conversation_id": conversation_id, "thread": thread}
        return connection.execute(_ASK_THREAD, asked).first() is not None or connection.execute(_ASK_ROOT, asked).first() is not None

    def move(self, connection: Connection, row: InboxRow, to: RequestState) -> int:
        """Bring `row` to the state `to` and return its new epoch; StaleTransition where somebody else moved it.

        What no session will hold keeps no text: a command that ended, a request that was dropped.
        """
        gone = {"content": None} if to == "dropped" or row.kind != "request" else {}
        return move(connection, inbox, row.event_id, state=row.state, epoch=row.epoch, to=to, **gone)

    def replace(self, connection: Connection, row: InboxRow, content: Request, tags: Sequence[str]) -> bool:
        """Give a request that is still queued another content and tags; False where it is no longer queued."""
        sealed = self._seal(row.event_id, content)
        changes = {"_event_id": row.event_id, "_epoch": row.epoch, "content": sealed, "tags": " ".join(tags)}
        result = connection.execute(_REPLACE, changes)
        return result.rowcount == 1

    def remove_text(self, connection: Connection, event_ids: Iterable[EventId]) -> None:
        """Leave stones in the place of these texts."""
        connection.execute(_REMOVE_TEXT, {"event_ids": list(event_ids)})

    def remove_session(self, connection: Connection, session_id: SessionId) -> None:
        """Leave stones in the place of the requests that a session held."""
        connection.execute(_REMOVE_SESSION, {"session_id": session_id})

    def _read(self, row: Row[*tuple[Any, ...]]) -> InboxRow:
        return InboxRow(
            event_id=row.event_id,
            conversation_id=row.conversation_id,
            kind=row.kind,
            state=row.state,
            focus=row.focus,
            sender=row.sender,
            answers=row.answers,
            target=row.target,
            reply_to=row.reply_to,
            sent_at_ms=row.sent_at_ms,
            received_at_ms=row.received_at_ms,
            content=None if row.content is None else self._open(row.event_id, row.content),
            tags=tuple(row.tags.split()),
            epoch=row.epoch,
            seq=row.seq,
        )

    def _seal(self, event_id: EventId, content: Request) -> bytes:
        return self._sealer.seal(_FIELD, event_id, dump_element(content))

    def _open(self, event_id: EventId, sealed: bytes) -> Request | None:
        content = load_element("request", self._sealer.try_open(_FIELD, event_id, sealed))
        return content if isinstance(content, Request) else None
