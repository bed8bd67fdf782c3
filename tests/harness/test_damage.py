"""Damaged rows are set aside; the rest goes on."""

from __future__ import annotations

import pytest

from tests.support.desk import DIRECT, Desk
from tests.support.waiting import eventually


async def damage(desk: Desk, table: str, column: str, condition: str) -> None:
    """Turn the texts of some rows to noise, as a bad disk does."""
    statement = f"UPDATE {table} SET {column} = CAST(substr({column}, 1, 20) || x'00' || substr({column}, 22) AS BLOB) WHERE {condition}"  # noqa: S608
    await desk.database.transaction("test.damage", lambda connection: connection.exec_driver_sql(statement))


@pytest.mark.requirement("REL-4", "STO-7")
async def test_a_damaged_request_is_told_and_those_behind_it_are_answered(desk: Desk) -> None:
    """One row that does not open costs its own answer: the person is asked to send it again."""
    await desk.say("slow 5 first")
    damaged = await desk.say("echo lost")
    await desk.say("echo behind")
    await eventually(lambda: desk.clock.waits)
    await damage(desk, "inbox", "content", f"event_id = '{damaged.event_id}'")
    desk.clock.jump(5)
    await desk.idle()
    first, notice, behind = desk.gateway.get_texts(DIRECT)
    assert (first, behind) == ("first", "behind")
    assert "send it again" in notice
    assert desk.gateway.room[1].request == damaged.event_id


@pytest.mark.requirement("REL-4", "STO-7")
async def test_a_damaged_entry_is_a_stone(desk: Desk) -> None:
    """A transcript with a damaged element is used without it."""
    await desk.ask("echo first")
    await desk.stop()
    await desk.start()
    await damage(desk, "entries", "content", "kind = 'request'")
    assert await desk.ask("history") == ["1"]


@pytest.mark.requirement("REL-4", "STO-7")
async def test_a_damaged_delivery_does_not_block_the_room(desk: Desk) -> None:
    """What can't be read can't be sent: its row ends, visible to the operator, and those behind it go out."""
    desk.gateway.denied.add(DIRECT)
    await desk.ask("echo lost")
    await damage(desk, "outbox", "text", "1 = 1")
    desk.gateway.denied.clear()
    assert await desk.ask("echo behind") == ["behind"]
    assert await desk.count("SELECT count(*) FROM outbox WHERE state = 'refused' AND reason = 'damaged'") == 1
