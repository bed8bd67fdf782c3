"""The harness on PostgreSQL: the same path, the same promises."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.core.ids import RoomId
from tests.support.desk import DIRECT, Desk, Killed, make_hostile_facts
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.postgres import Postgres

STEPS = ["intake.accept", "turn.open", "turn.end", "delivery.settle", "command.run"]


@pytest.mark.requirement("STO-5", "CORE-3", "OUT-1")
@pytest.mark.parametrize("is_behind", [False, True], ids=["before the commit", "behind the commit"])
async def test_every_message_is_answered_once_wherever_the_process_dies(postgres: Postgres, tmp_path: Path, *, is_behind: bool) -> None:
    """Killed at each step in turn, with messages in three rooms, an edit, a removal and a command: one answer each, in order."""
    desk = Desk(tmp_path, url=postgres.make_database())
    await desk.start()
    rooms = [RoomId(f"!{number}") for number in range(3)]
    wanted: dict[RoomId, list[str]] = {room: [] for room in rooms}
    for number, step in enumerate(STEPS):
        messages = [desk.message(f"echo {number}", room=room, is_direct=True) for room in rooms]
        removed = desk.message("slow 3600 never", is_direct=True)
        facts = [*messages, desk.edit(messages[0], f"echo {number} edited"), removed, desk.redaction(removed), desk.message("!status")]
        for room in rooms:
            wanted[room].append(f"{number} edited" if room == rooms[0] else str(number))
        desk.database.kill_at, desk.database.is_behind = step, is_behind
        with contextlib.suppress(Killed):
            await desk.accept(*facts)
        await eventually(lambda: desk.database.is_dead)
        await desk.crash()
        await desk.start()
        await desk.accept(*facts)
        await desk.idle()
    for room in rooms:
        assert desk.gateway.get_texts(room) == wanted[room]
    assert len(desk.gateway.get_texts(DIRECT)) == len(STEPS)
    assert await desk.count("SELECT count(*) FROM tasks WHERE state <> 'done'") == 0
    await desk.stop()


@pytest.mark.requirement("SEC-2", "STO-5")
async def test_a_hostile_fact_stops_nothing(postgres: Postgres, tmp_path: Path) -> None:
    """What this database would refuse costs its own message at most."""
    desk = Desk(tmp_path, url=postgres.make_database())
    await desk.start()
    await desk.accept(*make_hostile_facts(desk))
    await desk.idle()
    assert [text[:1] for text in desk.gateway.get_texts(DIRECT)] == ["a", "d", "e"]
    await desk.stop()
