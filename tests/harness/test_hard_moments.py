"""Moments in which one thing meets another: a full disk, a stop, a second steer, a strange answer; nothing is lost or said twice."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

import pytest

from hayate_matrix.core.deliveries import Sent
from hayate_matrix.core.ids import EventId
from hayate_matrix.errors import DeliveryUncertain, DiskLow
from hayate_matrix.harness.rules import Limits, Senses
from tests.support.desk import DIRECT, ROOM, Desk
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from hayate_matrix.core.deliveries import Delivery
    from hayate_matrix.core.ids import RoomId
    from hayate_matrix.store.database import Connection
    from tests.harness.conftest import MakeDesk

T = TypeVar("T")


async def begin_turn(desk: Desk, words: str = "first") -> None:
    """Let a turn run that answers `words` after 10 seconds."""
    await desk.say(f"slow 10 {words}")
    await eventually(lambda: desk.clock.waits)


async def finish(desk: Desk) -> None:
    """Let as much time pass as it takes until nothing more is to do."""
    idle = asyncio.create_task(desk.idle())
    while not idle.done():
        await eventually(lambda: idle.done() or desk.clock.waits)
        desk.clock.jump(10)
    await idle


@pytest.mark.requirement("OUT-1")
async def test_reactions_without_an_event_id_of_their_own_settle(make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A homeserver that has a reaction already names no event for it; that happens more than once and stops nothing."""
    desk = await make_desk(ack="reaction")
    take = desk.gateway.deliver
    seen: set[tuple[EventId | None, str]] = set()

    async def deliver(delivery: Delivery) -> Sent:
        sent = await take(delivery)
        if delivery.kind != "reaction" or (delivery.request, delivery.text) not in seen:
            seen.add((delivery.request, delivery.text))
            return sent
        return Sent(event_ids=(EventId(""),))

    monkeypatch.setattr(desk.gateway, "deliver", deliver)
    for number in range(2):
        message = await desk.say(f"echo {number}")
        await desk.idle()
        await desk.accept(desk.edit(message, f"echo {number} edited"))
        await desk.idle()
    replies = [delivery.text for delivery in desk.gateway.room if delivery.kind == "reply"]
    assert replies == ["0", "Edited: 0 edited", "1", "Edited: 1 edited"]
    assert await desk.count("SELECT count(*) FROM outbox WHERE state <> 'sent'") == 0


