"""The runtime that needs no model."""

from __future__ import annotations

import pytest

from hayate_matrix.core.ids import ConversationId, Focus, RoomId, TaskId, UserId
from hayate_matrix.core.transcript import Element, Note, Removed, Request, Result, Said, Steer, ToolCall
from hayate_matrix.errors import TurnFailed
from hayate_matrix.runtime.contract import Prompt
from hayate_matrix.runtime.scripted import ScriptedRuntime
from tests.support.clock import JumpingClock

ALICE = UserId("@alice:example.org")


async def ask(text: str, *behind: Element, before: tuple[Element, ...] = (), **fields: object) -> Said:
    request = Request(sender=ALICE, text=text, **fields)  # type: ignore[arg-type]
    prompt = Prompt(
        conversation_id=ConversationId("c"),
        room_id=RoomId("!r"),
        focus=Focus(""),
        task_id=TaskId("t"),
        transcript=(*before, request, *behind),
    )
    return await ScriptedRuntime(JumpingClock(is_eager=True)).prompt(prompt)


@pytest.mark.requirement("RUN-1")
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("echo  a\nb ", " a\nb"),
        ("slow 2 done", "done"),
        ("slow 2", "That took 2 seconds."),
        ("history", "1"),
        ("reference", "There is no reference."),
        ("Check the #release notes before Friday", "Noted, I will check the release notes."),
        ("check the door", "Noted, I will check the door."),
        ("What is up?", "Noted: What is up?"),
        ("many   blanks\nand lines", "Noted: many blanks and lines"),
        ("x" * 300, f"Noted: {'x' * 199}…"),
    ],
)
async def test_the_rules(text: str, answer: str) -> None:
    """Each rule gives its answer, the same each time."""
    assert await ask(text) == Said(text=answer)
    assert await ask(text) == Said(text=answer)


@pytest.mark.requirement("RUN-1")
async def test_tools_are_called_one_step_at_a_time() -> None:
    """Two lines are two steps; the call ids are the same however often the step is asked for."""
    text = "tool look here and there\ntool count"
    first = await ask(text)
    assert first == Said(text="", calls=(ToolCall(id="t-0", name="look", arguments="here and there"),))
    assert await ask(text) == first
    result = Result(call_id="t-0", name="look", text="seen")
    assert (await ask(text, first, result)).calls == (ToolCall(id="t-1", name="count", arguments=""),)
    assert await ask(text, first, result, Result(call_id="t-1", name="count", text="2")) == Said(text="2")
    assert await ask(f"{text}\necho done", result, result) == Said(text="done")


@pytest.mark.requirement("CORE-4", "IN-4", "IN-6", "IN-7")
async def test_what_it_shows_of_steering_edits_references_and_files() -> None:
    """Each of them can be seen in the answer, so that tests and the demo can show it."""
    assert (await ask("echo a", Steer(sender=ALICE, text="b"), Steer(sender=ALICE, text="c"))).text == "a (steered: b) (steered: c)"
    assert (await ask("echo a", is_edit=True)).text == "Edited: a"
    assert (await ask("reference", reference="earlier")).text == "earlier"
    assert (await ask("", file_name="plan.pdf")).text == "Noted: the file plan.pdf."


@pytest.mark.requirement("RUN-1", "OUT-7")
@pytest.mark.parametrize(
    ("text", "problem"), [("fail It rains.", "It rains."), ("fail", "I can't answer that."), ("slow x", "`slow` wants a number")]
)
async def test_failing(text: str, problem: str) -> None:
    """A failure is a sentence for the room."""
    with pytest.raises(TurnFailed, match=problem):
        await ask(text)
    with pytest.raises(RuntimeError, match="bang"):
        await ask("crash bang")


async def test_a_removed_request_is_no_request() -> None:
    """With its text gone there is nothing to answer, and earlier requests are not answered again."""
    prompt = Prompt(
        conversation_id=ConversationId("c"),
        room_id=RoomId("!r"),
        focus=Focus(""),
        task_id=TaskId("t"),
        transcript=(Removed(kind="request"),),
    )
    assert "removed" in (await ScriptedRuntime(JumpingClock()).prompt(prompt)).text


@pytest.mark.requirement("RUN-1")
async def test_the_other_calls_of_the_contract() -> None:
    """A transcript is compacted, summarised and seeded with what was asked."""
    runtime = ScriptedRuntime(JumpingClock())
    transcript: list[Element] = [Request(sender=ALICE, text="one"), Said(text="1"), Request(sender=ALICE, text="two"), Said(text="2")]
    assert await runtime.summarise(transcript) == "Asked so far:\n- one\n- two"
    assert await runtime.compact(transcript) == (Note(text="Asked so far:\n- one"), *transcript[2:])
    assert await runtime.seed("before", transcript[2:]) == (Note(text="before"), *transcript[2:])
