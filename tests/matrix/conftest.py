"""A fabricated homeserver with a bot, Alice and an encrypted room, and the real edge between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.edge import ALICE, BOT, EdgeWorld
from tests.support.fabricated import FabricatedHomeserver, FabricatedRoom

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.fabricated.devices import FabricatedUser


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FabricatedHomeserver]:
    """A homeserver made of Python objects."""
    async with FabricatedHomeserver() as running:
        yield running


@pytest.fixture
def alice(server: FabricatedHomeserver) -> FabricatedUser:
    """Somebody with one cross-signed device."""
    return server.user(ALICE)


@pytest_asyncio.fixture
async def world(server: FabricatedHomeserver, tmp_path: Path) -> AsyncIterator[EdgeWorld]:
    """The bot, logged in, its edge not started yet."""
    made = EdgeWorld(server, tmp_path, server.login(BOT))
    yield made
    await made.close()


@pytest.fixture
def room(server: FabricatedHomeserver, alice: FabricatedUser, world: EdgeWorld) -> FabricatedRoom:
    """An encrypted room with Alice, who made it, and the bot."""
    return server.room("!room:fab.test", members=[alice.user_id, world.login.user_id], encrypted=True)
