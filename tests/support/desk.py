"""A harness at work in one process, with rooms that are made up: people say things, and what the rooms saw can be read."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from hayate_matrix.core.allowlist import Policy
from hayate_matrix.core.facts import Edit, Membership, Message, Redaction
from hayate_matrix.core.ids import EventId, RoomId, UserId
from hayate_matrix.harness.harness import Harness
from hayate_matrix.harness.rules import Rules, Senses
from hayate_matrix.runtime.scripted import ScriptedRuntime
from hayate_matrix.store.database import Database, open_database
from hayate_matrix.store.sealing import Sealer
from tests.support.clock import JumpingClock
from tests.support.gateway import FakeGateway
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import TypeVar

    from hayate_matrix.core.facts import AnyFact
    from hayate_matrix.core.transcript import Said
    from hayate_matrix.runtime.contract import Prompt, Runtime, Tool
    from hayate_matrix.store.database import Connection

    T = TypeVar("T")

BOT = UserId("@bot:example.org")
ALICE = UserId("@alice:example.org")
BOB = UserId("@bob:example.org")
ROOM = RoomId("!room:example.org")
DIRECT = RoomId("!direct:example.org")
DEADLINE_S = 30.0


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class MortalDatabase(Database):
    """The real database, which can be told to die at a durable step, before or behind its commit."""

    names: list[str]
    """The steps that were committed, in order."""
    is_dead = False
    countdown: int | None = None
    is_behind = False
    kill_at: str | None = None

    async def transaction(self, name: str, work: Callable[[Connection], T]) -> T:
        if self.is_dead:
            raise Killed
        is_last = self.kill_at == name
        if self.countdown is not None:
            self.countdown -= 1
            is_last = is_last or self.countdown <= 0
        if is_last and not self.is_behind:
            self.is_dead = True
            raise Killed
        result = await super().transaction(name, work)
        self.names.append(name)
        if is_last:
            self.is_dead = True
        if self.is_dead:
            raise Killed
        return result


class CountingRuntime(ScriptedRuntime):
    """The scripted runtime, counting how often it was asked."""

    def __init__(self, clock: JumpingClock) -> None:
        super().__init__(clock)
        self.prompts: list[Prompt] = []

    async def prompt(self, prompt: Prompt) -> Said:
        self.prompts.append(prompt)
        return await super().prompt(prompt)


class Desk:
    """Rooms, people and a harness whose process can end in any way and begin again on the same files."""

    def __init__(self, folder: Path, *, url: str | None = None, rules: dict[str, Any] | None = None, is_eager: bool = False) -> None:
        self.url = url or f"sqlite:///{folder / 'hayate.db'}"
        self.sealer = Sealer(bytes(range(32)))
        self.clock = JumpingClock(is_eager=is_eager)
        self.gateway = FakeGateway()
        self.tools: list[Tool] = []
        self.runtime: Runtime = CountingRuntime(self.clock)
        self.senses = Senses()
        self.rules = Rules(**{"policy": Policy(own_user_id=BOT), "loop_breaker": 1000, "typing": False, **(rules or {})})
        self._numbers = itertools.count(1)
        self.database: MortalDatabase
        self.harness: Harness

    async def start(self) -> None:
        opened = open_database(self.url, key_id=self.sealer.key_id)
        self.database = MortalDatabase(opened._engine)
        self.database.names = []
        self.harness = Harness(
            self.database,
            self.sealer,
            clock=self.clock,
            runtime=self.runtime,
            gateway=self.gateway,
            rules=self.rules,
            tools=self.tools,
            senses=self.senses,
        )
        await self.harness.start()

    async def stop(self) -> None:
        await asyncio.wait_for(self.harness.stop(), DEADLINE_S)
        self.database.close()

    async def crash(self) -> None:
        """End it as SIGKILL would: nothing more is committed, nobody is told."""
        self.database.is_dead = True
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.database.close()

    async def idle(self) -> None:
        await asyncio.wait_for(self.harness.idle(), DEADLINE_S)

    def message(self, body: str, *, room: RoomId = DIRECT, sender: UserId = ALICE, **fields: Any) -> Message:
        number = next(self._numbers)
        event_id = fields.pop("event_id", EventId(f"$event{number}"))
        fields.setdefault("is_direct", room == DIRECT)
        return Message(event_id=event_id, room_id=room, sender=sender, sent_at_ms=number, msgtype="m.text", body=body, **fields)

    def edit(self, target: Message, body: str, **fields: Any) -> Edit:
        number = next(self._numbers)
        fields.setdefault("sender", target.sender)
        return Edit(
            event_id=EventId(f"$event{number}"),
            room_id=target.room_id,
            sent_at_ms=number,
            target=target.event_id,
            body=body,
            is_direct=target.is_direct,
            **fields,
        )

    def redaction(self, target: Message | Edit) -> Redaction:
        number = next(self._numbers)
        return Redaction(event_id=EventId(f"$event{number}"), room_id=target.room_id, sender=BOB, sent_at_ms=number, target=target.event_id)

    def own(self, membership: str, room: RoomId = DIRECT) -> Membership:
        number = next(self._numbers)
        return Membership(
            event_id=EventId(f"$event{number}"),
            room_id=room,
            sender=BOB,
            sent_at_ms=number,
            user=BOT,
            membership=membership,  # type: ignore[arg-type]
            is_own=True,
        )

    async def accept(self, *facts: Any) -> None:
        await self.harness.sink.accept(facts)

    async def say(self, body: str, **fields: Any) -> Message:
        """Say something and return the message, without waiting for its answer."""
        message = self.message(body, **fields)
        await self.accept(message)
        return message

    async def ask(self, body: str, **fields: Any) -> Sequence[str]:
        """Say something, wait until nothing more is to do, and return what the room saw since."""
        seen = len(self.gateway.room)
        await self.say(body, **fields)
        await self.idle()
        return [delivery.text for delivery in self.gateway.room[seen:]]

    async def ask_now(self, body: str, **fields: Any) -> str:
        """Say something that is answered while turns go on, and return that answer."""
        seen = len(self.gateway.room)
        message = await self.say(body, **fields)
        await eventually(lambda: any(delivery.request == message.event_id for delivery in self.gateway.room[seen:]))
        return next(delivery.text for delivery in self.gateway.room[seen:] if delivery.request == message.event_id)

    async def count(self, statement: str, *values: str) -> int:
        """Return the number that a query gives."""
        return await self.database.read(lambda connection: connection.exec_driver_sql(statement, values).scalar_one())


def make_hostile_facts(desk: Desk) -> list[AnyFact]:
    """Facts with ids, texts and numbers that a database may not take; `a`, `d` and `e` can be answered."""
    endless = "$" + "".join(f"{number:x}" for number in range(20_000))  # nothing that a database could compress
    return [
        desk.message("echo a"),
        desk.message("echo b", event_id=EventId("$\x00")),
        desk.message("echo c", event_id=EventId("$\ud800")),
        desk.message("echo f", thread=endless),
        dataclasses.replace(desk.edit(desk.message("never sent"), "echo g"), target=EventId(endless)),
        dataclasses.replace(desk.message("echo d\ud800\x00"), sent_at_ms=10**30),
        desk.message("echo e" + "x" * 65_536),
    ]
