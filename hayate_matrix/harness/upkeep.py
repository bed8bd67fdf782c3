"""Sessions that nobody uses any more: closed when they were idle, and without their text when they were kept long enough (SES-3).

Promise: no session is touched while a turn works in it; what retention takes is gone from transcripts, requests and what was sent, and
         pointers to it go on saying so (STO-10).
How: looked for at start and every minute, a few sessions in one transaction, so that nobody waits for it. An idle session is never gone
     on with in between: a turn looks at the time itself.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from hayate_matrix.errors import WaitError
from hayate_matrix.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.core.ids import SessionId
    from hayate_matrix.harness.rules import Rules
    from hayate_matrix.store.database import Connection
    from hayate_matrix.store.sessions import Session
    from hayate_matrix.store.stores import Stores

_log = get_logger(__name__)

EVERY_S = 60.0
"""Between two looks: the least that `sessions.idle_s` takes."""
_CLOSED_AT_ONCE = 100
"""Sessions that are closed in one transaction; with 25 µs each."""
_REMOVED_AT_ONCE = 10
"""Sessions whose text is taken away in one transaction."""


class Upkeep:
    """Looks after sessions for as long as the harness runs."""

    def __init__(
        self,
        stores: Stores,
        clock: Clock,
        rules: Rules,
        *,
        on_removed: Callable[[list[SessionId]], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._stores = stores
        self._clock = clock
        self._rules = rules
        self._on_removed = on_removed
        self._on_fault = on_fault
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="upkeep")
        self._task.add_done_callback(self._end)

    async def close(self) -> None:
        """Look no more; a transaction that runs is ended first."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def sweep(self) -> None:
        """Close and remove what is due now."""
        database = self._stores.database
        while await database.read(partial(self._list_idle, limit=1)):
            closed = await database.transaction("sessions.close_idle", self._close_idle)
            _log.info("idle sessions were closed", count=closed)
        while await database.read(partial(self._list_old, limit=1)):
            removed = await database.transaction("sessions.remove", self._remove)
            _log.info("old sessions were removed", count=len(removed))
            self._on_removed(removed)

    async def _run(self) -> None:
        while True:
            try:
                await self.sweep()
            except WaitError as error:
                _log.warning("upkeep waits for the database", reason=error.code)
            await self._clock.sleep(EVERY_S)

    def _list_idle(self, connection: Connection, limit: int) -> list[Session]:
        return self._stores.sessions.list_idle(connection, self._clock.now(), idle_s=self._rules.idle_s, limit=limit)

    def _close_idle(self, connection: Connection) -> int:
        idle = self._list_idle(connection, _CLOSED_AT_ONCE)
        for session in idle:
            self._stores.sessions.move(connection, session, "closed")
        return len(idle)

    def _list_old(self, connection: Connection, limit: int) -> list[Session]:
        if self._rules.keep_days is None:
            return []
        return self._stores.sessions.list_old(connection, self._clock.now(), keep_days=self._rules.keep_days, limit=limit)

    def _remove(self, connection: Connection) -> list[SessionId]:
        old = self._list_old(connection, _REMOVED_AT_ONCE)
        for session in old:
            self._stores.inbox.remove_session(connection, session.id)
            self._stores.outbox.remove_text(connection, session.id)
            self._stores.sessions.remove(connection, session)
        self._stores.removals += len(old)  # counted also where the commit fails: then something is looked up twice
        return [session.id for session in old]

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fault(error)
