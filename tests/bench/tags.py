"""PERF-7: how fast tags are read, from chat and from texts that would make a careless reader slow."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from typing import TYPE_CHECKING

from hayate_matrix.core.hashtags import parse_tags
from tests.support.tag_texts import HOSTILE, chat, prose, repeat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bench.report import Report

RUNS = 5
MEGABYTE = 1_000_000
MESSAGES = 5000
WORST = 5
"""How many of the slowest hostile kinds are named."""


async def measure(folder: Path, report: Report) -> None:
    """Measure and report."""
    messages = list(itertools.islice(chat(), MESSAGES))
    size = sum(len(message.encode()) for message in messages)
    seconds = _take_time(lambda: [parse_tags(message) for message in messages])
    report.alone(
        "PERF-7", f"tags out of {MESSAGES} messages of {size // MESSAGES} bytes", size / 1e6 / seconds, "MB/s", bar=10, at_least=True
    )
    whole = "\n".join(messages)
    seconds = _take_time(lambda: parse_tags(whole))
    report.alone("PERF-7", "tags out of the same as one text", len(whole.encode()) / 1e6 / seconds, "MB/s", bar=10, at_least=True)

    lines = prose(MEGABYTE)
    plain = _take_time(lambda: parse_tags(lines))
    kinds: list[tuple[float, str]] = []
    for piece in HOSTILE:
        for is_armed in (False, True):
            text = repeat(piece, MEGABYTE, is_armed=is_armed)
            kinds.append((_take_time(functools.partial(parse_tags, text)) / plain, repr(piece) + " with both ends open" * is_armed))
    kinds.sort(reverse=True)
    report.note("PERF-7", f"1 MB of plain lines with a tag in each: {plain * 1000:.1f} ms")
    met = sum(ratio <= 10 for ratio, _ in kinds)
    report.note(
        "PERF-7",
        f"1 MB of {len(kinds)} hostile kinds: median ratio {statistics.median(r for r, _ in kinds):.1f}, {met} within 10 times plain",
    )
    for ratio, kind in kinds[:WORST]:
        report.alone("PERF-7", f"1 MB of {kind}, times plain text", ratio, "times", bar=10)


def _take_time(work: Callable[[], object]) -> float:
    """Return the median processor time of one run, in seconds."""
    times = []
    for _ in range(RUNS):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return statistics.median(times)
