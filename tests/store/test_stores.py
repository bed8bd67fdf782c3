"""What is kept, on both databases: facts once, states guarded, texts sealed."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from hayate_matrix.core.ids import MAIN_FOCUS, ConversationId, EventId, Focus, RoomId, SessionId, TaskId, UserId
from hayate_matrix.core.transcript import Element, Note, Removed, Request, Result, Said, Steer, ToolCall
from hayate_matrix.core.turns import MOVES, is_legal
from hayate_matrix.errors import StaleTransition
from hayate_matrix.store.conversations import ensure_conversation, find_conversation, get_room, set_answered, set_presence, set_streak
from hayate_matrix.store.inbox import InboxRow
from hayate_matrix.store.schema import inbox, metadata, move, outbox, sessions, tasks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeVar

    from hayate_matrix.store.database import Connection, Database
    from hayate_matrix.store.stores import Stores

    T = TypeVar("T")

NOW = datetime(2026, 11, 1, 19, 34, 13, 185000, tzinfo=UTC)
ROOM = RoomId("!room:example.org")
ALICE = UserId("@alice:example.org")
SECRET = "wolpertinger"


async def run(database: Database, work: Callable[[Connection], T]) -> T:
    return await database.transaction("test.step", work)


def make_row(conversation: ConversationId, number: int = 1, **changes: object) -> InboxRow:
    row = InboxRow(
        event_id=EventId(f"$event{number}"),
        conversation_id=conversation,
        kind="request",
        state="queued",
        focus=MAIN_FOCUS,
        sender=ALICE,
        answers=EventId(f"$event{number}"),
        sent_at_ms=1,
        received_at_ms=2,
        content=Request(sender=ALICE, text=f"{SECRET} {number}"),
    )
    return dataclasses.replace(row, **changes)  # type: ignore[arg-type]


def open_task(
    stores: Stores, connection: Connection, number: int = 1, focus: Focus = MAIN_FOCUS
) -> tuple[ConversationId, SessionId, TaskId]:
    conversation = ensure_conversation(connection, ROOM, NOW).id
    row = make_row(conversation, number, focus=focus)
    stores.inbox.put(connection, row)
    session = stores.sessions.use_active(connection, conversation, focus, NOW, idle_s=60)
    return conversation, session, stores.tasks.open(connection, row, session, NOW).id


@pytest.mark.requirement("ROOM-7", "ROOM-8")
async def test_a_room_has_one_conversation_for_ever(database: Database) -> None:
    """The same room gives the same conversation, another room another one; neither id is made of the other."""
    first = await run(database, lambda connection: ensure_conversation(connection, ROOM, NOW))
    again = await run(database, lambda connection: ensure_conversation(connection, ROOM, NOW))
    other = await run(database, lambda connection: ensure_conversation(connection, RoomId("!opaque"), NOW))
    assert first == again
    assert first.id != other.id
    assert first.is_present
    assert await database.read(lambda connection: get_room(connection, other.id)) == "!opaque"


async def test_what_is_known_of_a_conversation_is_kept(database: Database) -> None:
    """Presence, the last answer and the streak of quick exchanges survive."""
    made = await run(database, lambda connection: ensure_conversation(connection, ROOM, NOW))
    await run(database, lambda connection: set_presence(connection, made.id, is_present=False))
    await run(database, lambda connection: set_streak(connection, made.id, 3, ALICE))
    await run(database, lambda connection: set_answered(connection, made.id, NOW))
    found = await database.read(lambda connection: find_conversation(connection, ROOM))
    assert found is not None
    assert (found.is_present, found.streak, found.streak_sender, found.answered_at_ms) == (False, 3, ALICE, 1793561653185)


@pytest.mark.requirement("IN-1", "STO-8")
async def test_an_inbox_row_comes_back_as_it_was(database: Database, stores: Stores) -> None:
    """Every field of a fact is read as it was written, in order of arrival."""
    made = await run(database, lambda connection: ensure_conversation(connection, ROOM, NOW))
    rows = [
        make_row(made.id, 1, reply_to=EventId("$r"), target=EventId("$t"), focus=Focus("$thread")),
        make_row(made.id, 2, kind="other", state="noted", content=None),
        make_row(made.id, 3, content=Request(sender=ALICE, text="x", reference="y", is_edit=True, file_name="z.pdf")),
    ]
    seqs = [await run(database, lambda connection, row=row: stores.inbox.put(connection, row)) for row in rows]  # type: ignore[misc]
    assert seqs == sorted(seqs)
    for row, seq in zip(rows, seqs, strict=True):
        found = await database.read(lambda connection, row=row: stores.inbox.find(connection, row.event_id))  # type: ignore[misc]
        assert found == dataclasses.replace(row, seq=seq)
    opened = await database.read(stores.inbox.list_open)
    assert [row.event_id for row in opened] == ["$event1", "$event3"]
    other = await run(database, lambda connection: ensure_conversation(connection, RoomId("!other"), NOW))
    for where, about in ((made, [dataclasses.replace(rows[0], seq=1)]), (other, [])):
        found_about = await database.read(lambda connection, id_=where.id: stores.inbox.find_about(connection, id_, EventId("$t")))  # type: ignore[misc]
        assert found_about == about


@pytest.mark.requirement("IN-1")
async def test_an_event_is_taken_once_and_its_stone_outlives_the_text(database: Database, stores: Stores) -> None:
    """The database itself refuses a second row of an event, also after its text is gone."""
    made = await run(database, lambda connection: ensure_conversation(connection, ROOM, NOW))
    await run(database, lambda connection: stores.inbox.put(connection, make_row(made.id)))
    await run(database, lambda connection: stores.inbox.remove_text(connection, [EventId("$event1")]))
    with pytest.raises(sa.exc.IntegrityError):
        await run(database, lambda connection: stores.inbox.put(connection, make_row(made.id)))
    known = await database.read(lambda connection: stores.inbox.find_known(connection, [EventId("$event1"), EventId("$event2")]))
    assert known == ({"$event1"}, set())
    found = await database.read(lambda connection: stores.inbox.find(connection, EventId("$event1")))
    assert found is not None
    assert found.content is None


async def test_many_event_ids_are_looked_up_at_once(database: Database, stores: Stores) -> None:
    """A batch larger than a database takes parameters is looked up whole."""
    made = await run(database, lambda connection: ensure_conversation(connection, ROOM, NOW))
    await run(database, lambda connection: [stores.inbox.put(connection, make_row(made.id, number)) for number in (1, 39_999)])
    wanted = [EventId(f"$event{number}") for number in range(40_000)]
    assert await database.read(lambda connection: stores.inbox.find_known(connection, wanted)) == ({"$event1", "$event39999"}, set())


@pytest.mark.requirement("STO-4")
@pytest.mark.parametrize("thing", sorted(MOVES))
async def test_the_store_refuses_every_move_that_is_not_in_the_table(database: Database, stores: Stores, thing: str) -> None:
    """Of all pairs of states only those of core's table are carried out, each raising the epoch; the others change nothing."""
    table = {"inbox": inbox, "tasks": tasks, "sessions": sessions, "outbox": outbox}[thing]

    def prepare(connection: Connection) -> str:
        conversation, session, task = open_task(stores, connection)
        delivery = stores.outbox.add(connection, conversation, "reply", "text", NOW)
        return {"inbox": "$event1", "tasks": task, "sessions": session, "outbox": delivery}[thing]

    key = await run(database, prepare)
    column = table.c.event_id if thing == "inbox" else table.c.id

    def try_move(connection: Connection, state: str, to: str) -> tuple[str, int]:
        connection.execute(sa.update(table).where(column == key).values(state=state, epoch=7))
        try:
            move(connection, table, key, state=state, epoch=7, to=to)
        except StaleTransition:
            assert not is_legal(thing, state, to)
        row = connection.execute(sa.select(table.c.state, table.c.epoch).where(column == key)).one()
        return row.state, row.epoch

    states = list(MOVES[thing])
    for state in states:
        for to in states:
            found = await run(database, lambda connection, state=state, to=to: try_move(connection, state, to))  # type: ignore[misc]
            assert found == ((to, 8) if is_legal(thing, state, to) else (state, 7))


