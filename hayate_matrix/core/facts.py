"""What happened in a room, as the edge tells it to the harness: no nio type, no ciphertext.

Promise: a fact is one durable row from the moment that the sync position passes it, and its event id is its key.
How: the edge writes `dump_fact` into its spool in the transaction of the sync response; the mover hands `load_fact` to the sink.
Not here: what a fact means (harness/intake) and whether its room is served (core/allowlist, asked by the edge before it writes).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from hayate_matrix.core.ids import EventId, RoomId, UserId

Provenance = Literal["live", "gap", "late_key"]
"""How the event came: in a sync, by filling a gap, or after its key arrived late. All three are fresh (SRC-1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What all facts carry."""

    event_id: EventId
    room_id: RoomId
    sender: UserId
    sent_at_ms: int
    """`origin_server_ts`, milliseconds since the epoch; a claim of the sender's server, never used to order."""
    is_encrypted: bool = False
    provenance: Provenance = "live"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Fact):
    """A message by a person: text, emote, or media with its caption or name."""

    msgtype: str
    """`m.text`, `m.emote`, `m.image`, `m.file`, `m.audio`, `m.video`; others, `m.notice` among them, never become facts."""
    body: str
    """The plain body after the rich-reply fallback was removed; for media the caption or, without one, the empty string."""
    formatted_body: str | None = None
    mentions: tuple[UserId, ...] | None = None
    """User ids of `m.mentions`; None where the sender wrote no `m.mentions` at all."""
    pills: tuple[UserId, ...] = ()
    """User ids linked through matrix.to in `formatted_body`."""
    thread: EventId | None = None
    """Root of the thread that the message stands in."""
    reply_to: EventId | None = None
    """The event it answers; None where the relation is only a thread's fallback (`is_falling_back`)."""
    is_direct: bool = False
    """Whether the room is a direct message (ROOM-5)."""
    file_name: str | None = None
    """Name of the attached file, as the sender wrote it; text, never a path."""
    loop_marker: bool = False
    """Whether the content carries the marker of a bot of this kind (IN-9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit(Fact):
    """A replacement of an earlier message; the edge has checked its type, the harness checks that room and sender are the message's."""

    target: EventId
    body: str
    formatted_body: str | None = None
    mentions: tuple[UserId, ...] | None = None
    pills: tuple[UserId, ...] = ()
    is_direct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction(Fact):
    """A message was removed in the room; the server has already decided that its sender may."""

    target: EventId


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction(Fact):
    """An annotation; it travels in clear, so in an encrypted room it decides nothing (TOOL-3)."""

    target: EventId
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership(Fact):
    """The membership of somebody changed; of the bot itself it starts or ends work for the room (ROOM-10)."""

    user: UserId
    membership: Literal["invite", "join", "leave", "ban", "knock"]
    is_own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone(Fact):
    """The room was upgraded; `replacement` is what the tombstone claims."""

    replacement: RoomId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped(Fact):
    """Messages that are not answered, told in one honest line (IN-2, IN-3); the event id is derived, not the server's."""

    count: int
    reason: Literal["gap", "age"]


AnyFact = Message | Edit | Redaction | Reaction | Membership | Tombstone | Skipped

_KINDS: dict[str, type[AnyFact]] = {kind.__name__: kind for kind in (Message, Edit, Redaction, Reaction, Membership, Tombstone, Skipped)}


def dump_fact(fact: AnyFact) -> str:
    """Return `fact` as one line of JSON that `load_fact` reads back."""
    return json.dumps({"kind": type(fact).__name__, **dataclasses.asdict(fact)}, ensure_ascii=False, separators=(",", ":"))


def load_fact(text: str) -> AnyFact:
    """Return the fact that `dump_fact` wrote.

    Raises:
        KeyError, TypeError, ValueError: the text is not of this version; the row stays and the operator is told.
    """
    fields: dict[str, Any] = json.loads(text)
    kind = _KINDS[fields.pop("kind")]
    for name in ("mentions", "pills"):
        if fields.get(name) is not None:
            fields[name] = tuple(fields[name])
    return kind(**fields)
