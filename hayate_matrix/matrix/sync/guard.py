"""Keeps malformed parts of a sync response out, one by one, so that the rest of it is applied.

Servers differ in what they leave out and members can write what they like: `normalise` gives every section the shape that the
specification promises and lists what had to be dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hayate_matrix.matrix.machine import is_too_deep

_JSON_DEPTH = 100


@dataclass(slots=True)
class JoinedRoom:
    """One room of the join section."""

    room_id: str
    state: list[dict[str, Any]]
    timeline: list[dict[str, Any]]
    is_limited: bool
    prev_batch: str | None


@dataclass(slots=True)
class SyncAnswer:
    """A sync response of known shape."""

    next_batch: str
    to_device: list[dict[str, Any]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    key_counts: dict[str, int] | None = None
    """Unused one-time keys by algorithm; None where the server did not say. An algorithm that is missing has none left."""
    fallback_types: list[str] | None = None
    account_data: list[dict[str, Any]] = field(default_factory=list)
    joined: list[JoinedRoom] = field(default_factory=list)
    invited: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)
    left_rooms: list[JoinedRoom] = field(default_factory=list)
    dropped: list[tuple[str, object]] = field(default_factory=list)
    """What had no usable shape: (where, the raw value)."""

    def is_nothing_new(self, own_user_id: str) -> bool:
        """Whether it tells nothing that must be kept: it is empty, or shows the bot's own messages alone."""
        lists = (self.to_device, self.changed, self.left, self.account_data, self.invited, self.left_rooms, self.dropped)
        return not any(lists) and all(
            not part.state
            and not part.is_limited
            and all(event["sender"] == own_user_id and "state_key" not in event for event in part.timeline)
            for part in self.joined
        )


def normalise(raw: dict[str, Any]) -> SyncAnswer:
    """Return the response with every section in shape.

    Raises:
        ValueError: it has no position, so it is no sync response.
    """
    position = raw.get("next_batch")
    if not isinstance(position, str) or not position:
        message = "a sync response without next_batch"
        raise ValueError(message)
    answer = SyncAnswer(position)
    answer.to_device = _events(raw.get("to_device"), "to_device", answer)
    answer.account_data = _events(raw.get("account_data"), "account_data", answer)
    lists = raw.get("device_lists")
    if isinstance(lists, dict):
        answer.changed = _strings(lists.get("changed"))
        answer.left = _strings(lists.get("left"))
    counts = raw.get("device_one_time_keys_count")
    if isinstance(counts, dict):
        answer.key_counts = {name: count for name, count in counts.items() if isinstance(count, int) and not isinstance(count, bool)}
    fallback = raw.get("device_unused_fallback_key_types")
    if isinstance(fallback, list):
        answer.fallback_types = _strings(fallback)
    rooms = raw.get("rooms")
    rooms = rooms if isinstance(rooms, dict) else {}
    for room_id, room in _rooms(rooms.get("join"), "join", answer):
        answer.joined.append(_joined(room_id, room, answer))
    for room_id, room in _rooms(rooms.get("leave"), "leave", answer):
        answer.left_rooms.append(_joined(room_id, room, answer))
    for room_id, room in _rooms(rooms.get("invite"), "invite", answer):
        answer.invited.append((room_id, _stripped(room.get("invite_state"), room_id, answer)))
    return answer


def is_event(value: object) -> bool:
    """Whether `value` can be a timeline or state event: an object with id, type, sender, time and content."""
    if not isinstance(value, dict) or is_too_deep(value, _JSON_DEPTH):
        return False
    at = value.get("origin_server_ts")
    return (
        isinstance(value.get("event_id"), str)
        and isinstance(value.get("type"), str)
        and isinstance(value.get("sender"), str)
        and isinstance(value.get("content"), dict)
        and isinstance(at, int)
        and not isinstance(at, bool)
    )


def _joined(room_id: str, room: dict[str, Any], answer: SyncAnswer) -> JoinedRoom:
    timeline = room.get("timeline")
    timeline = timeline if isinstance(timeline, dict) else {}
    prev_batch = timeline.get("prev_batch")
    return JoinedRoom(
        room_id=room_id,
        state=_room_events(room.get("state"), room_id, answer),
        timeline=_room_events(timeline, room_id, answer),
        is_limited=timeline.get("limited") is True,
        prev_batch=prev_batch if isinstance(prev_batch, str) and prev_batch else None,
    )


def _rooms(section: object, where: str, answer: SyncAnswer) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(section, dict):
        return []
    found = []
    for room_id, room in section.items():
        if isinstance(room_id, str) and room_id.startswith("!") and isinstance(room, dict):
            found.append((room_id, room))
        else:
            answer.dropped.append((where, {str(room_id)[:300]: room}))
    return found


def _room_events(section: object, where: str, answer: SyncAnswer) -> list[dict[str, Any]]:
    events = section.get("events") if isinstance(section, dict) else None
    found = []
    for event in events if isinstance(events, list) else []:
        if is_event(event):
            found.append(event)
        else:
            answer.dropped.append((where, event))
    return found


def _events(section: object, where: str, answer: SyncAnswer) -> list[dict[str, Any]]:
    """Return events that have no id: to-device and account data."""
    events = section.get("events") if isinstance(section, dict) else None
    found = []
    for event in events if isinstance(events, list) else []:
        is_fine = isinstance(event, dict) and isinstance(event.get("type"), str) and isinstance(event.get("content"), dict)
        if is_fine and not is_too_deep(event, _JSON_DEPTH):
            found.append(event)
        else:
            answer.dropped.append((where, event))
    return found


def _stripped(section: object, where: str, answer: SyncAnswer) -> list[dict[str, Any]]:
    """Return the stripped state of an invite: no ids and no times."""
    events = _events(section, where, answer)
    return [event for event in events if isinstance(event.get("sender"), str) and isinstance(event.get("state_key"), str)]


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
