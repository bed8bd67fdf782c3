"""How SQLite finds the rows of the store's statements."""

from __future__ import annotations

import importlib
import pkgutil
import re
import warnings
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

import hayate_matrix.store
from hayate_matrix.store.database import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hayate_matrix.store.database import Connection

WALKS = {
    "conversations._BY_ID": "a part of other statements",
    "inbox._OPEN": "a part of other statements",
    "sessions._READ": "a part of other statements",
    "outbox._COUNT": "counts everything, for the operator alone",
    "export._CONVERSATIONS": "exports everything",
}
"""Statements that may walk a whole table, and why."""


def list_statements() -> Iterator[tuple[str, sa.Executable]]:
    for module in pkgutil.iter_modules(hayate_matrix.store.__path__):
        if not module.ispkg:
            for name, value in vars(importlib.import_module(f"hayate_matrix.store.{module.name}")).items():
                if isinstance(value, sa.Select | sa.Insert | sa.Update | sa.Delete):
                    yield f"{module.name}.{name}", value


@pytest.mark.requirement("PERF-6", "IDX-10")
async def test_no_statement_of_daily_work_walks_a_table(tmp_path: Path) -> None:
    """Each finds its rows by an index, however many there are; an index of some rows only is found by the words of its condition."""
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
            if any(re.match(r"SCAN (?!CONSTANT)(?!\S+ USING)(?!found)", row[3]) for row in plan):
                walking.add(name)
        return walking

    try:
        assert await database.transaction("test.plans", explain) == set(WALKS)
    finally:
        database.close()
