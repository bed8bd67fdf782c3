"""Conversations are sealed: whatever is asked in one room with ids of another, nothing of the other appears or changes (SEC-1)."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hayate_matrix.core.commands import COMMANDS
from hayate_matrix.core.ids import MAIN_FOCUS, EntryId, EventId, Focus, RoomId, SessionId
from hayate_matrix.core.transcript import Pointer
from hayate_matrix.harness.rules import Senses
from hayate_matrix.store import conversations as conversation_calls
from hayate_matrix.store.schema import metadata
from hayate_matrix.store.sessions import StoredSessions
from hayate_matrix.store.stores import Stores
from tests.support.desk import BOB, BOT, CountingRuntime, Desk
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from hayate_matrix.core.ids import ConversationId
    from hayate_matrix.store.database import Connection

    Call = Callable[[Stores, Connection, ConversationId, dict[str, str]], object]

SEALED = RoomId("!sealed:example.org")
SECRET = "sesame"
"""Stands in every message of the sealed room and in nothing else."""
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
PREFIX_LENGTH = 13
"""Of an id, as people shorten it: its time, which no other id of the test has."""
NEVER = "01ffffff-ffff-7000-8000-"


class World:
    """One harness with a room that is sealed, and as many other rooms as are asked for, in pairs that lead the same life."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.desk = Desk(folder)
        self.desk.senses = Senses(read_power=lambda _room, _user: 100)
        self.rooms = 0
        self.pair: tuple[RoomId, RoomId] | None = None
        """Two rooms for calls of the store: what one call changes it changes in both."""
        self.foreign: dict[str, list[str]] = {}
        """Ids of the sealed room by what they name."""

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def close(self) -> None:
        self.loop.run_until_complete(self.desk.crash())
        self.loop.close()

    async def begin(self) -> None:
        desk = self.desk
        await desk.start()
        for body in (
            f"Check the #orchid {SECRET}",
            "!name kappa",
            f"echo {SECRET} #zulu-9",
            "!new lambda",
            *[f"echo {SECRET} #orchid"] * 11,
        ):
            await desk.ask(body, room=SEALED, sender=BOB, is_direct=True)
        thread = await desk.say(f"echo {SECRET} #zulu-6", room=SEALED, sender=BOB, is_direct=True, thread=EventId("$root"))
        await desk.idle()
        desk.clock.jump(3600)
        await desk.say(f"slow 3000 {SECRET} #zulu-7", room=SEALED, sender=BOB, is_direct=True)
        await desk.say(f"echo {SECRET} #zulu-8", room=SEALED, sender=BOB, is_direct=True)
        await eventually(lambda: desk.clock.waits)
        await desk.accept(desk.edit(thread, f"echo {SECRET} again"))
        await self.settle(SEALED, requests=2)
        desk.clock.jump(100)
        self.foreign = await self._list_ids()
        self.sealed = await self.read_sealed()

    async def _list_ids(self) -> dict[str, list[str]]:
        queries = {
            "session": "SELECT id FROM sessions",
            "entry": "SELECT id FROM entries",
            "task": "SELECT id FROM tasks",
            "delivery": "SELECT id FROM outbox",
            "conversation": "SELECT id FROM conversations",
            "event": "SELECT event_id FROM inbox",
            "own event": "SELECT event_id FROM sent_events",
            "tag": "SELECT DISTINCT tag FROM tags",
            "room": "SELECT room_id FROM conversations",
        }
        found = {}
        for what, query in queries.items():
            found[what] = await self.desk.database.read(partial(_read_column, query))
            assert found[what], what
        found["prefix"] = [id_[:PREFIX_LENGTH] for id_ in found["session"]]
        found["name"] = ["kappa", "lambda"]
        return found

    async def settle(self, room: RoomId, *, requests: int = 0) -> None:
        """Wait until nothing is to do for a room but this many requests."""
        work = (
            "SELECT count(*) FROM inbox JOIN conversations c ON c.id = conversation_id WHERE room_id = ? AND state IN ('queued', 'running')"
        )
        owed = "SELECT count(*) FROM outbox JOIN conversations c ON c.id = conversation_id WHERE room_id = ? AND outbox.state = 'pending'"

        async def is_settled() -> bool:
            return await self.desk.count(work, room) == requests and not await self.desk.count(owed, room)

        await eventually(is_settled, every_s=0.002, timeout_s=10, what=f"{room} at rest")

    async def read_sealed(self) -> dict[str, list[tuple[object, ...]]]:
        """Return every row of the sealed room, by table."""
        return await self.desk.database.read(_read_rows_of_sealed)

    async def open_pair(self) -> tuple[RoomId, RoomId]:
        """Return two fresh rooms in which the same was said."""
        self.rooms += 1
        pair = RoomId(f"!left{self.rooms}:example.org"), RoomId(f"!right{self.rooms}:example.org")
        for room in pair:
            for body in ("Check the #breakfast", "!name Breakfast", "!new", "echo eggs"):
                await self.desk.say(body, room=room, is_direct=True)
                await self.settle(room)
        return pair

    async def find_conversation(self, room: RoomId) -> ConversationId:
        found = await self.desk.database.read(lambda connection: conversation_calls.find_conversation(connection, room))
        assert found is not None
        return found.id


