"""The transaction, on both databases."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from hayate_matrix.errors import HomeBusyError, StoreError
from hayate_matrix.store.database import SCHEMA_REVISION, Connection, Database, open_database, opening
from hayate_matrix.store.database.opening import MIGRATIONS
from hayate_matrix.store.schema import metadata

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.postgres import Postgres

INSERT = text("INSERT INTO meta (name, value) VALUES (:name, 'x')")
COUNT = text("SELECT count(*) FROM meta WHERE value = 'x'")


async def count(database: Database) -> int:
    return await database.read(lambda connection: connection.execute(COUNT).scalar_one())


@pytest.mark.requirement("STO-5")
async def test_a_transaction_is_whole_or_nothing(database: Database) -> None:
    """What fails in the middle leaves nothing behind, and the next transaction goes on as if it had never been."""

    def fail(connection: Connection) -> None:
        connection.execute(INSERT, {"name": "a"})
        raise LookupError

    with pytest.raises(LookupError):
        await database.transaction("test.fail", fail)
    assert await count(database) == 0
    await database.transaction("test.work", lambda connection: connection.execute(INSERT, {"name": "a"}))
    assert await count(database) == 1


@pytest.mark.requirement("SEC-3")
async def test_an_error_of_the_database_quotes_no_value(database: Database) -> None:
    """What people wrote is in the statements' values, and what an error says is in the log."""
    with pytest.raises(sqlalchemy.exc.DBAPIError) as caught:
        await database.transaction(
            "test.wrong", lambda connection: connection.execute(text("SELECT :said FROM nowhere"), {"said": "a private word"})
        )
    assert "nowhere" in str(caught.value)
    assert "a private word" not in str(caught.value)


@pytest.mark.requirement("STO-5")
async def test_transactions_run_one_after_the_other_in_one_thread(database: Database) -> None:
    """Two pieces of work never run at once, and never in the thread of the loop."""
    inside: set[int] = set()
    threads: set[int] = set()

    def work(connection: Connection) -> None:
        inside.add(1)
        assert len(inside) == 1
        connection.execute(COUNT)
        threads.add(threading.get_ident())
        inside.discard(1)

    await asyncio.gather(*(database.transaction("test.turns", work) for _ in range(20)))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@pytest.mark.requirement("STO-5")
async def test_a_read_sees_a_commit_and_writes_nothing(database: Database) -> None:
    """What was committed is read at once; a write among reads is refused."""
    await database.transaction("test.seen", lambda connection: connection.execute(INSERT, {"name": "a"}))
    assert await count(database) == 1
    with pytest.raises((StoreError, sqlalchemy.exc.DBAPIError)):
        await database.read(lambda connection: connection.execute(INSERT, {"name": "b"}))
    assert await count(database) == 1


@pytest.mark.requirement("STO-5")
async def test_a_cancelled_caller_goes_on_after_the_commit(database: Database) -> None:
    """Whoever is cancelled in a transaction learns of it when the transaction is over, so that nothing is half known."""
    begun, go_on = threading.Event(), threading.Event()

    def work(connection: Connection) -> None:
        begun.set()
        assert go_on.wait(20)
        connection.execute(INSERT, {"name": "a"})

    task = asyncio.create_task(database.transaction("test.cancelled", work))
    await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await count(database) == 1


@pytest.mark.requirement("STO-5")
def test_opening_again_changes_nothing_and_closing_twice_is_harmless(url: str) -> None:
    """A second start finds the schema as it is."""
    for _ in range(2):
        opened = open_database(url, key_id="aaaaaaaa")
        opened.close()
        opened.close()


@pytest.mark.requirement("STO-8")
def test_a_database_of_another_key_is_refused(url: str) -> None:
    """A store whose texts the key can't open is refused at start, not at the first text."""
    open_database(url, key_id="aaaaaaaa").close()
    with pytest.raises(StoreError, match="sealed with the key aaaaaaaa"):
        open_database(url, key_id="bbbbbbbb")
    open_database(url, key_id="aaaaaaaa").close()


@pytest.mark.requirement("STO-5")
def test_a_newer_schema_is_refused_and_left_alone(url: str) -> None:
    """A database of a newer program is not touched."""
    open_database(url).close()
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="9999"):
        open_database(url)
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "9999"
    engine.dispose()


