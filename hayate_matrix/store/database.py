"""The harness's database: one `transaction` call, on SQLite or PostgreSQL (STO-5).

Promise: what a transaction did is on disk when `transaction` returns, or nothing of it is. Two never run at once.
How: SQLAlchemy Core, synchronous, in one writer thread, so nothing can be awaited while the write lock is held. SQLite runs in WAL with
     `synchronous = FULL` and `BEGIN IMMEDIATE`; readers have a connection and thread of their own. Migrations run whole, under a lock,
     before anything else.
Not here: tables (`schema`), sealed texts (`sealing`), ownership of the home (`locks`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import sqlalchemy
from sqlalchemy import event, text

from hayate_matrix.errors import DiskLow, HomeBusyError, StoreError
from hayate_matrix.store.schema import KEY_ID, READ_KEY_ID, meta

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import URL, Engine

T = TypeVar("T")
Connection = sqlalchemy.Connection
"""What work in a transaction is handed; other parts pass it on to the stores and know nothing of it."""

SCHEMA_REVISION = "0001"
"""The newest migration; a database with a higher number belongs to a newer program."""
MIGRATIONS = Path(__file__).parent / "migrations"

_BUSY_TIMEOUT_S = 5.0
"""Only other programs that look into the file (`doctor`, a shell) can make the writer wait."""
_CHECKED_WHOLE_BYTES = 64 * 1024 * 1024
"""Up to this size every page is checked at start (about 0.2 s); larger files show damage when the page is read."""
_MIGRATION_LOCK = 0x68617961  # PostgreSQL advisory locks are numbers; this one spells "haya".
_ACCOUNT_LOCK = 0x6D786964  # "mxid"
_OLDEST_POSTGRES = 15
_RECONNECT = "See that the database server runs and takes this user; then start again."
_RESTORE = "Nothing was overwritten. Move the file away and restore a backup, or recover it with `sqlite3 FILE .recover`."


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
            raise StoreError(f"The step {name} was not taken: the connection to the database was lost.", remedy=_RECONNECT)
        try:
            if self._writer is None:
                self._writer = self._engine.connect()
            with self._writer.begin():
                return work(self._writer)
        except sqlalchemy.exc.DBAPIError as error:
            # SQLAlchemy would connect again by itself, without the account's lock.
            self._is_lost = error.connection_invalidated
            _reject(error, f"The step {name}")

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
            _reject(error, "A lookup")


def open_database(url: str | Path, *, key_id: str | None = None) -> Database:
    """Return the database of `url`, migrated: a path or `sqlite:///PATH`, or `postgresql://USER@HOST/NAME`.

    `key_id` is the sealer's: the database remembers the first and refuses another, whose texts nobody could open.

    Raises:
        StoreError: it can't be reached, is damaged, sealed with another key, or belongs to a newer program; nothing was changed.
    """
    address = parse_url(url)
    engine = _connect_sqlite(address) if address.get_backend_name() == "sqlite" else _connect_postgres(address)
    try:
        with engine.connect() as connection:
            _check(connection)
            with connection.begin():
                _migrate(connection)
                if key_id is not None:
                    _check_key(connection, key_id)
    except sqlalchemy.exc.DBAPIError as error:
        engine.dispose()
        _reject(error, f"The database {address.render_as_string(hide_password=True)}")
    except BaseException:
        engine.dispose()
        raise
    return Database(engine)


def parse_url(url: str | Path) -> URL:
    """Return the address of a database, with the driver that is used for it.

    Raises:
        StoreError: it is none that can be used; its text is not repeated, since it may hold a password.
    """
    if isinstance(url, Path):
        return sqlalchemy.URL.create("sqlite+pysqlite", database=str(url))
    try:
        address = sqlalchemy.make_url(url)
        backend = address.drivername.partition("+")[0]
        if backend == "sqlite" and address.database:
            return address.set(drivername="sqlite+pysqlite")
        if backend in {"postgresql", "postgres"}:
            return address.set(drivername="postgresql+psycopg")
    except sqlalchemy.exc.ArgumentError:
        pass  # said below, without the text, which may hold a password
    problem = "store.url is no address of a database that can be used."
    raise StoreError(problem, allowed="sqlite:///PATH or postgresql://USER@HOST/NAME.")


def _connect_sqlite(address: URL) -> Engine:
    path = Path(address.database or "")
    try:
        # Made here, because SQLite would make it readable for all; the -wal and -shm files take over the permissions.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError as error:
        problem = f"The database {path} can't be opened: {error.strerror}."
        raise StoreError(problem, remedy=f"Let the bot's user write in {path.parent}.") from error
    # What an error quotes reaches the log: never a value, which may be what somebody wrote (SEC-3).
    engine = sqlalchemy.create_engine(address, connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False}, hide_parameters=True)

    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # SQLAlchemy's begin below is the only one
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    def begin(connection: Connection) -> None:
        is_reader = connection.get_execution_options().get("hayate_read_only", False)
        connection.exec_driver_sql("BEGIN" if is_reader else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


def _connect_postgres(address: URL) -> Engine:
    # A lost connection ends the program (StoreError): the start recovers what a cut transaction left open.
    return sqlalchemy.create_engine(
        address,
        hide_parameters=True,
        pool_size=3,
        connect_args={"application_name": f"hayate-matrix process {os.getpid()}", "options": "-c timezone=UTC -c synchronous_commit=on"},
    )


def _check(connection: Connection) -> None:
    """Refuse a damaged file before anything is written to it, and a server that is too old."""
    with connection.begin():
        if connection.dialect.name == "postgresql":
            version = connection.dialect.server_version_info or (0,)
            if int(version[0]) < _OLDEST_POSTGRES:
                problem = f"The PostgreSQL server has version {version[0]}."
                raise StoreError(problem, allowed=f"{_OLDEST_POSTGRES} or later.")
            return
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        page_bytes = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        if pages * page_bytes > _CHECKED_WHOLE_BYTES:
            return
        verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if verdict != "ok":
            problem = f"The database {connection.engine.url.database} is damaged: {verdict}."
            raise StoreError(problem, remedy=_RESTORE)


def _migrate(connection: Connection) -> None:
    """Bring the schema to `SCHEMA_REVISION` in the caller's transaction, whole or not at all."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    found = None
    if sqlalchemy.inspect(connection).has_table("alembic_version"):
        found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    if found == SCHEMA_REVISION:
        return  # without the import of alembic, which costs more than the start
    if found is not None and found > SCHEMA_REVISION:
        problem = f"The database has the schema {found}; this program knows schemas up to {SCHEMA_REVISION}."
        raise StoreError(problem, remedy="Start the newer program again, or restore a backup made by this one. Nothing was changed.")
    import alembic.command  # noqa: PLC0415 - only a migration pays for it
    import alembic.config  # noqa: PLC0415

    config = alembic.config.Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    alembic.command.upgrade(config, SCHEMA_REVISION)