def _read_column(query: str, connection: Connection) -> list[str]:
    return list(connection.exec_driver_sql(query).scalars())


def _read_rows_of_sealed(connection: Connection) -> dict[str, list[tuple[object, ...]]]:
    conversations, sessions, outbox = (metadata.tables[name] for name in ("conversations", "sessions", "outbox"))
    ours = sa.select(conversations.c.id).where(conversations.c.room_id == SEALED)
    ways: dict[str, Any] = {
        "conversation_id": ours,
        "session_id": sa.select(sessions.c.id).where(sessions.c.conversation_id.in_(ours)),
        "delivery_id": sa.select(outbox.c.id).where(outbox.c.conversation_id.in_(ours)),
        "subject": ours,
        "room_id": [SEALED],
    }
    rows = {}
    for name, table in metadata.tables.items():
        column = next((column for column in ways if column in table.c), None)
        assert column is not None or name == "meta", f"how is {name} of one room?"
        if column is not None:
            rows[name] = sorted(map(tuple, connection.execute(sa.select(table).where(table.c[column].in_(ways[column])))), key=repr)
    return rows


def make_twin(what: str, value: str) -> str:
    """Return an id of the same form and length that never was."""
    twins = {
        "tag": "q" * len(value),
        "prefix": NEVER[:PREFIX_LENGTH],
        "name": "omegas"[: len(value)],
        "event": value.replace("event", "never").replace("root", "fork"),
        "room": value.replace("sealed", "nobody"),
        "own event": f"${NEVER}{value[-12:]}",
    }
    return twins.get(what, NEVER + value[-12:])


@dataclass(frozen=True)
class Step:
    """One thing that is done in a room, with an id of another room or with its twin in the place of `{}`."""

    kind: str
    what: str
    which: int
    body: str = ""

    def choose(self, world: World) -> tuple[str, str]:
        values = world.foreign[self.what]
        value = values[self.which % len(values)]
        return value, make_twin(self.what, value)


FORMS = ["{}", "#{}", "{} 1", "{} 2", "1 {}", "`{}`", "#breakfast {}", "{} {}", ""]
WHATS = ["session", "entry", "task", "delivery", "conversation", "event", "own event", "tag", "room", "prefix", "name"]
WHICH = st.integers(0, 99)
COMMAND_STEPS = st.builds(
    lambda mark, name, form, what, which: Step("say", what, which, f"{mark}{name} {form}".strip()),
    st.sampled_from(["!", "/", "//"]),
    st.sampled_from(sorted(COMMANDS)),
    st.sampled_from(FORMS),
    st.sampled_from(WHATS),
    WHICH,
)
BODIES = ["reference", "history", "tags #{}", "echo {}", "!sessions", "!status", "!close", "!resume {}", "!hashtags", "!stop", "!steer {}"]
EVENT_STEPS = st.builds(
    Step,
    st.sampled_from(["reply", "thread", "overheard", "edit", "redact"]),
    st.sampled_from(["event", "own event"]),
    WHICH,
    st.sampled_from(BODIES),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    try:
        made.run(made.begin())
        yield made
    finally:
        made.close()


async def do(world: World, step: Step, room: RoomId, values: list[str]) -> list[tuple[object, ...]]:
    """Do one step and return what the room saw of it: whatever differs by the room alone is made equal."""
    desk = world.desk
    seen = len(desk.gateway.room)
    body = step.body.replace("{}", values[-1])
    event_id = EventId(values[-1])
    match step.kind:
        case "say":
            await desk.say(body, room=room, is_direct=True)
        case "reply":
            await desk.say(body, room=room, reply_to=event_id, mentions=(BOT,))
        case "thread":
            await desk.say(body, room=room, thread=event_id, mentions=(BOT,))
        case "overheard":
            await desk.say(body, room=room, thread=event_id, reply_to=event_id, is_direct=False)
        case "edit":
            edit = desk.edit(desk.message("never sent", room=room, sender=BOB), body, mentions=(BOT,))
            await desk.accept(dataclasses.replace(edit, target=event_id))
        case _:
            redaction = desk.redaction(desk.message("never sent", room=room))
            await desk.accept(dataclasses.replace(redaction, target=event_id))
    await world.settle(room)
    saw: list[tuple[object, ...]] = []
    for delivery in desk.gateway.room[seen:]:
        assert delivery.room_id == room
        assert SECRET not in delivery.text
        saw.append((delivery.kind, make_equal(delivery.text, values), len(delivery.links), bool(delivery.request), bool(delivery.thread)))
    return saw


def make_equal(text: str, values: list[str]) -> str:
    """Return `text` with the ids that were asked for so far, and ids of the room's own, as words."""
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "ID")
    own: dict[str, str] = {}
    return UUID.sub(lambda found: own.setdefault(found[0], f"own {len(own)}"), text)


