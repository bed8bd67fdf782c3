"""What is owed goes out in order and is settled once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.core.ids import RoomId
from hayate_matrix.errors import DeliveryRefused, DeliveryUncertain, HomeserverDown, MatrixError, StoreError
from hayate_matrix.harness.rules import Senses
from tests.support.desk import DIRECT, CountingRuntime, Desk
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from hayate_matrix.core.deliveries import Delivery
    from tests.harness.conftest import MakeDesk

OTHER = RoomId("!other")


@pytest.mark.requirement("OUT-1", "REL-1")
@pytest.mark.parametrize("is_behind", [False, True], ids=["before the commit", "behind the commit"])
async def test_a_crash_between_send_and_settling_sends_once(desk: Desk, *, is_behind: bool) -> None:
    """The row is delivered again under the same id, which the room takes once; its event ids are recorded."""
    desk.database.kill_at, desk.database.is_behind = "delivery.settle", is_behind
    await desk.say("echo once")
    await eventually(lambda: desk.database.is_dead)
    await desk.crash()
    await desk.start()
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["once"]
    assert desk.gateway.calls == (1 if is_behind else 2)
    assert await desk.count("SELECT count(*) FROM sent_events") == 1


@pytest.mark.requirement("ROOM-3", "OUT-2")
async def test_what_is_held_stays_in_order_and_goes_out_later(desk: Desk) -> None:
    """A denied room gets nothing; once it is allowed again everything goes out in order. Other rooms never wait."""
    desk.gateway.denied.add(DIRECT)
    for number in range(3):
        await desk.ask(f"echo {number}")
    assert await desk.ask("echo elsewhere", room=OTHER, is_direct=True) == ["elsewhere"]
    assert await desk.count("SELECT count(*) FROM outbox WHERE state = 'held'") == 3
    desk.gateway.denied.clear()
    assert await desk.ask("echo 3") == ["0", "1", "2", "3"]


@pytest.mark.requirement("ROOM-3", "ROOM-10")
@pytest.mark.parametrize("event", ["restart", "join", "release"])
async def test_what_is_held_is_tried_again(desk: Desk, event: str) -> None:
    """A start, a join of the bot, and word from the edge that the room may be allowed again, each try what is held."""
    desk.gateway.denied.add(DIRECT)
    await desk.ask("echo held")
    desk.gateway.denied.clear()
    match event:
        case "restart":
            await desk.stop()
            await desk.start()
        case "join":
            await desk.accept(desk.own("join"))
        case _:
            await desk.harness.release(DIRECT)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["held"]


@pytest.mark.requirement("ROOM-3", "RUN-1")
async def test_requests_of_a_room_that_was_denied_meanwhile_wait_until_it_is_allowed(make_desk: MakeDesk) -> None:
    """The operator denies a room between two runs: no turn goes on or begins there, no command is run; allowed again all of it is."""
    served = {DIRECT, OTHER}
    desk = await make_desk(lambda desk: setattr(desk, "senses", Senses(is_served=lambda room_id: room_id in served)))
    assert isinstance(desk.runtime, CountingRuntime)
    await desk.say("slow 5 running")
    await desk.say("echo queued")
    await desk.say("echo elsewhere", room=OTHER, is_direct=True)
    await eventually(lambda: desk.gateway.get_texts(OTHER) == ["elsewhere"])
    await desk.harness.stop()
    await desk.accept(desk.message("!status"))
    desk.database.close()
    served.remove(DIRECT)
    await desk.start()
    prompts = len(desk.runtime.prompts)
    assert await desk.ask("echo served", room=OTHER, is_direct=True) == ["served"]
    assert len(desk.runtime.prompts) == prompts + 1
    assert desk.gateway.get_texts(DIRECT) == []
    served.add(DIRECT)
    await desk.harness.release(DIRECT)
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(5)
    await desk.idle()
    status, *answers = desk.gateway.get_texts(DIRECT)
    assert status.startswith("In this room")
    assert answers == ["running", "queued"]


@pytest.mark.requirement("ROOM-3", "CORE-2")
async def test_requests_that_wait_in_a_room_that_turns_denied_wait_on(make_desk: MakeDesk) -> None:
    """A room denied while a turn runs: that turn ends, those behind it begin when it is allowed again, in order; other rooms go on."""
    served = {DIRECT, OTHER}
    desk = await make_desk(lambda desk: setattr(desk, "senses", Senses(is_served=lambda room_id: room_id in served)))
    assert isinstance(desk.runtime, CountingRuntime)
    await desk.say("slow 5 running")
    await desk.accept(desk.message("echo queued"), desk.message("echo last"), desk.message("echo in a thread", thread="$thread"))
    await eventually(lambda: desk.clock.waits)
    served.remove(DIRECT)
    await desk.harness.release(OTHER)
    desk.clock.jump(5)
    # The thread's turn may have begun in time.
    answers = await desk.ask("echo served", room=OTHER, is_direct=True)
    assert [text for text in answers if text != "in a thread"] == ["running", "served"]
    prompts = len(desk.runtime.prompts)
    await desk.harness.release(DIRECT)
    await desk.idle()
    assert len(desk.runtime.prompts) == prompts
    served.add(DIRECT)
    await desk.harness.release(DIRECT)
    await desk.idle()
    assert [text for text in desk.gateway.get_texts(DIRECT) if text != "in a thread"] == ["running", "queued", "last"]


@pytest.mark.requirement("OUT-2")
@pytest.mark.parametrize(
    ("error", "state"),
    [
        (DeliveryRefused("too large"), "refused"),
        (MatrixError("M_TOO_LARGE", "too large", status=413), "refused"),
        (DeliveryUncertain("who knows"), "uncertain"),
    ],
    ids=["refused", "Matrix error", "uncertain"],
)
async def test_a_row_that_ends_does_not_stop_those_behind_it(desk: Desk, error: Exception, state: str) -> None:
    """A refused row is over, an uncertain one waits for the operator; both leave the way free, also after a restart."""

    def fail(delivery: Delivery) -> None:
        if delivery.text == "bad":
            raise error

    desk.gateway.on_deliver = fail
    await desk.say("echo bad")
    assert await desk.ask("echo good") == ["good"]
    await desk.stop()
    desk.gateway.on_deliver = None
    await desk.start()
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["good"]
    assert await desk.count("SELECT count(*) FROM outbox WHERE state = ? AND reason IS NOT NULL", state) == 1


@pytest.mark.requirement("OUT-2", "REL-3")
async def test_a_gateway_that_asks_to_wait_is_asked_again(desk: Desk) -> None:
    """The same row goes out later, before those behind it."""
    left = 3

    def fail(_delivery: Delivery) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise HomeserverDown("no answer")

    desk.gateway.on_deliver = fail
    await desk.accept(desk.message("echo 0"), desk.message("echo 1"))
    for _ in range(3):
        await eventually(lambda: desk.clock.waits)
        desk.clock.jump(1)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["0", "1"]


@pytest.mark.requirement("OUT-1", "OUT-2")
async def test_a_lost_answer_is_asked_for_again_and_ends_with_the_operator(desk: Desk) -> None:
    """An error of the edge that nobody foresaw is tried again with growing pauses; if it stays, the row waits for the operator."""
    desk.gateway.is_losing_answers = True
    await desk.say("echo lost")
    for pause in (1, 2, 4, 8, 16):
        await eventually(lambda: desk.clock.waits)
        desk.clock.jump(pause)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["lost"]
    assert desk.gateway.calls == 5
    assert await desk.count("SELECT count(*) FROM outbox WHERE state = 'uncertain'") == 1
    desk.gateway.is_losing_answers = False
    assert await desk.ask("echo next") == ["next"]


@pytest.mark.requirement("OUT-2")
async def test_a_cancellation_inside_the_edge_is_tried_again(desk: Desk) -> None:
    """What the edge cancelled by itself stays owed and goes out at the next try."""
    errors: list[BaseException] = [asyncio.CancelledError()]

    def fail(_delivery: Delivery) -> None:
        if errors:
            raise errors.pop()

    desk.gateway.on_deliver = fail
    await desk.say("echo later")
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(1)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["later"]


@pytest.mark.requirement("OUT-2")
async def test_a_slow_room_keeps_no_other_waiting(desk: Desk) -> None:
    """A delivery that takes for ever in one room does not stop another room's."""
    held = asyncio.Event()
    deliver = desk.gateway.deliver

    async def slow(delivery: Delivery) -> object:
        if delivery.room_id == DIRECT:
            await held.wait()
        return await deliver(delivery)

    desk.gateway.deliver = slow  # type: ignore[method-assign,assignment]
    await desk.say("echo slow")
    await desk.say("echo quick", room=OTHER, is_direct=True)
    await eventually(lambda: desk.gateway.get_texts(OTHER) == ["quick"])
    assert desk.gateway.get_texts(DIRECT) == []
    held.set()
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["slow"]


@pytest.mark.requirement("STO-5")
async def test_a_store_that_fails_ends_the_harness(desk: Desk) -> None:
    """What only the operator can mend is raised to whoever watches; nothing goes on half."""

    def fail(_delivery: Delivery) -> None:
        raise StoreError("The disk is gone.")

    desk.gateway.on_deliver = fail
    watch = asyncio.ensure_future(desk.harness.watch())
    await desk.say("echo x")
    with pytest.raises(StoreError, match="The disk is gone"):
        await asyncio.wait_for(watch, 20)
    with pytest.raises(StoreError):
        await desk.idle()
