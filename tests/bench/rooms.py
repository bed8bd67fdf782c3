"""PERF-3: a start with a stored position in 1,000 joined rooms of 50 members, from process start to the first answer."""

from __future__ import annotations

import asyncio
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

from tests.bench import watching
from tests.bench.processes import Measured
from tests.support.fabricated import FabricatedHomeserver
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.report import Report
    from tests.support.fabricated import FabricatedRoom

ROOMS = 1000
MEMBERS = 50
RUNS = 5


async def measure(folder: Path, report: Report) -> None:
    """Run it and report."""
    async with FabricatedHomeserver() as server:
        bots = {name: Measured(folder, name, server.login(f"@{name}:fab.test", name.upper()), server.url) for name in ("ours", "bare")}
        rooms = []
        for number in range(ROOMS):
            others = [f"@u{number}x{member}:fab.test" for member in range(MEMBERS - 2)]
            rooms.append(server.room(f"!r{number}:fab.test", members=[*others, *(bot.login.user_id for bot in bots.values())]))
        report.say(f"  {ROOMS} rooms of {MEMBERS} members are made; first starts")
        await asyncio.to_thread(bots["ours"].log_in)
        await _start_first(server, bots)
        took: dict[str, list[float]] = {name: [] for name in bots}
        blocked: dict[str, list[float]] = {name: [] for name in bots}
        beyond: list[float] = []
        for run in range(RUNS):
            report.say(f"  starts: run {run + 1} of {RUNS}")
            for name, bot in bots.items():
                began, answered = await _start_again(server, bot, rooms[run])
                took[name].append(answered - began)
                blocked[name].append(bot.longest_block_s())
                if name == "ours":
                    beyond.append(answered - watching.read(bot.notes, "imported")[0]["at"])
                bot.end()
        medians = {name: statistics.median(values) for name, values in took.items()}
        report.compare("PERF-3", "process start to first answer, median", medians["ours"], medians["bare"], "s", bar=0.2)
        report.alone("PERF-3", "the same beyond the imports, median", statistics.median(beyond), "s", bar=2.0)
        report.alone("PERF-3", "loop blocked at most", max(blocked["ours"]) * 1000, "ms", bar=100.0)
        report.note("PERF-3", f"bare nio's loop blocked at most: {max(blocked['bare']) * 1000:,.0f} ms")


async def _start_first(server: FabricatedHomeserver, bots: dict[str, Measured]) -> None:
    bots["ours"].start_ours(matrix__trigger="always")
    bots["bare"].start_bare("fresh")
    for bot in bots.values():
        await bot.is_ready(timeout_s=180)
    # A position is stored when the next poll asks from it.
    for bot in bots.values():
        await eventually(partial(_polls_on, server, bot.login.user_id), timeout_s=120, what=f"{bot.name} polls on")
        bot.end()


def _polls_on(server: FabricatedHomeserver, user_id: str) -> bool:
    return any(one.user_id == user_id and "since" in one.query for one in server.requests("GET", "*/sync"))


async def _start_again(server: FabricatedHomeserver, bot: Measured, room: FabricatedRoom) -> tuple[float, float]:
    asked = room.says(room.members[0], "echo hello")
    sent = len(server.sent)
    before = time.monotonic()
    if bot.name == "ours":
        bot.start_ours(matrix__trigger="always")
    else:
        bot.start_bare("again")

    def is_answered() -> bool:
        return any(
            one["content"].get("m.relates_to", {}).get("m.in_reply_to", {}).get("event_id") == asked["event_id"]
            for one in server.sent[sent:]
        )

    await eventually(is_answered, timeout_s=120, what=bot.read_log)
    return before, time.monotonic()
