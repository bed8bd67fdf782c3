"""Runs the receive loop, and starts it again where it got stuck (ACC-2)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hayate_matrix.log import get_logger
from hayate_matrix.matrix.sync.loop import LONG_POLL_S

if TYPE_CHECKING:
    from hayate_matrix.core.clock import Clock
    from hayate_matrix.matrix.http import Http
    from hayate_matrix.matrix.sync.loop import SyncLoop

_log = get_logger(__name__)

WATCHDOG_S = 3 * LONG_POLL_S
"""Without an applied sync for three long polls the loop is taken for dead and started again (ACC-2)."""


async def watch_sync(sync: SyncLoop, http: Http, clock: Clock) -> None:
    """Run the loop until cancelled; raise what ends it."""
    while True:
        loop = asyncio.create_task(sync.run(), name="edge.sync.loop")
        try:
            while not _is_stuck(sync, http, clock):
                look = asyncio.create_task(clock.sleep(LONG_POLL_S))
                await asyncio.wait({loop, look}, return_when=asyncio.FIRST_COMPLETED)
                look.cancel()
                if loop.done():
                    loop.result()
            _log.error("no sync was applied for three long polls; the loop is started again")
        finally:
            loop.cancel()
            await asyncio.wait({loop})  # not `await loop`: its end and a cancel of this task would look the same, and a stop be swallowed
            if not loop.cancelled():
                loop.exception()
        sync.last_progress_at = None


def _is_stuck(sync: SyncLoop, http: Http, clock: Clock) -> bool:
    at = sync.last_progress_at
    # A homeserver that fails is waited for, and that is progress; a loop that neither asks nor applies is stuck.
    return not http.is_failing and at is not None and clock.monotonic() - at > WATCHDOG_S
