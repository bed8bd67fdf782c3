"""A clock that jumps: waits end when the test says what time it is, never by themselves."""

from __future__ import annotations

import asyncio
import heapq
from datetime import UTC, datetime, timedelta

_UPKEEP = "upkeep"
"""Name of the harness's task that looks at the time again and again."""


class JumpingClock:
    """Stands still until `jump`; with `is_eager` every wait ends at once and moves the time."""

    def __init__(self, start: datetime = datetime(2026, 11, 1, 19, 34, 13, 185000, tzinfo=UTC), *, is_eager: bool = False) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._is_eager = is_eager
        self._skew_s = 0.0
        self._waits: list[tuple[float, int, asyncio.Future[None]]] = []
        self._standing: set[asyncio.Future[None]] = set()
        self._count = 0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s + self._skew_s)

    def monotonic(self) -> float:
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        task = asyncio.current_task()
        is_upkeep = task is not None and task.get_name() == _UPKEEP
        if self._is_eager and not is_upkeep:
            self._elapsed_s += max(seconds, 0.0)
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._waits, (self._elapsed_s + seconds, self._count, future))
        if is_upkeep:
            self._standing.add(future)
            future.add_done_callback(self._standing.discard)
        await future

    @property
    def waits(self) -> int:
        """How many are waiting for a time to come, but for what waits as long as the program runs."""
        return sum(not future.done() and future not in self._standing for _, _, future in self._waits)

    def jump(self, seconds: float) -> None:
        """Move on, and end every wait whose time has come, in order."""
        self._elapsed_s += seconds
        while self._waits and self._waits[0][0] <= self._elapsed_s:
            _, _, future = heapq.heappop(self._waits)
            if not future.done():
                future.set_result(None)

    def set_wrong(self, seconds: float) -> None:
        """Let the wall clock alone be off by `seconds`, as after a correction."""
        self._skew_s = seconds
