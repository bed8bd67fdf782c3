"""Text that was redacted, or that retention took: it is in no prompt, no answer and no row, whatever goes on at that moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import pytest
import sqlalchemy as sa

from hayate_matrix.core.ids import EventId
from hayate_matrix.core.transcript import Request
from hayate_matrix.store.schema import metadata
from tests.support.desk import DIRECT, CountingRuntime, Desk
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from hayate_matrix.core.transcript import Element
    from hayate_matrix.store.database import Connection
    from tests.harness.conftest import MakeDesk

T = TypeVar("T")
DAY_S = 86_400
REMOVED = "SELECT count(*) FROM sessions WHERE state = 'removed'"


class Waiting:
    """A tool that waits until it is let go, and that takes its time to clean up where it is stopped before."""

    name, description, is_idempotent = "wait", "waits", False

    def __init__(self) -> None:
        self.runs: dict[str, asyncio.Task[object] | None] = {}
        self.may_end = asyncio.Event()
        self.may_clean_up = asyncio.Event()

    async def run(self, _call_id: str, arguments: str) -> str:
        self.runs[arguments] = asyncio.current_task()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            await self.may_clean_up.wait()
            raise
        return "done"

    def has_ended(self, arguments: str) -> bool:
        task = self.runs[arguments]
        return task is not None and task.done()


async def find_kept(desk: Desk, word: str, *tables: str) -> list[str]:
    """Return which sealed columns still hold `word`, of all tables where none is named."""

    def look(connection: Connection) -> list[str]:
        found = []
        for table in metadata.tables.values():
            for column in table.columns:
                if isinstance(column.type, sa.LargeBinary) and (not tables or table.name in tables):
                    key = table.c.event_id if table.name == "inbox" else table.c.id
                    field = f"{table.name}.{column.name}"
                    rows = connection.execute(sa.select(key, column).where(column.is_not(None)))
                    found += [field for row in rows if word in desk.sealer.open(field, row[0], row[1])]
        return found

    return await desk.database.read(look)


async def is_gone(desk: Desk, word: str) -> bool:
    return not await find_kept(desk, word)


def get_prompted(desk: Desk, last: int = 1) -> list[Element]:
    """Return what the model was shown in its last prompts."""
    assert isinstance(desk.runtime, CountingRuntime)
    return [element for prompt in desk.runtime.prompts[-last:] for element in prompt.transcript]


@pytest.mark.requirement("IN-5", "CORE-4")
async def test_a_redaction_reaches_the_turn_that_took_over_from_a_stopped_one(make_desk: MakeDesk) -> None:
    """A stopped turn that ends late does not make its session's next turn deaf for what is removed."""
    tool, thread = Waiting(), EventId("$thread")
    desk = await make_desk(lambda desk: desk.tools.append(tool))
    message = await desk.say("echo secretword", thread=thread)
    await desk.idle()
    (session_id,) = await desk.database.read(lambda connection: connection.exec_driver_sql("SELECT id FROM sessions").scalars().all())
    await desk.say("tool wait first", thread=thread)
    await eventually(lambda: "first" in tool.runs)
    await desk.ask_now("!stop", thread=thread)
    await desk.accept(desk.message(f"!resume {session_id}"), desk.message("tool wait second"))
    await eventually(lambda: "second" in tool.runs)
    tool.may_clean_up.set()
    await eventually(lambda: tool.has_ended("first"))
    await desk.accept(desk.redaction(message))
    tool.may_end.set()
    await desk.idle()
    await desk.ask("history")
    said = [element.text for element in get_prompted(desk, last=2) if isinstance(element, Request)]
    assert "history" in said
    assert "echo secretword" not in said


@pytest.mark.requirement("IN-5", "IN-4")
async def test_a_redacted_edit_of_a_queued_request_is_undone(desk: Desk) -> None:
    """The request is answered as it was written at first, and the removed words are kept nowhere."""
    await desk.say("slow 10 first")
    await eventually(lambda: desk.clock.waits)
    message = await desk.say("echo original")
    edit = desk.edit(message, "echo secretword")
    await desk.accept(edit)
    await desk.accept(desk.redaction(edit))
    desk.clock.jump(10)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["first", "original"]
    assert await is_gone(desk, "secretword")