@pytest.mark.requirement("OUT-1", "SEC-2")
async def test_a_hostile_event_id_in_an_answer_settles_the_delivery(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the homeserver calls the message need not be text that a database takes; the message counts as sent."""
    take = desk.gateway.deliver

    async def deliver(delivery: Delivery) -> Sent:
        await take(delivery)
        return Sent(event_ids=(EventId("$\ud800"),))

    monkeypatch.setattr(desk.gateway, "deliver", deliver)
    assert await desk.ask("echo one") == ["one"]
    assert await desk.ask("echo two") == ["two"]
    assert await desk.count("SELECT count(*) FROM outbox WHERE state <> 'sent'") == 0


@pytest.mark.requirement("CORE-6")
async def test_the_limit_of_the_queue_is_told_again_for_each_run_of_it(make_desk: MakeDesk) -> None:
    """Each time that a person's queue is full anew, what is refused is answered with a sentence."""
    desk = await make_desk(person_limits=Limits(queue=1))
    for text in ("one", "two"):
        await begin_turn(desk)
        message = await desk.say(f"echo {text}")
        desk.clock.jump(10)
        await desk.idle()
        assert [delivery.kind for delivery in desk.gateway.room if delivery.request == message.event_id] == ["notice"]


@pytest.mark.requirement("CORE-6", "ROOM-3")
async def test_what_waits_in_a_denied_room_takes_no_place_in_the_queue(make_desk: MakeDesk) -> None:
    """A person whose requests wait in a room that is not served can still ask in one that is."""
    senses = Senses(is_served=lambda room_id: room_id != ROOM)
    desk = await make_desk(lambda desk: setattr(desk, "senses", senses), person_limits=Limits(queue=2), trigger="always")
    assert await desk.ask("echo 1", room=ROOM) == []
    assert await desk.ask("echo 2", room=ROOM) == []
    assert await desk.ask("echo 3") == ["3"]


@pytest.mark.requirement("TAG-5", "TAG-8")
async def test_indented_code_behind_the_mention_holds_no_tag(make_desk: MakeDesk) -> None:
    """Taking the mention and the blanks in front away does not turn code into text."""
    desk = await make_desk(trigger="mention")
    assert await desk.ask("@bot\n    #include <stdio.h>", room=ROOM) == ["Noted: #include <stdio.h>"]
    assert await desk.count("SELECT count(*) FROM tags") == 0


@pytest.mark.requirement("CORE-3", "REL-1")
async def test_an_orderly_stop_while_a_turn_is_opened_is_no_failed_try(make_desk: MakeDesk) -> None:
    """Where the stop comes while the first commit of a turn is on its way, the next start goes on with that turn."""
    is_held, entered, may_go_on = threading.Event(), threading.Event(), threading.Event()

    def is_served(_room_id: RoomId) -> bool:
        if is_held.is_set():
            entered.set()
            may_go_on.wait(20)
        return True

    desk = await make_desk(lambda desk: setattr(desk, "senses", Senses(is_served=is_served)), turn_retries=0)
    is_held.set()
    message = await desk.say("echo one")
    await eventually(entered.is_set)
    (turn,) = [task for task in asyncio.all_tasks() if task.get_name() == f"turn {message.event_id}"]
    stop = asyncio.create_task(desk.stop())
    await eventually(turn.cancelling)
    is_held.clear()
    may_go_on.set()
    await stop
    assert "turn.suspend" in desk.database.names
    await desk.start()
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["one"]


def fill_disk(desk: Desk, monkeypatch: pytest.MonkeyPatch, step: str, *, is_command_broken: bool = False) -> None:
    """Let the disk be full once, at the durable step `step`."""
    transact, left = desk.database.transaction, 1

    async def transaction(name: str, work: Callable[[Connection], T]) -> T:
        nonlocal left
        if name == "command.run" and is_command_broken:
            raise RuntimeError("broken")
        if name == step and left:
            left = 0
            raise DiskLow("The disk is full.", remedy="Make room.")
        return await transact(name, work)

    monkeypatch.setattr(desk.database, "transaction", transaction)


@pytest.mark.requirement("STO-11", "OUT-2")
async def test_a_full_disk_while_an_answer_is_held_back_is_waited_out(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the harness nor the answer ends with it: once the room is open again the answer is there."""
    fill_disk(desk, monkeypatch, "delivery.hold")
    desk.gateway.denied.add(DIRECT)
    await desk.say("echo one")
    await finish(desk)
    assert "delivery.hold" in desk.database.names
    desk.gateway.denied.clear()
    await desk.harness.release(DIRECT)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["one"]


@pytest.mark.requirement("STO-11", "OUT-1")
async def test_a_full_disk_while_a_delivery_ends_is_waited_out(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery of which nobody knows is left to the operator once there is room, and others go on."""

    def refuse(_delivery: Delivery) -> None:
        raise DeliveryUncertain("It can't be known.")

    fill_disk(desk, monkeypatch, "delivery.end")
    desk.gateway.on_deliver = refuse
    await desk.say("echo one")
    await finish(desk)
    desk.gateway.on_deliver = None
    assert await desk.ask("!status") == ["In this room: running: 0 · waiting: 0 · to be sent: 0 · for the operator: 1"]


@pytest.mark.requirement("STO-11", "OUT-7")
async def test_a_full_disk_while_a_command_fails_is_waited_out(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence about a command that broke comes as soon as there is room."""
    fill_disk(desk, monkeypatch, "command.fail", is_command_broken=True)
    await desk.say("!help")
    await finish(desk)
    (text,) = desk.gateway.get_texts(DIRECT)
    assert text.startswith("Something went wrong while I worked on this. (error ")


@pytest.mark.requirement("IN-9", "CMD-1")
async def test_commands_are_no_exchange_of_the_loop_breaker(make_desk: MakeDesk) -> None:
    """Whoever looks several things up quickly is answered each time; answers to commands are notices, which no bot takes up."""
    desk = await make_desk(loop_breaker=3)
    for _ in range(10):
        assert len(await desk.ask("!status", room=ROOM)) == 1
    assert {delivery.kind for delivery in desk.gateway.room} == {"notice"}


@pytest.mark.requirement("CORE-4", "IN-5")
async def test_a_steer_that_comes_while_the_text_is_read_anew_is_passed_on_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was removed makes a turn read its transcript again; a second steer just then is neither lost nor repeated."""
    old = await desk.say("echo old")
    await desk.idle()
    await begin_turn(desk, "done")
    await desk.ask_now("!steer one")
    await desk.accept(desk.redaction(old))
    transact = desk.database.transaction

    async def transaction(name: str, work: Callable[[Connection], T]) -> T:
        result = await transact(name, work)
        if name == "turn.end" and desk.database.names.count("command.run") == 1:
            await desk.say("!steer two")
            await eventually(lambda: desk.database.names.count("command.run") == 2)
        return result

    monkeypatch.setattr(desk.database, "transaction", transaction)
    await finish(desk)
    replies = [delivery.text for delivery in desk.gateway.room if delivery.kind == "reply"]
    assert replies == ["old", "done (steered: one) (steered: two)"]
