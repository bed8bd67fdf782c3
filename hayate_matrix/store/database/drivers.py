"""What begins, keeps and commits transactions on each of the two databases, in as few words to it as can be.

How: SQLAlchemy begins a transaction of its own once and never ends it, so it says nothing about transactions; these do, to the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hayate_matrix.errors import StoreError

if TYPE_CHECKING:
    import sqlalchemy

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


class PostgresDriver:
    """psycopg; what has no values goes to libpq directly, several words in one message."""

    def __init__(self, driver: Any, psycopg: Any) -> None:
        self._driver = driver
        self._psycopg = psycopg
        self._is_saved = False
        self.execute = driver.cursor().execute  # one cursor for all: making one takes as long as a statement

    @property
    def is_sound(self) -> bool:
        """See `Driver`."""
        return bool(self._driver.pgconn.transaction_status == self._psycopg.pq.TransactionStatus.INTRANS)

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
        result = self._driver.pgconn.exec_(words.encode())
        if result.status != self._psycopg.pq.ExecStatus.COMMAND_OK:
            if self._driver.closed:
                raise self._psycopg.OperationalError(result.get_error_message() or "the connection was lost")
            raise self._psycopg.errors.error_from_result(result)
        return result.command_status


def find_driver(connection: sqlalchemy.Connection) -> Driver:
    """Return what speaks to the driver of an open connection."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        return SqliteDriver(driver)
    return PostgresDriver(driver, connection.dialect.loaded_dbapi)
