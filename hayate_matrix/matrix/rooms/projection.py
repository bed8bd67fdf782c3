"""The projection of rooms: clear state events in, decisions about rooms out; nothing that was encrypted changes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hayate_matrix.core.allowlist import Act, Decision, Policy, RoomView, decide, decide_room
from hayate_matrix.core.ids import EventId, RoomId, UserId
from hayate_matrix.core.power import find_needed, find_power, has_privileged_creators
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.keystore.roomrows import Room

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hayate_matrix.matrix.keystore import KeyStore

_log = get_logger(__name__)

_PRESENT = frozenset({"join", "invite"})
_MEMBERSHIPS = frozenset({"join", "invite", "leave", "ban", "knock"})
STATE_TYPES = frozenset(
    {
        "m.room.create",
        "m.room.member",
        "m.room.power_levels",
        "m.room.encryption",
        "m.room.history_visibility",
        "m.room.name",
        "m.room.canonical_alias",
        "m.room.tombstone",
    }
)
"""State that the projection keeps; the rest is not looked at."""
_DEFAULT_ROTATION_MS = 7 * 24 * 3600 * 1000
_DEFAULT_ROTATION_MESSAGES = 100
"""Defaults of `m.room.encryption` in the Matrix specification."""
_SHORTEST_ROTATION_MS = 3600 * 1000
"""A room may not make the bot change its key more often than hourly by age; matrix-rust-sdk keeps the same floor."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a room key must be changed: after this many messages or milliseconds, whichever comes first."""

    messages: int
    age_ms: int


_VIA_SERVERS = 3
"""Servers in a link to a room: the number that the specification's appendix on routing advises."""


