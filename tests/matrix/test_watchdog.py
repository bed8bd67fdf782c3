"""The receive loop that got stuck is started again, and a stop is a stop whenever it comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hayate_matrix.matrix.http import Http
from hayate_matrix.matrix.sync.watchdog import watch_sync
from tests.support.edge import QuickClock

if TYPE_CHECKING:
    from tests.support.fabricated import FabricatedHomeserver


class _Stuck:
    """A receive loop that applies nothing and takes its time to end."""

    def __init__(self) -> None:
        self.last_progress_at: float | None = 0.0
        self.starts = 0
        self.is_ending = asyncio.Event()

    async def run(self) -> None:
        self.starts += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.is_ending.set()
            await asyncio.sleep(0.05)


@pytest.mark.requirement("ACC-2")
async def test_stop_in_the_middle_of_a_restart_of_the_loop_is_obeyed(server: FabricatedHomeserver) -> None:
    """The watchdog that is cancelled while it waits for the stuck loop to end does not start another one."""
    stuck: Any = _Stuck()
    http = Http(server.url, QuickClock(10_000), access_token="t")
    watching = asyncio.create_task(watch_sync(stuck, http, QuickClock(10_000)))
    await stuck.is_ending.wait()
    watching.cancel()
    await asyncio.wait({watching}, timeout=5)
    is_cancelled = watching.cancelled()
    watching.cancel()  # where the first was swallowed
    await asyncio.wait({watching}, timeout=5)
    await http.close()
    assert is_cancelled
    assert stuck.starts == 1
