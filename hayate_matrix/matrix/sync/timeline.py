"""Timeline events to rows of the spool: facts, events that can't be read yet, and what is set aside.

Promise: every event is guarded by itself; what it says is a fact once, what can't be read waits as a row, the rest is counted.
Not here: sections of a response and its position (`apply`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from hayate_matrix.core.facts import Membership, Message, Skipped
from hayate_matrix.core.ids import EventId, RoomId, UserId
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.facts import read_fact, strip_reply_fallback
from hayate_matrix.matrix.keystore.spool import Unread
from hayate_matrix.matrix.machine import WAITING, Machine, Unreadable
from hayate_matrix.matrix.rooms import STATE_TYPES, Rooms
from hayate_matrix.matrix.sync.guard import is_event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hayate_matrix.core.facts import AnyFact, Provenance
    from hayate_matrix.matrix.keystore import KeyStore
    from hayate_matrix.matrix.keystore.roomrows import Room

_log = get_logger(__name__)

_STOP = re.compile(r"\s*[!/]{1,2}stop\s*", re.IGNORECASE)
_HOSTILE = (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)
"""What reading an event raises that is not what it claims to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a response came, by the server's clock: decides what is too old to answer (IN-3)."""

    server_now_ms: int
    outage_ms: int
    backlog_age_ms: int

    def is_too_old(self, sent_at_ms: int) -> bool:
        """Whether a message is older than the bot answers; only an outage longer than that makes any too old."""
        return self.outage_ms > self.backlog_age_ms and self.server_now_ms - sent_at_ms > self.backlog_age_ms


@dataclass(slots=True)
class Applied:
    """What a response calls for, once it is on disk."""

    new_room_keys: set[str] = field(default_factory=set)
    senders_to_query: set[str] = field(default_factory=set)
    facts: int = 0
    has_outdated_lists: bool = False
    """Whether device lists must be asked for."""
    has_invites: bool = False
    has_gaps: bool = False
    key_count: int | None = None
    has_unused_fallback: bool | None = None


