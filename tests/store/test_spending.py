"""What was used, hour by hour, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.core.ids import RoomId, UserId
from hayate_matrix.store.conversations import ensure_conversation
from hayate_matrix.store.spending import Spent

if TYPE_CHECKING:
    from hayate_matrix.store.database import Connection, Database
    from hayate_matrix.store.stores import Stores

NOW = datetime(2026, 11, 1, 19, 34, tzinfo=UTC)
DAY = int(NOW.timestamp()) // 86_400 * 24
ALICE, BOB = UserId("@alice:example.org"), UserId("@bob:example.org")


@pytest.mark.requirement("CORE-6")
async def test_requests_count_in_their_hour_and_usage_on_its_day(database: Database, stores: Stores) -> None:
    """Sums are of the subject alone, of the hour or the day, and end with it."""

    def work(connection: Connection) -> None:
        for hour, tokens in ((DAY - 1, 1), (DAY, 2**40), (DAY + 5, 4), (DAY + 5, 8), (DAY + 24, 16)):
            stores.spending.add(connection, ALICE, hour, requests=1, tokens=tokens, cost_micros=10 * tokens)
        stores.spending.add(connection, BOB, DAY + 5, requests=7)
        tokens = 2**40 + 12
        assert stores.spending.read(connection, ALICE, DAY + 5) == Spent(requests=2, tokens=tokens, cost_micros=10 * tokens)
        assert stores.spending.read(connection, ALICE, DAY + 6) == Spent(requests=0, tokens=tokens, cost_micros=10 * tokens)
        assert stores.spending.read(connection, ALICE, DAY + 24) == Spent(requests=1, tokens=16, cost_micros=160)
        assert stores.spending.read(connection, BOB, DAY + 5) == Spent(requests=7)
        stores.spending.forget(connection, DAY + 24)
        assert stores.spending.read(connection, ALICE, DAY + 23) == Spent()
        assert stores.spending.read(connection, ALICE, DAY + 24) == Spent(requests=1, tokens=16, cost_micros=160)

    await database.transaction("test.spend", work)


@pytest.mark.requirement("CORE-6")
async def test_each_person_is_told_once_of_a_limit_in_a_room(database: Database, stores: Stores) -> None:
    """Another window, person, room or limit is another telling."""

    def work(connection: Connection) -> None:
        rooms = [ensure_conversation(connection, RoomId(f"!{number}"), NOW).id for number in range(2)]
        tellings = [(rooms[0], ALICE, "a", 1), (rooms[0], ALICE, "a", 2), (rooms[0], ALICE, "b", 1), (rooms[0], BOB, "a", 1)]
        tellings.append((rooms[1], ALICE, "a", 1))
        assert [stores.spending.tell(connection, *telling) for telling in tellings] == [True] * 5
        assert [stores.spending.tell(connection, *telling) for telling in tellings] == [False] * 5
        stores.spending.forget(connection, 2)
        assert [stores.spending.tell(connection, *telling) for telling in tellings] == [True, False, True, True, True]

    await database.transaction("test.tell", work)
