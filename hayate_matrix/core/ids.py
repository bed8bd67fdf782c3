"""The ids that name things, each a type of its own so that a room is never taken for a conversation."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NewType
from uuid import UUID

if TYPE_CHECKING:
    from datetime import datetime

UserId = NewType("UserId", str)
RoomId = NewType("RoomId", str)
"""A room id, opaque: from room version 12 on it has no server part."""
EventId = NewType("EventId", str)
DeviceId = NewType("DeviceId", str)
ConversationId = NewType("ConversationId", str)
SessionId = NewType("SessionId", str)
EntryId = NewType("EntryId", str)
TaskId = NewType("TaskId", str)
DeliveryId = NewType("DeliveryId", str)
Focus = NewType("Focus", str)
"""The main timeline of a conversation (the empty string) or the event id of a thread's root."""

MAIN_FOCUS = Focus("")


def make_uuid7(now: datetime) -> str:
    """Return a UUIDv7 (RFC 9562, section 5.7) whose first 48 bits are `now` in milliseconds.

    The rest is random: ids made in one millisecond have no order, so order is never read from them (IN-11).
    """
    milliseconds = int(now.timestamp() * 1000)
    value = (milliseconds & (1 << 48) - 1) << 80
    value |= 0x7 << 76 | secrets.randbits(12) << 64
    value |= 0b10 << 62 | secrets.randbits(62)
    return str(UUID(int=value))
