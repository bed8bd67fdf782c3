"""Waiting for a state with a deadline, the only way in which a test waits."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class NeverHappened(AssertionError):
    """The awaited state did not come within its deadline."""


async def eventually(
    look: Callable[[], Any],
    *,
    timeout_s: float = 20.0,
    what: str | Callable[[], object] = "",
    every_s: float = 0.02,
) -> Any:
    """Return what `look` gives as soon as it is true; `look` may be a coroutine function.

    `what` names the state in the error, or is called for a picture of it at the end.

    Raises:
        NeverHappened: it was not true within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            picture = what() if callable(what) else what
            message = f"not within {timeout_s:g} s: {picture or look}; last look gave {found!r}"
            raise NeverHappened(message)
        await asyncio.sleep(every_s)