async def compare(world: World, steps: list[Step]) -> None:
    """Do the steps in two rooms alike, in one with ids of the sealed room, in the other with ids that never were."""
    prompts = world.desk.runtime.prompts if isinstance(world.desk.runtime, CountingRuntime) else []
    seen = len(prompts)
    left, right = await world.open_pair()
    values: list[str] = []
    twins: list[str] = []
    for step in steps:
        value, twin = step.choose(world)
        values.append(value)
        twins.append(twin)
        assert await do(world, step, left, values) == await do(world, step, right, twins), step
    assert SECRET not in repr([prompt.transcript for prompt in prompts[seen:]])
    assert await world.read_sealed() == world.sealed
    assert world.desk.clock.waits == 1


@pytest.mark.requirement("SEC-1", "SES-2", "IDX-2")
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_command_reaches_into_another_room(world: World, name: str) -> None:
    """With every kind of id of another room a command answers word for word as with one that never was, and nothing there changes."""
    for form in ("{}", "#{}", "{} 1"):
        world.run(compare(world, [Step("say", what, 1, f"!{name} {form}") for what in WHATS]))


@pytest.mark.requirement("SEC-1", "SES-2", "IDX-2", "IN-4", "IN-5", "IN-6")
@settings(max_examples=60, phases=set(Phase) - {Phase.shrink})  # a life of six steps is short enough to be read
@given(st.lists(COMMAND_STEPS | EVENT_STEPS, min_size=1, max_size=6))
def test_nothing_that_is_said_reaches_into_another_room(world: World, steps: list[Step]) -> None:
    """Commands, replies, threads, edits and redactions that name what is in another room do what they do for what never was."""
    world.run(compare(world, steps))


def _page(what: str) -> Call:
    return lambda stores, connection, here, ids: stores.tags.find_page(connection, here, ids[what], 1)


