"""A look at the harness's database, or a copy of a database, also while the bot runs: for `doctor`, `backup` and `export`.

Promise: no database is made, migrated, locked or written, so it may be taken at any time by anybody who may read the files. SQLite leaves
         its two working files beside a database that nobody has open; a brief look leaves none.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from hayate_matrix.errors import StoreError
from hayate_matrix.store.database.opening import SCHEMA_REVISION, parse_url
from hayate_matrix.store.schema import READ_KEY_ID, inbox, outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import URL, Connection

_PATIENCE_S = 5
_PAGES_A_STEP = 2_000
"""Pages copied between two words of progress: 8 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen."""

    where: str
    """The database in words, without a password."""
    schema: str | None = None
    """The number of its last migration; None where the first start has not been yet."""
    key_id: str | None = None
    """Which key it is sealed with, as `Sealer.key_id` names it; None where nothing is sealed yet."""
    outbox: dict[str, int] = field(default_factory=dict)
    """Rows by state; `sent` is left out, it only grows."""
    inbox: dict[str, int] = field(default_factory=dict)
    """Rows that have work, by state."""


def look_at(url: str | Path) -> Look:
    """Return what is seen in the database of `url`, a path or an address.

    Raises:
        StoreError: it can't be reached or read, is damaged, or belongs to a newer program.
    """
    address = parse_url(url)
    if address.get_backend_name() == "sqlite" and not Path(address.database or "").exists():
        return Look(where=str(address.database))
    with look_into(url, is_brief=True) as connection:
        return _look(connection, _name(address))


@contextlib.contextmanager
def look_into(url: str | Path, *, is_brief: bool = False) -> Iterator[Connection]:
    """Lend a connection that reads the database of `url` as it is at one moment; its owner may go on writing.

    `is_brief` leaves no file beside one that nobody has open; only for a look that is over before anybody could open it.

    Raises:
        StoreError: it is not there, or can't be reached or read.
    """
    address = parse_url(url)
    where = _name(address)
    if address.get_backend_name() == "sqlite":
        path = Path(address.database or "")
        if not path.exists():
            raise StoreError(f"The database {where} is not there yet.", remedy="The first start of the bot makes it.")
        # Without a -wal file nobody has it open, and "immutable" keeps SQLite from leaving one behind.
        is_open = path.with_name(f"{path.name}-wal").exists()
        uri = f"{path.absolute().as_uri()}?{'immutable=1' if is_brief and not is_open else 'mode=ro'}"
        engine = sa.create_engine(
            "sqlite+pysqlite://",
            creator=lambda: sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_PATIENCE_S),
            hide_parameters=True,
        )
    else:
        engine = sa.create_engine(
            address,
            isolation_level="REPEATABLE READ",
            connect_args={"connect_timeout": _PATIENCE_S, "application_name": "hayate-matrix look"},
            hide_parameters=True,
        )
    try:
        with engine.connect().execution_options(postgresql_readonly=True) as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN")  # else each statement would see a moment of its own
            yield connection
    except sa.exc.DBAPIError as error:
        reason = " ".join(str(error.orig).split()).rstrip(".?")
        raise StoreError(
            f"The database {where} can't be read: {reason}.", remedy="See that it is there, undamaged, and open to this user."
        ) from error
    finally:
        engine.dispose()


def _name(address: URL) -> str:
    return str(address.database) if address.get_backend_name() == "sqlite" else address.render_as_string(hide_password=True)


def read_schema(connection: Connection, where: str) -> str | None:
    """Return the number of the last migration, None where there has been none yet.

    Raises:
        StoreError: it belongs to a newer program.
    """
    schema: str | None = None
    if sa.inspect(connection).has_table("alembic_version"):
        schema = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    if schema is not None and schema > SCHEMA_REVISION:
        problem = f"The database {where} has the schema {schema}; this program knows schemas up to {SCHEMA_REVISION}."
        raise StoreError(problem, remedy="Use the newer program. Nothing was changed.")
    return schema


def _look(connection: Connection, where: str) -> Look:
    schema = read_schema(connection, where)
    if schema is None:
        return Look(where=where)
    if connection.dialect.name == "sqlite":
        verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if verdict != "ok":
            raise StoreError(f"The database {where} is damaged: {verdict}.", remedy="Stop the bot and restore a backup.")
    owed = sa.select(outbox.c.state, sa.func.count()).where(outbox.c.state != "sent").group_by(outbox.c.state)
    work = sa.select(inbox.c.state, sa.func.count()).where(inbox.c.state.in_(("queued", "running"))).group_by(inbox.c.state)
    return Look(
        where=where,
        schema=schema,
        key_id=connection.scalar(READ_KEY_ID),
        outbox=dict(connection.execute(owed).all()),
        inbox=dict(connection.execute(work).all()),
    )


def copy_database(source: Path, target: Path, *, report: Callable[[int, int], None] | None = None) -> None:
    """Write a copy of `source` as it is at one moment to `target` (0600), which must not exist.

    Args:
        source: a SQLite database; its owner may go on writing.
        target: where the copy goes.
        report: told (pages done, pages in all) now and then.

    Raises:
        StoreError: the source can't be read; `target` is not left half written.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as reader,
            contextlib.closing(sqlite3.connect(target)) as writer,
        ):
            reader.backup(
                writer,
                pages=_PAGES_A_STEP,
                progress=lambda _status, left, total: report(total - left, total) if report is not None else None,
            )
            # The copy is one file: no write-ahead log beside it.
            writer.execute("pragma journal_mode = delete")
            _check(writer, source)
    except (sqlite3.Error, OSError) as error:
        target.unlink(missing_ok=True)
        raise StoreError(
            f"{source} can't be copied: {error}.", remedy="See to the disk and the permissions; nothing was changed."
        ) from error
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _check(copy: sqlite3.Connection, source: Path) -> None:
    if copy.execute("pragma quick_check(1)").fetchone()[0] != "ok":
        raise StoreError(f"{source} is damaged, so no backup was made of it.", remedy="Restore an older backup.")
