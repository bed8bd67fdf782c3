"""The index of hashtags and the sessions behind it, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from hayate_matrix.core.ids import MAIN_FOCUS, ConversationId, EntryId, EventId, Focus, RoomId, SessionId, UserId
from hayate_matrix.core.transcript import Pointer, Removed, Request, Resolved, Said
from hayate_matrix.store.conversations import ensure_conversation
from hayate_matrix.store.inbox import InboxRow
from hayate_matrix.store.schema import metadata
from hayate_matrix.store.sessions import StoredSessions
from hayate_matrix.store.tags import _FIND_PAGE, _LIST

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from hayate_matrix.store.database import Connection, Database
    from hayate_matrix.store.sealing import Sealer
    from hayate_matrix.store.sessions import Session
    from hayate_matrix.store.stores import Stores

    T = TypeVar("T")

NOW = datetime(2026, 11, 1, 19, 34, 13, 185000, tzinfo=UTC)
ALICE = UserId("@alice:example.org")


async def run(database: Database, work: Callable[[Connection], T]) -> T:
    return await database.transaction("test.tags", work)


def open_conversation(connection: Connection, name: str = "room") -> ConversationId:
    return ensure_conversation(connection, RoomId(f"!{name}:example.org"), NOW).id


def index(stores: Stores, connection: Connection, conversation: ConversationId, count: int, tag: str = "x", start: int = 0) -> None:
    for number in range(start, start + count):
        at = NOW - timedelta(seconds=number)  # a clock that runs backwards
        stores.tags.add(connection, conversation, [tag], SessionId("session"), EntryId(f"{conversation} {number}"), at)


def ask(stores: Stores, connection: Connection, conversation: ConversationId, text: str, number: int, focus: Focus = MAIN_FOCUS) -> Pointer:
    """Write a request into the active session of a focus, as a turn does, and return where it is."""
    row = InboxRow(
        event_id=EventId(f"$event{number}"),
        conversation_id=conversation,
        kind="request",
        state="queued",
        focus=focus,
        sender=ALICE,
        answers=EventId(f"$event{number}"),
        sent_at_ms=1,
        received_at_ms=2,
        tags=("x",),
        content=Request(sender=ALICE, text=text),
    )
    stores.inbox.put(connection, row)
    session = stores.sessions.use_active(connection, conversation, focus, NOW, idle_s=3600)
    claimed = stores.inbox.claim(connection, row.event_id)
    assert claimed is not None
    task = stores.tasks.open(connection, claimed, session, NOW)
    entry = stores.sessions.append(connection, session, task.id, Request(sender=ALICE, text=text), NOW, event_id=row.event_id)
    stores.tasks.end(connection, task, 0, NOW)
    return Pointer(session_id=session, entry_id=entry, indexed_at=NOW)


def find(stores: Stores, connection: Connection, conversation: ConversationId, focus: Focus = MAIN_FOCUS) -> Session:
    found = stores.sessions.find_active(connection, conversation, focus)
    assert found is not None
    return found


@pytest.mark.requirement("IDX-1")
async def test_the_same_entry_twice_changes_nothing(database: Database, stores: Stores) -> None:
    """A second time adds no row and moves none; the time is kept to the millisecond."""
    conversation = await run(database, open_conversation)
    for at in (NOW, NOW + timedelta(days=1)):
        await run(
            database,
            lambda connection, at=at: stores.tags.add(connection, conversation, ["x", "y"], SessionId("s"), EntryId("e"), at),  # type: ignore[misc]
        )
    page = await database.read(lambda connection: stores.tags.find_page(connection, conversation, "x", 1))
    assert page.pointers == (Pointer(session_id=SessionId("s"), entry_id=EntryId("e"), indexed_at=NOW),)
    assert await database.read(lambda connection: stores.tags.list_tags(connection, conversation)) == ["x", "y"]


@pytest.mark.requirement("IDX-6", "IN-11")
async def test_pages_are_newest_first_by_own_numbers(database: Database, stores: Stores) -> None:
    """The last page has the rest, one beyond it has none; a clock that runs backwards turns nothing round."""
    conversation = await run(database, open_conversation)
    await run(database, lambda connection: index(stores, connection, conversation, 23))
    await run(database, lambda connection: index(stores, connection, conversation, 5, "y", 100))
    pages = [
        await database.read(lambda connection, number=number: stores.tags.find_page(connection, conversation, "x", number))  # type: ignore[misc]
        for number in (1, 2, 3, 4)
    ]
    assert [[int(pointer.entry_id.split()[1]) for pointer in page.pointers] for page in pages] == [
        list(range(22, 12, -1)),
        list(range(12, 2, -1)),
        [2, 1, 0],
        [],
    ]
    assert {page.last for page in pages} == {3}
    unknown = await database.read(lambda connection: stores.tags.find_page(connection, conversation, "z", 1))
    assert (unknown.pointers, unknown.last) == ((), 0)


@pytest.mark.requirement("IDX-2", "SEC-1")
async def test_another_conversation_has_an_index_of_its_own(database: Database, stores: Stores) -> None:
    """The same tag elsewhere is another; what one conversation adds is numbered and listed for itself."""
    one, other = await run(database, open_conversation), await run(database, lambda connection: open_conversation(connection, "other"))
    await run(database, lambda connection: index(stores, connection, one, 3))
    await run(database, lambda connection: index(stores, connection, other, 1, start=50))
    await run(database, lambda connection: index(stores, connection, other, 1, "secret", start=60))
    assert await database.read(lambda connection: stores.tags.list_tags(connection, one)) == ["x"]
    page = await database.read(lambda connection: stores.tags.find_page(connection, one, "x", 1))
    assert [pointer.entry_id for pointer in page.pointers] == [f"{one} {number}" for number in (2, 1, 0)]
    assert not (await database.read(lambda connection: stores.tags.find_page(connection, one, "secret", 1))).last


@pytest.mark.requirement("IDX-10")
async def test_a_page_and_the_list_are_found_by_the_index(database: Database, stores: Stores) -> None:
    """The database looks every row of a page up, and goes from tag to tag, by the primary key: it scans nothing."""
    if database.dialect != "sqlite":
        pytest.skip("PostgreSQL chooses plans by statistics; the keys are the same")
    conversation = await run(database, open_conversation)
    await run(database, lambda connection: index(stores, connection, conversation, 100))

    def explain(connection: Connection) -> list[str]:
        plans = []
        for statement in (_FIND_PAGE, _LIST):
            wanted = {"conversation_id": "c", "tag": "x", "skipped": 0}
            compiled = statement.compile(connection, compile_kwargs={"render_postcompile": True})
            values = {name: wanted.get(name, 10) for name in compiled.params}
            plans += [
                str(row[3])
                for row in connection.execute(sa.text(f"EXPLAIN QUERY PLAN {compiled.string.replace('?', ':p')}"), {"p": "x", **values})
            ]
        return plans

    plan = await database.read(explain)
    assert plan
    assert not [line for line in plan if "SCAN tags" in line or "TEMP B-TREE" in line]


@pytest.mark.requirement("SES-4", "IDX-8", "SEC-1")
async def test_a_pointer_is_resolved_to_a_text_or_to_why_there_is_none(database: Database, stores: Stores) -> None:
    """A text, a redacted message, a removed one, a removed session; another conversation's pointer is like one to nothing."""
    conversation = await run(database, open_conversation)
    texts = await run(database, lambda connection: [ask(stores, connection, conversation, f"text {n}", n) for n in range(2)])
    await run(database, lambda connection: stores.sessions.remove_text(connection, [EventId("$event1")]))
    gone = Pointer(session_id=texts[0].session_id, entry_id=EntryId("never"), indexed_at=NOW)
    nowhere = Pointer(session_id=SessionId("never"), entry_id=EntryId("never"), indexed_at=NOW)
    crossed = Pointer(session_id=SessionId("never"), entry_id=texts[0].entry_id, indexed_at=NOW)
    provider = StoredSessions(database, stores.sessions)
    pointers = [*texts, gone, nowhere, crossed]
    assert await provider.resolve(conversation, pointers) == [
        Resolved(text="text 0", event_id=EventId("$event0")),
        Resolved(missing="message redacted", event_id=EventId("$event1")),
        Resolved(missing="message removed"),
        Resolved(missing="session removed"),
        Resolved(missing="session removed"),
    ]
    other = await run(database, lambda connection: open_conversation(connection, "other"))
    assert await provider.resolve(other, pointers) == [Resolved(missing="session removed")] * 5
    session = await database.read(lambda connection: find(stores, connection, conversation))
    await run(database, lambda connection: stores.sessions.remove(connection, session))
    assert [found.missing for found in await provider.resolve(conversation, texts)] == ["session removed"] * 2


