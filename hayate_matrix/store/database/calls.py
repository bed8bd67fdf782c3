"""Calls from the loop into a thread of the database, and their results back.

Promise: calls are served in the order in which they were made; a caller goes on when its call is over, never in between, also a cancelled
         one. All come from one loop.
How: one queue, one thread; whoever serves a call may take those that wait behind it too. Results of one service come back in one go. An
     executor would take more than twice as long for a hop (75 µs in place of 30), which every commit pays.
Not here: what is done in the thread (`writer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    Work = Callable[[Connection], Any]
    Serve = Callable[["Call", Callable[[], "Call | None"]], list["Call"]]
    """Given the first call and what takes the next one that waits, returns the calls that are over, each with `result` or `error`."""


class Call:
    """One piece of work for the thread, and what became of it."""

    __slots__ = ("error", "future", "is_over", "loop", "name", "result", "work")

    def __init__(self, name: str, work: Work, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.work = work
        self.loop = loop
        """Where it was made."""
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = False


class CallThread:
    """A thread that begins with its first call and ends with `close`."""

    def __init__(self, name: str, serve: Serve, end: Callable[[], None]) -> None:
        self._name = name
        self._serve = serve
        self._end = end
        """Called in the thread as its last."""
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    async def call(self, name: str, work: Work) -> Any:
        """Have `work` done, and return what it returned or raise what it raised."""
        call = Call(name, work, asyncio.get_running_loop())
        self._put(call)
        try:
            return await call.future
        except asyncio.CancelledError:
            # Invariant: when a caller goes on, its transaction is over. `is_over` changes in this very loop, so nothing is missed.
            while not call.is_over:
                call.future = asyncio.get_running_loop().create_future()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await call.future
            if not call.future.cancelled():
                call.future.exception()  # nobody else will ask for it
            raise

    def close(self) -> None:
        """Let what waits be served, and end the thread; further calls of `close` change nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def _put(self, call: Call) -> None:
        if self._is_closed:
            raise RuntimeError(f"The step {call.name} came after the database was closed.")
        if self._thread is None:
            # A process that ends without `close` leaves the last transaction undone, as a crash would.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._queue.put(call)

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                over = self._serve(call, self._take)
            except BaseException as error:  # noqa: BLE001 - the caller hears of it
                call.error = error
                over = [call]
            with contextlib.suppress(RuntimeError):  # the loop has ended, and its callers with it
                call.loop.call_soon_threadsafe(_settle, over)
        self._end()

    def _take(self) -> Call | None:
        """Return the next call if one waits."""
        try:
            call = self._queue.get_nowait()
        except queue.Empty:
            return None
        if call is None:
            self._queue.put(None)  # the end comes behind what is served now
        return call


def _settle(calls: list[Call]) -> None:
    for call in calls:
        call.is_over = True
        if call.future.done():  # its caller was cancelled and is about to learn that it is over
            continue
        if call.error is None:
            call.future.set_result(call.result)
        elif isinstance(call.error, StopIteration):  # a future takes any other error
            call.future.set_exception(RuntimeError(f"The step {call.name} raised StopIteration."))
        else:
            call.future.set_exception(call.error)
