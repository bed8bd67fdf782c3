"""PERF-4: 5,000 encrypted messages in three rooms that came while the bot was down, with a gap in each."""

from __future__ import annotations

import asyncio
import collections
import sqlite3
import time
from typing import TYPE_CHECKING

from tests.bench.processes import Measured
from tests.support.fabricated import FabricatedHomeserver
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.report import Report

MESSAGES = 5000
ROOMS = 3
BAR_PER_S = 200.0


async def measure(folder: Path, report: Report) -> None:
    """Run it and report."""
    async with FabricatedHomeserver() as server:
        bot = Measured(folder, "ours", server.login("@ours:fab.test", "OURS"), server.url)
        alice = server.user("@alice:fab.test")
        rooms = [server.room(f"!b{n}:fab.test", members=[alice.user_id, bot.login.user_id], encrypted=True) for n in range(ROOMS)]
        await asyncio.to_thread(bot.log_in)
        try:
            settings = {"matrix__trigger": "always", "matrix__backfill_limit": str(MESSAGES), "matrix__loop_breaker": "1000"}
            bot.start_ours(**settings)
            await bot.is_ready()
            first = [room.says(alice, "echo first")["event_id"] for room in rooms]
            await eventually(lambda: _count_answers(server).keys() >= set(first), timeout_s=60, what=bot.read_log)
            bot.end()
            asked = {rooms[n % ROOMS].says(alice, f"echo {n}")["event_id"] for n in range(MESSAGES)}
            report.say(f"  {MESSAGES} messages came while the bot was down; starting it")
            bot.start_ours(**settings)
            await bot.is_ready()
            began = time.monotonic()
            rows = await _wait_for_rows(bot, report, MESSAGES + ROOMS)
            seconds = time.monotonic() - began
            report.alone("PERF-4", "messages into the inbox, from ready on", rows / seconds, "/s", bar=BAR_PER_S, at_least=True)
            started = said = time.monotonic()
            while len(answers := _count_answers(server)) < MESSAGES + ROOMS and time.monotonic() - started < 600:
                await asyncio.sleep(0.2)
                if time.monotonic() - said > 4:
                    said = time.monotonic()
                    report.say(f"  answered {len(answers)} of {MESSAGES + ROOMS}")
            lost = len(asked - answers.keys())
            twice = sum(count > 1 for count in answers.values())
            total = time.monotonic() - began
            report.note(
                "PERF-4", f"lost {lost}, answered twice {twice}; all answered after {total:.1f} s ({MESSAGES / total:.0f} answers/s)"
            )
            report.alone("PERF-4", "lost or answered twice", lost + twice, "", bar=0.0)
            report.note("PERF-4", f"loop blocked at most: {bot.longest_block_s() * 1000:,.0f} ms")
        finally:
            bot.end()


def _count_answers(server: FabricatedHomeserver) -> collections.Counter[str]:
    """Return how often each event was answered; the relation travels in clear."""
    relations = (one["content"].get("m.relates_to", {}).get("m.in_reply_to", {}).get("event_id") for one in server.sent)
    return collections.Counter(found for found in relations if found)


async def _wait_for_rows(bot: Measured, report: Report, wanted: int) -> int:
    said = time.monotonic()
    deadline = said + 300
    while True:
        rows = _count_rows(bot)
        if rows >= wanted or time.monotonic() > deadline:
            return rows
        if time.monotonic() - said > 4:
            said = time.monotonic()
            report.say(f"  in the inbox: {rows} of {wanted}")
        await asyncio.sleep(0.1)


def _count_rows(bot: Measured) -> int:
    connection = sqlite3.connect(f"file:{bot.home / 'hayate.db'}?mode=ro", uri=True)
    try:
        return int(connection.execute("select count(*) from inbox").fetchone()[0])
    finally:
        connection.close()
