"""A database is opened: found, checked for damage, migrated, and refused where it belongs to another key or a newer program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy
from sqlalchemy import event, text

from hayate_matrix.errors import StoreError
from hayate_matrix.store.database.faults import RESTORE, find_fault
from hayate_matrix.store.database.writer import BEGUN_BY_DRIVER, Connection, Database
from hayate_matrix.store.schema import KEY_ID, READ_KEY_ID, meta

if TYPE_CHECKING:
    import sqlite3

    from sqlalchemy import URL, Engine

    from hayate_matrix.core.clock import Clock

SCHEMA_REVISION = "0003"
"""The newest migration; a database with a higher number belongs to a newer program."""
MIGRATIONS = Path(__file__).parent / "migrations"

_BUSY_TIMEOUT_S = 5.0
"""Only other programs that look into the file (`doctor`, a shell) can make the writer wait."""
_CHECKED_WHOLE_BYTES = 64 * 1024 * 1024
"""Up to this size every page is checked at start (about 0.2 s); larger files show damage when the page is read."""
_DURABLE = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")
_QUICK = ("cache_size = -16384", "temp_store = MEMORY")
"""16 MiB of pages, and savepoints kept in memory: SQLite's own 2 MiB and temporary files cost a third more calls of the system."""
_MIGRATION_LOCK = 0x68617961  # PostgreSQL advisory locks are numbers; this one spells "haya".
_OLDEST_POSTGRES = 15


def open_database(url: str | Path, *, key_id: str | None = None, clock: Clock | None = None) -> Database:
    """Return the database of `url`, migrated: a path or `sqlite:///PATH`, or `postgresql://USER@HOST/NAME`.

    `key_id` is the sealer's: the database remembers the first and refuses another, whose texts nobody could open. `clock`
    bounds the time for which transactions wait for each other's commit.

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
        raise find_fault(error, f"The database {address.render_as_string(hide_password=True)}") or error from error
    except BaseException:
        engine.dispose()
        raise
    return Database(engine, clock)


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
    raise StoreError(problem, allowed="Allowed: sqlite:///PATH or postgresql://USER@HOST/NAME.")


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
        connection.isolation_level = None  # it begins nothing by itself
        for pragma in (*_DURABLE, *_QUICK):
            connection.execute(f"PRAGMA {pragma}").close()

    def begin(connection: Connection) -> None:
        if not connection.get_execution_options().get(BEGUN_BY_DRIVER, False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

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
                raise StoreError(problem, allowed=f"Allowed: {_OLDEST_POSTGRES} or later.")
            return
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        page_bytes = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        if pages * page_bytes > _CHECKED_WHOLE_BYTES:
            return
        verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if verdict != "ok":
            problem = f"The database {connection.engine.url.database} is damaged: {verdict}."
            raise StoreError(problem, remedy=RESTORE)


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