@pytest.mark.requirement("SES-2", "SEC-1", "IN-11")
async def test_sessions_are_listed_by_last_use_and_found_by_a_prefix(database: Database, stores: Stores) -> None:
    """The order is that of use; a prefix finds a session of this conversation alone, a removed one last."""
    conversation = await run(database, open_conversation)
    other = await run(database, lambda connection: open_conversation(connection, "other"))

    def open_some(connection: Connection) -> list[SessionId]:
        times = [NOW - timedelta(days=number) for number in range(12)]
        made = [
            stores.sessions.open_new(connection, conversation, MAIN_FOCUS, at, name=f"name {number}") for number, at in enumerate(times)
        ]
        stores.sessions.open_new(connection, other, MAIN_FOCUS, NOW, name="secret")
        return made

    made = await run(database, open_some)
    found = await database.read(lambda connection: stores.sessions.find(connection, conversation, made[3]))
    await run(database, lambda connection: stores.sessions.activate(connection, found[0], MAIN_FOCUS, NOW))
    listed, last = await database.read(lambda connection: stores.sessions.list_page(connection, conversation, 1))
    assert [one.title for one in listed] == [f"name {number}" for number in (3, 11, 10, 9, 8, 7, 6, 5, 4, 2)]
    assert [one.session.state for one in listed] == ["active"] + ["closed"] * 9
    assert last == 2
    assert len((await database.read(lambda connection: stores.sessions.list_page(connection, conversation, 2)))[0]) == 2
    assert await database.read(lambda connection: stores.sessions.find(connection, other, made[3][:8])) == []
    assert len(await database.read(lambda connection: stores.sessions.find(connection, conversation, ""))) == 2
    assert await database.read(lambda connection: stores.sessions.find(connection, conversation, "%")) == []


