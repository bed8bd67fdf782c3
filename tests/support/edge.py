"""The real edge in the test's own process, against the fabricated homeserver; what it hands over is kept in order."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from hayate_matrix.core.allowlist import Policy, parse_room
from hayate_matrix.core.deliveries import Delivery, DeliveryKind
from hayate_matrix.core.facts import Message
from hayate_matrix.core.ids import DeliveryId, EventId, RoomId, UserId, make_uuid7
from hayate_matrix.matrix.account import Account, Credentials
from hayate_matrix.matrix.client import Edge, EdgeOptions
from hayate_matrix.matrix.http import Http
from hayate_matrix.matrix.keystore import KeyStore
from hayate_matrix.store.sealing import Sealer
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hayate_matrix.core.facts import AnyFact
    from hayate_matrix.demo.homeserver import Login
    from tests.support.fabricated import FabricatedHomeserver

BOT = "@bot:fab.test"
ALICE = "@alice:fab.test"


class QuickClock:
    """The real time, `speed` times as fast, so that a pause of a minute is over in a second; `skip` adds to it."""

    def __init__(self, speed: float = 50.0) -> None:
        self._speed = speed
        self._zero = time.monotonic()
        self._began = datetime.now(UTC)
        self._skipped_s = 0.0

    def now(self) -> datetime:
        return self._began + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return (time.monotonic() - self._zero) * self._speed + self._skipped_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)

    def skip(self, seconds: float) -> None:
        self._skipped_s += seconds


@dataclass
class Heard:
    """A sink that keeps what it is handed, each event once, as the harness does."""

    facts: list[AnyFact] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    handed: int = 0

    async def accept(self, facts: Sequence[AnyFact]) -> None:
        known = {fact.event_id for fact in self.facts}
        self.handed += len(facts)
        self.batches.append(len(facts))
        self.facts += [fact for fact in facts if fact.event_id not in known]

    @property
    def texts(self) -> list[str]:
        """The bodies of the messages, in order."""
        return [fact.body for fact in self.facts if isinstance(fact, Message)]


class EdgeWorld:
    """A bot's edge on one home that can be killed and opened again."""

    def __init__(self, server: FabricatedHomeserver, home: Path, login: Login, **options: Any) -> None:
        self.server = server
        self.home = home
        self.login = login
        self.heard = Heard()
        self.clock = QuickClock()
        self.key = b"k" * 32
        self.options = options
        self.edge: Edge
        self.http: Http

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def make_edge(self, **changed: Any) -> Edge:
        """Return an edge that is not open yet."""
        options = {**self.options, **changed}
        rooms = options.pop("rooms", None)
        policy = Policy(
            own_user_id=UserId(self.login.user_id),
            rooms=None if rooms is None else tuple(parse_room(text) for text in rooms),
            people=options.pop("people", None),
            inviters=options.pop("inviters", None),
        )
        self.http = Http(self.server.url, self.clock, access_token=self.login.access_token, jitter=0.0)
        credentials = Credentials(
            homeserver=self.server.url,
            user_id=UserId(self.login.user_id),
            device_id=self.login.device_id,  # type: ignore[arg-type]  # a plain text in the support code
            access_token=self.login.access_token,
        )
        account = Account(self.http, self.home / "secrets", credentials, read_password=lambda: "pw", device_name="test")
        self.keystore = KeyStore(self.home / "matrix.db", Sealer(self.key), self.clock)
        may_take = options.pop("may_take", lambda: True)
        return Edge(self.keystore, self.http, account, self.clock, EdgeOptions(policy=policy, **options), may_take=may_take)

    async def open(self, **changed: Any) -> None:
        """Start the edge; the first sync follows by itself."""
        self.edge = self.make_edge(**changed)
        await self.edge.open()
        await self.edge.start(self.heard)

    async def close(self) -> None:
        """Stop the edge in order."""
        with contextlib.suppress(AttributeError):
            await self.edge.stop()

    async def restart(self, **changed: Any) -> None:
        """Stop, and start again on the same home."""
        await self.close()
        await self.open(**changed)

    async def synced(self) -> None:
        """Return when the edge has applied all that the homeserver has now."""
        self.server.adds_to_sync({})
        position = self.server.position

        def look() -> bool:
            text = self.edge.sync.position
            return text is not None and int(text.strip("s")) >= position

        await eventually(look, what=lambda: f"sync position {position}")

    async def hears(self, *texts: str, timeout_s: float = 20.0) -> None:
        """Return when these messages, and no others, were handed over in this order."""
        await eventually(lambda: len(self.heard.texts) >= len(texts), timeout_s=timeout_s, what=lambda: f"heard {self.heard.texts}")
        assert self.heard.texts == list(texts)

    async def count(self, name: str) -> int:
        """Return a counter that the operator sees."""
        return (await self.edge.read_counts()).get(name, 0)

    def delivery(self, room_id: str, text: str = "answer", *, kind: DeliveryKind = "reply", request: str | None = None) -> Delivery:
        """Return a fresh delivery."""
        now = self.clock.now()
        return Delivery(
            id=DeliveryId(make_uuid7(now)),
            room_id=RoomId(room_id),
            kind=kind,
            text=text,
            request=EventId(request) if request else None,
            created_at_ms=int(now.timestamp() * 1000),
        )
