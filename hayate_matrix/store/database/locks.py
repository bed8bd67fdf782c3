"""Who owns a home or a store: one process, for as long as it lives (STO-6).

Promise: of any number of processes that ask, exactly one owns; what a killed owner held is free at once; a loser can say who holds it.
How: an exclusive SQLite transaction in a lock database of its own, held open for life. The kernel drops the lock with the process, so no
     process id is ever trusted. The owner writes its id and start into a side file that is for people only.
Not here: PostgreSQL's advisory lock for an account (`writer`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from hayate_matrix.errors import HomeBusyError, StoreError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_SETTLE_S = 1.0
"""Two that ask in the same instant can block each other's lock for a moment: both ask again this long, so that one of them wins."""


class Ownership:
    """Held until `release`, the end of the `with` block or the end of the process."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: sqlite3.Connection | None = connection

    def release(self) -> None:
        """Let go; further calls change nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def own(path: Path, *, what: str) -> Ownership:
    """Return the ownership of `what`, whose lock database is `path`.

    Invariant: nothing else in this process opens `path`: POSIX drops all of a process's locks on a file when any handle of it is closed.

    Raises:
        HomeBusyError: another process owns it; the text names it.
        StoreError: the lock database can't be used.
    """
    try:
        # O_EXCL: closing a handle of a file that already existed would drop a lock that this process holds on it.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(path, isolation_level=None, timeout=_SETTLE_S, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        problem = f"The lock of {what}, {path}, can't be opened: {error}."
        raise StoreError(problem, remedy=f"Let the bot's user write in {path.parent}.") from error
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            problem = f"{what[:1].upper()}{what[1:]} is in use by {_read_owner(path)}."
            raise HomeBusyError(problem, remedy="Stop that process first, or use another HAYATE_HOME.") from None
        problem = f"The lock of {what}, {path}, can't be taken: {error}."
        raise StoreError(problem, remedy=f"Let the bot's user write in {path.parent}.") from error
    except sqlite3.DatabaseError as error:
        connection.close()
        problem = f"The lock of {what}, {path}, is no lock database: {error}."
        raise StoreError(problem, remedy=f"It holds no data: remove {path} and start again.") from error
    try:
        _write_owner(path)
    except OSError as error:
        connection.close()
        problem = f"The owner of {what} can't be written beside {path}: {error.strerror}."
        raise StoreError(problem, remedy=f"Let the bot's user write in {path.parent}.") from error
    return Ownership(connection)


def is_owned(path: Path) -> bool:
    """Whether a living process owns the lock database `path`; it is read, and never made or changed."""
    if not path.exists():
        return False
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF == sqlite3.SQLITE_BUSY
    return False


def _write_owner(path: Path) -> None:
    draft = path.with_name(f"{path.name}.owner.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({"pid": os.getpid(), "started_at": datetime.now(UTC).isoformat(timespec="seconds")}, file)
    draft.replace(path.with_name(f"{path.name}.owner"))


def _read_owner(path: Path) -> str:
    try:
        owner = json.loads(path.with_name(f"{path.name}.owner").read_text())
        return f"process {int(owner['pid'])}, which took it at {owner['started_at']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process, which has not said who it is"
