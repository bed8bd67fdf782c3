"""The ids that name things, each a type of its own so that a room is never taken for a conversation."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NewType

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


_LONGEST_BYTES = 1000
"""Matrix allows 255; an index of PostgreSQL takes rows of 2,704 at most, and a relation can name anything."""


def is_storable(name: str) -> bool:
    """Tell whether an id is text that every database takes."""
    try:
        return "\x00" not in name and len(name.encode()) <= _LONGEST_BYTES
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def make_uuid7(now: datetime) -> str:
    """Return a UUIDv7 (RFC 9562, section 5.7) whose first 48 bits are `now` in milliseconds.

    The rest is random: ids made in one millisecond have no order, so order is never read from them (IN-11).
    """
    milliseconds = int(now.timestamp() * 1000) & (1 << 48) - 1
    chance = int.from_bytes(secrets.token_bytes(10), "big")
    # 12 and 62 random bits; between them stand the version, 7, and the variant, 0b10.
    value = f"{milliseconds << 80 | 0x7 << 76 | (chance >> 68) << 64 | 0b10 << 62 | chance & (1 << 62) - 1:032x}"
    return f"{value[:8]}-{value[8:12]}-{value[12:16]}-{value[16:20]}-{value[20:]}"
