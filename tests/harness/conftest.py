"""A desk for each test: a harness on a database of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest_asyncio

from tests.support.desk import Desk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    MakeDesk = Callable[..., Awaitable[Desk]]


@pytest_asyncio.fixture
async def make_desk(tmp_path: Path) -> AsyncIterator[MakeDesk]:
    """Open a desk; what is given by name are rules of the harness."""
    desks: list[Desk] = []

    async def make(prepare: Callable[[Desk], None] | None = None, **rules: Any) -> Desk:
        desk = Desk(tmp_path, rules=rules)
        if prepare is not None:
            prepare(desk)
        await desk.start()
        desks.append(desk)
        return desk

    yield make
    for desk in desks:
        await desk.crash()


@pytest_asyncio.fixture
async def desk(make_desk: MakeDesk) -> Desk:
    return await make_desk()