@pytest.mark.requirement("STO-4")
async def test_a_stale_move_changes_nothing(database: Database, stores: Stores) -> None:
    """Whoever read an older state or epoch is refused, and the whole transaction is undone."""
    made = await run(database, lambda connection: ensure_conversation(connection, ROOM, NOW))
    await run(database, lambda connection: stores.inbox.put(connection, make_row(made.id)))
    row = await database.read(lambda connection: stores.inbox.find(connection, EventId("$event1")))
    assert row is not None
    await run(database, lambda connection: stores.inbox.move(connection, row, "running"))

    def work(connection: Connection) -> None:
        stores.inbox.put(connection, make_row(made.id, 2))
        stores.inbox.move(connection, row, "dropped")

    with pytest.raises(StaleTransition):
        await run(database, work)
    assert await database.read(lambda connection: stores.inbox.find(connection, EventId("$event2"))) is None
    assert not await run(database, lambda connection: stores.inbox.replace(connection, row, Request(sender=ALICE, text="late"), ()))


@pytest.mark.requirement("STO-4")
async def test_a_state_that_came_back_is_not_taken_for_the_old_one(database: Database, stores: Stores) -> None:
    """A row that left a state and is in it again has another epoch: whoever read it before is refused."""
    made = await run(database, lambda connection: ensure_conversation(connection, ROOM, NOW))
    await run(database, lambda connection: stores.outbox.add(connection, made.id, "reply", "text", NOW))
    owed = await database.read(lambda connection: stores.outbox.find_next(connection, made.id))
    assert owed is not None
    await run(database, lambda connection: stores.outbox.hold(connection, made.id))
    await run(database, stores.outbox.release)
    assert await database.read(stores.outbox.count) == {owed.state: 1}
    with pytest.raises(StaleTransition):
        await run(database, lambda connection: stores.outbox.settle(connection, owed, [], NOW))


