"""Commands in a room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hayate_matrix.core.commands import COMMANDS
from hayate_matrix.core.ids import RoomId, UserId
from hayate_matrix.core.transcript import Note, Result
from hayate_matrix.harness.commands.lookups import Lookups
from hayate_matrix.harness.rules import Senses
from tests.support.desk import ALICE, BOB, DIRECT, ROOM, CountingRuntime, Desk
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.harness.conftest import MakeDesk


@pytest.mark.requirement("IN-8", "CMD-1")
@pytest.mark.parametrize("body", ["!help", "/help", "//help", "  !help", "bot: !help", "@bot /help", "!HELP"])
async def test_a_command_is_known_in_every_form(desk: Desk, body: str) -> None:
    """Each way to write it gives the help, as a notice to the one who asked, with the `!` form first; a room needs no mention."""
    (text,) = await desk.ask(body, room=ROOM)
    assert [line.split()[1] for line in text.splitlines()] == [f"!{name}" for name in COMMANDS]
    assert (desk.gateway.room[0].kind, desk.gateway.room[0].mention) == ("notice", ALICE)


@pytest.mark.requirement("IN-8")
async def test_an_unknown_word_is_ordinary_text(desk: Desk) -> None:
    """`/shrug` is answered like any text in a direct message, and is nothing in a room without a mention."""
    assert await desk.ask("/shrug hello") == ["Noted: /shrug hello"]
    assert await desk.ask("!nothing", room=ROOM) == []


@pytest.mark.requirement("CORE-4")
async def test_stop_ends_the_running_turn_of_this_focus(desk: Desk) -> None:
    """The turn ends at once, the queue goes on, what was said stays in the transcript; a turn in a thread is not touched."""
    await desk.say("slow 3600 thread", thread="$root")
    await desk.say("slow 3600 main")
    await eventually(lambda: desk.clock.waits == 2)
    await desk.say("echo next")
    await desk.say("!stop")
    await eventually(lambda: sorted(desk.gateway.get_texts(DIRECT)) == ["Stopped.", "next"])
    runtime = desk.runtime
    assert isinstance(runtime, CountingRuntime)
    assert any(isinstance(element, Note) and "stopped by a person" in element.text for element in runtime.prompts[-1].transcript)
    assert await desk.count("SELECT count(*) FROM tasks WHERE state = 'running'") == 1
    assert await desk.ask("!stop", thread="$root") == ["Stopped."]
    assert await desk.ask("!stop") == ["Nothing is running here."]


@pytest.mark.requirement("CORE-4")
async def test_a_stopped_tool_call_has_an_end_in_the_transcript(make_desk: MakeDesk) -> None:
    """A call that was stopped has a result that says so, since models refuse a transcript with open calls."""

    class Slow:
        name, description, is_idempotent = "wait", "waits", True

        async def run(self, _call_id: str, _arguments: str) -> str:
            await desk.clock.sleep(3600)
            return "never"

    desk = await make_desk(lambda desk: desk.tools.append(Slow()))
    await desk.say("tool wait")
    await eventually(lambda: desk.clock.waits)
    await desk.say("!stop")
    await desk.idle()
    await desk.ask("echo next")
    runtime = desk.runtime
    assert isinstance(runtime, CountingRuntime)
    results = [element for element in runtime.prompts[-1].transcript if isinstance(element, Result)]
    assert [result.outcome for result in results] == ["stopped"]


@pytest.mark.requirement("CORE-4", "CMD-2")
async def test_steering_needs_a_text_and_a_turn(desk: Desk) -> None:
    """Each wrong use is one sentence, with an example."""
    assert await desk.ask("!steer") == ["`!steer` needs a text. For example: `!steer only the German ones`"]
    assert await desk.ask("!steer left") == ["Nothing is running here that could be steered. Send it as a message."]


@pytest.mark.requirement("CMD-1")
async def test_status_counts_what_runs_and_waits_in_this_room(desk: Desk) -> None:
    """Running, waiting and owed are counted for this room alone."""
    await desk.say("slow 3600 elsewhere", room=RoomId("!other"), is_direct=True)
    await desk.say("slow 3600 here")
    await desk.say("echo waiting")
    await eventually(lambda: desk.clock.waits == 2)
    await desk.say("!status")
    await eventually(lambda: desk.gateway.get_texts(DIRECT) == ["In this room: running: 1 · waiting: 1 · to be sent: 0"])


@pytest.mark.requirement("CMD-2")
async def test_a_command_can_need_a_power_level(make_desk: MakeDesk) -> None:
    """Whoever lacks it is told so; where it can't be known it counts as lacking."""
    powers: dict[UserId, int | None] = {ALICE: 50, BOB: 0, UserId("@who:example.org"): None}

    def prepare(desk: Desk) -> None:
        desk.senses = Senses(read_power=lambda _room, user: powers[user])

    desk = await make_desk(prepare, command_power={"stop": 50})
    assert await desk.ask("!stop") == ["Nothing is running here."]
    assert await desk.ask("!stop", sender=BOB) == ["`!stop` needs the power level 50; yours is 0."]
    assert await desk.ask("!stop", sender=UserId("@who:example.org")) == ["`!stop` needs the power level 50, and I can't see yours."]