@pytest.mark.requirement("IN-5", "IN-4")
async def test_a_redaction_that_comes_before_its_edit_counts(desk: Desk) -> None:
    """An edit whose removal came first changes nothing and is not answered."""
    message = await desk.say("echo original")
    await desk.idle()
    edit = desk.edit(message, "echo secretword")
    await desk.accept(desk.redaction(edit))
    await desk.accept(edit)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["original"]
    assert await is_gone(desk, "secretword")


@pytest.mark.requirement("IN-5", "IN-6")
async def test_a_redacted_message_is_gone_from_replies_to_it(desk: Desk) -> None:
    """What another request quoted of it is removed with it; that request stays."""
    message = await desk.say("secretword")
    await desk.idle()
    await desk.say("echo answer", reply_to=message.event_id)
    await desk.idle()
    assert [element.reference for element in get_prompted(desk) if isinstance(element, Request)] == [None, "secretword"]
    await desk.accept(desk.redaction(message))
    await desk.ask("history")
    asked = [element for element in get_prompted(desk) if isinstance(element, Request)]
    assert [element.text for element in asked] == ["echo answer", "history"]
    assert not any(element.reference for element in asked)
    assert await find_kept(desk, "secretword", "inbox") == []


@pytest.mark.requirement("IDX-4", "IN-5")
async def test_a_lookup_that_is_still_owed_shows_nothing_that_was_redacted(desk: Desk) -> None:
    """A listing that waits for its room does not bring back what was removed meanwhile."""
    message = await desk.say("echo secretword #tag")
    await desk.idle()
    desk.gateway.denied.add(DIRECT)
    await desk.ask("!hashtags tag")
    await desk.accept(desk.redaction(message))
    seen = len(desk.gateway.room)
    desk.gateway.denied.clear()
    await desk.harness.release(DIRECT)
    await desk.idle()
    assert not any("secretword" in delivery.text for delivery in desk.gateway.room[seen:])


@pytest.mark.requirement("IDX-4", "IDX-8", "IN-5", "STO-10")
@pytest.mark.parametrize(("why", "words"), [("redacted", "message redacted"), ("removed", "session removed")])
async def test_what_goes_between_the_look_and_the_answer_is_not_shown(
    make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch, why: str, words: str
) -> None:
    """A lookup whose text is removed before its answer is durable looks again, and says why there is none."""
    desk = await make_desk(keep_days=1)
    message = await desk.say("echo secretword #tag")
    await desk.idle()
    transact, looks = desk.database.transaction, 0

    async def transaction(name: str, work: Callable[[Connection], T]) -> T:
        nonlocal looks
        looks += name == "command.run"
        if name == "command.run" and looks == 1:
            if why == "redacted":
                await desk.accept(desk.redaction(message))
            else:
                desk.clock.jump(2 * DAY_S)
                await eventually(lambda: "sessions.remove" in desk.database.names)
        return await transact(name, work)

    monkeypatch.setattr(desk.database, "transaction", transaction)
    (answer,) = await desk.ask("!hashtags tag")
    assert answer.split("\n")[1] == f"  unavailable: {words}"
    assert "secretword" not in answer


@pytest.mark.requirement("STO-10", "SES-3")
async def test_retention_takes_what_was_said_in_commands_and_listings(make_desk: MakeDesk) -> None:
    """Steering, names and the lists that showed them lose their text with the session."""
    desk = await make_desk(keep_days=1)
    await desk.say("slow 10 first")
    await eventually(lambda: desk.clock.waits)
    await desk.ask_now("!steer secretword")
    for _ in range(2):
        await eventually(lambda: desk.clock.waits)
        desk.clock.jump(10)
    await desk.idle()
    await desk.ask("!name secretword")
    assert "secretword" in (await desk.ask("!sessions"))[0]
    desk.clock.jump(3 * DAY_S)
    await eventually(lambda: desk.count(REMOVED))
    assert await find_kept(desk, "secretword") == []


@pytest.mark.requirement("STO-10", "SES-3")
async def test_retention_takes_a_held_answer_once_it_is_sent(make_desk: MakeDesk) -> None:
    """What is owed when its session is removed still goes out, and is taken afterwards."""
    desk = await make_desk(keep_days=1)
    desk.gateway.denied.add(DIRECT)
    await desk.ask("echo secretword")
    desk.clock.jump(3 * DAY_S)
    await eventually(lambda: desk.count(REMOVED))
    desk.gateway.denied.clear()
    await desk.harness.release(DIRECT)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["secretword"]
    desk.clock.jump(3 * DAY_S)
    await eventually(lambda: is_gone(desk, "secretword"))