NOW = datetime(2026, 11, 1, 21, tzinfo=UTC)
CALLS: dict[str, Call] = {
    "Inbox.find_about": lambda stores, connection, here, ids: stores.inbox.find_about(connection, here, EventId(ids["event"])),
    "Inbox.has_work": lambda stores, connection, here, _: stores.inbox.has_work(connection, here),
    "Inbox.is_addressed": lambda stores, connection, here, ids: [
        stores.inbox.is_addressed(connection, here, EventId(ids[what])) for what in ("event", "own event", "root")
    ],
    "Inbox.list_open": lambda stores, connection, here, _: stores.inbox.list_open(connection, here),
    "Outbox.count_unsettled": lambda stores, connection, here, _: stores.outbox.count_unsettled(connection, here),
    "Outbox.find_next": lambda stores, connection, here, _: stores.outbox.find_next(connection, here),
    "Outbox.find_sent_text": lambda stores, connection, here, ids: stores.outbox.find_sent_text(
        connection, here, EventId(ids["own event"])
    ),
    "Outbox.hold": lambda stores, connection, here, _: stores.outbox.hold(connection, here),
    "Outbox.is_sent_event": lambda stores, connection, here, ids: stores.outbox.is_sent_event(connection, here, EventId(ids["own event"])),
    "Inbox.find_replies": lambda stores, connection, here, ids: stores.inbox.find_replies(connection, here, EventId(ids["event"])),
    "Inbox.has_redaction_since": lambda stores, connection, here, _: stores.inbox.has_redaction_since(connection, here, 0),
    "Outbox.replace_listings": lambda stores, connection, here, _: stores.outbox.replace_listings(connection, here, "another text"),
    "Outbox.release": lambda stores, connection, here, _: stores.outbox.release(connection, here),
    "Sessions.find": lambda stores, connection, here, ids: [
        stores.sessions.find(connection, here, ids[what]) for what in ("session", "prefix")
    ],
    "Sessions.find_active": lambda stores, connection, here, ids: stores.sessions.find_active(connection, here, Focus(ids["root"])),
    "Sessions.list_page": lambda stores, connection, here, _: stores.sessions.list_page(connection, here, 2),
    "Sessions.open_new": lambda stores, connection, here, ids: stores.sessions.open_new(connection, here, Focus(ids["root"]), NOW),
    "Sessions.resolve": lambda stores, connection, here, ids: stores.sessions.resolve(connection, here, _make_pointers(ids)),
    "Sessions.touch": lambda stores, connection, here, ids: stores.sessions.touch(connection, here, SessionId(ids["session"]), NOW),
    "Sessions.use_active": lambda stores, connection, here, ids: stores.sessions.use_active(
        connection, here, Focus(ids["root"]), NOW, idle_s=60
    ),
    "Tags.find_page": _page("tag"),
    "Tags.list_tags": lambda stores, connection, here, _: stores.tags.list_tags(connection, here),
    "Tasks.find_open": lambda stores, connection, here, ids: [
        stores.tasks.find_open(connection, here, focus) for focus in (None, MAIN_FOCUS, Focus(ids["root"]))
    ],
}
"""What takes the conversation that asks, with an id where it takes one."""

OF_ROWS = "takes a row, or an id out of one, that was read for the conversation that asks"
OF_THE_EDGE = "takes ids of events that the homeserver said are of this room; the caller looks at the conversation of what it finds"
OF_THE_HARNESS = "is asked by the harness for all rooms, with no id of anybody's"
OF_COUNTS = "takes the room and the person of the request that is counted"
WITHOUT_A_ROOM = {
    **dict.fromkeys(["Inbox.put", "Inbox.claim", "Inbox.move", "Inbox.replace", "Inbox.remove_text", "Inbox.remove_session"], OF_ROWS),
    **dict.fromkeys(["Inbox.find", "Inbox.find_known"], OF_THE_EDGE),
    **dict.fromkeys(["Outbox.add", "Outbox.settle", "Outbox.move", "Outbox.remove_text"], OF_ROWS),
    **dict.fromkeys(["Outbox.list_indebted", "Outbox.count", "Inbox.find_last"], OF_THE_HARNESS),
    "Sessions.remove_references": OF_ROWS,
    **dict.fromkeys(["Sessions.activate", "Sessions.move", "Sessions.rename", "Sessions.find_title", "Sessions.remove"], OF_ROWS),
    **dict.fromkeys(
        ["Sessions.append", "Sessions.read_last", "Sessions.read_task", "Sessions.read_steers", "Sessions.remove_text"], OF_ROWS
    ),
    **dict.fromkeys(["Sessions.list_idle", "Sessions.list_old"], OF_THE_HARNESS),
    **dict.fromkeys(["Inbox.count_waiting", "Spending.read", "Spending.add", "Spending.tell", "Spending.forget_told"], OF_COUNTS),
    "Spending.forget": OF_THE_HARNESS,
    "Tags.add": OF_ROWS,
    **dict.fromkeys(["Tasks.open", "Tasks.check", "Tasks.note_steer", "Tasks.end", "Tasks.move"], OF_ROWS),
    "Tasks.list_open": OF_THE_HARNESS,
}
"""What needs no conversation, and why nobody can hand it an id of another room."""


def _make_pointers(ids: dict[str, str]) -> list[Pointer]:
    return [Pointer(session_id=SessionId(ids["session"]), entry_id=EntryId(ids["entry"]), indexed_at=NOW)]


