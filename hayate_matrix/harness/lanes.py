"""One turn at a time per focus, conversations side by side, a fair share for each (CORE-2).

Promise: the requests of a focus are taken up in the order in which they were accepted; the next one waits for the end of the one before.
How: a lane is a queue in memory for one focus; the inbox holds the same queue durably and fills the lanes at start. Of the lanes that
     could run, the next is one of the conversation that runs least and was served longest ago.
Not here: what a turn does (turn).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hayate_matrix.core.ids import ConversationId, EventId, Focus, RoomId

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hayate_matrix.core.clock import Clock

_DISK_CHECK_S = 5.0
"""How often the disk is looked at again while it is too full for new turns; well below what it takes to free some space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request to be answered, or a command that waits among them; everything else about it is in the inbox."""

    conversation_id: ConversationId
    room_id: RoomId
    focus: Focus
    event_id: EventId
    reply_to: EventId | None = None
    is_command: bool = False
    """Whether it is a command that waits for the requests before it."""


_Lane = tuple[ConversationId, Focus]


class Lanes:
    """Queues of requests, and the turns that run."""

    def __init__(
        self,
        clock: Clock,
        run: Callable[[Work], Coroutine[object, object, bool]],
        *,
        limit: int,
        is_disk_low: Callable[[], bool],
        on_change: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`run` runs a turn to its end and returns True, or False where it did nothing since the room is held."""
        self._clock = clock
        self._run = run
        self._limit = limit
        self._is_disk_low = is_disk_low
        self._on_change = on_change
        self._on_fault = on_fault
        self._queues: dict[_Lane, deque[Work]] = {}
        self._running: dict[_Lane, tuple[Work, asyncio.Task[bool]]] = {}
        self._held: set[RoomId] = set()
        self._served: dict[ConversationId, int] = {}
        self._turns = 0
        self._is_open = False
        self._disk_watch: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing is queued but for rooms that are held."""
        return not self._running and all(queue[0].room_id in self._held for queue in self._queues.values())

    def open(self) -> None:
        """Begin to run what is queued."""
        self._is_open = True
        self._pump()

    def add(self, work: Work) -> None:
        """Queue one request behind the others of its focus."""
        self._queues.setdefault((work.conversation_id, work.focus), deque()).append(work)
        self._pump()

    def hold(self, room_id: RoomId) -> None:
        """Begin no turn for the room until `release`; what runs goes on."""
        self._held.add(room_id)

    def release(self, room_id: RoomId) -> None:
        """Go on with what is queued for the room, in order."""
        self._held.discard(room_id)
        self._pump()

    def cancel(self, event_id: EventId) -> None:
        """End the turn that runs for this request, if one does; it is durably stopped by now."""
        for work, task in self._running.values():
            if work.event_id == event_id:
                task.cancel()

    async def close(self) -> None:
        """End all running turns where they are and begin no other; what is unfinished goes on at the next start."""
        self._is_open = False
        if self._disk_watch is not None:
            self._disk_watch.cancel()
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _pump(self) -> None:
        while self._is_open and (lane := self._find_next()) is not None:
            queue = self._queues[lane]
            work = queue.popleft()
            if not queue:
                del self._queues[lane]
            self._turns += 1
            self._served[lane[0]] = self._turns
            task = asyncio.get_running_loop().create_task(self._run(work), name=f"turn {work.event_id}")
            self._running[lane] = (work, task)
            task.add_done_callback(partial(self._end, lane))

    def _find_next(self) -> _Lane | None:
        """Return the lane to be served now; commands are no turns and wait for no place."""
        if sum(not work.is_command for work, _ in self._running.values()) >= self._limit:
            return self._choose(commands_only=True)
        lane = self._choose(commands_only=False)
        if lane is None or self._queues[lane][0].is_command or not self._is_disk_low():
            return lane
        self._watch_disk()
        return self._choose(commands_only=True)

    def _choose(self, *, commands_only: bool) -> _Lane | None:
        """Return the lane to be served next, or None where all that wait are running or held."""
        load: dict[ConversationId, int] = {}
        for conversation_id, _ in self._running:
            load[conversation_id] = load.get(conversation_id, 0) + 1
        waiting = (
            lane
            for lane, queue in self._queues.items()
            if lane not in self._running and queue[0].room_id not in self._held and (queue[0].is_command or not commands_only)
        )
        return min(waiting, key=lambda lane: (load.get(lane[0], 0), self._served.get(lane[0], 0)), default=None)

    def _end(self, lane: _Lane, task: asyncio.Task[bool]) -> None:
        work, _ = self._running.pop(lane)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._is_open = False
            self._on_fault(error)
        elif not task.cancelled() and not task.result():
            self._queues.setdefault(lane, deque()).appendleft(work)
        self._pump()
        self._on_change()

    def _watch_disk(self) -> None:
        if self._disk_watch is None or self._disk_watch.done():
            self._disk_watch = asyncio.get_running_loop().create_task(self._wait_for_space(), name="disk watch")

    async def _wait_for_space(self) -> None:
        while self._is_disk_low():
            await self._clock.sleep(_DISK_CHECK_S)
        self._pump()