def _check_key(connection: Connection, key_id: str) -> None:
    found = connection.scalar(READ_KEY_ID)
    if found is None:
        connection.execute(sqlalchemy.insert(meta), {"name": KEY_ID, "value": key_id})
    elif found != key_id:
        problem = f"The database was sealed with the key {found}; the key here is {key_id}."
        raise StoreError(problem, remedy="Put the store.key back that belongs to this database. Nothing was changed.")


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


def _reject(error: sqlalchemy.exc.DBAPIError, what: str) -> NoReturn:
    """Turn what a database says into one of the program's errors; faults of the program itself (a constraint) stay what they are."""
    cause: Any = error.orig
    problem = f"{what} failed: {' '.join(str(cause).split()).rstrip('.?')}."
    if isinstance(cause, sqlite3.DatabaseError):
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise DiskLow(problem, remedy="Free some space on the disk; nothing was changed.") from error
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise StoreError(problem, allowed="An undamaged database.", remedy=_RESTORE) from error
        if code in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PERM}:
            raise StoreError(problem, remedy="See to the disk and the permissions of the home; nothing was changed.") from error
        raise error
    state = getattr(cause, "sqlstate", None) or ""
    if state.startswith("53"):  # insufficient resources, disk full among them
        raise DiskLow(problem, remedy="See to the database server's disk and memory; nothing was changed.") from error
    if isinstance(error, sqlalchemy.exc.OperationalError):
        raise StoreError(problem, remedy=_RECONNECT) from error
    raise error


def _do_nothing() -> None:
    """Stand in for the close of a connection that was never made."""
