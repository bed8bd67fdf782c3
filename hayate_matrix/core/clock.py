"""The clock that every part is handed, so that tests can set the time (CORE-5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime


class Clock(Protocol):
    """Where time comes from; the real one is made by `app`, a jumping one by the tests."""

    def now(self) -> datetime:
        """Return the present as an aware UTC time."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never run backwards, for durations only."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock; used for waits, never to decide an order."""
        ...