@pytest.mark.requirement("CORE-2")
async def test_a_focus_has_one_open_task_and_one_active_session(database: Database, stores: Stores) -> None:
    """The database itself refuses a second running task in a focus; a thread is another focus with a session of its own."""
    _, first, _ = await run(database, lambda connection: open_task(stores, connection, 1))
    with pytest.raises(sa.exc.IntegrityError):
        await run(database, lambda connection: open_task(stores, connection, 2))
    conversation, second, _ = await run(database, lambda connection: open_task(stores, connection, 3, Focus("$thread")))
    assert first != second
    again = await run(database, lambda connection: stores.sessions.use_active(connection, conversation, MAIN_FOCUS, NOW, idle_s=60))
    assert again == first
    found = await database.read(stores.tasks.list_open)
    assert {task.focus for task in found} == {MAIN_FOCUS, "$thread"}


@pytest.mark.requirement("CORE-3")
async def test_only_a_crash_counts_as_an_attempt(database: Database, stores: Stores) -> None:
    """A task that is taken up after a crash was tried once more; one that was put down in order was not."""
    await run(database, lambda connection: open_task(stores, connection))
    (task,) = await database.read(stores.tasks.list_open)
    task = await run(database, lambda connection: stores.tasks.move(connection, task, "suspended", NOW))
    task = await run(database, lambda connection: stores.tasks.move(connection, task, "running", NOW))
    assert task.attempts == 1
    stale = task
    task = await run(database, lambda connection: stores.tasks.move(connection, task, "running", NOW))
    assert task.attempts == 2
    await run(database, lambda connection: stores.tasks.check(connection, task))
    with pytest.raises(StaleTransition):
        await run(database, lambda connection: stores.tasks.check(connection, stale))


ELEMENTS: list[Element] = [
    Request(sender=ALICE, text=f"{SECRET} request", reference=f"{SECRET} reference"),
    Said(text=f"{SECRET} said", calls=(ToolCall(id="1", name="look", arguments=f'{{"x": "{SECRET}"}}'),), native=f"{SECRET} native"),
    Result(call_id="1", name="look", text=f"{SECRET} result", outcome="unknown"),
    Steer(sender=ALICE, text=f"{SECRET} steer"),
    Note(text=f"{SECRET} note"),
]


@pytest.mark.requirement("CORE-1")
async def test_a_transcript_comes_back_in_order(database: Database, stores: Stores) -> None:
    """Every kind of element is read as it was written, the last ones alone too."""
    _, session, task = await run(database, lambda connection: open_task(stores, connection))
    for element in ELEMENTS:
        await run(database, lambda connection, element=element: stores.sessions.append(connection, session, task, element, NOW))  # type: ignore[misc]
    assert await database.read(lambda connection: stores.sessions.read_last(connection, session, 100)) == ELEMENTS
    assert await database.read(lambda connection: stores.sessions.read_last(connection, session, 2)) == ELEMENTS[-2:]
    assert await database.read(lambda connection: stores.sessions.read_task(connection, task)) == ELEMENTS
    assert await database.read(lambda connection: stores.sessions.read_steers(connection, task, 0)) == [ELEMENTS[3]]
    assert await database.read(lambda connection: stores.sessions.read_steers(connection, task, 1)) == []


@pytest.mark.requirement("IN-5")
async def test_a_removed_element_is_a_stone(database: Database, stores: Stores) -> None:
    """What came from a removed message is gone from the transcript, its place stays."""
    _, session, task = await run(database, lambda connection: open_task(stores, connection))
    await run(database, lambda connection: stores.sessions.append(connection, session, task, ELEMENTS[0], NOW, event_id=EventId("$event1")))
    await run(database, lambda connection: stores.sessions.append(connection, session, task, ELEMENTS[4], NOW))
    assert await run(database, lambda connection: stores.sessions.remove_text(connection, [EventId("$event1"), EventId("$nothing")])) == [
        session
    ]
    found = await database.read(lambda connection: stores.sessions.read_last(connection, session, 10))
    assert found == [Removed(kind="request"), ELEMENTS[4]]


