"""What a database says when it can't go on, as one of the program's errors."""

from __future__ import annotations

import sqlite3
from typing import Any, NoReturn

import sqlalchemy

from hayate_matrix.errors import DiskLow, StoreError

RECONNECT = "See that the database server runs and takes this user; then start again."
RESTORE = "Nothing was overwritten. Move the file away and restore a backup, or recover it with `sqlite3 FILE .recover`."


def reject(error: sqlalchemy.exc.DBAPIError, what: str) -> NoReturn:
    """Turn what a database says into one of the program's errors; faults of the program itself (a constraint) stay what they are."""
    cause: Any = error.orig
    problem = f"{what} failed: {' '.join(str(cause).split()).rstrip('.?')}."
    if isinstance(cause, sqlite3.DatabaseError):
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise DiskLow(problem, remedy="Free some space on the disk; nothing was changed.") from error
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise StoreError(problem, allowed="An undamaged database.", remedy=RESTORE) from error
        if code in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PERM}:
            raise StoreError(problem, remedy="See to the disk and the permissions of the home; nothing was changed.") from error
        raise error
    state = getattr(cause, "sqlstate", None) or ""
    if state.startswith("53"):  # insufficient resources, disk full among them
        raise DiskLow(problem, remedy="See to the database server's disk and memory; nothing was changed.") from error
    if isinstance(error, sqlalchemy.exc.OperationalError):
        raise StoreError(problem, remedy=RECONNECT) from error
    raise error
