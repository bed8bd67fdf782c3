"""Applies one sync response: keys, rooms, facts and position in one transaction of `matrix.db`.

Promise: what a response brought is on disk when its position is; a response that comes again changes nothing; one bad part spoils no other.
How: to-device first, so that the keys are there for the messages; every event guarded by itself and set aside where it is no good; facts
are rows of the spool, keyed by event id.
Not here: asking the homeserver for anything. The caller runs this in the edge's thread and acts on `Applied` after the commit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
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
    from hayate_matrix.matrix.sync.guard import JoinedRoom, SyncAnswer

_log = get_logger(__name__)

Mode = Literal["first", "usual", "rebase"]
"""`first`: the account's first sync, all of it history. `rebase`: the server lost our position; known rooms go on where they were."""

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
    has_invites: bool = False
    has_gaps: bool = False
    key_count: int | None = None
    has_unused_fallback: bool | None = None


class Applier:
    """Applies responses; every call in the edge's thread, inside a transaction."""

    def __init__(self, keystore: KeyStore, machine: Machine, rooms: Rooms) -> None:
        self._keystore = keystore
        self._machine = machine
        self._rooms = rooms
        self._own = rooms.own_user_id

    def apply(self, answer: SyncAnswer, mode: Mode, moment: Moment) -> Applied:
        """Apply the whole response with its position."""
        applied = Applied()
        self.apply_head(answer, applied)
        for part in answer.joined:
            self.apply_joined(part, mode, moment, answer.next_batch, applied)
        for part in answer.left_rooms:
            self.apply_left(part, mode, applied)
        for room_id, state in answer.invited:
            self.apply_invite(room_id, state, applied)
        if mode == "rebase":
            self._leave_missing({part.room_id for part in answer.joined})
        self.finish(answer, moment)
        return applied

    def apply_head(self, answer: SyncAnswer, applied: Applied) -> None:
        """Apply what belongs to no room: to-device messages, device lists, key counts, account data."""
        spool, trust = self._keystore.spool, self._keystore.trust
        for where, raw in answer.dropped:
            spool.set_aside("malformed", f"no usable shape in {where}", raw, room_id=where if where.startswith("!") else "")
        for event in answer.to_device:
            self._apply_to_device(event, applied)
        if answer.changed:
            trust.mark_changed(answer.changed)
        if answer.left:
            trust.untrack(answer.left)
        if answer.key_counts is not None:
            applied.key_count = answer.key_counts.get("signed_curve25519", 0)
        if answer.fallback_types is not None:
            applied.has_unused_fallback = "signed_curve25519" in answer.fallback_types
        for event in answer.account_data:
            if event["type"] == "m.direct":
                self._apply_direct(event["content"])

    def finish(self, answer: SyncAnswer, moment: Moment) -> None:
        """Move the position; the last write of a response."""
        self._keystore.write_meta("position", answer.next_batch)
        self._keystore.write_meta("synced_at_server_ms", str(moment.server_now_ms))

    # -- to-device -----------------------------------------------------------------------------------------------------------

    def _apply_to_device(self, event: dict[str, Any], applied: Applied) -> None:
        spool = self._keystore.spool
        sender, content = event.get("sender"), event["content"]
        if not isinstance(sender, str):
            spool.set_aside("to-device", "no sender", event)
            return
        if event["type"] == "m.room_key.withheld":
            self._apply_withheld(content)
            return
        if event["type"] != "m.room.encrypted":
            spool.count(f"to_device.ignored.{event['type'][:60]}")
            return
        try:
            payload = self._machine.open_olm(sender, content)
            if payload.type == "m.room_key":
                arrived = self._machine.accept_room_key(payload)
                if arrived is not None:
                    applied.new_room_keys.add(arrived[1])
            else:
                spool.count(f"olm.ignored.{payload.type[:60]}")
        except Unreadable as error:
            spool.set_aside("olm", str(error), event, sender=sender)

    def _apply_withheld(self, content: dict[str, Any]) -> None:
        code, key = content.get("code"), content.get("session_id")
        if isinstance(code, str) and isinstance(key, str):
            self._keystore.spool.count(f"withheld.{code[:40]}")
            self._keystore.spool.note_withheld(key, f"{code[:40]}: {str(content.get('reason', ''))[:200]}")

    def _apply_direct(self, content: dict[str, Any]) -> None:
        for rooms in content.values():
            for room_id in rooms if isinstance(rooms, list) else []:
                if isinstance(room_id, str):
                    room = self._rooms.find(room_id)
                    if not room.is_direct:
                        room.is_direct = True
                        self._rooms.save(room)

    # -- rooms ---------------------------------------------------------------------------------------------------------------

    def apply_joined(self, part: JoinedRoom, mode: Mode, moment: Moment, position: str, applied: Applied) -> None:
        """Apply one room of the join section."""
        room = self._rooms.find(part.room_id)
        is_new = room.membership != "join"
        if is_new:
            self._enter(room, part)
        for event in part.state:
            self._apply_state(room, event)
        border = self._find_join(part) if is_new else None
        if border is not None:
            room.joined_event = border
        spool = self._keystore.spool
        fresh = [event for event in part.timeline if not spool.is_known(room.room_id, event["event_id"])]
        self._rooms.save(room)
        is_history = mode == "first"
        if not is_history and part.is_limited and len(fresh) == len(part.timeline):
            is_join_shown = any(event["event_id"] == room.joined_event for event in part.timeline)
            if part.prev_batch is not None and not is_join_shown and self._rooms.decide(room):
                spool.open_gap(room.room_id, part.prev_batch, room.joined_event)
                applied.has_gaps = True
        if is_new and not is_history:
            fresh_ids = [event["event_id"] for event in fresh]
            skip = fresh_ids.index(border) if border in fresh_ids else 0
            for event in fresh[:skip]:
                self._apply_state(room, event)
            self.apply_timeline(room, fresh[skip:], moment, applied, position=position)
        elif is_history:
            for event in fresh:
                self._apply_state(room, event)
            self._rooms.save(room)
        else:
            self.apply_timeline(room, fresh, moment, applied, position=position)
        spool.remember(room.room_id, [event["event_id"] for event in part.timeline])

    def apply_left(self, part: JoinedRoom, mode: Mode, applied: Applied) -> None:
        """Apply one room of the leave section: its last events, and the end of work for it."""
        room = self._rooms.find(part.room_id)
        was_in = room.membership == "join"
        room.membership = "leave"
        for event in [*part.state, *part.timeline]:
            self._apply_state(room, event)
            if was_in and mode != "first" and event["type"] == "m.room.member" and event.get("state_key") == self._own:
                self._add(room, event, applied, provenance="live", is_encrypted=False)
        own = self._keystore.rooms.read_membership(part.room_id, self._own)
        room.membership = own if own in ("leave", "ban") else "leave"
        room.members_known = False
        self._keystore.spool.drop_room(part.room_id)
        self._keystore.owed.mark_stale(part.room_id)
        self._rooms.save(room)

    def apply_invite(self, room_id: str, state: list[dict[str, Any]], applied: Applied) -> None:
        """Note an invite; whether it is taken is decided afterwards, also for those that a start finds."""
        room = self._rooms.find(room_id)
        if room.membership == "join":
            return
        room.membership = "invite"
        room.join_failures, room.next_join_at_ms = 0, 0
        for event in state:
            content = event["content"]
            if event["type"] == "m.room.member" and event["state_key"] == self._own:
                room.inviter = UserId(event["sender"])
                room.is_direct = content.get("is_direct") is True
            elif event["type"] == "m.room.encryption":
                room.is_encrypted = True
            elif event["type"] == "m.room.create" and isinstance(content.get("room_version", "1"), str):
                room.version = content.get("room_version", "1")
        self._rooms.save(room)
        applied.has_invites = True

    def apply_timeline(
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
                self._apply_state(room, event)
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
                self._add(room, event, applied, provenance=provenance, is_encrypted=False, major=major, minor=minor)
        if too_old:
            self._add_skipped(room.room_id, too_old, "age", position, moment)
        self._rooms.save(room)

    def add_skipped_gap(self, room_id: RoomId, count: int, major: int, moment: Moment) -> None:
        """Note messages of a gap that were more than the limit."""
        fact = _skipped(room_id, count, "gap", str(major), moment)
        self._keystore.spool.add_fact(fact, major=major, minor=-1)

    # -- single events -------------------------------------------------------------------------------------------------------

    def _enter(self, room: Room, part: JoinedRoom) -> None:
        room.membership = "join"
        room.join_failures, room.next_join_at_ms = 0, 0
        is_whole = any(event["type"] == "m.room.create" for event in [*part.state, *part.timeline])
        if is_whole:
            self._keystore.rooms.replace_members(room.room_id, [])
        room.members_known = is_whole

    def _find_join(self, part: JoinedRoom) -> EventId | None:
        own = [
            event["event_id"]
            for event in [*part.state, *part.timeline]
            if event["type"] == "m.room.member" and event.get("state_key") == self._own and event["content"].get("membership") == "join"
        ]
        return EventId(own[-1]) if own else None

    def _apply_state(self, room: Room, event: dict[str, Any]) -> None:
        if "state_key" not in event or event["type"] not in STATE_TYPES:
            return
        try:
            self._rooms.apply_state(room, event)
        except _HOSTILE as error:
            self._set_aside("state", error, event, room.room_id)

    def _add(
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
            self._keystore.spool.drop_unread(getattr(fact, "target", ""))
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
            if error.reason == "unknown-device":
                self._keystore.trust.track([event["sender"]])
                self._keystore.trust.mark_changed([event["sender"]])
                applied.senders_to_query.add(event["sender"])
            return
        except _HOSTILE as error:
            self._set_aside("encrypted", error, event, room.room_id)
            return
        self._add(room, clear, applied, provenance=provenance, is_encrypted=True, major=major, minor=minor)

    def retry_unread(self, unread: Unread, applied: Applied, *, devices_are_fresh: bool) -> None:
        """Try an unread event again after a key or a device list came (E2E-4)."""
        spool = self._keystore.spool
        room = self._rooms.find(unread.room_id)
        if room.membership != "join" or not self._rooms.decide(room):
            spool.drop_unread(unread.event_id)
            return
        try:
            clear = self._machine.open_room_event(unread.raw, unread.room_id, devices_are_fresh=devices_are_fresh)
        except Unreadable as error:
            if error.reason in WAITING:
                spool.add_unread(
                    Unread(
                        unread.event_id,
                        unread.room_id,
                        error.room_key_id or unread.room_key_id,
                        unread.sender,
                        error.reason,
                        unread.raw,
                        unread.arrived_at_ms,
                    )
                )
                if error.reason == "unknown-device":
                    applied.senders_to_query.add(unread.sender)
                return
            spool.set_aside(error.reason, str(error), unread.raw, room_id=unread.room_id, event_id=unread.event_id, sender=unread.sender)
            spool.drop_unread(unread.event_id)
            return
        except _HOSTILE as error:
            self._set_aside("encrypted", error, unread.raw, unread.room_id)
            spool.drop_unread(unread.event_id)
            return
        self._add(room, clear, applied, provenance="late_key", is_encrypted=True)
        spool.drop_unread(unread.event_id)

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

    def _add_skipped(self, room_id: RoomId, count: int, reason: Literal["age"], position: str, moment: Moment) -> None:
        self._keystore.spool.add_fact(_skipped(room_id, count, reason, position, moment))

    def _set_aside(self, kind: str, error: Exception, event: dict[str, Any], room_id: str) -> None:
        self._keystore.spool.set_aside(
            kind,
            f"{type(error).__name__}: {error}",
            event,
            room_id=room_id,
            event_id=str(event.get("event_id", ""))[:255],
            sender=str(event.get("sender", ""))[:255],
        )

    def _leave_missing(self, joined: set[str]) -> None:
        for room_id in self._keystore.rooms.list_ids("join"):
            if room_id not in joined:
                room = self._rooms.find(room_id)
                room.membership = "leave"
                self._rooms.save(room)


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
