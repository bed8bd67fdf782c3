"""Turns: committed step by step, gone on with after a crash, ended in every way."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.core.ids import RoomId
from hayate_matrix.core.transcript import Request, Result, Steer
from hayate_matrix.harness.rules import Senses
from tests.support.desk import ALICE, DIRECT, ROOM, CountingRuntime, Desk
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.conftest import MakeDesk


class Counter:
    """A tool that counts its calls by id, and can be made to wait or to fail."""

    description = "counts"

    def __init__(self, *, is_idempotent: bool = False, name: str = "count") -> None:
        self.name = name
        self.is_idempotent = is_idempotent
        self.calls: list[str] = []
        self.gate: asyncio.Event | None = None
        self.error: BaseException | None = None

    async def run(self, call_id: str, arguments: str) -> str:
        self.calls.append(call_id)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return f"{arguments} was number {len(self.calls)}"


@pytest.mark.requirement("CORE-1")
async def test_a_message_is_answered_in_four_commits(desk: Desk) -> None:
    """Accepted, opened, ended, delivered: a turn without tools is four commits, and the room sees one reply."""
    desk.database.names.clear()
    assert await desk.ask("echo good morning") == ["good morning"]
    assert desk.database.names == ["intake.accept", "turn.open", "turn.end", "delivery.settle"]
    (delivery,) = desk.gateway.room
    assert (delivery.kind, delivery.mention, delivery.thread, delivery.room_id) == ("reply", ALICE, None, DIRECT)


@pytest.mark.requirement("CORE-2", "OUT-2")
async def test_forty_requests_in_several_rooms_are_answered_in_order(desk: Desk) -> None:
    """Each room sees its answers in the order of its questions."""
    rooms = [RoomId(f"!room{number}") for number in range(5)]
    await desk.accept(*(desk.message(f"echo {number}", room=rooms[number % 5], is_direct=True) for number in range(40)))
    await desk.idle()
    for place, room in enumerate(rooms):
        assert desk.gateway.get_texts(room) == [str(number) for number in range(place, 40, 5)]


@pytest.mark.requirement("CORE-1")
async def test_a_tool_is_a_step_of_its_own(make_desk: MakeDesk) -> None:
    """The call is written down before the tool runs, its result before the model is asked again."""
    tool = Counter()
    desk = await make_desk(lambda desk: desk.tools.append(tool))
    desk.database.names.clear()
    assert await desk.ask("tool count apples\ntool count pears") == ["pears was number 2"]
    assert desk.database.names == [
        "intake.accept",
        "turn.open",
        *["turn.step", "turn.result"] * 2,
        "turn.end",
        "delivery.settle",
    ]


@pytest.mark.requirement("CORE-1")
async def test_a_tool_that_fails_is_told_to_the_model(make_desk: MakeDesk) -> None:
    """A failing or an unknown tool is a result like another; the turn goes on."""
    tool = Counter()
    tool.error = ValueError("the shelf is empty")
    desk = await make_desk(lambda desk: desk.tools.append(tool))
    assert await desk.ask("tool count apples") == ["the shelf is empty"]
    assert await desk.ask("tool nothing") == ["There is no tool 'nothing'. Tools: count."]


@pytest.mark.requirement("CORE-3")
@pytest.mark.parametrize("is_behind", [False, True], ids=["before the commit", "behind the commit"])
@pytest.mark.parametrize("step", ["turn.open", "turn.step", "turn.result", "turn.end", "delivery.settle"])
async def test_a_turn_cut_off_at_any_step_is_answered_once(make_desk: MakeDesk, step: str, *, is_behind: bool) -> None:
    """Wherever the process dies, the next one goes on from the last commit: one reply, and no finished tool is run again."""
    tool = Counter(is_idempotent=True)
    desk = await make_desk(lambda desk: desk.tools.append(tool))
    desk.database.kill_at, desk.database.is_behind = step, is_behind
    await desk.say("tool count apples")
    await eventually(lambda: desk.database.is_dead)
    await desk.crash()
    await desk.start()
    await desk.idle()
    assert len(desk.gateway.room) == 1
    assert desk.gateway.room[0].text.startswith("apples was number")
    assert len(set(tool.calls)) == 1, "a tool is called again with the same call id alone"
    expected = 2 if step == "turn.result" and not is_behind else 1
    assert len(tool.calls) == expected
    assert await desk.count("SELECT count(*) FROM tasks WHERE state = 'done'") == 1
    assert await desk.count("SELECT count(*) FROM inbox WHERE state = 'done'") == 1


@pytest.mark.requirement("CORE-3")
async def test_the_model_is_not_asked_again_for_what_it_answered(make_desk: MakeDesk) -> None:
    """After a crash behind the first step the model is asked for the second alone."""
    tool = Counter()
    desk = await make_desk(lambda desk: desk.tools.append(tool))
    desk.database.kill_at, desk.database.is_behind = "turn.result", True
    await desk.say("tool count apples")
    await eventually(lambda: desk.database.is_dead)
    await desk.crash()
    runtime = desk.runtime
    assert isinstance(runtime, CountingRuntime)
    assert len(runtime.prompts) == 1
    await desk.start()
    await desk.idle()
    assert len(runtime.prompts) == 2
    assert isinstance(runtime.prompts[1].transcript[-1], Result)


@pytest.mark.requirement("CORE-3")
@pytest.mark.parametrize("is_orderly", [False, True], ids=["killed", "stopped in order"])
async def test_a_tool_of_unknown_effect_is_named_to_the_model(make_desk: MakeDesk, *, is_orderly: bool) -> None:
    """A tool that ran when the process ended is not run again; the model reads that its outcome is unknown."""
    tool = Counter()
    tool.gate = asyncio.Event()
    desk = await make_desk(lambda desk: desk.tools.append(tool))
    await desk.say("tool count apples")
    await eventually(lambda: tool.calls)
    await (desk.stop() if is_orderly else desk.crash())
    await desk.start()
    await desk.idle()
    assert len(tool.calls) == 1
    assert "it may have had its effect or not" in desk.gateway.room[0].text
    runtime = desk.runtime
    assert isinstance(runtime, CountingRuntime)
    result = runtime.prompts[-1].transcript[-1]
    assert isinstance(result, Result)
    assert result.outcome == "unknown"


@pytest.mark.requirement("CORE-3", "OUT-7")
async def test_a_turn_that_is_cut_off_too_often_ends_with_one_sentence(make_desk: MakeDesk) -> None:
    """After the first try and three more the turn ends as failed; orderly restarts in between do not count."""
    desk = await make_desk(turn_retries=3)
    await desk.say("slow 60 too long")
    for number in range(4):
        await eventually(lambda: desk.clock.waits)
        if number == 2:
            await desk.stop()
            await desk.start()
            await eventually(lambda: desk.clock.waits)
        await desk.crash()
        desk.clock.jump(0)
        await desk.start()
    await desk.idle()
    (delivery,) = desk.gateway.room
    assert delivery.kind == "notice"
    assert re.fullmatch(r"I tried this several times and was cut off each time. \(error [0-9a-f]{8}\)", delivery.text)
    assert await desk.count("SELECT count(*) FROM inbox WHERE state = 'failed'") == 1
    assert await desk.ask("echo next") == ["next"]


@pytest.mark.requirement("OUT-7", "SEC-3")
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("fail The shop is closed.", "The shop is closed."),
        ("crash with /a/path and hunter2", "Something went wrong while I worked on this."),
    ],
    ids=["a failure that is foreseen", "an error that nobody foresaw"],
)
async def test_an_error_is_one_sentence_with_an_id(desk: Desk, capsys: pytest.CaptureFixture[str], body: str, sentence: str) -> None:
    """One error gives one notice with an id that the operator finds in the log; what people wrote is in neither."""
    (text,) = await desk.ask(body)
    found = re.fullmatch(rf"{re.escape(sentence)} \(error ([0-9a-f]{{8}})\)", text)
    assert found
    assert desk.gateway.room[0].kind == "notice"
    written = "".join(capsys.readouterr())
    assert found[1] in written
    assert "hunter2" not in written
    assert await desk.ask("echo next") == ["next"]


@pytest.mark.requirement("OUT-7", "CORE-3")
async def test_a_turn_that_cannot_be_opened_stops_nothing(make_desk: MakeDesk) -> None:
    """An unforeseen error before the first step ends that request with a sentence; those behind it and the next start go on."""

    async def fail(_room: RoomId, _event: str) -> str:
        raise ZeroDivisionError

    def prepare(desk: Desk) -> None:
        desk.senses = Senses(find_reference=fail)

    desk = await make_desk(prepare)
    await desk.say("reference", reply_to="$elsewhere")
    await desk.say("echo behind")
    await desk.idle()
    notice, behind = desk.gateway.get_texts(DIRECT)
    assert notice.startswith("Something went wrong while I worked on this. (error ")
    assert behind == "behind"
    await desk.stop()
    await desk.start()
    await desk.idle()
    assert len(desk.gateway.room) == 2


@pytest.mark.requirement("OUT-7")
async def test_a_tool_that_cancels_itself_ends_its_own_turn_alone(make_desk: MakeDesk) -> None:
    """A cancellation that nobody asked for is an error like another: one sentence, and the lane goes on."""
    tool = Counter()
    tool.error = asyncio.CancelledError()
    desk = await make_desk(lambda desk: desk.tools.append(tool))
    (text,) = await desk.ask("tool count")
    assert text.startswith("Something went wrong")
    assert await desk.ask("echo next") == ["next"]


@pytest.mark.requirement("CORE-4")
async def test_a_further_message_waits_for_the_turn(desk: Desk) -> None:
    """What is said during a turn of the same focus is answered behind it; a thread goes on meanwhile."""
    await desk.say("slow 5 first")
    await desk.say("echo second")
    thread = await desk.say("echo in the thread", thread="$root")
    await eventually(lambda: desk.gateway.get_texts(DIRECT) == ["in the thread"])
    assert desk.gateway.room[0].thread == "$root"
    assert desk.gateway.room[0].request == thread.event_id
    desk.clock.jump(5)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["in the thread", "first", "second"]


@pytest.mark.requirement("CORE-2")
async def test_conversations_share_the_turns_fairly(make_desk: MakeDesk) -> None:
    """With one turn at a time a room that asks once is not behind all of a room that asked twenty times."""
    desk = await make_desk(parallel_turns=1)
    await desk.say("slow 1 begin", room=RoomId("!busy"), is_direct=True)
    await desk.accept(*(desk.message(f"echo {number}", room=RoomId("!busy"), is_direct=True) for number in range(20)))
    await desk.accept(desk.message("echo once", room=RoomId("!quiet"), is_direct=True))
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(1)
    await desk.idle()
    runtime = desk.runtime
    assert isinstance(runtime, CountingRuntime)
    order = [prompt.room_id for prompt in runtime.prompts]
    assert order.index(RoomId("!quiet")) <= 2


@pytest.mark.requirement("CORE-2")
async def test_no_more_turns_run_than_are_allowed(make_desk: MakeDesk) -> None:
    """Six rooms that ask something slow have three turns at a time."""
    desk = await make_desk(parallel_turns=3)
    await desk.accept(*(desk.message("slow 1 done", room=RoomId(f"!{number}"), is_direct=True) for number in range(6)))
    await eventually(lambda: desk.clock.waits == 3)
    assert await desk.count("SELECT count(*) FROM tasks WHERE state = 'running'") == 3
    desk.clock.jump(1)
    await eventually(lambda: desk.clock.waits == 3)
    desk.clock.jump(1)
    await desk.idle()
    assert len(desk.gateway.room) == 6


@pytest.mark.requirement("ROOM-8", "CORE-1")
async def test_a_focus_remembers_what_was_said_there_alone(desk: Desk) -> None:
    """Main timeline, thread and another room each have a transcript of their own, also after a restart."""
    for _ in range(2):
        await desk.ask("echo x")
    await desk.ask("echo x", room=RoomId("!other"), is_direct=True)
    assert await desk.ask("history") == ["3"]
    assert await desk.ask("history", thread="$root") == ["1"]
    await desk.stop()
    await desk.start()
    assert await desk.ask("history") == ["4"]
    assert await desk.ask("history", room=RoomId("!other"), is_direct=True) == ["2"]


@pytest.mark.requirement("IN-6")
async def test_the_message_replied_to_is_handed_over_as_reference(make_desk: MakeDesk) -> None:
    """The bot's own words, a person's request, and what only the room still knows are all given as reference."""

    async def find(room_id: RoomId, event_id: str) -> str:
        return f"{event_id} of {room_id}"

    def prepare(desk: Desk) -> None:
        desk.senses = Senses(find_reference=find)

    desk = await make_desk(prepare)
    asked = await desk.say("echo forty-two")
    await desk.idle()
    answer = desk.gateway.room[0]
    assert await desk.ask("reference", reply_to=f"${answer.id}") == ["forty-two"]
    assert await desk.ask("reference", reply_to=asked.event_id) == ["echo forty-two"]
    assert await desk.ask("reference", reply_to="$elsewhere") == [f"$elsewhere of {DIRECT}"]
    assert await desk.ask("reference", reply_to=f"${answer.id}", room=ROOM, is_direct=True) == [f"${answer.id} of {ROOM}"]


@pytest.mark.requirement("CORE-4")
async def test_steering_that_comes_with_the_last_step_is_seen(make_desk: MakeDesk) -> None:
    """What is steered in while the model makes its last step is no loss: the model is asked once more."""
    desk = await make_desk()
    await desk.say("slow 5 the answer")
    await eventually(lambda: desk.clock.waits)
    await desk.say("!steer in German")
    await eventually(lambda: desk.gateway.get_texts(DIRECT) == ["Passed on."])
    desk.clock.jump(5)
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(5)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["Passed on.", "the answer (steered: in German)"]
    runtime = desk.runtime
    assert isinstance(runtime, CountingRuntime)
    assert [type(element) for element in runtime.prompts[-1].transcript if isinstance(element, Request | Steer)] == [Request, Steer]


@pytest.mark.requirement("STO-11")
async def test_a_full_disk_opens_no_new_turn(make_desk: MakeDesk) -> None:
    """Below the low-water mark requests are kept and answered when there is space again."""
    is_low = True

    def prepare(desk: Desk) -> None:
        desk.senses = Senses(is_disk_low=lambda: is_low)

    desk = await make_desk(prepare)
    await desk.say("echo later")
    await eventually(lambda: desk.clock.waits)
    assert await desk.count("SELECT count(*) FROM inbox WHERE state = 'queued'") == 1
    desk.clock.jump(5)
    await eventually(lambda: desk.clock.waits)
    assert desk.gateway.room == []
    is_low = False
    desk.clock.jump(5)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["later"]


@pytest.mark.requirement("OUT-5")
async def test_typing_and_receipts(make_desk: MakeDesk) -> None:
    """A slow answer shows typing, refreshed, ended with the answer; the request is marked as read when it is accepted."""
    desk = await make_desk(typing=True)
    asked = await desk.say("slow 60 done")
    await eventually(lambda: desk.gateway.read == [(DIRECT, asked.event_id)])
    await eventually(lambda: desk.clock.waits == 2)
    desk.clock.jump(0.3)
    await eventually(lambda: desk.gateway.typing == [(DIRECT, True)])
    desk.clock.jump(20)
    await eventually(lambda: desk.gateway.typing == [(DIRECT, True)] * 2)
    desk.clock.jump(40)
    await desk.idle()
    await eventually(lambda: desk.gateway.typing[-1] == (DIRECT, False))


@pytest.mark.requirement("OUT-5")
async def test_typing_and_receipts_can_be_turned_off(make_desk: MakeDesk) -> None:
    """With both off the room sees the answer alone."""
    desk = await make_desk(typing=False, receipts=False)
    assert await desk.ask("echo x") == ["x"]
    assert desk.gateway.typing == []
    assert desk.gateway.read == []


@pytest.mark.requirement("OUT-5")
async def test_the_request_gets_a_reaction_where_that_is_asked_for(make_desk: MakeDesk) -> None:
    """✅ for an answer, ⚠️ for a failure, on the request, behind the answer."""
    desk = await make_desk(ack="reaction")
    assert await desk.ask("echo x") == ["x", "✅"]
    assert desk.gateway.room[1].kind == "reaction"
    assert desk.gateway.room[1].request == "$event1"
    assert (await desk.ask("fail x"))[1:] == ["⚠️"]


@pytest.mark.requirement("STO-8", "SEC-4")
async def test_the_files_of_a_working_harness_hold_no_text(desk: Desk, tmp_path: Path) -> None:
    """After requests, edits, steering, failures and answers no byte of the files tells what was said."""
    asked = await desk.say("echo wolpertinger")
    await desk.accept(desk.edit(asked, "echo wolpertinger again"))
    await desk.idle()
    await desk.ask("fail wolpertinger")
    await desk.ask("!steer wolpertinger")
    await desk.accept(desk.edit(desk.message("never seen"), "wolpertinger"))
    await desk.stop()
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert files
    for path in files:
        assert b"wolpertinger" not in path.read_bytes()
    await desk.start()
