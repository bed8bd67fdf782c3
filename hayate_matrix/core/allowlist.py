"""Which rooms are served, who may speak in them, and who may invite.

Promise: unset is not empty. No list serves every room; an empty list serves none; what can't be decided is denied.
How: the edge asks before anything is done for a room (`decide` for an invite, `decide_room` for the rest), the harness asks about the
sender (`decide_person`); each answer carries a reason that the operator can read.
Not here: resolving aliases (the edge hands in those that are pinned) and who is in a room (the edge hands in the members that it knows).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from hayate_matrix.core.ids import UserId
from hayate_matrix.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hayate_matrix.core.ids import RoomId

ROOM_FORMS = (
    "a room id (!abc:example.org, or !abc without a server from room version 12 on), an alias (#ops:example.org), or dm:@user:example.org"
)
PERSON_FORMS = "a whole user id (@ann:example.org) or all of a server (*:example.org)"
PATTERN_FORMS = "a user id in which * and ? stand for anything (@_discord_*:example.org)"

_MAX_ID_BYTES = 255
"""Longest id of the Matrix specification (Appendices, common identifier format)."""
_SERVER = r"[A-Za-z0-9.\-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?"
_ROOM_ID = re.compile(rf"![^\s:\x00]+(?::(?:{_SERVER}))?")
_ALIAS = re.compile(rf"#[^\s:\x00]+:(?:{_SERVER})")
_USER_ID = re.compile(rf"@[^\s:\x00]+:(?:{_SERVER})")
_ALL_OF_A_SERVER = re.compile(rf"\*:(?:{_SERVER})")
_PATTERN = re.compile(r"[@*?][^\s\x00]*")

EntryKind = Literal["room", "alias", "dm"]


class Act(StrEnum):
    """What is about to happen for a room; each is asked about, none is an exception (ROOM-9)."""

    INVITE = "invite"
    MESSAGE = "message"
    COMMAND = "command"
    EDIT = "edit"
    FILE = "file"
    LATE_RESULT = "late result"
    API_RUN = "API run"
    SCHEDULE = "schedule"


FROM_A_PERSON = frozenset({Act.MESSAGE, Act.COMMAND, Act.EDIT, Act.FILE})
"""Acts that a person in the room asks for, so that the person is looked at too."""

Reason = Literal[
    "no-list",
    "listed",
    "empty-list",
    "not-listed",
    "alias-not-pinned",
    "not-alone",
    "members-unknown",
    "own",
    "ignored",
    "person-not-listed",
    "inviter-not-allowed",
    "banned",
]

REASONS: dict[Reason, str] = {
    "no-list": "matrix.rooms is unset, so every room is served",
    "listed": "the room is on matrix.rooms",
    "empty-list": "matrix.rooms is an empty list, which denies all rooms",
    "not-listed": "the room is not on matrix.rooms",
    "alias-not-pinned": "the room is not on matrix.rooms, and an alias there is not resolved yet or points elsewhere than before",
    "not-alone": "matrix.rooms has a dm: entry, which holds only while nobody else is in the room",
    "members-unknown": "matrix.rooms has a dm: entry, and it is not known who is in the room",
    "own": "the bot's own events are never acted on",
    "ignored": "the sender matches matrix.ignore",
    "person-not-listed": "the sender is not on matrix.people",
    "inviter-not-allowed": "the sender may not invite (matrix.inviters, else matrix.people, else the bot's own server)",
    "banned": "the bot was banned from the room; only the operator brings it back",
}


@dataclass(frozen=True, slots=True)
class RoomEntry:
    """One item of `matrix.rooms`."""

    kind: EntryKind
    value: str
    """The room id, the alias, or for `dm` the user id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The settings that decide about rooms and people; None is unset, which is never the same as empty."""

    own_user_id: UserId
    rooms: tuple[RoomEntry, ...] | None = None
    people: tuple[str, ...] | None = None
    inviters: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomView:
    """What is known of the room that is asked about."""

    room_id: RoomId
    others: frozenset[UserId] | None = None
    """Joined and invited people but the bot itself; None where not known. For an invite that says `is_direct`: the inviter alone."""
    is_banned: bool = False
    """Whether the bot's last membership was a ban that the operator has not lifted (ROOM-10)."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether it may happen; `if decide(...)` reads as it is meant."""

    is_allowed: bool
    reason: Reason

    def __bool__(self) -> bool:
        return self.is_allowed

    @property
    def text(self) -> str:
        """The reason as a part of a sentence for the operator."""
        return REASONS[self.reason]


def parse_room(text: str) -> RoomEntry:
    """Return the item of `matrix.rooms` that `text` writes.

    Raises:
        InputError: it has another form; the text names it and the forms that are allowed.
    """
    kind: EntryKind | None = None
    value = text
    if _ROOM_ID.fullmatch(text):
        kind = "room"
    elif _ALIAS.fullmatch(text):
        kind = "alias"
    elif text.startswith("dm:") and _USER_ID.fullmatch(text[3:]):
        kind, value = "dm", text[3:]
    if kind is None or len(value.encode()) > _MAX_ID_BYTES:
        raise InputError(f"{text!r} is no room.", allowed=f"Allowed: {ROOM_FORMS}.")
    return RoomEntry(kind, value)


