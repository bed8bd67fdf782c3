"""How far long work is: a bar on a terminal, plain lines elsewhere (NEW-4)."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")

_SILENCE_S = 2.0
"""Between two plain lines; NEW-4 allows five seconds of silence, and a busy machine takes its share of them."""
_FRAME_S = 0.2
_CELLS = 30


class Progress:
    """Called with (done, total) as often as one likes; what is over at once says nothing."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_terminal = sys.stderr.isatty()
        self._pause_s = _FRAME_S if self._is_terminal else _SILENCE_S
        self._said_at = time.monotonic()
        self._width = 0

    def __call__(self, done: int, total: int) -> None:
        """Say how far it is, if it is time to; the bar goes away at the end."""
        if done >= total:
            self._draw("")
        elif time.monotonic() - self._said_at > self._pause_s:
            self._said_at = time.monotonic()
            share = f"{self._what}: {done * 100 // total} %"
            if self._is_terminal:
                full = done * _CELLS // total
                self._draw(f"{share} [{'#' * full}{'.' * (_CELLS - full)}]")
            else:
                print(share, file=sys.stderr, flush=True)

    def _draw(self, line: str) -> None:
        if self._width or line:
            print(f"\r{line:<{self._width}}", end="" if line else "\r", file=sys.stderr, flush=True)
        self._width = len(line)


async def patiently(what: str, work: Awaitable[T]) -> T:
    """Return what `work` gives, and say now and then that it goes on where nobody knows how far it is; `what` is what is waited for."""
    task = asyncio.ensure_future(work)
    started = time.monotonic()
    try:
        while not (await asyncio.wait({task}, timeout=_SILENCE_S))[0]:
            print(f"waiting for {what} ({time.monotonic() - started:.0f} s) ...", file=sys.stderr, flush=True)
    finally:
        task.cancel()
    return task.result()
