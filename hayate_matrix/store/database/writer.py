"""The one writer of a database, and its reader beside it.

Promise: each transaction is whole or nothing, by itself; when its caller goes on, it is committed or rolled back.
How: transactions that wait at the same moment share one commit, which costs as much for many as for one: they run one behind the other
     in one transaction of the database, each in a savepoint of its own. One that fails goes back to its savepoint, and only its caller
     hears of it; what loses the database's transaction (a full disk, a cut connection, a commit that fails) is told to all of them.
     Nothing here is awaited.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, TypeVar, cast

import sqlalchemy
from sqlalchemy import text

from hayate_matrix.errors import HomeBusyError, StoreError
from hayate_matrix.store.database.calls import CallThread
from hayate_matrix.store.database.faults import RECONNECT, find_fault
from hayate_matrix.store.database.prepared import SwiftConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.store.database.calls import Call
    from hayate_matrix.store.database.drivers import Driver

T = TypeVar("T")
Connection = sqlalchemy.Connection
"""What work in a transaction is handed; other parts pass it on to the stores and know nothing of it."""
BEGUN_BY_DRIVER = "hayate_begun_by_driver"
"""Option of a connection whose transactions SQLAlchemy must not begin."""

_MOST_TOGETHER = 64
"""Transactions in one commit. The first waits for the last: at most some 50 ms of statements, and `_LONGEST_S` for large ones."""
_LONGEST_S = 0.05
"""No further transaction joins when so long was worked."""
_ACCOUNT_LOCK = 0x6D786964  # PostgreSQL advisory locks are numbers; this one spells "mxid".


class Database:
    """One open database; made by `open_database`."""

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._clock = clock
        self.dialect = engine.dialect.name
        """`sqlite` or `postgresql`."""
        self._writing = CallThread("store-writer", self._write, lambda: self._close("_writer"))
        self._reading = CallThread("store-reader", self._look, lambda: self._close("_reader"))
        self._writer: SwiftConnection | None = None
        self._reader: SwiftConnection | None = None
        self._is_lost = False

    async def transaction(self, name: str, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction in the writer thread and return what it returned, after the commit.

        Contract: `name` is a literal, `area.verb`, used once in the code; the crash tests read the list of durable steps from it. `work`
        changes nothing but the database, since it may be rolled back after it ended well.
        A caller that is cancelled meanwhile gets its CancelledError after the commit or roll-back, never in between.

        Raises:
            DiskLow: the disk is full; nothing was changed.
            StoreError: the database can't go on; nothing was changed, unless PostgreSQL's answer to the commit was lost.
        """
        return cast("T", await self._writing.call(name, work))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on a consistent state of the database and return what it returned; writes are refused.

        Raises:
            StoreError: the database can't be read.
        """
        return cast("T", await self._reading.call("A lookup", work))

    async def own_account(self, user_id: str) -> None:
        """On PostgreSQL, own the account for the life of this database: one bot process serves it. On SQLite the home's lock does that.

        Raises:
            HomeBusyError: another process serves the account; the text names it.
        """
        if self.dialect == "postgresql":
            # On the writer's own connection: whoever loses the lock can't write either.
            await self._writing.call("the account's lock", lambda connection: _lock_account(connection, user_id))

    def close(self) -> None:
        """Let what waits be done and close all connections; further calls change nothing."""
        self._writing.close()
        self._reading.close()
        self._engine.dispose()

    def _close(self, name: str) -> None:
        connection: Connection | None = getattr(self, name)
        if connection is not None:
            setattr(self, name, None)
            with contextlib.suppress(sqlalchemy.exc.DBAPIError):  # a connection that is gone
                connection.close()

    def _connect(self) -> SwiftConnection:
        connection = SwiftConnection(self._engine)
        connection.execution_options(**{BEGUN_BY_DRIVER: True})
        connection.begin()
        return connection

    def _write(self, first: Call, take: Callable[[], Call | None]) -> list[Call]:
        """Run `first`, and what waits behind it, in one transaction of the database; return them all with what became of each."""
        if self._is_lost:
            first.error = StoreError(f"The step {first.name} was not taken: the connection to the database was lost.", remedy=RECONNECT)
            return [first]
        together = [first]
        driver: Driver | None = None
        try:
            if self._writer is None:
                self._writer = self._connect()
            driver = self._writer.driver
            driver.begin(is_reading=False)
            if not self._run_one(driver, first):
                driver.roll_back()
                return together
            until = self._clock.monotonic() + _LONGEST_S if self._clock is not None else 0.0
            while (
                len(together) < _MOST_TOGETHER and (self._clock is None or self._clock.monotonic() < until) and (call := take()) is not None
            ):
                together.append(call)
                driver.save()
                if not self._run_one(driver, call):
                    driver.undo()
            driver.commit()
        except Exception as error:  # noqa: BLE001 - every caller hears of it
            self._lose(driver, together, error)
        return together

    def _run_one(self, driver: Driver, call: Call) -> bool:
        """Run one call; False where it failed by itself, and what it did must be undone."""
        try:
            call.result = call.work(cast("Connection", self._writer))
        except BaseException as error:
            if find_fault(error, "") is not None:
                raise
            call.error = error
            return False
        if not driver.is_sound:
            call.error = RuntimeError(f"The step {call.name} went on after an error of the database.")
            return False
        return True

    def _lose(self, driver: Driver | None, together: list[Call], error: Exception) -> None:
        """Roll the database's transaction back and say so to everybody in it."""
        with contextlib.suppress(Exception):  # a connection that is gone
            if driver is not None:
                driver.roll_back()
        # SQLAlchemy would connect again by itself, without the account's lock.
        self._is_lost = getattr(error, "connection_invalidated", False) or (driver is not None and driver.is_gone)
        for call in together:
            fault = find_fault(error, f"The step {call.name}")
            if fault is None:
                fault = StoreError(f"The step {call.name} was lost with its transaction: {error}.", remedy="Nothing was changed.")
                fault.__cause__ = error
            call.result, call.error = None, fault

    def _look(self, call: Call, _take: Callable[[], Call | None]) -> list[Call]:
        """Run one read; it never shares the state that an earlier one sees, which its caller's own commit may be missing from."""
        try:
            if self._reader is None:
                self._reader = self._connect()
                if self.dialect == "sqlite":
                    self._reader.exec_driver_sql("PRAGMA query_only = ON")
            driver = self._reader.driver
            driver.begin(is_reading=True)
            try:
                call.result = call.work(self._reader)
            finally:
                driver.roll_back()
        except BaseException as error:  # noqa: BLE001 - the caller hears of it
            call.error = find_fault(error, call.name) or error
        return [call]


def _lock_account(connection: Connection, user_id: str) -> None:
    """Take the account's advisory lock, which lasts as long as the connection."""
    number = int.from_bytes(hashlib.sha256(user_id.encode()).digest()[:4], "big", signed=True)
    key = {"space": _ACCOUNT_LOCK, "number": number}
    if connection.scalar(text("SELECT pg_try_advisory_lock(:space, :number)"), key):
        return
    holder = connection.execute(
        text(
            "SELECT a.application_name, coalesce(host(a.client_addr), 'this machine') AS place, a.backend_start FROM pg_locks l"
            " JOIN pg_stat_activity a ON a.pid = l.pid"
            " WHERE l.locktype = 'advisory' AND l.granted AND l.classid::bigint = :space"
            " AND l.objid::bigint = (:number)::bigint & 4294967295"
        ),
        key,
    ).first()
    who = "another process"
    if holder is not None:
        who = f"{holder.application_name} on {holder.place}, connected since {holder.backend_start:%Y-%m-%dT%H:%M:%SZ}"
    problem = f"The account {user_id} is served by {who}."
    raise HomeBusyError(problem, remedy="Stop that process first: one bot process serves an account.")