def unseal_all(sealer: Sealer, connection: Connection) -> list[str]:
    """Return every sealed text of the database, opened, and where it is."""
    texts = []
    for table in metadata.tables.values():
        for column in table.columns:
            if isinstance(column.type, sa.LargeBinary):
                key = table.c.event_id if table.name == "inbox" else table.c.id
                field = f"{table.name}.{column.name}"
                rows = connection.execute(sa.select(key, column).where(column.is_not(None)))
                texts += [f"{field}: {sealer.open(field, row[0], row[1])}" for row in rows]
    return texts


@pytest.mark.requirement("SES-3", "STO-10")
async def test_retention_takes_the_text_and_leaves_stones(database: Database, stores: Stores, sealer: Sealer) -> None:
    """Of a removed session no text is left: not in entries, inbox, name or what was sent; what is owed still goes out."""
    conversation = await run(database, open_conversation)
    await run(database, lambda connection: ask(stores, connection, conversation, "wolpertinger", 1))
    session = await database.read(lambda connection: find(stores, connection, conversation))

    def say(connection: Connection) -> None:
        stores.sessions.rename(connection, session.id, "wolpertinger")
        task = connection.exec_driver_sql("SELECT id FROM tasks").scalar_one()
        stores.sessions.append(connection, session.id, task, Said(text="a wolpertinger is a hare"), NOW)
        for text in ("a wolpertinger is a hare", "owed"):
            stores.outbox.add(connection, conversation, "reply", text, NOW, task_id=task)
        first = stores.outbox.find_next(connection, conversation)
        assert first is not None
        stores.outbox.settle(connection, first, [EventId("$reply")], NOW)

    await run(database, say)
    texts = await database.read(lambda connection: unseal_all(sealer, connection))
    assert sorted(text.partition(":")[0] for text in texts if "wolpertinger" in text) == [
        "entries.content",
        "entries.content",
        "inbox.content",
        "outbox.text",
        "sessions.name",
    ]
    assert await database.read(lambda connection: stores.sessions.list_old(connection, NOW, keep_days=1, limit=5)) == []
    old = await database.read(
        lambda connection: stores.sessions.list_old(connection, NOW + timedelta(days=1, seconds=1), keep_days=1, limit=5)
    )
    assert [one.id for one in old] == [session.id]

    def remove(connection: Connection) -> None:
        stores.inbox.remove_session(connection, session.id)
        stores.outbox.remove_text(connection, session.id)
        stores.sessions.remove(connection, session)

    await run(database, remove)
    assert await database.read(lambda connection: stores.sessions.read_last(connection, session.id, 10)) == [Removed(kind="request")]
    texts = await database.read(lambda connection: unseal_all(sealer, connection))
    assert not [text for text in texts if "wolpertinger" in text]
    row = await database.read(lambda connection: stores.inbox.find(connection, EventId("$event1")))
    assert row is not None
    assert row.content is None
    assert await database.read(lambda connection: stores.outbox.find_sent_text(connection, conversation, EventId("$reply"))) is None
    owed = await database.read(lambda connection: stores.outbox.find_next(connection, conversation))
    assert owed is not None
    assert owed.delivery.text == "owed"
    assert await database.read(lambda connection: stores.sessions.list_page(connection, conversation, 1)) == ([], 0)
    assert await database.read(lambda connection: stores.sessions.list_old(connection, NOW + timedelta(days=9), keep_days=1, limit=5)) == []


@pytest.mark.requirement("SES-3")
async def test_a_session_that_was_idle_is_not_gone_on_with(database: Database, stores: Stores) -> None:
    """After `idle_s` the next message opens a fresh one; in one that a turn works in nothing is closed."""
    conversation = await run(database, open_conversation)
    first = await run(database, lambda connection: stores.sessions.use_active(connection, conversation, MAIN_FOCUS, NOW, idle_s=60))
    later = NOW + timedelta(seconds=60)
    same = await run(database, lambda connection: stores.sessions.use_active(connection, conversation, MAIN_FOCUS, later, idle_s=60))
    late = later + timedelta(seconds=61)
    idle = await database.read(lambda connection: stores.sessions.list_idle(connection, late, idle_s=60, limit=5))
    assert [one.id for one in idle] == [first]
    fresh = await run(database, lambda connection: stores.sessions.use_active(connection, conversation, MAIN_FOCUS, late, idle_s=60))
    assert first == same != fresh
