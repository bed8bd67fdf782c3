"""The short way to a statement gives what SQLAlchemy's own way gives, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from hayate_matrix.store.database import drivers, open_database, prepared
from hayate_matrix.store.database.prepared import Change, Rows, SwiftConnection
from hayate_matrix.store.schema import conversations, inbox, meta

if TYPE_CHECKING:
    from hayate_matrix.store.database import Connection, Database
    from tests.support.postgres import Postgres

ROOM = {"id": "c1", "room_id": "!r", "made_at_ms": 2**45, "is_present": True, "is_paused": False, "streak": 3, "streak_sender": None}
FACT = {
    "event_id": "$e1",
    "conversation_id": "c1",
    "kind": "request",
    "state": "queued",
    "epoch": 0,
    "focus": "",
    "sender": "@a:b",
    "answers": "$e1",
    "sent_at_ms": -5,
    "received_at_ms": 7,
    "content": b"\x00\xff%s",
    "tags": "",
}
INSERT_ROOM, INSERT_FACT = sa.insert(conversations), sa.insert(inbox)
BY_STATE = sa.select(inbox).where(inbox.c.state.in_(("queued", "running")), inbox.c.sender == sa.bindparam("sender"))
BY_IDS = sa.select(inbox.c.event_id).where(inbox.c.event_id.in_(sa.bindparam("ids", expanding=True)))
STATEMENTS: list[tuple[Any, dict[str, Any]]] = [
    (sa.select(conversations), {}),
    (sa.select(conversations.c.is_paused, conversations.c.streak), {}),
    (sa.select(conversations).where(conversations.c.is_present == sa.true()), {}),
    (sa.select(conversations.c.id).where(conversations.c.is_present == sa.bindparam("is_present")), {"is_present": True}),
    (BY_STATE, {"sender": "@a:b"}),
    (BY_STATE, {"sender": "@nobody:b"}),
    *((BY_IDS, {"ids": ["$e1", *(f"$x{number}" for number in range(count))]}) for count in (0, 1, 5, 30)),
    (BY_IDS, {"ids": []}),
    (BY_IDS, {"ids": ["$x", "$e1"]}),
    (
        sa.select(inbox.c.seq).where(
            inbox.c.state == "queued",
            inbox.c.event_id.in_(sa.bindparam("b", expanding=True)),
            inbox.c.sender.in_(sa.bindparam("a", expanding=True)),
            inbox.c.epoch == sa.bindparam("epoch"),
        ),
        {"a": ["@a:b", "@c:d"], "epoch": 0, "b": ["$e1"]},
    ),
    (sa.select(inbox.c.content, sa.null().label("gap"), sa.literal("50%").label("share"), sa.literal_column("'a%b'").label("x")), {}),
    (sa.select(sa.func.count()).select_from(inbox), {}),
    (sa.select(inbox.c.seq).limit(sa.bindparam("limit", type_=sa.Integer)), {"limit": 1}),
    (sa.update(conversations).where(conversations.c.id == sa.bindparam("_id")).values(streak=sa.bindparam("to")), {"_id": "c1", "to": 3}),
    (sa.update(inbox).values(epoch=inbox.c.epoch).returning(inbox.c.seq, inbox.c.content), {}),
    (sa.delete(meta).where(meta.c.name == sa.bindparam("name")), {"name": "nobody"}),
    (sa.select(inbox.c.event_id).union_all(sa.select(conversations.c.id)), {}),
]


def fill(connection: Connection) -> None:
    connection.execute(INSERT_ROOM, ROOM)
    connection.execute(INSERT_FACT, FACT)


@pytest.mark.requirement("STO-5")
async def test_the_short_way_gives_what_the_long_way_gives(database: Database) -> None:
    """The same rows with the same names and types, the same counts, the first time and every time after it."""

    def compare(connection: Connection) -> None:
        fill(connection)
        for statement, parameters in STATEMENTS:
            for _ in range(3):
                long, short = sa.Connection.execute(connection, statement, parameters), connection.execute(statement, parameters)
                if not long.returns_rows:
                    assert isinstance(short, Change)
                    assert short.rowcount == long.rowcount
                    continue
                wanted = long.all()
                got = short.all()
                assert got == wanted
                assert [row._mapping for row in got] == [row._mapping for row in wanted]
                assert [[type(value) for value in row] for row in got] == [[type(value) for value in row] for row in wanted]
                assert connection.execute(statement, parameters).first() == (wanted[0] if wanted else None)
                assert list(connection.scalars(statement, parameters)) == [row[0] for row in wanted]
                if statement.is_select:
                    assert connection.scalar(statement, parameters) == (wanted[0][0] if wanted else None)
                if len(wanted) <= 1:
                    assert connection.execute(statement, parameters).one_or_none() == (wanted[0] if wanted else None)

    await database.transaction("test.compare", compare)


@pytest.mark.requirement("STO-5")
async def test_statements_of_the_store_take_the_short_way(database: Database) -> None:
    """What is built once is made ready, with words in its text and without, and with a short list in a parameter; a long one is not."""

    def look(connection: Connection) -> None:
        fill(connection)
        assert isinstance(connection.execute(BY_STATE, {"sender": "@a:b"}), Rows)
        assert isinstance(connection.execute(INSERT_ROOM, [{**ROOM, "id": "c2", "room_id": "!r2"}]), Change)
        assert isinstance(connection, SwiftConnection)
        assert isinstance(connection.execute(BY_IDS, {"ids": ["$e1"]}), Rows)
        assert isinstance(connection.execute(BY_IDS, {"ids": ["$e1"] * 11}), sa.CursorResult)

    await database.transaction("test.short", look)


@pytest.mark.requirement("STO-5")
async def test_a_new_row_has_its_number(database: Database) -> None:
    """Tables that number their rows say which number a new one has."""

    def number(connection: Connection) -> None:
        fill(connection)
        numbers = [connection.execute(INSERT_FACT, {**FACT, "event_id": f"$n{n}"}).inserted_primary_key for n in range(3)]
        stored = connection.execute(sa.select(inbox.c.seq).where(inbox.c.event_id.startswith("$n")).order_by(inbox.c.seq)).all()
        assert [tuple(found or ()) for found in numbers] == [tuple(row) for row in stored]

    await database.transaction("test.number", number)


@pytest.mark.requirement("STO-5", "SEC-3")
async def test_errors_are_those_of_the_long_way(database: Database) -> None:
    """A broken constraint, a value that is missing and a column that is not there are told alike, and no value is quoted."""
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (INSERT_FACT, FACT),
        (INSERT_FACT, {**FACT, "event_id": "$e2", "conversation_id": "nobody"}),
        (BY_STATE, {}),
        (INSERT_FACT, {**FACT, "no_column": "a private word"}),
    ]
    for statement, parameters in wrong:
        found: list[BaseException] = []
        for execute in (sa.Connection.execute, SwiftConnection.execute):

            def work(connection: Connection, execute: Any = execute, statement: Any = statement, values: Any = parameters) -> None:
                fill(connection)
                execute(connection, statement, values)

            with pytest.raises(sa.exc.SQLAlchemyError) as caught:
                await database.transaction("test.wrong", work)
            found.append(caught.value)
        assert type(found[0]) is type(found[1])
        assert "private word" not in str(found[1])
        assert "@a:b" not in str(found[1])


@pytest.mark.requirement("STO-5")
async def test_statements_that_are_built_anew_fill_no_memory(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements for one use are forgotten, and none is ever taken for another that has its place in memory."""
    monkeypatch.setattr(prepared, "_MOST_KEPT", 10)

    def build(connection: Connection) -> int:
        fill(connection)
        for number in range(300):
            assert connection.scalar(sa.select(sa.literal(number))) == number
        return len(connection._ready)  # type: ignore[attr-defined]

    assert await database.transaction("test.build", build) <= 10


