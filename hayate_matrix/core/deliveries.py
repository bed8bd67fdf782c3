"""What is owed to a room, as the harness hands it to the edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hayate_matrix.core.facts import AnyFact
    from hayate_matrix.core.ids import DeliveryId, EventId, RoomId, UserId

DeliveryKind = Literal["reply", "notice", "listing", "reaction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One thing owed to one room; it is what leaves, labels and all."""

    id: DeliveryId
    room_id: RoomId
    kind: DeliveryKind
    """`reply` is sent as m.text, `notice` and `listing` as m.notice (OUT-7), `reaction` as m.reaction on `request`."""
    text: str
    """Markdown; of a listing lines that are shown exactly as they are, of a reaction its key."""
    links: tuple[tuple[str, EventId], ...] = ()
    """Of a listing: first words of lines, in order, that lead to events of the same room; those with an empty id lead nowhere."""
    request: EventId | None = None
    """The event that it answers: the reply relation in rooms."""
    thread: EventId | None = None
    mention: UserId | None = None
    """Who is answered: goes into `m.mentions`."""
    created_at_ms: int = 0
    """When the harness first owed it; past 12 h the room is searched before it is sent again (OUT-1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The event ids that the homeserver gave, in order of the parts."""

    event_ids: tuple[EventId, ...]


class Gateway(Protocol):
    """How the harness reaches rooms; the edge is the real one."""

    async def deliver(self, delivery: Delivery) -> Sent:
        """Bring `delivery` to its room, once, however often it is called with the same id.

        It waits out rate limits, server errors and lost connections, for as long as it takes.

        Raises:
            DeliveryHeld: the room is denied or the bot may not speak there; keep the row and wait.
            DeliveryRefused: the homeserver will never take it; end the row.
            DeliveryUncertain: it can't be known whether it was sent; the operator decides.
            WaitError: the room changed while it was made ready; hand it over again in a moment.
        """
        ...

    async def show_typing(self, room_id: RoomId, *, is_typing: bool) -> None:
        """Tell the room that an answer is being made; best effort, never raises."""
        ...

    async def mark_read(self, room_id: RoomId, event_id: EventId) -> None:
        """Send a read receipt; best effort, never raises."""
        ...


class FactSink(Protocol):
    """Where the edge hands facts over; the harness's intake is the real one."""

    async def accept(self, facts: Sequence[AnyFact]) -> None:
        """Return when all `facts` are durable in the harness; the same fact again changes nothing."""
        ...