def parse_person(text: str) -> str:
    """Return `text` where it is a whole user id or `*:server`.

    Raises:
        InputError: it has another form; the text names it and the forms that are allowed.
    """
    if (_USER_ID.fullmatch(text) or _ALL_OF_A_SERVER.fullmatch(text)) and len(text.encode()) <= _MAX_ID_BYTES:
        return text
    raise InputError(f"{text!r} names nobody.", allowed=f"Allowed: {PERSON_FORMS}.")


def parse_user(text: str) -> UserId:
    """Return `text` where it is one whole user id.

    Raises:
        InputError: it has another form; the text names it and the form that is allowed.
    """
    if _USER_ID.fullmatch(text) and len(text.encode()) <= _MAX_ID_BYTES:
        return UserId(text)
    raise InputError(f"{text!r} is no user id.", allowed="Allowed: a whole user id (@ann:example.org).")


def parse_pattern(text: str) -> str:
    """Return `text` where it can match a user id.

    Raises:
        InputError: it has another form; the text names it and the form that is allowed.
    """
    if _PATTERN.fullmatch(text) and len(text.encode()) <= _MAX_ID_BYTES:
        return text
    raise InputError(f"{text!r} matches no user id.", allowed=f"Allowed: {PATTERN_FORMS}.")


def find_server(user_id: str) -> str:
    """Return the server part of a user id: all behind its first colon."""
    return user_id.partition(":")[2]


def is_named(user_id: str, names: Collection[str]) -> bool:
    """Return whether one of `names` is this user id, whole and in this case, or stands for all of its server."""
    return user_id in names or f"*:{find_server(user_id)}" in names


def describe_rooms(rooms: Collection[object] | None) -> str:
    """Return in words which allowlist this is: unset, empty and filled are three different things (ROOM-1)."""
    if rooms is None:
        return "unset: every room is served that somebody who may invite brings the bot into"
    return f"a list of {len(rooms)}" if rooms else "an empty list: all rooms are denied"


def decide_room(policy: Policy, room: RoomView, pins: Mapping[str, RoomId]) -> Decision:
    """Decide whether the room is served.

    Args:
        policy: the settings in force.
        room: the room and who is in it.
        pins: for each alias the room id that it was pinned to; an alias that is missing denies.
    """
    if policy.rooms is None:
        return Decision(is_allowed=True, reason="no-list")
    if not policy.rooms:
        return Decision(is_allowed=False, reason="empty-list")
    found = {_judge(entry, room, pins) for entry in policy.rooms}
    if "listed" in found:
        return Decision(is_allowed=True, reason="listed")
    return Decision(is_allowed=False, reason=next((reason for reason in _TELLING if reason in found), "not-listed"))


_TELLING: tuple[Reason, ...] = ("not-alone", "members-unknown", "alias-not-pinned")
"""Refusals that say more than "not-listed", the most telling first."""


def _judge(entry: RoomEntry, room: RoomView, pins: Mapping[str, RoomId]) -> Reason:
    """Return "listed" where this one item serves the room, else why it does not."""
    if entry.kind == "room":
        return "listed" if entry.value == room.room_id else "not-listed"
    if entry.kind == "alias":
        pinned = pins.get(entry.value)
        if pinned is None:
            return "alias-not-pinned"
        return "listed" if pinned == room.room_id else "not-listed"
    if room.others is None:
        return "members-unknown"
    if entry.value not in room.others:
        return "not-listed"
    return "listed" if len(room.others) == 1 else "not-alone"


def decide_person(policy: Policy, user_id: UserId) -> Decision:
    """Decide whether this account may speak to the bot in a served room."""
    if user_id == policy.own_user_id:
        return Decision(is_allowed=False, reason="own")
    if any(fnmatchcase(user_id, pattern) for pattern in policy.ignore):
        return Decision(is_allowed=False, reason="ignored")
    if policy.people is not None and not is_named(user_id, policy.people):
        return Decision(is_allowed=False, reason="person-not-listed")
    return Decision(is_allowed=True, reason="no-list" if policy.people is None else "listed")


def decide_inviter(policy: Policy, user_id: UserId) -> Decision:
    """Decide whether this account may ask the bot into a room."""
    if user_id == policy.own_user_id:
        return Decision(is_allowed=False, reason="own")
    if any(fnmatchcase(user_id, pattern) for pattern in policy.ignore):
        return Decision(is_allowed=False, reason="ignored")
    names = policy.inviters
    if names is None:
        names = policy.people
    if names is None:
        names = (f"*:{find_server(policy.own_user_id)}",)
    return (
        Decision(is_allowed=True, reason="listed") if is_named(user_id, names) else Decision(is_allowed=False, reason="inviter-not-allowed")
    )


def decide(policy: Policy, act: Act, room: RoomView, pins: Mapping[str, RoomId], *, sender: UserId | None = None) -> Decision:
    """Decide whether `act` may happen: the room first, then the person where one asks for it.

    Invariant: a denied room is denied for every act; no act is decided by the person alone.
    """
    served = decide_room(policy, room, pins)
    if not served:
        return served
    if act is Act.INVITE:
        if room.is_banned:
            return Decision(is_allowed=False, reason="banned")
        return decide_inviter(policy, sender) if sender is not None else Decision(is_allowed=False, reason="inviter-not-allowed")
    if act in FROM_A_PERSON:
        return decide_person(policy, sender) if sender is not None else Decision(is_allowed=False, reason="person-not-listed")
    return served