class Timeline:
    """Reads timeline events; every call in the edge's thread, inside a transaction."""

    def __init__(self, keystore: KeyStore, machine: Machine, rooms: Rooms) -> None:
        self._keystore = keystore
        self._machine = machine
        self._rooms = rooms
        self._own = rooms.own_user_id
        self._told_unsigned: set[str] = set()
        """Senders of whom the log of this run says already that they are not heard."""

    def apply(
        self,
        room: Room,
        events: Iterable[dict[str, Any]],
        moment: Moment,
        applied: Applied,
        *,
        position: str,
        provenance: Provenance = "live",
        major: int | None = None,
    ) -> None:
        """Apply timeline events in order; `major` is the place that a gap keeps for what fills it."""
        is_served = bool(self._rooms.decide(room))
        too_old = 0
        for minor, event in enumerate(events):
            if "state_key" in event:
                self.apply_state(room, event)
                # Who comes or goes can end or begin what a dm: entry serves, for what follows in the same answer.
                is_served = bool(self._rooms.decide(room))
            if not is_served:
                continue
            is_speech = event["type"] in ("m.room.encrypted", "m.room.message")
            if is_speech and event["sender"] != self._own and moment.is_too_old(event["origin_server_ts"]):
                too_old += 1
                continue
            if event["type"] == "m.room.encrypted":
                self._add_encrypted(room, event, applied, provenance=provenance, major=major, minor=minor)
            elif event["type"] == "m.room.message" and room.is_encrypted:
                # Anybody on the way, the server too, could have written it: in an encrypted room only what was encrypted is a request.
                if event["sender"] != self._own and event["content"]:
                    self._keystore.spool.set_aside(
                        "plain", "a clear message in an encrypted room", {}, room_id=room.room_id, event_id=event["event_id"]
                    )
            else:
                self.add(room, event, applied, provenance=provenance, is_encrypted=False, major=major, minor=minor)
        if too_old:
            self._keystore.spool.add_fact(_skipped(room.room_id, too_old, "age", position, moment))
        self._rooms.save(room)

    def add_skipped_gap(self, room_id: RoomId, count: int, major: int, moment: Moment) -> None:
        """Note messages of a gap that were more than the limit."""
        fact = _skipped(room_id, count, "gap", str(major), moment)
        self._keystore.spool.add_fact(fact, major=major, minor=-1)

    # -- single events -------------------------------------------------------------------------------------------------------

    def apply_state(self, room: Room, event: dict[str, Any]) -> None:
        """Apply a state event to the projection; others are passed over."""
        if "state_key" not in event or event["type"] not in STATE_TYPES:
            return
        try:
            self._rooms.apply_state(room, event)
        except _HOSTILE as error:
            self._set_aside("state", error, event, room.room_id)

    def add(
        self,
        room: Room,
        event: dict[str, Any],
        applied: Applied,
        *,
        provenance: Provenance,
        is_encrypted: bool,
        major: int | None = None,
        minor: int = 0,
    ) -> None:
        """Add the fact that a clear event tells."""
        try:
            fact = read_fact(
                event,
                room.room_id,
                own_user_id=self._own,
                is_direct=self._rooms.is_direct(room),
                is_encrypted=is_encrypted,
                provenance=provenance,
            )
        except _HOSTILE as error:
            self._set_aside("event", error, event, room.room_id)
            return
        if fact is None:
            return
        if fact.sender != self._own and event["type"] == "m.room.redaction":
            self._keystore.spool.drop_unread(getattr(fact, "target", ""), room_id=room.room_id)
        if self._keystore.spool.add_fact(fact, major=major, minor=minor, passes_gap=_passes_gap(fact)):
            applied.facts += 1

    def _add_encrypted(
        self, room: Room, event: dict[str, Any], applied: Applied, *, provenance: Provenance, major: int | None, minor: int
    ) -> None:
        content = event["content"]
        if not content or event["sender"] == self._own:
            return
        spool = self._keystore.spool
        try:
            clear = self._machine.open_room_event(event, room.room_id)
        except Unreadable as error:
            if error.reason not in WAITING:
                spool.set_aside(error.reason, str(error), event, room_id=room.room_id, event_id=event["event_id"], sender=event["sender"])
                return
            spool.add_unread(
                Unread(event["event_id"], room.room_id, error.room_key_id, event["sender"], error.reason, event, self._keystore.now_ms())
            )
            spool.count(f"unread.{error.reason}")
            self._tell_unsigned(error, room.room_id, event["sender"])
            if error.reason == "unknown-device":
                self._keystore.trust.track([event["sender"]])
                self._keystore.trust.mark_changed([event["sender"]])
                applied.senders_to_query.add(event["sender"])
            return
        except _HOSTILE as error:
            self._set_aside("encrypted", error, event, room.room_id)
            return
        self.add(room, clear, applied, provenance=provenance, is_encrypted=True, major=major, minor=minor)

    def _tell_unsigned(self, error: Unreadable, room_id: str, sender: str) -> None:
        if error.reason == "unsigned-device" and sender not in self._told_unsigned:
            self._told_unsigned.add(sender)
            _log.warning(
                "a message waits: its sender has not verified the session that it came from; see matrix.devices",
                sender=sender,
                room=room_id,
            )

    def retry_unread(self, unread: Unread, applied: Applied, *, devices_are_fresh: bool) -> None:
        """Try an unread event again after a key or a device list came (E2E-4)."""
        spool = self._keystore.spool
        room = self._rooms.find(unread.room_id)
        if room.membership != "join" or not self._rooms.decide(room):
            spool.drop_unread(unread.event_id, room_id=unread.room_id)
            return
        try:
            clear = self._machine.open_room_event(unread.raw, unread.room_id, devices_are_fresh=devices_are_fresh)
        except Unreadable as error:
            if error.reason in WAITING:
                spool.add_unread(replace(unread, room_key_id=error.room_key_id or unread.room_key_id, reason=error.reason))
                self._tell_unsigned(error, unread.room_id, unread.sender)
                if error.reason == "unknown-device":
                    applied.senders_to_query.add(unread.sender)
                return
            spool.set_aside(error.reason, str(error), unread.raw, room_id=unread.room_id, event_id=unread.event_id, sender=unread.sender)
            spool.drop_unread(unread.event_id, room_id=unread.room_id)
            return
        except _HOSTILE as error:
            self._set_aside("encrypted", error, unread.raw, unread.room_id)
            spool.drop_unread(unread.event_id, room_id=unread.room_id)
            return
        self.add(room, clear, applied, provenance="late_key", is_encrypted=True)
        spool.drop_unread(unread.event_id, room_id=unread.room_id)

    def read_text(self, event: dict[str, Any], room_id: RoomId) -> str | None:
        """Return the body of a message event as the server gave it, decrypted if need be; None where there is none to read."""
        if not is_event(event) or event.get("room_id", room_id) != room_id:
            return None
        try:
            clear = self._machine.open_room_event(event, room_id) if event["type"] == "m.room.encrypted" else event
        except (Unreadable, *_HOSTILE):
            return None
        body = clear["content"].get("body") if clear["type"] == "m.room.message" else None
        return strip_reply_fallback(body) if isinstance(body, str) else None

    def _set_aside(self, kind: str, error: Exception, event: dict[str, Any], room_id: str) -> None:
        self._keystore.spool.set_aside(
            kind,
            f"{type(error).__name__}: {error}",
            event,
            room_id=room_id,
            event_id=str(event.get("event_id", ""))[:255],
            sender=str(event.get("sender", ""))[:255],
        )


def _passes_gap(fact: AnyFact) -> bool:
    """Whether a fact is handed over before the gap in front of it is filled: moderation of the bot, and `!stop`."""
    if isinstance(fact, Membership):
        return fact.is_own
    return isinstance(fact, Message) and _STOP.fullmatch(fact.body) is not None


def _skipped(room_id: RoomId, count: int, reason: Literal["gap", "age"], token: str, moment: Moment) -> Skipped:
    return Skipped(
        event_id=EventId(f"skipped:{reason}:{room_id}:{token}"),
        room_id=room_id,
        sender=UserId(""),
        sent_at_ms=moment.server_now_ms,
        count=count,
        reason=reason,
    )