@pytest.mark.requirement("IDX-3", "CMD-2")
@pytest.mark.parametrize("body", ["!hashtags", "!hashtags release", "!hashtags relaese", "!hashtags release 2"])
async def test_lookups_can_need_a_power_level(make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Whoever lacks it hears so, whatever was asked, and nothing is looked up; whoever has it gets the answer."""
    look, looks = Lookups.look, 0

    def watch(lookups: Lookups, *call: Any) -> Any:
        nonlocal looks
        looks += 1
        return look(lookups, *call)

    def prepare(desk: Desk) -> None:
        desk.senses = Senses(read_power=lambda _room, user: 50 if user == ALICE else 49)

    monkeypatch.setattr(Lookups, "look", watch)
    desk = await make_desk(prepare, command_power={"hashtags": 50})
    await desk.ask("@bot the #release", room=ROOM)
    assert await desk.ask(body, room=ROOM, sender=BOB) == ["`!hashtags` needs the power level 50; yours is 49."]
    assert looks == 0
    assert "power level" not in (await desk.ask(body, room=ROOM))[0]
    assert looks == 1


@pytest.mark.requirement("CMD-3")
@pytest.mark.parametrize("is_behind", [False, True], ids=["before the commit", "behind the commit"])
async def test_a_command_is_never_run_twice(desk: Desk, *, is_behind: bool) -> None:
    """A crash around its commit runs it once: its effect and its answer are there together, once."""
    await desk.say("slow 3600 running")
    await eventually(lambda: desk.clock.waits)
    desk.database.kill_at, desk.database.is_behind = "command.run", is_behind
    await desk.say("!steer once")
    await eventually(lambda: desk.database.is_dead)
    await desk.crash()
    await desk.start()
    await eventually(lambda: desk.gateway.get_texts(DIRECT) == ["Passed on."])
    assert await desk.count("SELECT count(*) FROM entries WHERE kind = 'steer'") == 1


@pytest.mark.requirement("CORE-4", "REL-1")
async def test_a_stop_that_a_crash_follows_stays_a_stop(desk: Desk) -> None:
    """The stopped turn is not taken up again by the next process."""
    await desk.say("slow 3600 running")
    await eventually(lambda: desk.clock.waits)
    desk.database.kill_at, desk.database.is_behind = "command.run", True
    await desk.say("!stop")
    await eventually(lambda: desk.database.is_dead)
    await desk.crash()
    await desk.start()
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["Stopped."]


@pytest.mark.requirement("OUT-7")
async def test_a_command_that_breaks_is_one_sentence(make_desk: MakeDesk) -> None:
    """An error that nobody foresaw ends that command alone."""

    def prepare(desk: Desk) -> None:
        def fail(_room: RoomId, _user: UserId) -> int:
            raise ZeroDivisionError

        desk.senses = Senses(read_power=fail)

    desk = await make_desk(prepare, command_power={"stop": 50})
    (text,) = await desk.ask("!stop")
    assert text.startswith("Something went wrong while I worked on this. (error ")
    assert len(await desk.ask("!help")) == 1


@pytest.mark.requirement("ROOM-10", "CMD-2")
async def test_a_paused_room_gets_no_answers_and_none_later(make_desk: MakeDesk) -> None:
    """`!pause` ends what runs and drops what waits; what is said until `!unpause` is never answered, also over a restart; commands work."""
    desk = await make_desk(lambda desk: setattr(desk, "senses", Senses(read_power=lambda _room, user: 50 if user == ALICE else 0)))
    await desk.say("slow 3600 long")
    await desk.say("waits")
    await eventually(lambda: desk.clock.waits == 1)
    await desk.ask("!pause")
    await desk.say("meanwhile")
    await desk.crash()
    await desk.start()
    await desk.idle()
    status = (await desk.ask("!status"))[-1]
    assert "In this room: running: 0 · waiting: 0" in status
    assert "paused" in status
    await desk.ask("!unpause")
    assert "paused" not in (await desk.ask("!status"))[-1]
    assert (await desk.ask("afterwards"))[-1] == "Noted: afterwards"
    texts = [delivery.text for delivery in desk.gateway.room]
    assert not {"Noted: meanwhile", "Noted: waits"} & set(texts)


@pytest.mark.requirement("ROOM-10", "CMD-2")
@pytest.mark.parametrize("command", ["!pause", "!unpause"])
async def test_pauses_are_for_moderators(make_desk: MakeDesk, command: str) -> None:
    """Without the power level 50 a pause is refused with one sentence, and changes nothing."""
    desk = await make_desk(lambda desk: setattr(desk, "senses", Senses(read_power=lambda _room, _user: 49)))
    assert "needs the power level 50; yours is 49" in (await desk.ask(command))[-1]
    assert (await desk.ask("still here"))[-1] == "Noted: still here"