@pytest.mark.requirement("OUT-2")
async def test_what_is_owed_is_found_in_order_and_settled_once(database: Database, stores: Stores) -> None:
    """The oldest row comes first, held or not; a row that is settled is not owed again, and its event ids are known."""
    made = await run(database, lambda connection: ensure_conversation(connection, ROOM, NOW))
    for number in range(3):
        await run(database, lambda connection, number=number: stores.outbox.add(connection, made.id, "reply", f"text {number}", NOW))  # type: ignore[misc]
    assert await database.read(stores.outbox.list_indebted) == [made.id]
    assert await run(database, lambda connection: stores.outbox.hold(connection, made.id)) == 3
    first = await database.read(lambda connection: stores.outbox.find_next(connection, made.id))
    assert first is not None
    assert (first.delivery.text, first.delivery.room_id, first.state) == ("text 0", ROOM, "held")
    assert await run(database, stores.outbox.release) == 3
    with pytest.raises(StaleTransition):
        await run(database, lambda connection: stores.outbox.settle(connection, first, [EventId("$a")], NOW))
    again = await database.read(lambda connection: stores.outbox.find_next(connection, made.id))
    assert again is not None
    assert again.delivery == first.delivery
    await run(database, lambda connection: stores.outbox.settle(connection, again, [EventId("$a"), EventId("$b")], NOW))
    with pytest.raises(StaleTransition):
        await run(database, lambda connection: stores.outbox.settle(connection, again, [EventId("$c")], NOW))
    assert await database.read(lambda connection: stores.outbox.is_sent_event(connection, made.id, EventId("$b")))
    assert not await database.read(lambda connection: stores.outbox.is_sent_event(connection, made.id, EventId("$c")))
    assert await database.read(lambda connection: stores.outbox.find_sent_text(connection, made.id, EventId("$a"))) == "text 0"
    other = ConversationId("another")
    assert await database.read(lambda connection: stores.outbox.find_sent_text(connection, other, EventId("$a"))) is None
    second = await database.read(lambda connection: stores.outbox.find_next(connection, made.id))
    assert second is not None
    await run(database, lambda connection: stores.outbox.move(connection, second, "uncertain", NOW, reason="test"))
    assert await database.read(stores.outbox.count) == {"pending": 1, "sent": 1, "uncertain": 1}
    assert await database.read(lambda connection: stores.outbox.count_unsettled(connection, other)) == {}
    unsettled = await database.read(lambda connection: stores.outbox.count_unsettled(connection, made.id))
    assert unsettled == {"pending": 1, "uncertain": 1}


@pytest.mark.requirement("IN-11")
async def test_order_is_by_own_numbers(database: Database, stores: Stores) -> None:
    """A clock that runs backwards turns nothing round."""
    made = await run(database, lambda connection: ensure_conversation(connection, ROOM, NOW))
    for number in range(3):
        then = NOW.replace(year=2026 - number)
        await run(database, lambda connection, number=number, then=then: stores.outbox.add(connection, made.id, "reply", f"{number}", then))  # type: ignore[misc]
        await run(database, lambda connection, number=number: stores.inbox.put(connection, make_row(made.id, number, sent_at_ms=-number)))  # type: ignore[misc]
    first = await database.read(lambda connection: stores.outbox.find_next(connection, made.id))
    assert first is not None
    assert first.delivery.text == "0"
    assert [row.event_id for row in await database.read(stores.inbox.list_open)] == ["$event0", "$event1", "$event2"]


@pytest.mark.requirement("STO-8", "SEC-4")
async def test_a_copied_database_holds_no_text(database: Database, stores: Stores, tmp_path: Path) -> None:
    """No word that a person or the model wrote can be found in the database: in no column, and on SQLite in no byte of its files."""

    def write(connection: Connection) -> None:
        conversation, session, task = open_task(stores, connection)
        for element in ELEMENTS:
            stores.sessions.append(connection, session, task, element, NOW)
        stores.outbox.add(connection, conversation, "reply", f"{SECRET} reply", NOW)
        stores.sessions.rename(connection, session, f"{SECRET} name")

    await run(database, write)
    for table in metadata.tables.values():
        rows = await database.read(lambda connection, table=table: connection.execute(sa.select(table)).all())  # type: ignore[misc]
        assert rows or table.name in {"sent_events", "tags", "spending", "refusals"}
        assert SECRET not in repr(rows)
    database.close()
    for path in tmp_path.iterdir():
        assert SECRET.encode() not in path.read_bytes(), path
