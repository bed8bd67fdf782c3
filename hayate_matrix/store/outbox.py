"""The outbox: what is owed to rooms, in order, until it is settled.

Promise: a row is settled once; its id is what makes a repeated delivery harmless (OUT-1). The stored text stays as it was written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hayate_matrix.core.deliveries import Delivery, DeliveryKind
from hayate_matrix.core.ids import ConversationId, DeliveryId, EventId, SessionId, TaskId, UserId, is_storable, make_uuid7
from hayate_matrix.store.schema import IS_OWED, IS_UNCERTAIN, conversations, move, outbox, sent_events, tasks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy import Connection, Row

    from hayate_matrix.core.turns import DeliveryState
    from hayate_matrix.store.sealing import Sealer

_FIELD = "outbox.text"

_OF_CONVERSATION = outbox.c.conversation_id == sa.bindparam("_conversation_id")
_ADD = sa.insert(outbox)
_FIND_NEXT = (
    sa.select(outbox, conversations.c.room_id)
    .join(conversations, conversations.c.id == outbox.c.conversation_id)
    .where(_OF_CONVERSATION, IS_OWED)
    .order_by(outbox.c.seq)
    .limit(2)
)
_LIST_INDEBTED = sa.select(outbox.c.conversation_id).where(IS_OWED).distinct()
_ADD_SENT = sa.insert(sent_events).from_select(
    ["event_id", "delivery_id", "part"],
    sa.select(
        sa.bindparam("event_id", type_=sa.Text), sa.bindparam("delivery_id", type_=sa.Text), sa.bindparam("part", type_=sa.Integer)
    ).where(~sa.exists().where(sent_events.c.event_id == sa.bindparam("event_id", type_=sa.Text))),
    include_defaults=False,
)
_HOLD = sa.update(outbox).where(_OF_CONVERSATION, IS_OWED, outbox.c.state == "pending").values(state="held", epoch=outbox.c.epoch + 1)
_RELEASE = sa.update(outbox).where(IS_OWED, outbox.c.state == "held").values(state="pending", epoch=outbox.c.epoch + 1)
_RELEASE_OF = _RELEASE.where(_OF_CONVERSATION)
_COUNT = sa.select(outbox.c.state, sa.func.count()).group_by(outbox.c.state)
_COUNT_OWED = _COUNT.where(_OF_CONVERSATION, IS_OWED)
_COUNT_UNCERTAIN = _COUNT.where(_OF_CONVERSATION, IS_UNCERTAIN)
_LIST_TEXTS_OF = (
    sa.select(outbox.c.id).join(tasks, tasks.c.id == outbox.c.task_id).where(tasks.c.session_id == sa.bindparam("session_id"), ~IS_OWED)
)
_EXPIRED = "expired"
"""Reason of a row that is owed still, while retention has taken its session."""
_EXPIRE_OF = (
    sa.update(outbox)
    .where(IS_OWED, outbox.c.task_id.in_(sa.select(tasks.c.id).where(tasks.c.session_id == sa.bindparam("session_id"))))
    .values(reason=_EXPIRED, epoch=outbox.c.epoch + 1)
)
_LIST_LISTINGS = sa.select(outbox.c.id).where(_OF_CONVERSATION, IS_OWED, outbox.c.kind == "listing", outbox.c.links.is_not(None))
_REPLACE_LISTING = (
    sa.update(outbox).where(outbox.c.id == sa.bindparam("_id")).values(text=sa.bindparam("text"), links="[]", epoch=outbox.c.epoch + 1)
)
_REPLACE_TEXT = sa.update(outbox).where(outbox.c.id == sa.bindparam("_id")).values(text=sa.bindparam("text"))
_FIND_SENT = (
    sa.select(outbox.c.id, outbox.c.text)
    .join(sent_events, sent_events.c.delivery_id == outbox.c.id)
    .where(sent_events.c.event_id == sa.bindparam("event_id"), _OF_CONVERSATION)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """One outbox row, with the state and epoch that it was read with."""

    delivery: Delivery
    conversation_id: ConversationId
    state: DeliveryState
    epoch: int
    tags: tuple[str, ...] = ()
    """Its label, sorted; `delivery` has the text without it."""
    is_expired: bool = False
    """Whether retention has taken its session: it goes out, and is not kept."""
    is_damaged: bool = False
    """Whether its text can't be read any more; it is empty here then."""
    is_last: bool = False
    """Whether nothing else was owed to the conversation when this was read."""


