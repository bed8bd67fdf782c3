"""PERF-8: `/hashtags #tag` where the tag has 1,000,000 pointers, beside the same with 1,000: the whole command, and its one query.

The whole command is a fact handed in, its rows, the lookup, the answer in the outbox, its delivery, all durable. Of the messages that
pointers lead to there are those that the pages show, and as many others as fill the table.
"""

from __future__ import annotations

import random
import statistics
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hayate_matrix.core.ids import ConversationId, RoomId, SessionId, TaskId
from hayate_matrix.core.transcript import Request
from hayate_matrix.store.conversations import find_conversation
from hayate_matrix.store.tags import PAGE_SIZE
from tests.bench.harness import ALICE, World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from hayate_matrix.store.database import Connection
    from tests.bench.report import Report

ROWS = 1_000_000
FEW = 1_000
DEEP_PAGE = ROWS // PAGE_SIZE // 2
OTHER_ENTRIES = 100_000
ROUNDS = 7
COMMANDS = 100
"""Of each kind in a round; percentiles are medians over the rounds."""
P99_MS = 5.0
GROWTH = 2.0

_LARGE, _SMALL = RoomId("!large:example.org"), RoomId("!small:example.org")
_FILL = """
    WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?)
    INSERT INTO tags (conversation_id, tag, ordinal, session_id, entry_id, indexed_at_ms)
    SELECT ?, 'release', i, ?, printf('%s-%08x', ?, i), 1790000000000 + i FROM n
"""
_FILL_ENTRIES = """
    WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?)
    INSERT INTO entries (id, session_id, task_id, kind, event_id, made_at_ms, content)
    SELECT printf('filling-%08x', i), session_id, task_id, 'request', printf('$filling%d', i), made_at_ms, randomblob(120)
    FROM n, (SELECT * FROM entries LIMIT 1)
"""


async def measure(folder: Path, report: Report) -> None:
    """Fill a database, run it and report."""
    world = World(f"sqlite:///{folder / 'hayate.db'}")
    await world.harness.start()
    try:
        for room, rows in ((_LARGE, ROWS), (_SMALL, FEW)):
            await world.ask(room, "echo what is to be found")
            report.say(f"  filling the index with {rows:,} rows")
            await world.database.transaction("bench.fill", lambda connection, room=room, rows=rows: _fill(world, connection, room, rows))  # type: ignore[misc]
        report.say(f"  and {OTHER_ENTRIES:,} other messages")
        await world.database.transaction("bench.entries", lambda connection: connection.exec_driver_sql(_FILL_ENTRIES, (OTHER_ENTRIES,)))
        await _measure(world, report)
    finally:
        await world.harness.stop()
        world.database.close()


async def _measure(world: World, report: Report) -> None:
    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "command, first page": lambda: world.ask(_LARGE, "!hashtags #release"),
        "command, deep page": lambda: world.ask(_LARGE, f"!hashtags #release {DEEP_PAGE}"),
        "command, few": lambda: world.ask(_SMALL, "!hashtags #release"),
        "query, first page": lambda: _find_page(world, _LARGE, 1),
        "query, deep page": lambda: _find_page(world, _LARGE, DEEP_PAGE),
        "query, few": lambda: _find_page(world, _SMALL, 1),
    }
    for way in ways.values():
        await way()
    middles: dict[str, list[float]] = {name: [] for name in ways}
    tails: dict[str, list[float]] = {name: [] for name in ways}
    turns = list(ways)
    for _ in range(ROUNDS):
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(COMMANDS):
            random.shuffle(turns)  # none follows always the same one
            for name in turns:
                began = time.perf_counter()
                await ways[name]()
                taken[name].append((time.perf_counter() - began) * 1000)
        for name, found in taken.items():
            middles[name].append(statistics.median(found))
            tails[name].append(statistics.quantiles(found, n=100)[98])
    median = statistics.median
    for kind, words in (("command", "the whole command"), ("query", "its query")):
        for page in ("first page", "deep page"):
            name = f"{kind}, {page}"
            what = f"{words}, {page} of {ROWS:,} rows, p99 (p50 {median(middles[name]):.2f} ms)"
            report.alone("PERF-8", what, median(tails[name]), "ms", bar=P99_MS)
        few, many = median(middles[f"{kind}, few"]), median(middles[f"{kind}, first page"])
        report.beside("PERF-8", f"{words}, first page, p50", many, few, "ms", peer=f"with {FEW:,} rows", bar=GROWTH)


async def _find_page(world: World, room: RoomId, number: int) -> None:
    stores = world.stores

    def find(connection: Connection) -> None:
        page = stores.tags.find_page(connection, world.conversations[room], "release", number)
        assert len(page.pointers) == PAGE_SIZE

    await world.database.read(find)


def _fill(world: World, connection: Connection, room: RoomId, rows: int) -> None:
    """Give the tag `release` of a room so many pointers; those of the pages that are measured lead to messages."""
    conversation = find_conversation(connection, room)
    assert conversation is not None
    world.conversations[room] = ConversationId(conversation.id)
    session_id, task_id = connection.exec_driver_sql(
        "SELECT s.id, t.id FROM sessions s JOIN tasks t ON t.session_id = s.id WHERE s.conversation_id = ?", (conversation.id,)
    ).one()
    connection.exec_driver_sql(_FILL, (rows, conversation.id, session_id, room))
    now = datetime.now(UTC)
    for page in (1, DEEP_PAGE) if rows == ROWS else (1,):
        for number in range(PAGE_SIZE):
            text = f"what #release says in message {number} of page {page}, at some length, so that there is something to cut"
            entry = world.stores.sessions.append(
                connection, SessionId(session_id), TaskId(task_id), Request(sender=ALICE, text=text), now, event_id=None
            )
            ordinal = rows - (page - 1) * PAGE_SIZE - number
            connection.exec_driver_sql(
                "UPDATE tags SET entry_id = ? WHERE conversation_id = ? AND tag = 'release' AND ordinal = ?",
                (entry, conversation.id, ordinal),
            )
