"""A gateway that remembers what the room saw: it takes a delivery id once, as the edge does, and fails as it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hayate_matrix.core.deliveries import Delivery, Sent
from hayate_matrix.core.ids import EventId, RoomId
from hayate_matrix.errors import DeliveryHeld

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class LostAnswer(Exception):
    """The room has the message and the program never learns of it."""


class FakeGateway:
    """Stands in for the edge where a homeserver can't be made to produce the fault."""

    def __init__(self) -> None:
        self.room: list[Delivery] = []
        """What people see, in order; a delivery that is repeated is seen once."""
        self.calls = 0
        self.typing: list[tuple[RoomId, bool]] = []
        self.read: list[tuple[RoomId, EventId]] = []
        self.denied: set[RoomId] = set()
        self.on_deliver: Callable[[Delivery], None] | None = None
        """Called before a delivery is taken; what it raises is raised."""
        self.is_losing_answers = False
        self.gate: asyncio.Event | None = None
        """Where set, deliveries wait for it."""

    def get_texts(self, room_id: str) -> list[str]:
        return [delivery.text for delivery in self.room if delivery.room_id == room_id]

    async def deliver(self, delivery: Delivery) -> Sent:
        self.calls += 1
        if self.gate is not None:
            await self.gate.wait()
        if delivery.room_id in self.denied:
            raise DeliveryHeld("The room is denied.")
        if self.on_deliver is not None:
            self.on_deliver(delivery)
        if delivery.id not in {seen.id for seen in self.room}:
            self.room.append(delivery)
        if self.is_losing_answers:
            raise LostAnswer
        return Sent(event_ids=(EventId(f"${delivery.id}"),))

    async def show_typing(self, room_id: RoomId, *, is_typing: bool) -> None:
        self.typing.append((room_id, is_typing))

    async def mark_read(self, room_id: RoomId, event_id: EventId) -> None:
        self.read.append((room_id, event_id))
