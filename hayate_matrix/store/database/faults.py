"""What a database says when it can't go on, as one of the program's errors."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import sqlalchemy

from hayate_matrix.errors import DiskLow, StoreError

if TYPE_CHECKING:
    from hayate_matrix.errors import HayateError

RECONNECT = "See that the database server runs and takes this user; then start again."
RESTORE = "Nothing was overwritten. Move the file away and restore a backup, or recover it with `sqlite3 FILE .recover`."

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_UNUSABLE = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PERM}


def find_fault(error: BaseException, what: str) -> HayateError | None:
    """Return the program's error for what a database can't go on with; None for a fault of the program itself (a constraint).

    Args:
        error: SQLAlchemy's error or the driver's own.
        what: the step that failed, as a sentence begins.
    """
    cause: Any = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error
    problem = f"{what} failed: {' '.join(str(cause).split()).rstrip('.?')}."
    fault: HayateError | None = None
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            fault = DiskLow(problem, remedy="Free some space on the disk; nothing was changed.")
        elif code in _DAMAGED:
            fault = StoreError(problem, remedy=RESTORE)
        elif code in _UNUSABLE:
            fault = StoreError(problem, remedy="See to the disk and the permissions of the home; nothing was changed.")
    elif (getattr(cause, "sqlstate", None) or "").startswith("53"):  # insufficient resources, disk full among them
        fault = DiskLow(problem, remedy="See to the database server's disk and memory; nothing was changed.")
    elif isinstance(error, sqlalchemy.exc.OperationalError) or _is_operational(cause):
        fault = StoreError(problem, remedy=RECONNECT)
    if fault is not None:
        fault.__cause__ = error
    return fault


def _is_operational(cause: object) -> bool:
    """Tell whether it is the OperationalError of psycopg, which is imported only where a server is used."""
    return any(kind.__name__ == "OperationalError" and kind.__module__.startswith("psycopg") for kind in type(cause).__mro__)
