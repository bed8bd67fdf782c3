"""What the room sees before the answer: typing and read receipts (OUT-5). Nothing here is owed, kept or waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.core.deliveries import Gateway
    from hayate_matrix.core.ids import EventId, RoomId
    from hayate_matrix.harness.rules import Rules

_GRACE_S = 0.3
"""An answer that is quicker than this needs no typing notice, which would cost two requests and flicker."""
_REFRESH_S = 20.0
"""The edge asks the homeserver for 30 s, the usual length, so that one lost refresh is seen by nobody."""


class Presence:
    """Shows that answers are being made, and what was read."""

    def __init__(self, gateway: Gateway, clock: Clock, rules: Rules) -> None:
        self._gateway = gateway
        self._clock = clock
        self._rules = rules
        self._turns: dict[RoomId, int] = {}
        self._typing: dict[RoomId, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, room_id: RoomId) -> None:
        """Show typing in a room, after a moment, until as many `end` as `begin` were called."""
        if not self._rules.typing:
            return
        self._turns[room_id] = self._turns.get(room_id, 0) + 1
        if room_id not in self._typing:
            self._typing[room_id] = self._start(self._show(room_id))

    def end(self, room_id: RoomId) -> None:
        """Take the typing notice back, if no other turn runs for the room."""
        if not self._rules.typing:
            return
        self._turns[room_id] -= 1
        if not self._turns[room_id]:
            del self._turns[room_id]
            self._typing.pop(room_id).cancel()

    def mark_read(self, room_id: RoomId, event_id: EventId) -> None:
        """Send a read receipt."""
        if self._rules.receipts:
            self._start(self._gateway.mark_read(room_id, event_id))

    async def close(self) -> None:
        """Leave it all where it is: the homeserver ends a typing notice by itself."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _show(self, room_id: RoomId) -> None:
        await self._clock.sleep(_GRACE_S)
        try:
            while True:
                await self._gateway.show_typing(room_id, is_typing=True)
                await self._clock.sleep(_REFRESH_S)
        except asyncio.CancelledError:
            # From the same task, so that the end never overtakes the beginning.
            await self._gateway.show_typing(room_id, is_typing=False)
            raise