@pytest.mark.requirement("STO-5")
def test_a_migration_that_fails_is_rolled_back_whole(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step that fails half way, and of the steps before it in the same start, nothing stays."""
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    for name in ("env.py", "versions/0001_path.py"):
        (folder / name).write_text((MIGRATIONS / name).read_text())
    (folder / "versions" / "0002_broken.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\nrevision, down_revision = '0002', '0001'\n\n"
        "def upgrade():\n    op.add_column('meta', sa.Column('more', sa.Text))\n    op.execute('SELECT nothing FROM nowhere')\n"
    )
    monkeypatch.setattr(opening, "MIGRATIONS", folder)
    monkeypatch.setattr(opening, "SCHEMA_REVISION", "0002")
    with pytest.raises((StoreError, sqlalchemy.exc.DBAPIError)):
        open_database(url)
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        assert sqlalchemy.inspect(connection).get_table_names() == []
    engine.dispose()
    monkeypatch.undo()
    open_database(url).close()


@pytest.mark.requirement("STO-5")
def test_the_migrations_make_the_schema_of_the_code(url: str) -> None:
    """The steps together give exactly the tables that the code speaks of, and the newest step is the one that it expects."""
    open_database(url).close()
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()
    assert ScriptDirectory(str(MIGRATIONS)).get_heads() == [SCHEMA_REVISION]


@pytest.mark.requirement("STO-5", "SES-2")
def test_a_database_of_the_first_schema_is_brought_forward(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there stays: sessions are in the order of their entries, a turn that was steered knows so, and nothing is tagged."""
    monkeypatch.setattr(opening, "SCHEMA_REVISION", "0001")
    open_database(url).close()
    monkeypatch.undo()
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    session = "INSERT INTO sessions (id, conversation_id, focus, state, epoch, made_at_ms, used_at_ms) VALUES"
    rows = (
        "INSERT INTO conversations (id, room_id, made_at_ms, is_present, is_paused, streak) VALUES ('c', '!r', 1, true, false, 0)",
        """INSERT INTO inbox (event_id, conversation_id, kind, state, epoch, focus, sender, answers, sent_at_ms, received_at_ms)
           VALUES ('$e', 'c', 'request', 'running', 1, '', '@a', '$e', 1, 1)""",
        f"{session} ('late', 'c', '', 'active', 0, 9, 9)",
        f"{session} ('early', 'c', '', 'closed', 0, 1, 1)",
        """INSERT INTO tasks (id, conversation_id, focus, session_id, request_event_id, state, epoch, attempts, made_at_ms)
           VALUES ('t', 'c', '', 'late', '$e', 'running', 0, 1, 1)""",
        "INSERT INTO entries (id, session_id, task_id, kind, made_at_ms) VALUES ('1', 'early', 't', 'note', 1)",
        "INSERT INTO entries (id, session_id, task_id, kind, made_at_ms) VALUES ('2', 'late', 't', 'steer', 1)",
    )
    with engine.begin() as connection:
        for row in rows:
            connection.execute(text(row))
    opened = open_database(url)
    opened.close()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT id FROM sessions ORDER BY touched")).scalars().all() == ["early", "late"]
        assert connection.execute(text("SELECT steers, tags FROM tasks")).one() == (1, "")
        assert connection.execute(text("SELECT tags FROM inbox")).one() == ("",)
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


@pytest.mark.requirement("STO-5")
@pytest.mark.parametrize("address", ["mysql://root@localhost/x", "sqlite://", "nonsense", "postgresql+nosuch"])
def test_an_address_of_no_database_is_refused(address: str) -> None:
    """Only the two databases are taken, and the text says which."""
    with pytest.raises(StoreError, match="sqlite:///PATH or postgresql"):
        open_database(address)


@pytest.mark.requirement("STO-5", "STO-1")
def test_sqlite_is_opened_as_it_must_be(tmp_path: Path) -> None:
    """Write-ahead log, full synchronisation, foreign keys; and no file of it can be read by others."""
    opened = open_database(tmp_path / "hayate.db")
    try:
        asyncio.run(opened.transaction("test.pragmas", check_pragmas))
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
        assert {path.name for path in tmp_path.iterdir()} >= {"hayate.db", "hayate.db-wal"}
    finally:
        opened.close()


def check_pragmas(connection: Connection) -> None:
    connection.execute(INSERT, {"name": "a"})
    values = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous", "foreign_keys")}
    assert values == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


@pytest.mark.requirement("STO-7", "REL-4")
@pytest.mark.parametrize("damage", ["no database", "a damaged page", "cut off"])
def test_a_damaged_file_is_refused_and_not_touched(tmp_path: Path, damage: str) -> None:
    """A damaged database stops the start with what to do, and every byte of it stays."""
    path = tmp_path / "hayate.db"
    opened = open_database(path)
    for start in range(0, 400, 100):
        names = [{"name": f"{number:05}{'x' * 400}"} for number in range(start, start + 100)]
        asyncio.run(opened.transaction("test.fill", lambda connection, names=names: connection.execute(INSERT, names)))  # type: ignore[misc]
    opened.close()
    content = bytearray(path.read_bytes())
    match damage:
        case "no database":
            content[:16] = b"this is no store"
        case "a damaged page":
            content[4096 * 30 : 4096 * 40] = b"\xff" * (4096 * 10)
        case _:
            content = content[: len(content) // 2]
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        open_database(path)
    assert caught.value.exit_code == 74
    assert "Nothing was overwritten" in caught.value.remedy
    assert path.read_bytes() == content


@pytest.mark.requirement("REL-4")
def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A path that can't be opened is an error that names it."""
    with pytest.raises(StoreError, match="nowhere"):
        open_database(tmp_path / "nowhere" / "hayate.db")


@pytest.mark.requirement("REL-4")
async def test_a_full_disk_is_told_as_that(tmp_path: Path) -> None:
    """A write for which there is no room asks to wait, and changes nothing."""
    opened = open_database(tmp_path / "hayate.db")

    def fill(connection: Connection) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
        connection.execute(INSERT, [{"name": f"{number}{'x' * 1000}"} for number in range(100)])

    try:
        with pytest.raises(Exception, match="Free some space") as caught:
            await opened.transaction("test.full", fill)
        assert caught.type.__name__ == "DiskLow"
        assert await count(opened) == 0
    finally:
        opened.close()


@pytest.mark.requirement("STO-6")
async def test_on_postgres_the_account_has_one_owner(postgres: Postgres) -> None:
    """A second process on the same database is refused for the same account, by name, and served once the first is gone."""
    url = postgres.make_database()
    first, second = open_database(url), open_database(url)
    try:
        await first.own_account("@bot:example.org")
        with pytest.raises(HomeBusyError, match=r"@bot:example.org is served by hayate-matrix process \d+ on this machine"):
            await second.own_account("@bot:example.org")
        await second.own_account("@other:example.org")
        first.close()
        second.close()
        third = open_database(url)
        await third.own_account("@bot:example.org")
        third.close()
    finally:
        first.close()
        second.close()


@pytest.mark.requirement("STO-5")
def test_programs_that_migrate_at_once_wait_for_each_other(postgres: Postgres) -> None:
    """Four that open an empty database in the same instant all end with the whole schema, made once."""
    url = postgres.make_database()
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(open_database, [url] * 4))
    for database in opened:
        assert asyncio.run(count(database)) == 0
        database.close()


@pytest.mark.requirement("STO-5")
async def test_a_server_that_goes_away_stops_the_program(postgres: Postgres) -> None:
    """A connection that PostgreSQL cut ends in an error that says what to do, for good: it held the account's lock."""
    url = postgres.make_database()
    opened = open_database(url)
    await opened.transaction("test.before", lambda connection: connection.execute(INSERT, {"name": "a"}))
    with postgres.connect("postgres") as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'hayate%'")
    for _ in range(2):
        with pytest.raises(StoreError, match="database server runs"):
            await opened.transaction("test.after", lambda connection: connection.execute(INSERT, {"name": "b"}))
    opened.close()


@pytest.mark.requirement("SEC-3")
def test_a_password_in_the_address_is_not_told(tmp_path: Path) -> None:
    """An error about a database server never repeats its password."""
    with pytest.raises(StoreError) as caught:
        open_database(f"postgresql://bot:hunter2@/nothing?host={tmp_path}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.requirement("STO-5")
async def test_a_file_of_sqlite_can_be_looked_into_meanwhile(tmp_path: Path) -> None:
    """A shell or `doctor` that reads the file does not stop the writer."""
    opened = open_database(tmp_path / "hayate.db")
    looker = sqlite3.connect(tmp_path / "hayate.db")
    looker.execute("BEGIN")
    looker.execute("SELECT * FROM meta").fetchall()
    await opened.transaction("test.beside", lambda connection: connection.execute(INSERT, {"name": "a"}))
    assert await count(opened) == 1
    looker.close()
    opened.close()