class Rooms:
    """The rooms that the bot knows; every call in the edge's thread."""

    def __init__(self, keystore: KeyStore, policy: Policy) -> None:
        self._keystore = keystore
        self.policy = policy
        self.own_user_id = policy.own_user_id
        self._known: dict[str, Room] = {}
        self._pins: dict[str, RoomId] | None = None
        keystore.on_rollback.append(self.forget)

    def forget(self) -> None:
        """Drop what is in memory; the disk has it."""
        self._known.clear()
        self._pins = None

    def find(self, room_id: str) -> Room:
        """Return the room, a blank one where it was never heard of."""
        room = self._known.get(room_id)
        if room is None:
            room = self._keystore.rooms.load(room_id) or Room(RoomId(room_id))
            self._known[room_id] = room
        return room

    def save(self, room: Room) -> None:
        """Write the room (in a transaction)."""
        self._keystore.rooms.save(room)

    # -- state ---------------------------------------------------------------------------------------------------------------

    def apply_state(self, room: Room, event: Mapping[str, Any]) -> None:
        """Apply one clear state event (in a transaction); the caller saves the room afterwards.

        Raises:
            KeyError, TypeError, ValueError: it is malformed; nothing of it was applied.
        """
        event_type, content = event["type"], event["content"]
        if event_type not in STATE_TYPES or not isinstance(content, dict):
            return
        if event_type == "m.room.member":
            self._apply_member(room, event, content)
        elif event["state_key"] != "":
            return
        elif event_type == "m.room.create":
            self._apply_create(room, event, content)
        elif event_type == "m.room.encryption":
            self._apply_encryption(room, content)
        elif event_type == "m.room.history_visibility":
            self._apply_visibility(room, _read_text(content, "history_visibility"))
        elif event_type == "m.room.power_levels":
            room.power = content
        else:
            self._apply_label(room, event_type, content)

    @staticmethod
    def _apply_label(room: Room, event_type: str, content: dict[str, Any]) -> None:
        if event_type == "m.room.name":
            room.name = _read_text(content, "name")
        elif event_type == "m.room.canonical_alias":
            room.canonical_alias = _read_text(content, "alias")
        elif event_type == "m.room.tombstone":
            room.tombstone = _read_text(content, "replacement_room") or ""

    def _apply_visibility(self, room: Room, visibility: str | None) -> None:
        if room.history_visibility is not None and visibility != room.history_visibility:
            self._keystore.owed.mark_stale(room.room_id)
        room.history_visibility = visibility

    @staticmethod
    def _apply_create(room: Room, event: Mapping[str, Any], content: dict[str, Any]) -> None:
        version = content.get("room_version", "1")
        room.version = version if isinstance(version, str) else "1"
        creators = [str(event["sender"])]
        additional = content.get("additional_creators")
        if has_privileged_creators(room.version) and isinstance(additional, list):
            creators += [user for user in additional if isinstance(user, str)]
        room.creators = creators

    def _apply_encryption(self, room: Room, content: dict[str, Any]) -> None:
        if not room.is_encrypted:
            self._keystore.trust.track(self._keystore.rooms.list_members(room.room_id, ("join", "invite")))
        # A redacted or emptied event changes nothing: once encrypted, always encrypted.
        room.is_encrypted = True
        if content.get("algorithm"):
            room.encryption = content

    def _apply_member(self, room: Room, event: Mapping[str, Any], content: dict[str, Any]) -> None:
        user_id, membership = event["state_key"], content["membership"]
        if not isinstance(user_id, str) or not user_id.startswith("@") or membership not in _MEMBERSHIPS:
            message = "a member event without a user or a membership"
            raise ValueError(message)
        before = self._keystore.rooms.read_membership(room.room_id, user_id)
        self._keystore.rooms.set_members(room.room_id, [(user_id, membership)])
        if before in _PRESENT and membership not in _PRESENT:
            # Whoever left, and an invited one too, may hold the room key: the next message gets a new one.
            self._keystore.owed.mark_stale(room.room_id)
        if membership in _PRESENT and room.is_encrypted:
            self._keystore.trust.track([user_id])
        if user_id == self.own_user_id:
            room.was_banned = membership == "ban" or (room.was_banned and membership != "join")
            if membership == "join" and content.get("is_direct") is True:
                room.is_direct = True

    # -- decisions -----------------------------------------------------------------------------------------------------------

    def decide(self, room: Room) -> Decision:
        """Decide whether the room is served (ROOM-1 to ROOM-3)."""
        return decide_room(self.policy, self._view(room), self._read_pins())

    def decide_invite(self, room: Room) -> Decision:
        """Decide whether an invite to the room is taken."""
        # Not a direct message is known, and not the same as not known: the reason is read by the operator, and an alias may still name it.
        others = frozenset({room.inviter}) if room.is_direct and room.inviter else frozenset()
        view = RoomView(room_id=room.room_id, others=others, is_banned=room.was_banned)
        return decide(self.policy, Act.INVITE, view, self._read_pins(), sender=room.inviter)

    def list_servers(self, room_id: RoomId) -> list[str]:
        """Return up to three servers through which others find the room, the bot's own among them.

        As the specification's appendix on routing advises: that of the member with the highest power, then those with most members.
        """
        room = self.find(room_id)
        powers = room.power.get("users") if room.power else None
        named = powers if isinstance(powers, dict) else {}
        strongest = max(
            (user for user in {*named, *room.creators} if self._keystore.rooms.read_membership(room_id, user) == "join"),
            key=lambda user: (find_power(user, version=room.version, creators=room.creators, levels=room.power), user),
            default=None,
        )
        own = self.own_user_id.partition(":")[2]
        wanted = [*([] if strongest is None else [strongest.partition(":")[2]]), own, *self._keystore.rooms.count_servers(room_id, 3)]
        return list(dict.fromkeys(wanted))[:_VIA_SERVERS]

    def find_power(self, room_id: RoomId, user_id: UserId) -> int | None:
        """Return a user's power level in a room that the bot is in; None elsewhere."""
        room = self.find(room_id)
        if room.membership != "join":
            return None
        return find_power(user_id, version=room.version, creators=room.creators, levels=room.power)

    def count(self) -> dict[str, int]:
        """Return how many joined rooms are served and denied."""
        joined = self._keystore.rooms.list_ids("join")
        if not self.policy.rooms:
            # Unset serves all and an empty list none: a thousand rooms need not be read for that.
            served = 0 if self.policy.rooms is not None else len(joined)
            return {"rooms.served": served, "rooms.denied": len(joined) - served}
        served = sum(1 for room_id in joined if self.decide(self.find(room_id)))
        return {"rooms.served": served, "rooms.denied": len(joined) - served}

    def may_send(self, room: Room, event_type: str) -> bool:
        """Whether the bot's power level lets it send events of this type."""
        power = find_power(self.own_user_id, version=room.version, creators=room.creators, levels=room.power)
        return power >= find_needed(event_type, is_state=False, levels=room.power)

    def is_direct(self, room: Room) -> bool:
        """Whether the room is a direct message: said by the invite or `m.direct`, or by a `dm:` entry (ROOM-5)."""
        if room.is_direct:
            return True
        entries = self.policy.rooms or ()
        if not any(entry.kind == "dm" for entry in entries) or any(
            entry.kind == "room" and entry.value == room.room_id for entry in entries
        ):
            return False
        others = self._others(room)
        return others is not None and any(entry.kind == "dm" and others == {UserId(entry.value)} for entry in entries)

    @staticmethod
    def find_readers(room: Room) -> tuple[str, ...]:
        """Return the memberships that may read what is sent now; the invited may, unless the history is for the joined alone."""
        return ("join",) if room.history_visibility == "joined" else ("join", "invite")

    def list_recipients(self, room: Room) -> list[UserId]:
        """Return who may read what is sent now."""
        return self._keystore.rooms.list_members(room.room_id, self.find_readers(room))

    def find_rotation(self, room: Room) -> Rotation:
        """Return when the room's key must change, from its own settings within sane bounds."""
        settings = room.encryption or {}
        age, messages = settings.get("rotation_period_ms"), settings.get("rotation_period_msgs")
        return Rotation(
            messages=min(messages, 10_000) if isinstance(messages, int) and messages > 0 else _DEFAULT_ROTATION_MESSAGES,
            age_ms=max(age, _SHORTEST_ROTATION_MS) if isinstance(age, int) and age > 0 else _DEFAULT_ROTATION_MS,
        )

    def _others(self, room: Room) -> frozenset[UserId] | None:
        if not room.members_known:
            return None
        return frozenset(self._keystore.rooms.list_members(room.room_id, ("join", "invite"))) - {self.own_user_id}

    def _view(self, room: Room) -> RoomView:
        needs_members = any(entry.kind == "dm" for entry in self.policy.rooms or ())
        return RoomView(room_id=room.room_id, others=self._others(room) if needs_members else None, is_banned=room.was_banned)

    # -- aliases -------------------------------------------------------------------------------------------------------------

    def _read_pins(self) -> dict[str, RoomId]:
        if self._pins is None:
            pins = self._keystore.rooms.read_aliases()
            self._pins = {alias: room for alias, (room, other) in pins.items() if room is not None and other is None}
        return self._pins

    def list_alias_troubles(self) -> dict[str, str]:
        """Return the aliases of the allowlist that serve no room: "unresolved" while no answer came, "moved" where it names another now."""
        known = self._keystore.rooms.read_aliases()
        troubles: dict[str, str] = {}
        for entry in self.policy.rooms or ():
            if entry.kind == "alias":
                pinned, other = known.get(entry.value, (None, None))
                if pinned is None or other is not None:
                    troubles[entry.value] = "unresolved" if pinned is None else "moved"
        return troubles

    def note_alias(self, alias: str, room_id: RoomId) -> None:
        """Pin an alias to the room that the directory named first; another room later denies both (in a transaction)."""
        pinned, _ = self._keystore.rooms.read_aliases().get(alias, (None, None))
        if pinned is None or pinned == room_id:
            self._keystore.rooms.write_alias(alias, room_id, None)
        else:
            self._keystore.rooms.write_alias(alias, pinned, room_id)
            _log.error("an alias of matrix.rooms points to another room than before and is denied", alias=alias, pinned=pinned, now=room_id)
        self._pins = None


def _read_text(content: Mapping[str, Any], name: str) -> str | None:
    value = content.get(name)
    return value if isinstance(value, str) and value else None


def read_event_id(event: Mapping[str, Any]) -> EventId:
    """Return the id of an event.

    Raises:
        KeyError, TypeError, ValueError: it has none.
    """
    event_id = event["event_id"]
    if not isinstance(event_id, str) or not event_id.startswith("$"):
        message = "an event without an id"
        raise ValueError(message)
    return EventId(event_id)
