"""Conversations: an id of our own for each room (ROOM-7), and whether the bot is in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hayate_matrix.core.ids import ConversationId, RoomId, UserId, make_uuid7
from hayate_matrix.store.schema import conversations

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One room, as the harness knows it."""

    id: ConversationId
    room_id: RoomId
    is_present: bool
    """False from the bot's leave or ban until it joins again (ROOM-10)."""
    is_paused: bool
    """True from a moderator's `!pause` until `!unpause`."""
    answered_at_ms: int | None
    """When the bot's last message was settled; for the loop breaker alone."""
    streak: int
    """Quick exchanges in a row with `streak_sender` (IN-9)."""
    streak_sender: UserId | None


_FIND = sa.select(conversations).where(conversations.c.room_id == sa.bindparam("room_id"))
_INSERT = sa.insert(conversations)
_GET_ROOM = sa.select(conversations.c.room_id).where(conversations.c.id == sa.bindparam("id"))
_BY_ID = sa.update(conversations).where(conversations.c.id == sa.bindparam("_id"))
_SET_PRESENCE = _BY_ID.values(is_present=sa.bindparam("is_present"))
_SET_PAUSE = _BY_ID.values(is_paused=sa.bindparam("is_paused"))
_SET_STREAK = _BY_ID.values(streak=sa.bindparam("streak"), streak_sender=sa.bindparam("sender"))
_SET_ANSWERED = _BY_ID.values(answered_at_ms=sa.bindparam("now_ms"))


def ensure_conversation(connection: Connection, room_id: RoomId, now: datetime) -> Conversation:
    """Return the conversation of `room_id`, made if need be."""
    found = find_conversation(connection, room_id)
    if found is not None:
        return found
    made = Conversation(
        id=ConversationId(make_uuid7(now)),
        room_id=room_id,
        is_present=True,
        is_paused=False,
        answered_at_ms=None,
        streak=0,
        streak_sender=None,
    )
    connection.execute(
        _INSERT,
        {"id": made.id, "room_id": room_id, "made_at_ms": int(now.timestamp() * 1000), "is_present": True, "is_paused": False, "streak": 0},
    )
    return made


def find_conversation(connection: Connection, room_id: RoomId) -> Conversation | None:
    """Return the conversation of `room_id`, or None."""
    row = connection.execute(_FIND, {"room_id": room_id}).one_or_none()
    return _read(row) if row is not None else None


def get_room(connection: Connection, conversation_id: ConversationId) -> RoomId:
    """Return the room of a conversation that exists."""
    return RoomId(connection.execute(_GET_ROOM, {"id": conversation_id}).scalar_one())


def set_presence(connection: Connection, conversation_id: ConversationId, *, is_present: bool) -> None:
    """Remember whether the bot is in the room."""
    connection.execute(_SET_PRESENCE, {"_id": conversation_id, "is_present": is_present})


def set_pause(connection: Connection, conversation_id: ConversationId, *, is_paused: bool) -> None:
    """Remember whether a moderator paused the bot in the room."""
    connection.execute(_SET_PAUSE, {"_id": conversation_id, "is_paused": is_paused})


def set_streak(connection: Connection, conversation_id: ConversationId, streak: int, sender: UserId) -> None:
    """Remember how many quick exchanges `sender` had in a row."""
    connection.execute(_SET_STREAK, {"_id": conversation_id, "streak": streak, "sender": sender})


def set_answered(connection: Connection, conversation_id: ConversationId, now: datetime) -> None:
    """Remember that a message of the bot was settled just now."""
    connection.execute(_SET_ANSWERED, {"_id": conversation_id, "now_ms": int(now.timestamp() * 1000)})


def _read(row: Row[*tuple[Any, ...]]) -> Conversation:
    return Conversation(
        id=row.id,
        room_id=row.room_id,
        is_present=row.is_present,
        is_paused=row.is_paused,
        answered_at_ms=row.answered_at_ms,
        streak=row.streak,
        streak_sender=row.streak_sender,
    )
