"""Applies one sync response: keys, rooms, facts and position in one transaction of `matrix.db`.

Promise: what a response brought is on disk when its position is; a response that comes again changes nothing; one bad part spoils no other.
How: to-device first, so that the keys are there for the messages; every event guarded by itself and set aside where it is no good; facts
are rows of the spool, keyed by event id.
Not here: asking the homeserver for anything. The caller runs this in the edge's thread and acts on `Applied` after the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from hayate_matrix.core.facts import Membership
from hayate_matrix.core.ids import EventId, UserId
from hayate_matrix.matrix.machine import Machine, Unreadable
from hayate_matrix.matrix.sync.timeline import Applied, Moment, Timeline

if TYPE_CHECKING:
    from hayate_matrix.matrix.keystore import KeyStore
    from hayate_matrix.matrix.keystore.roomrows import Room
    from hayate_matrix.matrix.rooms import Rooms
    from hayate_matrix.matrix.sync.guard import JoinedRoom, SyncAnswer

Mode = Literal["first", "usual", "rebase"]
"""`first`: the account's first sync, all of it history. `rebase`: the server lost our position; known rooms go on where they were."""


_NAMED = frozenset(
    {
        *("m.room_key", "m.room_key_request", "m.forwarded_room_key", "m.dummy", "m.secret.request", "m.secret.send"),
        *(f"m.key.verification.{step}" for step in ("request", "ready", "start", "accept", "key", "mac", "done", "cancel")),
        *("m.blacklisted", "m.unverified", "m.unauthorised", "m.unavailable", "m.no_olm"),
    }
)
"""To-device types and codes that are counted by name; anybody can send others, without end."""