def _call(name: str, stores: Stores, here: ConversationId, ids: dict[str, str], connection: Connection) -> object:
    return CALLS[name](stores, connection, here, ids)


def list_calls(stores: Stores) -> set[str]:
    """Return the public calls of all stores."""
    kinds = {type(part) for part in vars(stores).values()} - {type(stores.database)}
    return {f"{kind.__name__}.{name}" for kind in kinds for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}


@pytest.mark.requirement("SEC-1")
def test_no_call_of_the_store_is_forgotten(world: World) -> None:
    """Each public call of a store is tried with ids of another room, or has a reason why it can't be handed one."""
    assert list_calls(Stores(world.desk.database, world.desk.sealer)) == CALLS.keys() | WITHOUT_A_ROOM.keys()
    assert not CALLS.keys() & WITHOUT_A_ROOM.keys()


@pytest.mark.requirement("SEC-1", "IDX-2")
@settings(max_examples=100, phases=set(Phase) - {Phase.shrink})
@given(st.sampled_from(sorted(CALLS)), st.lists(WHICH, min_size=8, max_size=8))
def test_no_call_of_the_store_reaches_into_another_room(world: World, name: str, which: list[int]) -> None:
    """With ids of another room a call finds what it finds for ids that never were, and nothing there changes."""
    ids = {what: values[place % len(values)] for (what, values), place in zip(sorted(world.foreign.items()), which * 2, strict=False)}
    ids["root"] = "$root"
    twins = {what: make_twin(what, value) for what, value in ids.items() if what != "root"} | {"root": "$nowhere"}

    async def call() -> None:
        stores = Stores(world.desk.database, world.desk.sealer)
        found = []
        world.pair = world.pair or await world.open_pair()
        for room, some in zip(world.pair, (ids, twins), strict=True):
            work = partial(_call, name, stores, await world.find_conversation(room), some)
            result = repr(await world.desk.database.transaction("test.call", work))
            assert SECRET not in result
            assert "sealed" not in result
            for value, word in ((room, "ROOM"), *((value, what) for what, value in some.items())):
                result = result.replace(value, word)
            found.append(make_equal(re.sub(r"\$event[0-9]+|(left|right)[0-9]+", "", result), []))
        assert found[0] == found[1]
        assert await world.read_sealed() == world.sealed

    world.run(call())


@pytest.mark.requirement("SEC-1", "IDX-2", "SES-4")
def test_the_session_provider_resolves_nothing_of_another_room(world: World) -> None:
    """A pointer into another room's session is missing with the words for a session that never was."""

    async def call() -> None:
        provider = StoredSessions(world.desk.database, Stores(world.desk.database, world.desk.sealer).sessions)
        here = await world.find_conversation((await world.open_pair())[0])
        ids = [{"session": session, "entry": entry} for session in world.foreign["session"] for entry in world.foreign["entry"]]
        never = await provider.resolve(here, _make_pointers({"session": NEVER, "entry": NEVER}))
        assert await provider.resolve(here, [pointer for one in ids for pointer in _make_pointers(one)]) == never * len(ids)

    world.run(call())


@pytest.mark.requirement("SEC-1")
def test_what_is_looked_for_is_there(world: World) -> None:
    """In its own room each of these ids is found, so that not finding it elsewhere says something."""

    async def look() -> None:
        stores = Stores(world.desk.database, world.desk.sealer)
        here = await world.find_conversation(SEALED)

        async def call(name: str, **ids: str) -> object:
            return await world.desk.database.read(partial(_call, name, stores, here, ids))

        for session in world.foreign["session"]:
            assert await call("Sessions.find", session=session, prefix=session[:PREFIX_LENGTH]) != [[], []]
        for event in world.foreign["own event"]:
            assert await call("Outbox.is_sent_event", **{"own event": event})
        pairs = [(session, entry) for session in world.foreign["session"] for entry in world.foreign["entry"]]
        resolved = [await call("Sessions.resolve", session=session, entry=entry) for session, entry in pairs]
        assert f"text='echo {SECRET} #orchid'" in repr(resolved)
        assert await call("Tags.list_tags") == sorted(world.foreign["tag"])
        assert all(world.sealed[name] for name in ("inbox", "sessions", "entries", "tasks", "outbox", "sent_events", "tags"))

    world.run(look())
