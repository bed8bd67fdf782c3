"""Sessions that nobody uses, many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hayate_matrix.core.ids import Focus
from hayate_matrix.store.conversations import ensure_conversation
from hayate_matrix.store.stores import Stores
from tests.support.desk import DIRECT
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from hayate_matrix.store.database import Connection
    from tests.harness.conftest import MakeDesk


@pytest.mark.requirement("SES-3", "PERF-6")
async def test_many_sessions_are_closed_and_removed_a_few_at_a_time(make_desk: MakeDesk) -> None:
    """After a long stop hundreds are due at once: none is left, and no transaction takes so many that others wait for it."""
    desk = await make_desk(keep_days=1, idle_s=600)

    def open_many(connection: Connection) -> None:
        conversation = ensure_conversation(connection, DIRECT, desk.clock.now())
        for number in range(201):
            Stores(desk.database, desk.sealer).sessions.open_new(connection, conversation.id, Focus(f"${number}"), desk.clock.now())

    await desk.database.transaction("test.many", open_many)
    desk.clock.jump(601)
    await eventually(lambda: desk.count("SELECT count(*) = 201 FROM sessions WHERE state = 'closed'"))
    assert desk.database.names.count("sessions.close_idle") == 3
    desk.clock.jump(86_400)
    await eventually(lambda: desk.count("SELECT count(*) = 201 FROM sessions WHERE state = 'removed'"))
    assert desk.database.names.count("sessions.remove") == 21