class Applier:
    """Applies responses; every call in the edge's thread, inside a transaction."""

    def __init__(self, keystore: KeyStore, machine: Machine, rooms: Rooms, timeline: Timeline) -> None:
        self._keystore = keystore
        self._machine = machine
        self._rooms = rooms
        self._timeline = timeline
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
            self._leave_missing({part.room_id for part in answer.joined}, applied)
        self.finish(answer, moment)
        applied.has_outdated_lists = self._keystore.trust.has_due()
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
        note_counts(answer, applied)
        for event in answer.account_data:
            if event["type"] == "m.direct":
                self._apply_direct(event["content"])

    def finish(self, answer: SyncAnswer, moment: Moment) -> None:
        """Move the position; the last write of a response."""
        self._keystore.write_meta("position", answer.next_batch)
        self._keystore.write_meta("synced_at_server_ms", str(moment.server_now_ms))
        self._keystore.spool.sweep()

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
            spool.count(f"to_device.ignored.{_name(event['type'])}")
            return
        try:
            payload = self._machine.open_olm(sender, content)
            if payload.type == "m.room_key":
                arrived = self._machine.accept_room_key(payload)
                if arrived is not None:
                    applied.new_room_keys.add(arrived[1])
            else:
                spool.count(f"olm.ignored.{_name(payload.type)}")
        except Unreadable as error:
            spool.set_aside("olm", str(error), event, sender=sender)

    def _apply_withheld(self, content: dict[str, Any]) -> None:
        code, key = content.get("code"), content.get("session_id")
        if isinstance(code, str) and isinstance(key, str):
            self._keystore.spool.count(f"withheld.{_name(code)}")
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
            self._timeline.apply_state(room, event)
        border = self._find_join(part) if is_new else None
        if border is not None:
            room.joined_event = border
        spool = self._keystore.spool
        known = {event["event_id"] for event in part.timeline if spool.is_known(room.room_id, event["event_id"])}
        self._rooms.save(room)
        is_history = mode == "first"
        if not is_history and part.is_limited and not known:
            is_join_shown = any(event["event_id"] == room.joined_event for event in part.timeline)
            if part.prev_batch is not None and not is_join_shown and self._rooms.decide(room):
                spool.open_gap(room.room_id, part.prev_batch, room.joined_event)
                applied.has_gaps = True
        begins = len(part.timeline) if is_history else self._find_begin(part, border)
        if is_new or is_history:
            # State alone; of events that are known too: the projection of a room that was left and entered again begins anew.
            for number, event in enumerate(part.timeline):
                if number < begins or event["event_id"] in known:
                    self._timeline.apply_state(room, event)
            self._rooms.save(room)
        live = [event for event in part.timeline[begins:] if event["event_id"] not in known]
        if not is_history:
            self._timeline.apply(room, live, moment, applied, position=position)
        spool.remember(room.room_id, [event["event_id"] for event in part.timeline])

    def apply_left(self, part: JoinedRoom, mode: Mode, applied: Applied) -> None:
        """Apply one room of the leave section: its last events, and the end of work for it."""
        room = self._rooms.find(part.room_id)
        was_in = room.membership == "join"
        room.membership = "leave"
        for event in [*part.state, *part.timeline]:
            self._timeline.apply_state(room, event)
            if was_in and mode != "first" and event["type"] == "m.room.member" and event.get("state_key") == self._own:
                self._timeline.add(room, event, applied, provenance="live", is_encrypted=False)
        own = self._keystore.rooms.read_membership(part.room_id, self._own)
        room.membership = own if own in ("leave", "ban") else "leave"
        self._drop(room)

    def apply_invite(self, room_id: str, state: list[dict[str, Any]], applied: Applied) -> None:
        """Note an invite; whether it is taken is decided afterwards, also for those that a start finds."""
        room = self._rooms.find(room_id)
        if room.membership == "join":
            self._end_stay(room, applied)
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

    # -- the bot's own place in a room -----------------------------------------------------------------------------------------------------

    def _enter(self, room: Room, part: JoinedRoom) -> None:
        room.membership = "join"
        room.join_failures, room.next_join_at_ms = 0, 0
        is_whole = any(event["type"] == "m.room.create" for event in [*part.state, *part.timeline])
        if is_whole:
            self._keystore.rooms.replace_members(room.room_id, [])
        room.members_known = is_whole

    @staticmethod
    def _find_begin(part: JoinedRoom, border: EventId | None) -> int:
        """Return the place in the timeline of the bot's own join, before which all is history; 0 where it is not shown."""
        return next((number for number, event in enumerate(part.timeline) if event["event_id"] == border), 0)

    def _find_join(self, part: JoinedRoom) -> EventId | None:
        own = [
            event["event_id"]
            for event in [*part.state, *part.timeline]
            if event["type"] == "m.room.member" and event.get("state_key") == self._own and event["content"].get("membership") == "join"
        ]
        return EventId(own[-1]) if own else None

    def _leave_missing(self, joined: set[str], applied: Applied) -> None:
        for room_id in self._keystore.rooms.list_ids("join"):
            if room_id not in joined:
                room = self._rooms.find(room_id)
                self._end_stay(room, applied)
                room.membership = "leave"
                self._rooms.save(room)

    def _end_stay(self, room: Room, applied: Applied) -> None:
        """Note that the bot is no longer in a room, where the homeserver shows no event that says so: a new invite, or nothing at all."""
        fact = Membership(
            event_id=EventId(f"left:{room.room_id}:{room.joined_event}"),
            room_id=room.room_id,
            sender=self._own,
            sent_at_ms=self._keystore.now_ms(),
            user=self._own,
            membership="leave",
            is_own=True,
        )
        if self._keystore.spool.add_fact(fact, passes_gap=True):
            applied.facts += 1
        self._drop(room)

    def _drop(self, room: Room) -> None:
        room.members_known = False
        self._keystore.spool.drop_room(room.room_id)
        self._keystore.owed.mark_stale(room.room_id)
        self._rooms.save(room)


def _name(word: str) -> str:
    return word if word in _NAMED else "other"


def note_counts(answer: SyncAnswer, applied: Applied) -> None:
    """Note what the server says of the device's own keys; an algorithm that is missing has none left."""
    if answer.key_counts is not None:
        applied.key_count = answer.key_counts.get("signed_curve25519", 0)
    if answer.fallback_types is not None:
        applied.has_unused_fallback = "signed_curve25519" in answer.fallback_types
