"""Facts become requests, commands or nothing, once."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.core.allowlist import Policy
from hayate_matrix.core.facts import Membership, Reaction, Skipped, Tombstone
from hayate_matrix.core.ids import EventId, RoomId, UserId
from hayate_matrix.core.transcript import Removed, Request
from hayate_matrix.harness.harness import Harness
from tests.support.desk import ALICE, BOB, BOT, DIRECT, ROOM, CountingRuntime, Desk, Killed, make_hostile_facts
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from hayate_matrix.core.facts import AnyFact, Message
    from hayate_matrix.store.database import Connection
    from tests.harness.conftest import MakeDesk


def get_prompts(desk: Desk) -> list[tuple[object, ...]]:
    assert isinstance(desk.runtime, CountingRuntime)
    return [prompt.transcript for prompt in desk.runtime.prompts]


@pytest.mark.requirement("IN-1", "STO-3")
async def test_the_same_fact_again_changes_nothing(desk: Desk) -> None:
    """A fact that is handed over twice, in one batch, in two, or after a restart, is answered once."""
    message = desk.message("echo once")
    await desk.accept(message, message)
    await desk.accept(message)
    await desk.idle()
    await desk.stop()
    await desk.start()
    await desk.accept(message)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["once"]


@pytest.mark.requirement("IN-1")
async def test_the_same_event_after_its_redaction_changes_nothing(desk: Desk) -> None:
    """The stone that a removed message leaves keeps it from being taken again."""
    message = await desk.say("echo once")
    await desk.idle()
    await desk.accept(desk.redaction(message))
    await desk.accept(message)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["once"]


@pytest.mark.requirement("IN-1", "REL-1")
@pytest.mark.parametrize("is_behind", [False, True], ids=["before the commit", "behind the commit"])
async def test_a_batch_that_a_crash_cut_off_is_taken_whole_once(desk: Desk, *, is_behind: bool) -> None:
    """Of a batch whose commit was cut off all or nothing is there; handed over again it is answered once, in order."""
    batch = [desk.message(f"echo {number}") for number in range(10)]
    desk.database.kill_at, desk.database.is_behind = "intake.accept", is_behind
    with pytest.raises(Killed):
        await desk.accept(*batch)
    await desk.crash()
    await desk.start()
    assert await desk.count("SELECT count(*) FROM inbox") == (10 if is_behind else 0)
    await desk.accept(*batch)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == [str(number) for number in range(10)]


@pytest.mark.requirement("IN-1")
async def test_what_is_accepted_before_the_start_is_answered(desk: Desk) -> None:
    """Facts that come in before or during the start are answered once, in order, whoever notices them first."""
    await desk.stop()
    await desk.start()
    harness = desk.harness
    await harness.stop()
    await desk.accept(*(desk.message(f"echo {number}") for number in range(5)))
    desk.database.close()
    await desk.start()
    await desk.accept(*(desk.message(f"echo {number}") for number in range(5, 10)))
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == [str(number) for number in range(10)]


@pytest.mark.requirement("IN-1", "CORE-3")
async def test_what_comes_in_just_behind_the_look_at_start_is_answered(desk: Desk) -> None:
    """A fact that becomes durable when the start has read the inbox, and does not know it yet, is not left lying."""
    await desk.stop()
    await desk.start()
    await desk.harness.stop()
    database = desk.database
    harness = Harness(
        database,
        desk.sealer,
        clock=desk.clock,
        runtime=desk.runtime,
        gateway=desk.gateway,
        rules=desk.rules,
    )
    message, command = desk.message("echo just behind"), desk.message("!help")
    read = database.read

    async def read_and_accept(work: Callable[[Connection], object]) -> object:
        found = await read(work)
        database.read = read  # type: ignore[method-assign]
        await harness.sink.accept([message, command])
        return found

    database.read = read_and_accept  # type: ignore[method-assign,assignment]
    await harness.start()
    await asyncio.wait_for(harness.idle(), 20)
    assert sorted(delivery.kind for delivery in desk.gateway.room) == ["notice", "reply"]


@pytest.mark.requirement("ROOM-4")
@pytest.mark.parametrize(
    ("policy", "sender", "is_answered"),
    [
        (Policy(own_user_id=BOT), ALICE, True),
        (Policy(own_user_id=BOT), BOT, False),
        (Policy(own_user_id=BOT, people=()), ALICE, False),
        (Policy(own_user_id=BOT, people=(ALICE,)), ALICE, True),
        (Policy(own_user_id=BOT, people=(ALICE,)), UserId("@Alice:example.org"), False),
        (Policy(own_user_id=BOT, people=("*:example.org",)), BOB, True),
        (Policy(own_user_id=BOT, people=("*:example.org",)), UserId("@bob:evil.example.org"), False),
        (Policy(own_user_id=BOT, people=(ALICE,), ignore=("@ali*",)), ALICE, False),
    ],
)
async def test_who_may_speak(make_desk: MakeDesk, policy: Policy, sender: UserId, *, is_answered: bool) -> None:
    """Only allowed people are heard: their messages, their commands, their edits."""
    desk = await make_desk(policy=policy)
    message = desk.message("echo hello", sender=sender)
    await desk.accept(message, desk.message("!status", sender=sender), desk.edit(message, "@bot echo again"))
    await desk.idle()
    assert bool(desk.gateway.room) is is_answered


@pytest.mark.requirement("ROOM-5")
async def test_in_a_room_the_bot_answers_when_it_is_asked(desk: Desk) -> None:
    """A mention, a reply to the bot, and a thread that it was addressed in are requests; other talk is none."""
    assert await desk.ask("echo nobody asked", room=ROOM) == []
    assert await desk.ask("echo a", room=ROOM, mentions=(BOT,)) == ["a"]
    assert await desk.ask("bot: echo b", room=ROOM) == ["b"]
    assert await desk.ask("echo c", room=ROOM, reply_to=f"${desk.gateway.room[0].id}") == ["c"]
    assert await desk.ask("echo d", room=ROOM, thread=f"${desk.gateway.room[0].id}") == ["d"]
    assert await desk.ask("echo e", room=ROOM, thread="$thread") == []
    assert await desk.ask("@bot echo f", room=ROOM, thread="$thread") == ["f"]
    assert await desk.ask("echo g", room=ROOM, thread="$thread") == ["g"]
    assert await desk.ask("echo h", room=ROOM) == []
    assert [delivery.mention for delivery in desk.gateway.room] == [ALICE] * len(desk.gateway.room)


@pytest.mark.requirement("ROOM-5")
async def test_the_trigger_can_be_set_for_each_room(make_desk: MakeDesk) -> None:
    """`mention` leaves a thread alone, `always` answers everything, in the room that it is set for."""
    desk = await make_desk(trigger="mention", room_triggers={RoomId("!all"): "always"})
    assert await desk.ask("@bot echo a", room=ROOM, thread="$thread") == ["a"]
    assert await desk.ask("echo b", room=ROOM, thread="$thread") == []
    assert await desk.ask("echo c", room=RoomId("!all")) == ["c"]


@pytest.mark.requirement("ROOM-5")
async def test_a_bot_of_another_room_is_not_replied_to(desk: Desk) -> None:
    """A reply to a message that the bot sent elsewhere is no request here."""
    await desk.ask("echo a")
    assert await desk.ask("echo b", room=ROOM, reply_to=f"${desk.gateway.room[0].id}") == []


@pytest.mark.requirement("IN-9")
async def test_what_carries_the_marker_is_never_answered(desk: Desk) -> None:
    """A message of a bot of this kind is no request, not even with a mention."""
    assert await desk.ask("echo a", loop_marker=True, mentions=(BOT,)) == []


@pytest.mark.requirement("IN-9")
async def test_quick_exchanges_with_one_account_end_with_one_notice(make_desk: MakeDesk) -> None:
    """After eight quick exchanges in a row an account is not answered; another person, or a pause, lets the bot go on."""
    desk = await make_desk(loop_breaker=8)
    for number in range(8):
        assert await desk.ask(f"bot: echo {number}", room=ROOM) == [str(number)]
    (notice,) = await desk.ask("bot: echo 8", room=ROOM)
    assert "faster than people type" in notice
    assert (desk.gateway.room[-1].kind, desk.gateway.room[-1].mention) == ("notice", ALICE)
    assert await desk.ask("bot: echo 10", room=ROOM) == []
    assert await desk.ask("echo chatting", room=ROOM, sender=BOB) == []
    assert await desk.ask("bot: echo 11", room=ROOM) == ["11"]
    for _ in range(7):
        await desk.ask("bot: echo x", room=ROOM)
    assert len(await desk.ask("bot: echo 12", room=ROOM)) == 1
    assert await desk.ask("bot: echo 13", room=ROOM) != ["13"]
    desk.clock.jump(11)
    assert await desk.ask("bot: echo 14", room=ROOM) == ["14"]


@pytest.mark.requirement("IN-9")
async def test_a_burst_is_no_loop(make_desk: MakeDesk) -> None:
    """A hundred messages that were written before the answers came are all answered."""
    desk = await make_desk(loop_breaker=8)
    await desk.ask("echo first")
    for start in range(0, 100, 10):
        await desk.accept(*(desk.message(f"echo {number}") for number in range(start, start + 10)))
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["first", *(str(number) for number in range(100))]


@pytest.mark.requirement("IN-4")
async def test_an_edit_of_a_queued_request_replaces_its_text(desk: Desk) -> None:
    """The new text alone is answered, once, as a reply to the message."""
    await desk.say("slow 5 first")
    queued = await desk.say("echo wrong")
    await desk.accept(desk.edit(queued, "echo right"), desk.edit(queued, "echo right, really"))
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(5)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["first", "right, really"]
    assert desk.gateway.room[1].request == queued.event_id


@pytest.mark.requirement("IN-4")
async def test_an_edit_of_a_request_that_was_taken_up_is_one_follow_up(desk: Desk) -> None:
    """Of a running or finished request an edit is one more request that says so; an unchanged text is nothing."""
    running = await desk.say("slow 5 first")
    await eventually(lambda: desk.clock.waits)
    await desk.accept(desk.edit(running, "slow 5 first"))
    await desk.accept(desk.edit(running, "echo second"), desk.edit(running, "echo third"))
    desk.clock.jump(5)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["first", "Edited: third"]
    await desk.accept(desk.edit(running, "echo third"))
    await desk.accept(desk.edit(running, "echo fourth"))
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["first", "Edited: third", "Edited: fourth"]
    assert {delivery.request for delivery in desk.gateway.room} == {running.event_id}


@pytest.mark.requirement("IN-4")
async def test_an_edit_that_is_not_the_senders_own_is_nothing(desk: Desk) -> None:
    """Another sender or another room changes nothing, queued or done."""
    await desk.say("slow 5 first")
    queued = await desk.say("echo right")
    await desk.accept(desk.edit(queued, "echo wrong", sender=BOB))
    await desk.accept(dataclasses.replace(desk.edit(queued, "echo wrong"), room_id=ROOM))
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(5)
    await desk.idle()
    await desk.accept(desk.edit(queued, "echo wrong", sender=BOB))
    await desk.idle()
    assert [delivery.text for delivery in desk.gateway.room] == ["first", "right"]


@pytest.mark.requirement("IN-4")
async def test_an_edit_that_adds_the_mention_makes_a_request(desk: Desk) -> None:
    """A message that was not meant for the bot becomes a request once its edit mentions it; further edits follow that."""
    message = await desk.say("echo a", room=ROOM)
    await desk.accept(desk.edit(message, "echo b"))
    await desk.idle()
    assert desk.gateway.room == []
    await desk.accept(desk.edit(message, "echo c", mentions=(BOT,)))
    await desk.idle()
    assert desk.gateway.get_texts(ROOM) == ["c"]
    assert desk.gateway.room[0].request == message.event_id
    await desk.accept(desk.edit(message, "echo d", mentions=(BOT,)))
    await desk.idle()
    assert desk.gateway.get_texts(ROOM) == ["c", "Edited: d"]


@pytest.mark.requirement("IN-4", "REL-3")
async def test_an_edit_that_comes_before_its_message_is_used(desk: Desk) -> None:
    """Where gaps or late keys turn the order round, the message is answered with its edited text."""
    message = desk.message("echo old")
    await desk.accept(desk.edit(message, "echo new"))
    await desk.accept(message)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["new"]


@pytest.mark.requirement("IN-4", "CMD-3")
async def test_an_edited_command_is_not_run_again(desk: Desk) -> None:
    """A command is run once, whatever becomes of its message."""
    command = await desk.say("!help")
    await desk.idle()
    await desk.accept(desk.edit(command, "!status"))
    await desk.idle()
    assert len(desk.gateway.room) == 1


@pytest.mark.requirement("IN-5")
async def test_a_redacted_queued_request_is_dropped(desk: Desk) -> None:
    """What was removed before its turn is not answered, also where the removal comes first, and its text is gone."""
    await desk.say("slow 5 first")
    queued = await desk.say("echo removed")
    await desk.accept(desk.redaction(queued))
    late = desk.message("echo late")
    await desk.accept(desk.redaction(late), late)
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(5)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["first"]
    assert await desk.count("SELECT count(*) FROM inbox WHERE event_id = ? AND content IS NULL AND state = 'dropped'", queued.event_id) == 1


@pytest.mark.requirement("IN-5")
async def test_a_running_turn_ends_when_its_message_is_removed(desk: Desk) -> None:
    """The turn is stopped, nothing is sent, and the next request is taken up."""
    running = await desk.say("slow 3600 first")
    await eventually(lambda: desk.clock.waits)
    await desk.say("echo next")
    await desk.accept(desk.redaction(running))
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["next"]
    assert await desk.count("SELECT count(*) FROM tasks WHERE state = 'stopped'") == 1


@pytest.mark.requirement("IN-5")
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_removed_message_is_gone_from_the_transcript(desk: Desk, *, is_restarted: bool) -> None:
    """The model never sees its text again, nor that of its edits; a stone stands in its place."""
    message = await desk.say("echo secret one")
    await desk.idle()
    await desk.accept(desk.edit(message, "echo secret two"))
    await desk.idle()
    await desk.accept(desk.redaction(message))
    if is_restarted:
        await desk.stop()
        await desk.start()
    await desk.ask("echo after")
    last = get_prompts(desk)[-1]
    assert [element for element in last if isinstance(element, Removed)] == [Removed(kind="request")] * 2
    assert "secret" not in repr([element for element in last if isinstance(element, Request)])


@pytest.mark.requirement("IN-5")
async def test_a_removal_during_a_turn_reaches_its_next_step(desk: Desk) -> None:
    """A turn that runs when an earlier message is removed does not hand its text to the model again."""
    earlier = await desk.say("echo secret")
    await desk.idle()
    await desk.say("slow 5 answer")
    await eventually(lambda: desk.clock.waits)
    await desk.accept(desk.redaction(earlier))
    await desk.say("!steer hurry")
    await eventually(lambda: "Passed on." in desk.gateway.get_texts(DIRECT))
    desk.clock.jump(5)
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(5)
    await desk.idle()
    assert "secret" in repr([element for element in get_prompts(desk)[-2] if isinstance(element, Request)])
    assert "secret" not in repr([element for element in get_prompts(desk)[-1] if isinstance(element, Request)])
    await desk.ask("echo after")
    assert "secret" not in repr([element for element in get_prompts(desk)[-1] if isinstance(element, Request)])


@pytest.mark.requirement("ROOM-10")
@pytest.mark.parametrize("membership", ["leave", "ban"])
async def test_a_kick_ends_the_work_for_the_room(desk: Desk, membership: str) -> None:
    """The running turn is stopped, queued requests are dropped, what is owed is held, other rooms go on."""
    desk.gateway.gate = asyncio.Event()
    await desk.say("echo owed")
    await eventually(lambda: desk.gateway.calls)
    await desk.say("slow 3600 running")
    await eventually(lambda: desk.clock.waits)
    await desk.say("echo queued")
    await desk.accept(desk.own(membership))
    assert await desk.count("SELECT count(*) FROM outbox WHERE state = 'held'") == 1
    desk.gateway.denied.add(DIRECT)
    desk.gateway.gate.set()
    await desk.idle()
    assert desk.gateway.room == []
    assert await desk.count("SELECT count(*) FROM tasks WHERE state = 'stopped'") == 1
    assert await desk.count("SELECT count(*) FROM inbox WHERE state = 'dropped'") == 1
    assert await desk.count("SELECT count(*) FROM outbox WHERE state = 'held'") == 1
    assert await desk.ask("echo elsewhere", room=RoomId("!other"), is_direct=True) == ["elsewhere"]
    assert await desk.ask("echo not there") == []
    desk.gateway.denied.clear()
    await desk.accept(desk.own("join"))
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["owed"]
    assert await desk.ask("echo back") == ["back"]


@pytest.mark.requirement("IN-2", "IN-3")
@pytest.mark.parametrize(("reason", "words"), [("gap", "skipped 7 earlier messages"), ("age", "7 messages came that are too old")])
async def test_what_is_skipped_is_told_once(desk: Desk, reason: str, words: str) -> None:
    """Messages that are not answered are counted in one notice."""
    fact = Skipped(event_id=EventId("skipped:1"), room_id=ROOM, sender=BOT, sent_at_ms=1, count=7, reason=reason)  # type: ignore[arg-type]
    await desk.accept(fact, fact)
    await desk.accept(fact)
    await desk.idle()
    (delivery,) = desk.gateway.room
    assert delivery.kind == "notice"
    assert words in delivery.text


@pytest.mark.requirement("IN-1")
async def test_facts_that_ask_for_nothing_are_taken_once(desk: Desk) -> None:
    """Reactions, tombstones and others' comings and goings leave a row and no work."""
    given = {"room_id": ROOM, "sender": ALICE, "sent_at_ms": 1}
    facts = [
        Reaction(event_id=EventId("$1"), target=EventId("$x"), key="👍", **given),  # type: ignore[arg-type]
        Tombstone(event_id=EventId("$2"), replacement=RoomId("!new"), **given),  # type: ignore[arg-type]
        Membership(event_id=EventId("$3"), user=ALICE, membership="leave", is_own=False, **given),  # type: ignore[arg-type]
    ]
    await desk.accept(*facts)
    await desk.accept(*facts)
    await desk.idle()
    assert desk.gateway.room == []
    assert await desk.count("SELECT count(*) FROM inbox WHERE state = 'noted'") == 3