class Outbox:
    """Reads and writes outbox rows within the caller's transaction."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def add(  # noqa: PLR0913 - a delivery has these parts
        self,
        connection: Connection,
        conversation_id: ConversationId,
        kind: DeliveryKind,
        text: str,
        now: datetime,
        *,
        task_id: TaskId | None = None,
        request: EventId | None = None,
        thread: EventId | None = None,
        mention: UserId | None = None,
        tags: Sequence[str] = (),
        links: Sequence[tuple[str, EventId]] | None = None,
    ) -> DeliveryId:
        """Owe `text` to the room of the conversation, behind what is owed to it already.

        `tags` become its label when it is delivered (LBL-1); `text` stays without. `links` are those of a listing that shows messages.
        """
        delivery_id = DeliveryId(make_uuid7(now))
        connection.execute(
            _ADD,
            {
                "id": delivery_id,
                "conversation_id": conversation_id,
                "task_id": task_id,
                "kind": kind,
                "state": "pending",
                "epoch": 0,
                "request_event_id": request,
                "thread": thread,
                "mention": mention,
                "made_at_ms": int(now.timestamp() * 1000),
                "text": self._sealer.seal(_FIELD, delivery_id, text),
                "tags": " ".join(sorted(tags)),
                "links": None if links is None else json.dumps(links),
            },
        )
        return delivery_id

    def find_next(self, connection: Connection, conversation_id: ConversationId) -> Owed | None:
        """Return the oldest row that is owed (pending or held) to a conversation."""
        rows = connection.execute(_FIND_NEXT, {"_conversation_id": conversation_id}).all()
        return self._read(rows[0], is_last=len(rows) == 1) if rows else None

    def list_indebted(self, connection: Connection) -> list[ConversationId]:
        """Return the conversations to which something is owed (pending or held)."""
        return [ConversationId(found) for found in connection.scalars(_LIST_INDEBTED)]

    def settle(self, connection: Connection, owed: Owed, event_ids: Sequence[EventId], now: datetime) -> None:
        """End a row as sent, with the event ids that came back; StaleTransition where it was settled before."""
        delivery_id = owed.delivery.id
        # A listing repeats what others wrote, and what retention has taken must not stay either: the room has it now.
        kept: dict[str, Any] = {}
        if owed.delivery.kind == "listing" or owed.is_expired:
            kept["text"] = self._sealer.seal(_FIELD, delivery_id, "")
        settled_at_ms = int(now.timestamp() * 1000)
        move(
            connection, outbox, delivery_id, state=owed.state, epoch=owed.epoch, to="sent", settled_at_ms=settled_at_ms, reason=None, **kept
        )
        for part, event_id in enumerate(event_ids):
            if event_id and is_storable(event_id):  # a homeserver may answer anything, and nothing for what it had already
                connection.execute(_ADD_SENT, {"event_id": event_id, "delivery_id": delivery_id, "part": part})

    def move(self, connection: Connection, owed: Owed, to: DeliveryState, now: datetime, *, reason: str | None = None) -> None:
        """Bring a row to `refused` or `uncertain`; `reason` is a stable code, never text of the room."""
        move(
            connection,
            outbox,
            owed.delivery.id,
            state=owed.state,
            epoch=owed.epoch,
            to=to,
            settled_at_ms=int(now.timestamp() * 1000),
            reason=reason,
        )

    def hold(self, connection: Connection, conversation_id: ConversationId) -> int:
        """Hold everything that is owed to a conversation and return how many rows that changed."""
        return connection.execute(_HOLD, {"_conversation_id": conversation_id}).rowcount

    def release(self, connection: Connection, conversation_id: ConversationId | None = None) -> int:
        """Make held rows (of one conversation, or all) pending again and return how many."""
        if conversation_id is None:
            return connection.execute(_RELEASE).rowcount
        return connection.execute(_RELEASE_OF, {"_conversation_id": conversation_id}).rowcount

    def count(self, connection: Connection) -> dict[DeliveryState, int]:
        """Return how many rows are in each state."""
        return {row[0]: row[1] for row in connection.execute(_COUNT)}

    def count_unsettled(self, connection: Connection, conversation_id: ConversationId) -> dict[DeliveryState, int]:
        """Return how many rows of a conversation are in each state that is not the end."""
        wanted = {"_conversation_id": conversation_id}
        return {row[0]: row[1] for statement in (_COUNT_OWED, _COUNT_UNCERTAIN) for row in connection.execute(statement, wanted)}

    def is_sent_event(self, connection: Connection, conversation_id: ConversationId, event_id: EventId) -> bool:
        """Tell whether the bot sent this event to this conversation."""
        return connection.execute(_FIND_SENT, {"event_id": event_id, "_conversation_id": conversation_id}).first() is not None

    def find_sent_text(self, connection: Connection, conversation_id: ConversationId, event_id: EventId) -> str | None:
        """Return what the bot said with this event, or None where it is none of its own, or no longer kept."""
        row = connection.execute(_FIND_SENT, {"event_id": event_id, "_conversation_id": conversation_id}).first()
        return (self._sealer.try_open(_FIELD, row.id, row.text) or None) if row is not None else None

    def replace_listings(self, connection: Connection, conversation_id: ConversationId, text: str) -> None:
        """Give the lists that are still owed to a conversation another text: what they show was removed in the room."""
        for delivery_id in connection.scalars(_LIST_LISTINGS, {"_conversation_id": conversation_id}).all():
            connection.execute(_REPLACE_LISTING, {"_id": delivery_id, "text": self._sealer.seal(_FIELD, delivery_id, text)})

    def remove_text(self, connection: Connection, session_id: SessionId) -> None:
        """Take away what was said in a session; what is owed still goes out, and is not kept then."""
        connection.execute(_EXPIRE_OF, {"session_id": session_id})
        for delivery_id in connection.scalars(_LIST_TEXTS_OF, {"session_id": session_id}).all():
            connection.execute(_REPLACE_TEXT, {"_id": delivery_id, "text": self._sealer.seal(_FIELD, delivery_id, "")})

    def _read(self, row: Row[*tuple[Any, ...]], *, is_last: bool) -> Owed:
        text = self._sealer.try_open(_FIELD, row.id, row.text)
        return Owed(
            delivery=Delivery(
                id=row.id,
                room_id=row.room_id,
                kind=row.kind,
                text=text or "",
                request=row.request_event_id,
                thread=row.thread,
                mention=row.mention,
                created_at_ms=row.made_at_ms,
                links=tuple((label, event_id) for label, event_id in json.loads(row.links)) if row.links else (),
            ),
            tags=tuple(row.tags.split()),
            conversation_id=row.conversation_id,
            state=row.state,
            epoch=row.epoch,
            is_expired=row.reason == _EXPIRED,
            is_damaged=text is None,
            is_last=is_last,
        )
