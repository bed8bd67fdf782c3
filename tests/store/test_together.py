"""Transactions that wait at the same moment share one commit, and none of them can tell, on both databases."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import pytest
import sqlalchemy
from sqlalchemy import text

from hayate_matrix.errors import DiskLow, StaleTransition, StoreError
from hayate_matrix.store.database import Connection, Database, open_database
from hayate_matrix.store.database import writer as writer_module
from tests.support.clock import JumpingClock
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import Any

    from tests.support.postgres import Postgres

INSERT = text("INSERT INTO meta (name, value) VALUES (:name, 'x')")
NAMES = text("SELECT name FROM meta WHERE value = 'x' ORDER BY name")


def put(*names: str, then: BaseException | None = None) -> Callable[[Connection], str]:
    """Return work that adds these rows, one after the other, and then raises, or returns the last name."""

    def work(connection: Connection) -> str:
        for name in names:
            connection.execute(INSERT, {"name": name})
        if then is not None:
            raise then
        return names[-1]

    return work


async def list_names(database: Database) -> list[str]:
    return await database.read(lambda connection: list(connection.scalars(NAMES)))


async def do_together(database: Database, *works: Callable[[Connection], Any]) -> list[Any]:
    """Have all this work wait behind a transaction that is busy, and return what became of each."""
    begun, go_on = threading.Event(), threading.Event()

    def be_busy(connection: Connection) -> str:
        begun.set()
        assert go_on.wait(20)
        return put("first")(connection)

    calls: list[Awaitable[Any]] = [asyncio.create_task(database.transaction("test.busy", be_busy))]
    await asyncio.to_thread(begun.wait, 20)
    calls += [asyncio.create_task(database.transaction("test.behind", work)) for work in works]
    await asyncio.sleep(0)  # each task has made its call
    go_on.set()
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.fixture
def outsider(url: str) -> Iterator[Callable[[], list[str]]]:
    """What another program sees in the database."""
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")

    def look() -> list[str]:
        with engine.connect() as connection:
            return list(connection.scalars(NAMES))

    yield look
    engine.dispose()


@pytest.mark.requirement("STO-5", "PERF-6")
async def test_what_waits_together_is_one_commit(database: Database, outsider: Callable[[], list[str]]) -> None:
    """Work sees what the work before it did while nobody else sees any of it; then all of it is there, and each caller has its result."""
    seen: dict[str, list[str]] = {}

    def look(connection: Connection) -> None:
        seen["inside"] = list(connection.scalars(NAMES))
        seen["outside"] = outsider()

    results = await do_together(database, put("a"), put("b", "c"), look)
    assert seen == {"inside": ["a", "b", "c", "first"], "outside": []}
    assert results == ["first", "a", "c", None]
    assert outsider() == ["a", "b", "c", "first"]


@pytest.mark.requirement("STO-5")
@pytest.mark.parametrize("error", [StaleTransition("elsewhere"), LookupError(), asyncio.CancelledError(), StopIteration()], ids=repr)
async def test_one_that_fails_takes_nobody_with_it(database: Database, error: BaseException) -> None:
    """Of work that raises in the middle nothing stays, and its caller alone hears of it."""
    results = await do_together(database, put("a"), put("b", "c", then=error), put("d"))
    assert [results[0], results[1], results[3]] == ["first", "a", "d"]
    assert isinstance(results[2], RuntimeError if isinstance(error, StopIteration) else type(error))
    assert await list_names(database) == ["a", "d", "first"]


@pytest.mark.requirement("STO-5")
async def test_one_that_breaks_a_constraint_takes_nobody_with_it(database: Database) -> None:
    """An error of the database's own in the middle is its caller's alone: a constraint, a statement that makes no sense."""
    wrong = text("SELECT nothing FROM nowhere")
    results = await do_together(database, put("a"), put("b", "a"), lambda connection: connection.execute(wrong), put("c"))
    assert [results[0], results[1], results[4]] == ["first", "a", "c"]
    assert isinstance(results[2], sqlalchemy.exc.IntegrityError)
    assert isinstance(results[3], sqlalchemy.exc.DBAPIError)
    assert await list_names(database) == ["a", "c", "first"]


@pytest.mark.requirement("STO-5")
async def test_the_first_one_can_fail_too(database: Database) -> None:
    """Where the first of those that wait fails, the others are served as if it had never been."""
    results = await do_together(database, put("a", "first"), put("b"))
    assert results[0] == "first"
    assert isinstance(results[1], sqlalchemy.exc.IntegrityError)
    fails, follows = put("c", then=LookupError()), put("d")
    failed, after = await asyncio.gather(
        database.transaction("test.fails", fails), database.transaction("test.after", follows), return_exceptions=True
    )
    assert isinstance(failed, LookupError)
    assert after == "d"
    assert await list_names(database) == ["b", "d", "first"]


@pytest.mark.requirement("STO-5", "REL-4")
async def test_a_full_disk_in_the_middle_is_told_to_all_and_is_true(database: Database) -> None:
    """Whoever shared the commit is told to wait, and nothing of theirs is there; who came behind it is served anew."""

    def fill(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("DO $$ BEGIN RAISE SQLSTATE '53100'; END $$")
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
        connection.execute(INSERT, [{"name": f"{number}{'x' * 1000}"} for number in range(100)])

    def make_room(connection: Connection) -> str:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
        return put("b")(connection)

    results = await do_together(database, put("a"), fill, make_room, put("c"))
    assert [type(result) for result in results[:3]] == [DiskLow, DiskLow, DiskLow]
    assert results[3:] == ["b", "c"]
    assert {str(error).partition(" failed")[0] for error in results[:3]} == {"The step test.busy", "The step test.behind"}
    assert await list_names(database) == ["b", "c"]
    assert await database.transaction("test.again", put("a")) == "a"


@pytest.mark.requirement("STO-5", "REL-4")
async def test_a_commit_that_fails_is_told_to_all_and_is_true(database: Database) -> None:
    """Where the commit itself is refused, everybody in it hears so and nothing stays; the database goes on."""

    def prepare(connection: Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE later (name TEXT REFERENCES meta (name) DEFERRABLE INITIALLY DEFERRED)")

    def break_later(connection: Connection) -> None:
        connection.exec_driver_sql("INSERT INTO later VALUES ('nobody')")

    await database.transaction("test.prepare", prepare)
    results = await do_together(database, put("a"), break_later, put("b"))
    assert [type(result) for result in results] == [StoreError] * 4
    assert await list_names(database) == []
    assert await database.transaction("test.again", put("a")) == "a"
    with pytest.raises(StoreError):
        await database.transaction("test.alone", break_later)
    assert await list_names(database) == ["a"]


@pytest.mark.requirement("STO-5")
async def test_work_that_hides_an_error_of_the_database_is_not_committed(database: Database) -> None:
    """PostgreSQL ends the transaction at an error, also where the work caught it: that must not look like a commit."""

    def hide(connection: Connection) -> str:
        put("b")(connection)
        with contextlib.suppress(sqlalchemy.exc.DBAPIError):
            connection.exec_driver_sql("SELECT nothing FROM nowhere")
        return "hidden"

    is_postgres = database.dialect == "postgresql"
    results = await do_together(database, put("a"), hide, put("c"))
    assert [results[0], results[1], results[3]] == ["first", "a", "c"]
    assert isinstance(results[2], RuntimeError) if is_postgres else results[2] == "hidden"
    assert await list_names(database) == (["a", "c", "first"] if is_postgres else ["a", "b", "c", "first"])


@pytest.mark.requirement("STO-5")
async def test_one_that_is_cancelled_goes_on_after_the_commit(database: Database) -> None:
    """A caller that is cancelled while its transaction waits among others learns of it when all of them are committed."""
    begun, go_on = threading.Event(), threading.Event()

    def be_busy(connection: Connection) -> None:
        begun.set()
        assert go_on.wait(20)
        put("first")(connection)

    busy = asyncio.create_task(database.transaction("test.busy", be_busy))
    await asyncio.to_thread(begun.wait, 20)
    cancelled = asyncio.create_task(database.transaction("test.cancelled", put("a")))
    other = asyncio.create_task(database.transaction("test.other", put("b")))
    await asyncio.sleep(0)
    for _ in range(3):  # however often
        cancelled.cancel()
        await asyncio.sleep(0)
    assert not cancelled.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await list_names(database) == ["a", "b", "first"]
    await asyncio.gather(busy, other)


@pytest.mark.requirement("STO-5")
async def test_a_cancelled_caller_swallows_the_error_of_its_transaction(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """It is cancelled and nothing else, and no error is left that nobody asked for."""
    begun, go_on = threading.Event(), threading.Event()

    def fail(_connection: Connection) -> None:
        begun.set()
        assert go_on.wait(20)
        raise LookupError

    task = asyncio.create_task(database.transaction("test.fail", fail))
    await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    await asyncio.sleep(0)
    assert caplog.text == ""


@pytest.mark.requirement("STO-5")
async def test_a_connection_lost_in_the_middle_is_told_to_all(postgres: Postgres) -> None:
    """A server that goes away takes everything that shared the commit, says so to each, and nothing of it is there."""
    url = postgres.make_database()
    opened = open_database(url)

    def lose(connection: Connection) -> None:
        connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")

    results = await do_together(opened, put("a"), lose, put("b"))
    assert [type(result) for result in results] == [StoreError] * 4
    opened.close()
    again = open_database(url)
    assert await list_names(again) == []
    again.close()


@pytest.mark.requirement("STO-5")
async def test_nobody_waits_for_more_than_a_few_others(url: str, outsider: Callable[[], list[str]]) -> None:
    """A commit is shared by so many at most, and nobody joins one that took long already."""
    clock = JumpingClock()
    database = open_database(url, clock=clock)
    seen: list[int] = []

    def look(connection: Connection) -> None:
        seen.append(len(list(connection.scalars(NAMES))) - len(outsider()))

    def take_long(connection: Connection) -> None:
        look(connection)
        clock.jump(1.0)

    most = writer_module._MOST_TOGETHER
    await do_together(database, *(put(f"{number}") for number in range(most - 1)), look)
    assert seen == [0]
    await do_together_again(database, put("a"), take_long, look)
    assert seen == [0, 2, 0]
    database.close()


async def do_together_again(database: Database, *works: Callable[[Connection], Any]) -> None:
    await database.transaction("test.forget", lambda connection: connection.execute(text("DELETE FROM meta WHERE name = 'first'")))
    await do_together(database, *works)


@pytest.mark.requirement("STO-5")
async def test_a_read_sees_one_state_from_its_first_to_its_last_statement(database: Database) -> None:
    """What is committed between two statements of a read is seen by the next read."""
    looked, go_on = threading.Event(), threading.Event()

    def look(connection: Connection) -> list[list[str]]:
        first = list(connection.scalars(NAMES))
        looked.set()
        assert go_on.wait(20)
        return [first, list(connection.scalars(NAMES))]

    reading = asyncio.create_task(database.read(look))
    await asyncio.to_thread(looked.wait, 20)
    await database.transaction("test.meanwhile", put("a"))
    go_on.set()
    assert await reading == [[], []]
    assert await list_names(database) == ["a"]


@pytest.mark.requirement("STO-5")
async def test_a_closed_database_says_so(database: Database) -> None:
    """What waited is done before it closes; what comes later is refused instead of waiting for ever."""
    begun, go_on = threading.Event(), threading.Event()

    def be_busy(_connection: Connection) -> None:
        begun.set()
        assert go_on.wait(20)

    busy = asyncio.create_task(database.transaction("test.busy", be_busy))
    await asyncio.to_thread(begun.wait, 20)
    calls = [asyncio.create_task(database.transaction("test.last", put(name))) for name in "abc"]
    await asyncio.sleep(0)
    closing = asyncio.create_task(asyncio.to_thread(database.close))
    await eventually(lambda: database._writing._is_closed)
    go_on.set()
    assert await asyncio.gather(busy, *calls, closing) == [None, "a", "b", "c", None]
    with pytest.raises(RuntimeError, match="closed"):
        await database.transaction("test.late", put("d"))
    with pytest.raises(RuntimeError, match="closed"):
        await database.read(lambda connection: connection.execute(NAMES))
