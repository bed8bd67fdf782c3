"""The one writer of a database, and its reader beside it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import sqlalchemy
from sqlalchemy import text

from hayate_matrix.errors import HomeBusyError, StoreError
from hayate_matrix.store.database.faults import RECONNECT, reject

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

T = TypeVar("T")
Connection = sqlalchemy.Connection
"""What work in a transaction is handed; other parts pass it on to the stores and know nothing of it."""

_ACCOUNT_LOCK = 0x6D786964  # PostgreSQL advisory locks are numbers; this one spells "mxid".


class Database:
    """One open database; made by `open_database`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.dialect = engine.dialect.name
        """`sqlite` or `postgresql`."""
        self._writer_thread = ThreadPoolExecutor(1, "store-writer")
        self._reader_thread = ThreadPoolExecutor(1, "store-reader")
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._is_lost = False

    async def transaction(self, name: str, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction in the writer thread and return what it returned, after the commit.

        Contract: `name` is a literal, `area.verb`, used once in the code; the crash tests read the list of durable steps from it.
        A caller that is cancelled meanwhile gets its CancelledError after the commit or roll-back, never in between.

        Raises:
            DiskLow: the disk is full; nothing was changed.
            StoreError: the database can't go on; nothing was changed, unless PostgreSQL's answer to the commit was lost.
        """
        return await self._run(self._writer_thread, partial(self._write, name, work))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on a consistent state of the database and return what it returned; writes are refused.

        Raises:
            StoreError: the database can't be read.
        """
        return await self._run(self._reader_thread, partial(self._look, work))

    def own_account(self, user_id: str) -> None:
        """On PostgreSQL, own the account for the life of this database: one bot process serves it. On SQLite the home's lock does that.

        Raises:
            HomeBusyError: another process serves the account; the text names it.
        """
        if self.dialect == "postgresql":
            # On the writer's own connection: whoever loses the lock can't write either.
            self._writer_thread.submit(self._write, "the account's lock", partial(_lock_account, user_id=user_id)).result()

    def close(self) -> None:
        """Let the running transaction end and close all connections; further calls change nothing."""
        for thread, connection in ((self._writer_thread, self._writer), (self._reader_thread, self._reader)):
            with contextlib.suppress(RuntimeError):  # closed before
                thread.submit(connection.close if connection is not None else _do_nothing).result()
            thread.shutdown()
        self._writer = self._reader = None
        self._engine.dispose()

    async def _run(self, thread: ThreadPoolExecutor, job: Callable[[], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(thread, job)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # Invariant: when a caller goes on, its transaction is over.
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await asyncio.shield(future)
            raise

    def _write(self, name: str, work: Callable[[Connection], T]) -> T:
        if self._is_lost:
            raise StoreError(f"The step {name} was not taken: the connection to the database was lost.", remedy=RECONNECT)
        try:
            if self._writer is None:
                self._writer = self._engine.connect()
            with self._writer.begin():
                return work(self._writer)
        except sqlalchemy.exc.DBAPIError as error:
            # SQLAlchemy would connect again by itself, without the account's lock.
            self._is_lost = error.connection_invalidated
            reject(error, f"The step {name}")

    def _look(self, work: Callable[[Connection], T]) -> T:
        try:
            if self._reader is None:
                self._reader = self._engine.connect().execution_options(hayate_read_only=True, postgresql_readonly=True)
                if self.dialect == "sqlite":
                    self._reader.exec_driver_sql("PRAGMA query_only = ON")
                    self._reader.rollback()
            with self._reader.begin():
                return work(self._reader)
        except sqlalchemy.exc.DBAPIError as error:
            reject(error, "A lookup")


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


def _do_nothing() -> None:
    """Stand in for the close of a connection that was never made."""