@pytest.mark.requirement("SEC-2")
async def test_a_hostile_fact_stops_nothing(desk: Desk) -> None:
    """Ids and texts that a database or a line of JSON does not take cost their own message at most."""
    await desk.accept(*make_hostile_facts(desk))
    await desk.idle()
    texts = desk.gateway.get_texts(DIRECT)
    assert [text[:1] for text in texts] == ["a", "d", "e"]
    assert texts[1] == "d\ufffd\x00"
    texts[1].encode()


CROSSING: dict[str, Callable[[Desk, Message], AnyFact]] = {
    "a redaction": lambda desk, secret: dataclasses.replace(desk.redaction(secret), room_id=ROOM),
    "an edit": lambda desk, secret: dataclasses.replace(desk.edit(secret, "echo changed"), room_id=ROOM),
    "a reply": lambda desk, secret: desk.message("reference", room=ROOM, reply_to=secret.event_id, is_direct=True),
    "a thread": lambda desk, secret: desk.message("history", room=ROOM, thread=secret.event_id, is_direct=True),
    "a thread's stop": lambda desk, secret: desk.message("!stop", room=ROOM, thread=secret.event_id),
    "a stop": lambda desk, _: desk.message("!stop", room=ROOM),
    "a steer": lambda desk, _: desk.message("!steer into it", room=ROOM),
}
"""What somebody who is in two rooms can say in one of them about a message of the other."""