@pytest.mark.requirement("STO-5", "SEC-2")
@pytest.mark.parametrize("value", ["a\x00b", "half a pair \ud800", object()], ids=["NUL", "surrogate", "no value"])
async def test_what_postgres_takes_in_no_column_is_refused_alike(postgres: Postgres, value: object) -> None:
    """A text with NUL would be cut off below the driver; it is an error, as of the driver, and so is what is no text at all."""
    database = open_database(postgres.make_database())
    found: list[type[BaseException]] = []
    for execute in (sa.Connection.execute, SwiftConnection.execute):

        def work(connection: Connection, execute: Any = execute) -> None:
            fill(connection)
            execute(connection, sa.insert(meta), {"name": "x", "value": value})

        with pytest.raises((sa.exc.DBAPIError, UnicodeEncodeError)) as caught:
            await database.transaction("test.refused", work)
        found.append(caught.type)
    assert found[0] is found[1]
    assert await database.read(lambda connection: connection.scalar(sa.select(sa.func.count()).select_from(meta))) == 0
    database.close()


@pytest.mark.requirement("STO-5")
async def test_more_statements_than_the_server_should_remember_go_on(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements that are built anew do not fill the server's memory either."""
    monkeypatch.setattr(drivers, "_MOST_NAMED", 5)
    database = open_database(postgres.make_database())

    def build(connection: Connection) -> int:
        for number in range(30):
            assert connection.scalar(sa.select(sa.literal_column(f"'{number}%'"))) == f"{number}%"
        return int(connection.scalar(sa.text("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'hayate%'")))

    assert await database.transaction("test.many", build) == 5
    database.close()
