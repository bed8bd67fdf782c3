"""The connection of `matrix.db`: its thread, its transactions, and the check that it belongs to this device."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from hayate_matrix.errors import EncryptionError, HayateError, StoreError
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.keystore.crypto import CryptoStore
from hayate_matrix.matrix.keystore.owed import Owed
from hayate_matrix.matrix.keystore.roomrows import RoomRows
from hayate_matrix.matrix.keystore.schema import SCHEMA_VERSION, TABLES
from hayate_matrix.matrix.keystore.spool import Spool
from hayate_matrix.matrix.keystore.trust import Trust

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.store.sealing import Sealer

_log = get_logger(__name__)
T = TypeVar("T")
_RESTORE = "Restore a backup; do not delete the file, its keys read old messages."

PICKLE_PURPOSE = "matrix.pickle"
"""Name under which the key of nio's pickles is derived from the sealing key."""


class KeyStore:
    """`matrix.db`, opened by one process for one device."""

    def __init__(self, path: Path, sealer: Sealer, clock: Clock) -> None:
        self.path = path
        self.sealer = sealer
        self.clock = clock
        self.on_rollback: list[Callable[[], None]] = []
        """Called in the edge's thread after a rollback: whoever caches rows empties its cache."""
        self.commits = 0
        """Transactions that reached the disk since the start; the bench counts them."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="edge")
        self._thread_id = 0
        self._db: sqlite3.Connection | None = None
        self._is_open = False
        self.crypto: CryptoStore
        self.rooms: RoomRows
        self.spool: Spool
        self.trust: Trust
        self.owed: Owed

    async def open(self, user_id: str, device_id: str) -> None:
        """Open the file, making it at the first start.

        Raises:
            StoreError: damaged, or written by a newer program; nothing was changed.
            EncryptionError: it belongs to another user or device.
        """
        await self._run(lambda: self._open(user_id, device_id))

    async def transaction(self, name: str, work: Callable[[], T]) -> T:
        """Run `work` in the edge's thread, in one transaction; return what it returns once that is on disk.

        Args:
            name: literal name of the durable step, unique in the program: the crash tests read the list from the code.
            work: synchronous; it must not wait for anything.

        Raises:
            Whatever `work` raises: everything is rolled back, on disk and in memory.
        """
        return await self._run(lambda: self._transact(name, work))

    async def read(self, work: Callable[[], T]) -> T:
        """Run `work`, which only reads, in the edge's thread."""
        return await self._run(work)

    def read_blocking(self, work: Callable[[], T]) -> T:
        """Run `work`, which only reads, in the edge's thread and wait for it; for other threads, never for the event loop."""
        return self._thread.submit(work).result()

    async def close(self) -> None:
        """Close the connection and end the thread; the work before it is finished first."""
        if self._is_open:
            await self._run(self._close)
        self._thread.shutdown(wait=True)

    @property
    def db(self) -> sqlite3.Connection:
        """The connection, for the row modules alone; refused outside the edge's thread."""
        if self._db is None or threading.get_ident() != self._thread_id:
            message = "matrix.db is touched only in the edge's thread: use transaction or read"
            raise RuntimeError(message)
        return self._db

    def read_meta(self, name: str) -> str | None:
        """Return the value of `name`, or None (edge's thread)."""
        row = self.db.execute("select value from meta where name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def write_meta(self, name: str, value: str) -> None:
        """Set `name` (edge's thread, in a transaction)."""
        self.db.execute(
            "insert into meta (name, value) values (?, ?) on conflict (name) do update set value = excluded.value", (name, value)
        )

    def read_secret(self, name: str) -> str | None:
        """Return the sealed secret `name`, or None (edge's thread)."""
        row = self.db.execute("select value from secrets where name = ?", (name,)).fetchone()
        return None if row is None else self.sealer.open("matrix.secret", name, row[0])

    def write_secret(self, name: str, value: str) -> None:
        """Seal and keep `value` (edge's thread, in a transaction)."""
        sealed = self.sealer.seal("matrix.secret", name, value)
        self.db.execute(
            "insert into secrets (name, value) values (?, ?) on conflict (name) do update set value = excluded.value", (name, sealed)
        )

    def now_ms(self) -> int:
        """Return this machine's time in milliseconds; for ages and pauses, never for order."""
        return int(self.clock.now().timestamp() * 1000)

    async def _run(self, work: Callable[[], T]) -> T:
        # Shielded: a cancelled caller must not leave the thread in the middle of work that nobody waits for.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, work))

    def _transact(self, name: str, work: Callable[[], T]) -> T:
        db = self.db
        db.execute("begin immediate")
        try:
            result = work()
            db.execute("commit")
        except BaseException:
            if db.in_transaction:
                db.execute("rollback")
            for forget in self.on_rollback:
                forget()
            _log.warning("transaction of the edge rolled back", step=name)
            raise
        self.commits += 1
        return result

    def _open(self, user_id: str, device_id: str) -> None:
        self._thread_id = threading.get_ident()
        is_new = not self.path.exists()
        if is_new:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600))
        try:
            self._check_whole()
            crypto = CryptoStore(
                user_id, device_id, str(self.path.parent), pickle_key=self.sealer.derive(PICKLE_PURPOSE).hex(), database_name=self.path.name
            )
            self._db = db = crypto.database.connection()
            try:
                db.execute("begin immediate")
                db.execute(f"pragma user_version = {SCHEMA_VERSION}")
                for statement in TABLES:
                    db.execute(statement)
                self._check_owner(user_id, device_id)
                db.execute("commit")
            except BaseException:
                self._db = None
                crypto.database.close()
                raise
        except sqlite3.DatabaseError as error:
            problem = f"{self.path} can't be opened: {error}."
            raise StoreError(problem, remedy=_RESTORE) from error
        except HayateError:
            raise
        except Exception as error:  # peewee wraps sqlite's errors in classes of its own
            problem = f"{self.path} can't be opened: {error}."
            raise StoreError(problem, remedy=_RESTORE) from error
        self.crypto = crypto
        crypto.bind(self)
        self.rooms = RoomRows(self)
        self.spool = Spool(self)
        self.trust = Trust(self)
        self.owed = Owed(self)
        self._is_open = True

    def _close(self) -> None:
        self._is_open = False
        self.db.execute("pragma optimize")
        self.crypto.database.close()
        self._db = None

    def _check_whole(self) -> None:
        """Refuse a damaged file and a newer one, on a connection of its own: nio's would write to it at once."""
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            if db.execute("pragma quick_check(1)").fetchone()[0] != "ok":
                raise StoreError(f"{self.path} is damaged.", remedy=_RESTORE)
            version = db.execute("pragma user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            problem = f"matrix.db has schema {version}; this program knows {SCHEMA_VERSION}."
            raise StoreError(problem, remedy="Start the newer version of hayate-matrix again, or restore a backup made before the update.")

    def _check_owner(self, user_id: str, device_id: str) -> None:
        for name, value in (("user_id", user_id), ("device_id", device_id)):
            stored = self.read_meta(name)
            if stored is None:
                self.write_meta(name, value)
            elif stored != value:
                problem = f"The key store {self.path} belongs to {name} {stored}, the login to {value}."
                remedy = "Use the home that belongs to this login, or another HAYATE_HOME for the new one; the store was not changed."
                raise EncryptionError(problem, remedy=remedy)
