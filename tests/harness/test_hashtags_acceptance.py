"""The acceptance run of the index, to the letter, on a clock that stands at the specification's time."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.support.desk import BOT, DIRECT, ROOM, Desk
from tests.support.waiting import eventually

REQUEST = "Check the #release notes before Friday"
ANSWER = "#release · Noted, I will check the release notes."
INDEXED_AT = "2026-11-01T19:34:13.185Z"
ACTIVE = "SELECT count(*) FROM sessions WHERE state = 'active'"
A_DAY_S = 86_400


@pytest.mark.requirement("IDX-11", "IDX-1", "IDX-5", "IDX-6", "IDX-7", "LBL-1", "CMD-3", "SES-3")
@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("is_idle", [False, True], ids=["closed", "idle"])
@pytest.mark.parametrize("is_direct", [False, True], ids=["shared", "direct"])
async def test_a_request_is_found_again_after_a_start_anew(desk: Desk, *, is_killed: bool, is_idle: bool, is_direct: bool) -> None:
    """The tagged request is answered with its label; started anew, with no session active, both lookups lead back to it and open none."""
    where: dict[str, Any] = {"room": DIRECT} if is_direct else {"room": ROOM, "mentions": (BOT,)}
    request = await desk.say(REQUEST, **where)
    await desk.idle()
    assert desk.gateway.get_texts(request.room_id) == [ANSWER]
    assert await desk.count(ACTIVE) == 1

    if is_idle:
        desk.clock.jump(A_DAY_S + 1)
    else:
        await desk.ask("/close", **where)
    await (desk.crash() if is_killed else desk.stop())
    await desk.start()
    await eventually(partial(_has_none_active, desk), what="no session is active")

    assert await desk.ask("/hashtags", **where) == ["#release"]
    [answer] = await desk.ask("/hashtags #release", **where)
    session_id = await desk.database.read(lambda connection: connection.exec_driver_sql("SELECT id FROM sessions").scalar_one())
    assert answer.split("\n") == [
        f"{INDEXED_AT} · {session_id}",
        f"  {REQUEST}",
        f"  /resume {session_id}",
    ]
    listing = desk.gateway.room[-1]
    assert (listing.kind, listing.room_id, listing.links) == ("listing", request.room_id, ((INDEXED_AT, request.event_id),))
    assert await _has_none_active(desk)

    assert await desk.ask(f"/resume {session_id}", **where) == [f"Resumed: {REQUEST} · {session_id}"]
    assert await desk.ask("history", **where) == ["2"]


async def _has_none_active(desk: Desk) -> bool:
    return await desk.count(ACTIVE) == 0
