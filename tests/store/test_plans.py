"""How the databases find the rows of the store's statements."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import warnings
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

import hayate_matrix.store
from hayate_matrix.core.ids import RoomId
from hayate_matrix.store.conversations import ensure_conversation
from hayate_matrix.store.database import open_database
from hayate_matrix.store.schema import sessions
from hayate_matrix.store.sessions import _LIST_IDLE, _LIST_OLD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hayate_matrix.store.database import Connection, Database
    from hayate_matrix.store.stores import Stores

WALKS = {
    "conversations._BY_ID": "a part of other statements",
    "inbox._OPEN": "a part of other statements",
    "sessions._READ": "a part of other statements",
    "outbox._COUNT": "counts everything, for the operator alone",
    "inbox._FIND_LAST": "takes the last key alone",
    "export._CONVERSATIONS": "exports everything",
    "spending._FORGET_ONE": "looks at the refusals of two days",
}
"""Statements that may walk a whole table, and why."""
RANGES = {
    "spending._FORGET": "removes all that it finds",
    "spending._FORGET_TOLD": "removes all that it finds",
}
"""Statements that may walk a range without an end of its own, and why."""
WORK = ("inbox_open", "outbox_owed", "outbox_uncertain", "tasks_open")
"""Indexes of what is not done yet, which are short however much is stored: they may be walked."""
_MAY_WALK = re.compile(rf"SCAN (CONSTANT ROW|found|\w+ USING (COVERING )?INDEX ({'|'.join(WORK)}))( |$)")
"""`found` is what another part of the statement gave."""
_IS_BOUND = re.compile(r"SEARCH \w+ USING (?!AUTOMATIC).*\(\w+=\?")
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def list_statements() -> Iterator[tuple[str, sa.Executable]]:
    for module in pkgutil.iter_modules(hayate_matrix.store.__path__):
        if not module.ispkg:
            for name, value in vars(importlib.import_module(f"hayate_matrix.store.{module.name}")).items():
                if isinstance(value, sa.Select | sa.Insert | sa.Update | sa.Delete):
                    yield f"{module.name}.{name}", value


@pytest.mark.requirement("PERF-6", "IDX-10")
async def test_no_statement_of_daily_work_walks_a_table(tmp_path: Path) -> None:
    """Each finds its rows by equal values in an index, however many there are, or walks an index of work that is not done."""
    database = open_database(tmp_path / "hayate.db")

    def explain(connection: Connection) -> set[str]:
        walking = set()
        for name, statement in list_statements():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an insert without its key, which comes at run time
                compiled = statement.compile(dialect=connection.dialect)  # type: ignore[attr-defined]
                state = compiled.construct_expanded_state(
                    {key.key: [""] if key.expanding else None for key in compiled.binds.values() if key.required}
                )
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {state.statement}", (None,) * len(state.positiontup))
            for line in (row[3] for row in plan):
                if (line.startswith("SCAN") and not _MAY_WALK.match(line)) or (line.startswith("SEARCH") and not _IS_BOUND.match(line)):
                    walking.add(name)
        return walking

    try:
        assert await database.transaction("test.plans", explain) == {*WALKS, *RANGES}
    finally:
        database.close()


def fill_with_stones(connection: Connection, count: int) -> None:
    """Put so many sessions of each kind that upkeep has nothing to do with into the store, and as many old ones; three are idle."""
    conversation = ensure_conversation(connection, RoomId("!room:example.org"), NOW).id
    old, fresh = NOW - timedelta(days=9), NOW
    kinds = [("removed", old, count), ("closed", old, count), ("active", fresh, count), ("active", NOW - timedelta(days=2), 3)]
    rows: list[dict[str, Any]] = [
        {"state": state, "used_at_ms": int(used.timestamp() * 1000) + number} for state, used, many in kinds for number in range(many)
    ]
    for number, row in enumerate(rows):
        row |= {"id": f"{number:08}", "conversation_id": conversation, "focus": f"{number}", "epoch": 0, "made_at_ms": 0, "touched": number}
    connection.execute(sa.insert(sessions), rows)


def look_after(stores: Stores, connection: Connection) -> tuple[list[str], list[str]]:
    """Do what upkeep does each minute: return the states of the idle and of the old sessions."""
    idle = stores.sessions.list_idle(connection, NOW, idle_s=86_400, limit=100)
    return [one.state for one in idle], [one.state for one in stores.sessions.list_old(connection, NOW, keep_days=5, limit=10)]


@pytest.mark.requirement("PERF-6", "SES-3")
async def test_upkeep_reads_only_what_is_due(database: Database, stores: Stores) -> None:
    """However many sessions were closed, were removed, or are in use: upkeep reads those that it will close or remove, and no other."""
    if database.dialect != "sqlite":
        pytest.skip("PostgreSQL counts no steps; its plans are looked at below")

    def count_steps(connection: Connection) -> int:
        steps = 0

        def count() -> None:
            nonlocal steps
            steps += 1

        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(count, 1)
        assert look_after(stores, connection) == (["active"] * 3, ["closed"] * 10)
        driver.set_progress_handler(None, 1)
        return steps

    steps = []
    for many in (20, 2000):
        await database.transaction("test.empty", lambda connection: connection.execute(sa.delete(sessions)))
        await database.transaction("test.stones", lambda connection, many=many: fill_with_stones(connection, many))  # type: ignore[misc]
        steps.append(await database.transaction("test.steps", count_steps))
    assert steps[0] == steps[1]


def list_scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Relation Name" in node:
        yield node
    for below in node.get("Plans", ()):
        yield from list_scans(below)


@pytest.mark.requirement("PERF-6", "SES-3")
async def test_upkeep_goes_by_the_index_on_postgres(database: Database, stores: Stores) -> None:
    """Also there the rows of sessions come from the index of state and use, and none of them is read in vain."""
    if database.dialect != "postgresql":
        pytest.skip("SQLite's steps are counted above")

    def explain(connection: Connection) -> None:
        connection.exec_driver_sql("ANALYZE sessions")
        assert look_after(stores, connection) == (["active"] * 3, ["closed"] * 10)
        for statement, days, limit in ((_LIST_IDLE, 1, 100), (_LIST_OLD, 5, 10)):
            before_ms = int((NOW - timedelta(days=days)).timestamp() * 1000)
            found = connection.exec_driver_sql(
                f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.compile(dialect=connection.dialect)}", {"before_ms": before_ms, "limit": limit}
            ).scalar_one()
            scans = list_scans((json.loads(found) if isinstance(found, str) else found)[0]["Plan"])
            (scan,) = [scan for scan in scans if scan["Relation Name"] == "sessions"]
            assert scan["Index Name"] == "sessions_used"
            assert scan["Actual Rows"] in {3, 10}
            assert not scan.get("Rows Removed by Filter")

    await database.transaction("test.stones", lambda connection: fill_with_stones(connection, 2000))
    await database.transaction("test.explain", explain)


@pytest.mark.requirement("PERF-6", "SES-2")
async def test_messages_are_counted_without_reading_an_entry(database: Database) -> None:
    """A page of sessions counts by an index of requests alone, which also finds the opening message."""
    if database.dialect != "sqlite":
        pytest.skip("PostgreSQL chooses plans by statistics; the indexes are the same")
    plans: dict[str, list[str]] = {}

    def explain(connection: Connection) -> None:
        for name in ("_LIST_PAGE", "_READ_OPENING"):
            text = str(dict(list_statements())[f"sessions.{name}"].compile(dialect=connection.dialect))  # type: ignore[attr-defined]
            values = (None,) * text.count("?")
            plans[name] = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)]

    await database.read(explain)
    assert "SEARCH entries USING COVERING INDEX entries_requests (session_id=? AND kind=?)" in plans["_LIST_PAGE"]
    assert plans["_READ_OPENING"] == ["SEARCH entries USING INDEX entries_requests (session_id=? AND kind=?)"]
