"""PERF-5: the first answer in a room of 1,000 devices: asked for, claimed, given the room key, sent to."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING

from tests.bench.processes import Measured
from tests.support.fabricated import FabricatedHomeserver
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.report import Report

USERS = 100
DEVICES = 10
RUNS = 5


async def measure(folder: Path, report: Report) -> None:
    """Run it and report; each run has fresh devices, a fresh bot and a fresh store."""
    took: dict[str, list[float]] = {"ours": [], "bare": []}
    blocked: dict[str, list[float]] = {"ours": [], "bare": []}
    for run in range(RUNS):
        for name, found in took.items():
            report.say(f"  sharing with {USERS * DEVICES} devices: {name}, run {run + 1} of {RUNS}")
            seconds, block_s = await _share(folder, f"{name}{run}")
            found.append(seconds)
            blocked[name].append(block_s)
    report.compare(
        "PERF-5", "first answer to 1,000 devices, median", statistics.median(took["ours"]), statistics.median(took["bare"]), "s", bar=0.25
    )
    report.alone("PERF-5", "loop blocked at most", max(blocked["ours"]) * 1000, "ms", bar=100.0)
    report.note("PERF-5", f"bare nio's loop blocked at most: {max(blocked['bare']) * 1000:,.0f} ms")


async def _share(folder: Path, name: str) -> tuple[float, float]:
    async with FabricatedHomeserver() as server:
        is_ours = name.startswith("ours")
        bot = Measured(folder, name, server.login(f"@{name}:fab.test", name.upper()), server.url)
        users = [server.user(f"@u{number}:fab.test", devices=DEVICES) for number in range(USERS)]
        for user in users:
            for device in user.devices:
                device.fills_pool()
        if is_ours:
            await asyncio.to_thread(bot.log_in)
            bot.start_ours(matrix__trigger="always")
        else:
            bot.start_bare("fresh")
        try:
            await bot.is_ready()
            room = server.room("!s:fab.test", members=[*(user.user_id for user in users), bot.login.user_id], encrypted=True)
            # Known to the bot before the clock runs: only the sharing is measured.
            await eventually(lambda: _polls_after(server, bot.login.user_id, server.position), timeout_s=60, what="the bot knows the room")
            await asyncio.sleep(1)
            since = before = time.monotonic()
            room.says(users[0], "echo to all of you")
            await eventually(lambda: server.sent, timeout_s=120, every_s=0.005, what=bot.read_log)
            seconds = time.monotonic() - before
            last = users[-1].devices[-1]
            assert last.reads(server.sent[0]["content"])["content"]["body"] == "to all of you"
            return seconds, bot.longest_block_s(since=since)
        finally:
            bot.end()


def _polls_after(server: FabricatedHomeserver, user_id: str, position: int) -> bool:
    polls = (one for one in server.requests("GET", "*/sync") if one.user_id == user_id)
    return any(int(one.query.get("since", "s0")[1:]) >= position for one in polls)
