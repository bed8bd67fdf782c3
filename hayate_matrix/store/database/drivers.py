"""What begins, keeps and commits transactions on each of the two databases, in as few words to it as can be.

How: SQLAlchemy begins a transaction of its own once and never ends it, so it says nothing about transactions; these do, to the driver.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from hayate_matrix.errors import StoreError

if TYPE_CHECKING:
    import sqlalchemy

_PLACE = re.compile(r"%\((\w+)\)s|%%")
"""A value in a text as SQLAlchemy writes it for psycopg, or a percent sign."""
_MOST_NAMED = 500
"""Statements that the server remembers for a connection; more than the code has."""
_SAVE, _UNDO, _RELEASE = "SAVEPOINT together", "ROLLBACK TO SAVEPOINT together", "RELEASE SAVEPOINT together"


class Driver(Protocol):
    """One connection of a driver, used by one thread."""

    def execute(self, text: str, values: Any) -> Any:
        """Execute one statement and return a cursor, which is good until the next one."""
        ...

    def begin(self, *, is_reading: bool) -> None:
        """Begin a transaction: one that may write at once, or one that sees a single state of the database."""
        ...

    def save(self) -> None:
        """Keep what was done so far, apart from what comes."""
        ...

    def undo(self) -> None:
        """Go back to the last `save`."""
        ...

    def commit(self) -> None:
        """Make it durable; an error means that nothing of it is, unless the connection was lost."""
        ...

    def roll_back(self) -> None:
        """Undo all of it."""
        ...

    @property
    def is_sound(self) -> bool:
        """Whether the transaction can be committed: an error that somebody caught may have ended it."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether the connection is lost."""
        ...


class SqliteDriver:
    """Python's sqlite3, which was told to begin nothing by itself."""

    is_gone = False

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._is_saved = False
        self.execute = driver.execute

    @property
    def is_sound(self) -> bool:
        """See `Driver`."""
        return bool(self._driver.in_transaction)

    def begin(self, *, is_reading: bool) -> None:
        """See `Driver`."""
        self._is_saved = False
        self._driver.execute("BEGIN" if is_reading else "BEGIN IMMEDIATE")

    def save(self) -> None:
        """See `Driver`."""
        if self._is_saved:
            self._driver.execute(_RELEASE)
        self._driver.execute(_SAVE)
        self._is_saved = True

    def undo(self) -> None:
        """See `Driver`."""
        self._driver.execute(_UNDO)

    def commit(self) -> None:
        """See `Driver`."""
        # Of a transaction that SQLite gave up this fails, where the driver's own call would be content.
        self._driver.execute("COMMIT")

    def roll_back(self) -> None:
        """See `Driver`."""
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")


class _Answer:
    """What a statement gave, as much of a cursor as is asked for."""

    __slots__ = ("_result", "_transformer", "rowcount")

    def __init__(self, result: Any, transformer: Any) -> None:
        self._result = result
        self._transformer = transformer
        self.rowcount: int = -1 if result.command_tuples is None else result.command_tuples

    def fetchall(self) -> list[Any]:
        self._transformer.set_pgresult(self._result)
        rows: list[Any] = self._transformer.load_rows(0, self._result.ntuples, tuple)
        return rows


class PostgresDriver:
    """psycopg's connection, and below it libpq, to which statements go under a name that they have after their first time.

    psycopg's cursors would do the same in three times the time; errors and the types of what comes back are psycopg's.
    """

    def __init__(self, driver: Any, psycopg: Any) -> None:
        self._driver = driver
        self._pgconn = driver.pgconn
        self._psycopg = psycopg
        self._transformer = psycopg.adapt.Transformer(driver)
        self._cursor = driver.cursor()
        self._named: dict[str, tuple[bytes, list[str]]] = {}
        self._is_saved = False

    def execute(self, text: str, values: dict[str, Any]) -> Any:
        """See `Driver`."""
        named = self._named.get(text)
        if named is None:
            if len(self._named) >= _MOST_NAMED:
                return self._cursor.execute(text, values)
            named = self._named[text] = self._name(text)
        name, order = named
        data: list[bytes | None] = []
        formats: list[int] = []
        for key in order:
            value = values[key]
            if isinstance(value, self._psycopg.Binary):
                value = value.obj
            formats.append(1 if isinstance(value, bytes) else 0)
            data.append(value if value is None or isinstance(value, bytes) else self._write(value))
        result = self._pgconn.exec_prepared(name, data, formats)
        if result.status not in {self._psycopg.pq.ExecStatus.TUPLES_OK, self._psycopg.pq.ExecStatus.COMMAND_OK}:
            self._fail(result)
        return _Answer(result, self._transformer)

    def _name(self, text: str) -> tuple[bytes, list[str]]:
        order: list[str] = []

        def number(found: re.Match[str]) -> str:
            if found[1] is None:
                return "%"
            if found[1] not in order:
                order.append(found[1])
            return f"${order.index(found[1]) + 1}"

        name = f"hayate{len(self._named)}".encode()
        result = self._pgconn.prepare(name, _PLACE.sub(number, text).encode())
        if result.status != self._psycopg.pq.ExecStatus.COMMAND_OK:
            self._fail(result)
        return name, order

    def _write(self, value: Any) -> bytes:
        if isinstance(value, bool):
            return b"t" if value else b"f"
        if not isinstance(value, str | int | float):
            raise self._psycopg.ProgrammingError(f"A value is a {type(value).__name__}, which no column takes.")
        data = str(value).encode()
        if b"\x00" in data:
            raise self._psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
        return data

    @property
    def is_sound(self) -> bool:
        """See `Driver`."""
        return bool(self._pgconn.transaction_status == self._psycopg.pq.TransactionStatus.INTRANS)

    @property
    def is_gone(self) -> bool:
        """See `Driver`."""
        return bool(self._driver.closed)

    def begin(self, *, is_reading: bool) -> None:
        """See `Driver`."""
        self._is_saved = False
        self._say("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if is_reading else "BEGIN")

    def save(self) -> None:
        """See `Driver`."""
        self._say(f"{_RELEASE}; {_SAVE}" if self._is_saved else _SAVE)
        self._is_saved = True

    def undo(self) -> None:
        """See `Driver`."""
        self._say(_UNDO)

    def commit(self) -> None:
        """See `Driver`."""
        if self._say("COMMIT") != b"COMMIT":  # the server rolls a broken transaction back and is content
            raise StoreError("The transaction was broken, and rolled back.")

    def roll_back(self) -> None:
        """See `Driver`."""
        self._say("ROLLBACK")

    def _say(self, words: str) -> Any:
        result = self._pgconn.exec_(words.encode())
        if result.status != self._psycopg.pq.ExecStatus.COMMAND_OK:
            self._fail(result)
        return result.command_status

    def _fail(self, result: Any) -> NoReturn:
        if self._driver.closed:
            raise self._psycopg.OperationalError(result.get_error_message() or "the connection was lost")
        raise self._psycopg.errors.error_from_result(result)


def find_driver(connection: sqlalchemy.Connection) -> Driver:
    """Return what speaks to the driver of an open connection."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        return SqliteDriver(driver)
    return PostgresDriver(driver, connection.dialect.loaded_dbapi)
