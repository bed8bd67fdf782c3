"""PERF-1 and PERF-2: one encrypted message there and back through a real Synapse, beside the bare echo, in one run."""

from __future__ import annotations

import asyncio
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

from hayate_matrix.demo.homeserver import Homeserver
from tests.bench import watching
from tests.bench.processes import Measured
from tests.support.person import person
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.report import Report
    from tests.support.person import Person

RUNS = 7
MESSAGES = 20


async def measure(folder: Path, report: Report) -> None:
    """Run it and report."""
    with await asyncio.to_thread(Homeserver.start, say=report.say) as homeserver:
        bots = {}
        for name in ("ours", "bare"):
            homeserver.register(name, "pw")
            bots[name] = Measured(folder, name, homeserver.login(name, "pw"), homeserver.url)
        await asyncio.to_thread(bots["ours"].log_in)
        bots["ours"].start_ours(matrix__loop_breaker="1000")
        bots["bare"].start_bare("fresh")
        alice = await person(homeserver, "alice")
        try:
            rooms = {}
            for name, bot in bots.items():
                await bot.is_ready()
                rooms[name] = await alice.direct_message(bot.login.user_id)
                await alice.sees_member(rooms[name], bot.login.user_id)
                await _exchange(alice, rooms[name], 10)  # keys are shared, caches are warm
            trips: dict[str, list[float]] = {name: [] for name in bots}
            cpu: dict[str, list[float]] = {name: [] for name in bots}
            for number in range(RUNS):
                report.say(f"  round trips: run {number + 1} of {RUNS}")
                for name in sorted(bots, reverse=number % 2 == 0):
                    before = watching.cpu_s(bots[name].pid)
                    trips[name].append(statistics.median(await _exchange(alice, rooms[name], MESSAGES)))
                    cpu[name].append((watching.cpu_s(bots[name].pid) - before) / MESSAGES)
            _report(report, bots["ours"], trips, cpu)
        finally:
            await alice.close()
            for bot in bots.values():
                bot.end()


async def _exchange(alice: Person, room: str, count: int) -> list[float]:
    found = []
    for number in range(count):
        before = time.monotonic()
        event = await alice.say(room, f"echo {number}")
        await eventually(partial(alice.answers, event), timeout_s=30, every_s=0.0005)
        found.append(time.monotonic() - before)
    return found


def _report(report: Report, ours: Measured, trips: dict[str, list[float]], cpu: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in trips.items()}
    report.compare("PERF-1", "round trip, median", medians["ours"] * 1000, medians["bare"] * 1000, "ms", bar=1.15)
    spans = watching.read(ours.notes, "span")
    report.alone(
        "PERF-1", "own span, sync answer to PUT, median", statistics.median(one["seconds"] for one in spans) * 1000, "ms", bar=10.0
    )
    for name in ("edge", "harness"):
        commits = statistics.median(one[name] for one in spans)
        report.note("PERF-1", f"commits of the {name} in that span, median: {commits:g} (one fsync each)")
    used = {name: statistics.median(values) for name, values in cpu.items()}
    report.compare("PERF-2", "processor time a message, median", used["ours"] * 1000, used["bare"] * 1000, "ms", bar=1.3)
