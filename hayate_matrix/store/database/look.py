"""A look at the harness's database, or a copy of a database, that changes nothing, also while the bot runs: for `doctor` and `backup`.

Promise: nothing is made, migrated, locked or written, so it may be taken at any time by anybody who may read the files.
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
    from collections.abc import Callable

    from sqlalchemy import Connection

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
    where = address.render_as_string(hide_password=True)
    if address.get_backend_name() == "sqlite":
        path = Path(address.database or "")
        if not path.exists():
            return Look(where=str(path))
        where = str(path)
        # Without a -wal file nobody has it open, and "immutable" keeps SQLite from leaving one behind.
        is_open = path.with_name(f"{path.name}-wal").exists()
        uri = f"{path.absolute().as_uri()}?{'mode=ro' if is_open else 'immutable=1'}"
        engine = sa.create_engine("sqlite+pysqlite://", creator=lambda: sqlite3.connect(uri, uri=True))
    else:
        engine = sa.create_engine(address, connect_args={"connect_timeout": _PATIENCE_S, "application_name": "hayate-matrix doctor"})
    try:
        with engine.connect() as connection:
            return _look(connection, where)
    except sa.exc.DBAPIError as error:
        reason = " ".join(str(error.orig).split()).rstrip(".?")
        raise StoreError(
            f"The database {where} can't be read: {reason}.", remedy="See that it is there, undamaged, and open to this user."
        ) from error
    finally:
        engine.dispose()


def _look(connection: Connection, where: str) -> Look:
    if not sa.inspect(connection).has_table("alembic_version"):
        return Look(where=where)
    schema = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    if schema is None:
        return Look(where=where)
    if schema > SCHEMA_REVISION:
        problem = f"The database {where} has the schema {schema}; this program knows schemas up to {SCHEMA_REVISION}."
        raise StoreError(problem, remedy="Use the newer program. Nothing was changed.")
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
