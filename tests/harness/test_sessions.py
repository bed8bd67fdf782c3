"""Sessions as people see them: listed, named, resumed, closed; in order with what was asked before."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.core.ids import EventId, RoomId
from tests.support.desk import DIRECT, ROOM, Desk
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from hayate_matrix.core.clock import Clock
    from tests.harness.conftest import MakeDesk

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


class Wait:
    """A tool that takes as many seconds as it is told."""

    name = "wait"
    description = "waits"
    is_idempotent = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def run(self, call_id: str, arguments: str) -> str:
        await self._clock.sleep(float(arguments))
        return call_id


async def list_sessions(desk: Desk, **fields: object) -> list[tuple[str, str]]:
    """Return title line and id of each session that the list shows."""
    (text,) = await desk.ask("!sessions", **fields)
    lines = text.split("\n")
    return [(lines[n], lines[n + 1].removeprefix("  /resume ")) for n in range(0, len(lines) - 1, 2)]


@pytest.mark.requirement("SES-1", "SES-2")
async def test_sessions_are_listed_last_used_first(desk: Desk) -> None:
    """Title, time of the last use, messages of people, id, and which one is active."""
    assert "no session here yet" in (await desk.ask("!sessions"))[0]
    await desk.ask("echo the opening " + "word " * 30)
    await desk.ask("echo more")
    await desk.ask("!new Release 2")
    desk.clock.jump(60)
    await desk.ask("echo planned")
    (second, second_id), (first, first_id) = await list_sessions(desk)
    assert second == "Release 2 · last used 2026-11-01T19:35:13Z · 1 message · active"
    opening = ("echo the opening " + "word " * 30)[:90].strip()
    assert first == f"{opening} · last used 2026-11-01T19:34:13Z · 2 messages"
    assert ID.fullmatch(first_id)
    assert ID.fullmatch(second_id)
    assert first_id != second_id


@pytest.mark.requirement("SES-2", "IDX-7")
async def test_a_restart_or_a_lookup_changes_nothing_about_which_is_active(desk: Desk) -> None:
    """The active session stays so, and with none active none is."""
    await desk.ask("echo one")
    before = await list_sessions(desk)
    await desk.stop()
    await desk.start()
    assert await list_sessions(desk) == before
    await desk.ask("!close")
    await desk.stop()
    await desk.start()
    await desk.ask("!hashtags x")
    ((line, _),) = await list_sessions(desk)
    assert "active" not in line


@pytest.mark.requirement("SES-2")
async def test_a_session_is_resumed_by_its_id_or_a_part_that_is_its_alone(desk: Desk) -> None:
    """The model reads on where that session ended; the one before is closed."""
    await desk.ask("echo one")
    await desk.ask("echo two")
    ((_, first),) = await list_sessions(desk)
    desk.clock.jump(5)
    await desk.ask("!new")
    assert await desk.ask("history") == ["1"]
    assert await desk.ask(f"/resume {first[:-1].upper()}") == [f"Resumed: echo one · {first}"]
    await desk.ask("!new")
    assert await desk.ask(f"/resume {first[-5:]}") == [f"Resumed: echo one · {first}"]
    assert await desk.ask("history") == ["3"]
    assert await desk.ask(f"!resume {first}") == [f"Resumed: echo one · {first}"]
    assert await desk.count("SELECT count(*) FROM sessions WHERE state = 'active'") == 1
    assert "Several sessions" in (await desk.ask(f"!resume {first[:7]}"))[0]


@pytest.mark.requirement("SES-2", "SEC-1", "CMD-2")
async def test_an_id_of_another_room_is_like_one_that_never_was(desk: Desk) -> None:
    """The words are the same; what is no id, and a command without one, get an example."""
    await desk.ask("echo secret")
    ((_, foreign),) = await list_sessions(desk)
    never = foreign[:-4] + "0000"
    answers = [(await desk.ask(f"!resume {wanted}", room=ROOM))[0].replace(wanted, "ID") for wanted in (foreign, never)]
    assert answers == ["No session `ID` was found here. `!sessions` lists those of this room."] * 2
    for wrong in ("!resume", "!resume x", "!resume %", "!resume 01a", f"!resume {foreign} {foreign}"):
        assert "For example: `!resume 01a1989a`" in (await desk.ask(wrong))[0]
    assert await desk.ask("history") == ["2"]


@pytest.mark.requirement("SES-3", "IDX-8")
async def test_a_removed_session_is_said_to_be_so(make_desk: MakeDesk) -> None:
    """Its id is known still, its text is not; the list has it no more."""
    desk = await make_desk(keep_days=1, idle_s=600)
    await desk.ask("echo one")
    ((_, first),) = await list_sessions(desk)
    desk.clock.jump(86_400 + 120)
    await eventually(lambda: desk.count("SELECT count(*) FROM sessions WHERE state = 'removed'"))
    assert await desk.ask(f"!resume {first}") == [f"The session `{first}` is unavailable: session removed."]
    assert "no session here yet" in (await desk.ask("!sessions"))[0]


@pytest.mark.requirement("SES-3")
async def test_an_idle_session_is_closed_and_a_working_one_is_not(make_desk: MakeDesk) -> None:
    """The next message opens a fresh one; a turn that takes longer than that keeps its session."""
    desk = await make_desk(idle_s=600)
    await desk.ask("echo one")
    desk.clock.jump(601)
    await eventually(lambda: desk.count("SELECT count(*) FROM sessions WHERE state = 'closed'"))
    assert await desk.ask("history") == ["1"]
    await desk.say("slow 3000 long")
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(1000)
    await desk.ask_now("!status")
    assert await desk.count("SELECT count(*) FROM sessions WHERE state = 'active'") == 1
    desk.clock.jump(2000)
    await desk.idle()
    assert await desk.ask("history") == ["3"]


@pytest.mark.requirement("SES-3", "CORE-3")
@pytest.mark.parametrize("end", ["crash", "stop"])
async def test_a_turn_that_was_taken_up_again_keeps_its_session(make_desk: MakeDesk, end: str) -> None:
    """A program that was down for longer than a session stays open answers in it, and what is said next goes on with it."""
    desk = await make_desk(idle_s=600)
    await desk.say("slow 20 first")
    await eventually(lambda: desk.clock.waits)
    await (desk.crash() if end == "crash" else desk.stop())
    desk.clock.jump(3000)
    await desk.start()
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(20)
    await desk.idle()
    assert await desk.ask("history") == ["2"]


@pytest.mark.requirement("SES-3", "CORE-4")
@pytest.mark.parametrize("end", ["stopped", "failed"])
async def test_a_long_turn_without_an_answer_keeps_its_session(make_desk: MakeDesk, end: str) -> None:
    """A session was in use until its turn was stopped or failed, however long that took."""
    desk = await make_desk(lambda desk: desk.tools.append(Wait(desk.clock)), idle_s=600)
    await desk.say("fail first\ntool wait 3000")
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(2000 if end == "stopped" else 3000)
    if end == "stopped":
        await desk.ask_now("!stop")
    await desk.idle()
    assert await desk.ask("history") == ["2"]


@pytest.mark.requirement("SES-2", "CMD-3", "IN-11")
async def test_a_fresh_session_begins_behind_what_was_asked_before(desk: Desk) -> None:
    """A message in front of `/new` belongs to the old session also while it waits, and one behind it to the new one."""
    await desk.say("slow 5 first")
    await desk.say("history")
    await eventually(lambda: desk.clock.waits)
    assert await desk.ask_now("!new") == "That comes right after the answer that I am working on. `!stop` ends it."
    await desk.say("history")
    assert "waiting: 3" in await desk.ask_now("!status")
    desk.clock.jump(5)
    await desk.idle()
    texts = desk.gateway.get_texts(DIRECT)[2:]
    assert [texts[0], texts[1], texts[3]] == ["first", "2", "1"]
    assert texts[2].startswith("A fresh session · ")


@pytest.mark.requirement("CMD-3", "SES-2")
@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_command_that_a_crash_cut_off_runs_once(desk: Desk, *, is_behind: bool) -> None:
    """One fresh session and one answer, on whichever side of the commit the program dies."""
    desk.database.kill_at, desk.database.is_behind = "command.run", is_behind
    await desk.say("!new Release 2")
    await eventually(lambda: desk.database.is_dead)
    await desk.crash()
    await desk.start()
    await desk.idle()
    assert len(desk.gateway.room) == 1
    assert await desk.count("SELECT count(*) FROM sessions") == 1


@pytest.mark.requirement("SES-1", "SES-2", "CMD-2")
async def test_a_session_can_be_named_and_closed(desk: Desk) -> None:
    """The name stands in the list; what does not fit is one sentence with an example."""
    assert "No session is active here" in (await desk.ask("!name Plan"))[0]
    assert await desk.ask("!close") == ["No session is active here."]
    await desk.ask("echo one")
    assert await desk.ask("!name  The *plan*\n <b>") == ["This session is called: The *plan* <b>"]
    assert desk.gateway.room[-1].kind == "listing"
    for wrong in ("!name", f"!name {'x' * 91}", f"!new {'x' * 91}"):
        assert "For example: `!" in (await desk.ask(wrong))[0]
    assert (await list_sessions(desk))[0][0].startswith("The *plan* <b> · ")
    assert await desk.ask("!close") == ["Closed. The next message begins a fresh session."]
    assert await desk.ask("history") == ["1"]


@pytest.mark.requirement("ROOM-8", "SES-2", "CORE-2")
async def test_a_thread_has_its_own_active_session(desk: Desk) -> None:
    """What is active in a thread is not so outside; a session that is at work elsewhere stays there, another one comes over."""
    thread = {"thread": EventId("$root")}
    await desk.ask("echo outside")
    await desk.ask("echo inside", **thread)
    assert await desk.ask("history") == ["2"]
    assert await desk.ask("history", **thread) == ["2"]
    lines = await list_sessions(desk)
    assert [line.rpartition(" · ")[2] for line, _ in lines] == ["active in a thread", "active"]
    assert [line.rpartition(" · ")[2] for line, _ in await list_sessions(desk, **thread)] == ["active", "active outside this thread"]
    inside = lines[0][1]
    await desk.say("slow 60 inside", **thread)
    await eventually(lambda: desk.clock.waits)
    assert "at work in another thread" in await desk.ask_now(f"!resume {inside}")
    desk.clock.jump(60)
    await desk.idle()
    await desk.ask(f"!resume {inside}")
    assert await desk.ask("history") == ["4"]
    assert await desk.ask("history", **thread) == ["1"]


@pytest.mark.requirement("CMD-1", "SES-2", "CMD-2")
async def test_pages_of_sessions(desk: Desk) -> None:
    """Ten a page, and the last line says how to go on; a page that is none gets one sentence."""
    for _ in range(12):
        await desk.ask("!new")
    (first,) = await desk.ask("!sessions")
    assert first.split("\n")[-1] == "Page 1 of 2; the next: /sessions 2"
    assert len((await desk.ask("!sessions 2"))[0].split("\n")) == 4
    assert await desk.ask("!sessions 3") == ["There are 2 pages of sessions. For example: `!sessions 2`"]
    assert "For example" in (await desk.ask("!sessions x"))[0]


@pytest.mark.requirement("CORE-2")
async def test_a_room_with_many_requests_leaves_others_their_share(make_desk: MakeDesk) -> None:
    """While one room has a long queue in many threads, a message of another room is taken up next."""
    desk = await make_desk(parallel_turns=2)
    for number in range(8):
        await desk.say(f"slow 5 busy {number}", thread=EventId(f"$thread{number % 4}"))
    await eventually(lambda: desk.clock.waits == 2)
    await desk.say("slow 5 other", room=RoomId("!other:example.org"), is_direct=True)
    desk.clock.jump(5)
    await eventually(lambda: len(desk.gateway.room) == 2 and desk.clock.waits == 2)
    desk.clock.jump(5)
    await eventually(lambda: len(desk.gateway.room) == 4)
    assert "other" in [delivery.text for delivery in desk.gateway.room]
    while not desk.harness._lanes.is_idle:
        await eventually(lambda: desk.clock.waits or desk.harness._lanes.is_idle)
        desk.clock.jump(5)
    await desk.idle()
    assert len(desk.gateway.room) == 9