@pytest.mark.requirement("ROOM-8", "SEC-1", "IN-4", "IN-5")
@pytest.mark.parametrize("moment", ["before it came", "while it waits", "while it is answered", "when it is answered"])
@pytest.mark.parametrize("crossing", list(CROSSING.values()), ids=list(CROSSING))
async def test_what_is_said_in_one_room_about_another_reaches_nothing(
    desk: Desk, crossing: Callable[[Desk, Message], AnyFact], moment: str
) -> None:
    """Events that name a message of another room neither change it, nor stop it, nor tell what it says."""
    first, secret = desk.message("slow 5 first"), desk.message("slow 5 the secret")
    fact = crossing(desk, secret)
    if moment == "before it came":
        await desk.accept(fact)
    await desk.accept(first, secret)
    await eventually(lambda: desk.clock.waits)
    if moment == "while it waits":
        await desk.accept(fact)
    desk.clock.jump(5)
    await eventually(lambda: desk.gateway.get_texts(DIRECT) == ["first"] and desk.clock.waits)
    if moment == "while it is answered":
        await desk.accept(fact)
    desk.clock.jump(5)
    await desk.idle()
    if moment == "when it is answered":
        await desk.accept(fact)
        await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["first", "the secret"]
    assert "secret" not in " ".join(desk.gateway.get_texts(ROOM))


@pytest.mark.requirement("IN-7")
async def test_a_file_is_named_in_text(desk: Desk) -> None:
    """A file whose content the runtime is not handed reaches it by name, its caption as text."""
    assert await desk.ask("", file_name="plan.pdf") == ["Noted: the file plan.pdf."]
    assert await desk.ask("echo caption", file_name="plan.pdf") == ["caption"]
