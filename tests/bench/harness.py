"""PERF-6: the harness alone, from a fact to a delivery that is recorded, everything durable, beside the commit rate of its own store.

Each person says something, waits for the answer and says the next thing; the gateway is in this process and only remembers. The reference
is the same layer on the same disk and database, one commit at a time with one small insert. Rounds of both take turns.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert

from hayate_matrix.app import SystemClock
from hayate_matrix.core.allowlist import Policy
from hayate_matrix.core.deliveries import Sent
from hayate_matrix.core.facts import Message
from hayate_matrix.core.ids import ConversationId, EventId, RoomId, UserId
from hayate_matrix.harness.harness import Harness
from hayate_matrix.harness.rules import Rules
from hayate_matrix.runtime.scripted import ScriptedRuntime
from hayate_matrix.store.database import Database, open_database
from hayate_matrix.store.schema import meta
from hayate_matrix.store.sealing import Sealer
from hayate_matrix.store.stores import Stores
from tests.support.postgres import find_binaries, run_postgres

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hayate_matrix.core.deliveries import Delivery
    from hayate_matrix.store.database.prepared import SwiftConnection
    from tests.bench.report import Report

ROUNDS = 5
COMMITS = 200
TURNS = 160
TOGETHER = 16
"""Conversations at a time."""
COMMITS_A_TURN = 4
SHARE = 0.8

_INSERT = insert(meta)
_BOT = UserId("@bot:example.org")
ALICE = UserId("@alice:example.org")


class _Counting(Database):
    """The real database, counting its commits."""

    commits = 0

    def _connect(self) -> SwiftConnection:
        connection = super()._connect()
        driver: Any = connection.driver
        commit = driver.commit

        def commit_and_count() -> None:
            commit()
            self.commits += 1

        driver.commit = commit_and_count
        return connection


class _Gateway:
    """Takes every delivery at once and tells who waits for it."""

    def __init__(self) -> None:
        self.waiting: dict[EventId, asyncio.Future[str]] = {}

    async def deliver(self, delivery: Delivery) -> Sent:
        if delivery.request is not None:
            self.waiting.pop(delivery.request).set_result(delivery.text)
        return Sent(event_ids=(EventId(f"${delivery.id}"),))

    async def show_typing(self, room_id: RoomId, *, is_typing: bool) -> None:
        """Nobody sees it."""

    async def mark_read(self, room_id: RoomId, event_id: EventId) -> None:
        """Nobody sees it."""


class World:
    """A harness on a database, and people who talk to it."""

    def __init__(self, url: str) -> None:
        sealer = Sealer(bytes(32))
        clock = SystemClock()
        self.database = _Counting(open_database(url, key_id=sealer.key_id)._engine, clock)
        self.gateway = _Gateway()
        # A turn here never waits for a model, so as many run as there are conversations.
        rules = Rules(policy=Policy(own_user_id=_BOT), loop_breaker=1_000_000, parallel_turns=TOGETHER)
        self.harness = Harness(self.database, sealer, clock=clock, runtime=ScriptedRuntime(clock), gateway=self.gateway, rules=rules)
        self.stores = Stores(self.database, sealer)
        self.conversations: dict[RoomId, ConversationId] = {}
        self._numbers = itertools.count()

    async def ask(self, room: RoomId, body: str = "echo what #release says") -> str:
        """Say something in a room and return the answer once it was delivered."""
        number = next(self._numbers)
        event_id = EventId(f"$event{number}")
        fact = Message(
            event_id=event_id,
            room_id=room,
            sender=ALICE,
            sent_at_ms=number,
            msgtype="m.text",
            body=body,
            is_direct=True,
        )
        answer = self.gateway.waiting[event_id] = asyncio.get_running_loop().create_future()
        await self.harness.sink.accept([fact])
        return await answer

    async def talk(self, conversations: int) -> float:
        """Return the turns a second of so many conversations at a time."""

        async def converse(room: RoomId) -> None:
            for _ in range(TURNS // conversations):
                await self.ask(room)

        began = time.perf_counter()
        await asyncio.gather(*(converse(RoomId(f"!{number}:example.org")) for number in range(conversations)))
        await self.harness.idle()
        return TURNS / (time.perf_counter() - began)

    async def commit(self) -> float:
        """Return the commits a second of one after the other."""
        began = time.perf_counter()
        for _ in range(COMMITS):
            row = {"name": f"bench{next(self._numbers)}", "value": "x"}
            await self.database.transaction("bench.reference", lambda connection, row=row: connection.execute(_INSERT, row))  # type: ignore[misc]
        return COMMITS / (time.perf_counter() - began)


async def measure(folder: Path, report: Report) -> None:
    """Run it on each database that is there, and report."""
    await _measure_one(f"sqlite:///{folder / 'hayate.db'}", "SQLite", report)
    if find_binaries() is None:
        report.note("PERF-6", "not measured on PostgreSQL: it is not installed")
        return
    with run_postgres(is_durable=True) as postgres:
        await _measure_one(postgres.make_database(), "PostgreSQL", report)


async def _measure_one(url: str, name: str, report: Report) -> None:
    world = World(url)
    await world.harness.start()
    try:
        await world.talk(TOGETHER)  # statements are compiled, files have grown
        commits: dict[str, list[float]] = {"alone": [], "together": []}
        rates: dict[str, list[float]] = {"commit": [], "alone": [], "together": []}
        for _ in range(ROUNDS):
            rates["commit"].append(await world.commit())
            for kind, conversations in (("alone", 1), ("together", TOGETHER)):
                before = world.database.commits
                rates[kind].append(await world.talk(conversations))
                commits[kind].append((world.database.commits - before) / TURNS)
    finally:
        await world.harness.stop()
        world.database.close()
    median: Callable[[list[float]], float] = statistics.median
    reference = median(rates["commit"]) / COMMITS_A_TURN
    report.alone("PERF-6", f"commits a turn, one conversation, {name}", median(commits["alone"]), "", bar=COMMITS_A_TURN)
    report.note("PERF-6", f"commits a turn, {TOGETHER} conversations at a time, {name}: {median(commits['together']):.2f}")
    for kind, words in (("together", f"{TOGETHER} conversations at a time"), ("alone", "one conversation")):
        report.beside(
            "PERF-6",
            f"turns, {words}, {name}",
            median(rates[kind]),
            reference,
            "/s",
            peer="its own commit rate ÷ 4",
            bar=SHARE,
            at_least=True,
        )
