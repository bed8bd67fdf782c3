"""Two bots behind one small face: ours, and the plainest one on bare matrix-nio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Protocol

from nio import AsyncClient, AsyncClientConfig, MatrixRoom, RoomMessageText, SyncResponse

from hayate_matrix.core.ids import RoomId, UserId
from hayate_matrix.errors import HayateError
from tests.support.edge import EdgeWorld

if TYPE_CHECKING:
    from pathlib import Path

    from hayate_matrix.demo.homeserver import Login
    from tests.support.fabricated import FabricatedHomeserver


class Subject(Protocol):
    """What a scenario may ask of a bot."""

    speed: float
    """How many seconds pass for the bot in one of ours."""

    @property
    def heard(self) -> list[str]:
        """The texts that reached the program's own code, each as often as it reached it."""
        ...

    async def start(self) -> None:
        """Start with what is on disk; return once it syncs or tries to."""
        ...

    async def stop(self) -> None:
        """End without asking the homeserver for anything more."""
        ...

    async def say(self, room_id: str, text: str) -> None:
        """Send a message; return when it is sent or the bot gave up."""
        ...

    def break_consumer(self) -> None:
        """Let the program's own code fail once, at the next message."""
        ...

    async def power(self, room_id: str, user_id: str) -> int | None:
        """The power level that the bot believes in."""
        ...

    async def members(self, room_id: str) -> set[str]:
        """Who the bot believes to be in the room."""
        ...


class Ours:
    """The edge of this project."""

    patience_s = 10.0
    """How long a scenario waits for what should happen: many times what it takes."""

    def __init__(self, server: FabricatedHomeserver, home: Path, login: Login) -> None:
        self._world = EdgeWorld(server, home, login)
        self.speed = self._world.clock._speed
        self._is_broken = False

    @property
    def heard(self) -> list[str]:
        return self._world.heard.texts

    async def start(self) -> None:
        accept = self._world.heard.accept

        async def maybe_fail(facts: Any) -> None:
            if self._is_broken:
                self._is_broken = False
                raise RuntimeError("the program's own code failed")
            await accept(facts)

        self._world.heard.accept = maybe_fail  # type: ignore[method-assign]
        await self._world.open()

    async def stop(self) -> None:
        await self._world.close()

    async def say(self, room_id: str, text: str) -> None:
        with contextlib.suppress(HayateError):
            await self._world.edge.gateway.deliver(self._world.delivery(room_id, text))

    def break_consumer(self) -> None:
        self._is_broken = True

    async def power(self, room_id: str, user_id: str) -> int | None:
        return await asyncio.to_thread(self._world.edge.read_power, RoomId(room_id), UserId(user_id))

    async def members(self, room_id: str) -> set[str]:
        rooms = self._world.keystore.rooms
        found = await self._world.keystore.read(lambda: rooms.list_members(room_id) if rooms.load(room_id) else [])
        is_in = await self._world.keystore.read(lambda: (room := rooms.load(room_id)) is not None and room.membership == "join")
        return {str(user) for user in found} if is_in else set()


class Bare:
    """An AsyncClient with its stock store, its sync token stored and its own loop, as the documentation shows it."""

    patience_s = 2.5
    """As long as a scenario waits for what does not happen; what does happen takes a tenth of it."""
    speed = 1.0
    keeps_position = False
    """Keep the position as a program does that does not trust `store_sync_tokens`: after each answer, given back at the start."""
    asks_full_state = True

    def __init__(self, server: FabricatedHomeserver, home: Path, login: Login) -> None:
        logging.getLogger("nio").setLevel(logging.CRITICAL)
        self._server = server
        self._home = home
        self._login = login
        self._heard: list[str] = []
        self._is_broken = False
        self._position: str | None = None
        self._task: asyncio.Task[None] | None = None
        self.client: AsyncClient

    @property
    def heard(self) -> list[str]:
        return self._heard

    async def start(self) -> None:
        config = AsyncClientConfig(encryption_enabled=True, store_sync_tokens=not self.keeps_position, request_timeout=1)
        self.client = AsyncClient(self._server.url, self._login.user_id, self._login.device_id, store_path=str(self._home), config=config)
        self.client.restore_login(self._login.user_id, self._login.device_id, self._login.access_token)

        async def hear(_room: MatrixRoom, event: RoomMessageText) -> None:
            if self._is_broken:
                self._is_broken = False
                raise RuntimeError("the program's own code failed")
            if event.sender != self._login.user_id:
                self._heard.append(event.body)

        self.client.add_event_callback(hear, RoomMessageText)

        async def keep(answer: SyncResponse) -> None:
            self._position = answer.next_batch

        if self.keeps_position:
            self.client.add_response_callback(keep, SyncResponse)
        since = self._position if self.keeps_position else None
        self._task = asyncio.create_task(self.client.sync_forever(timeout=30_000, full_state=self.asks_full_state, since=since))
        await asyncio.sleep(0.3)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            await self.client.close()

    async def say(self, room_id: str, text: str) -> None:
        content = {"msgtype": "m.text", "body": text}
        with contextlib.suppress(Exception):
            await self.client.room_send(room_id, "m.room.message", content, ignore_unverified_devices=True)

    def break_consumer(self) -> None:
        self._is_broken = True

    async def power(self, room_id: str, user_id: str) -> int | None:
        return int(self.client.rooms[room_id].power_levels.get_user_level(user_id))

    async def members(self, room_id: str) -> set[str]:
        room = self.client.rooms.get(room_id)
        return set(room.users) if room is not None else set()
