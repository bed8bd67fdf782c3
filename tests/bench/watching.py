"""What a measured process writes down about itself: how long its event loop was blocked, and its spans; one JSON line each."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

TICK_S = 0.005


def append(path: str, **fields: Any) -> None:
    """Add one line; it is read by the bench while the process runs."""
    with Path(path).open("a") as file:
        file.write(json.dumps(fields) + "\n")


def read(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of one kind."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [one for one in map(json.loads, lines) if one["kind"] == kind]


async def watch_loop(path: str) -> None:
    """Write down each new longest time for which the loop ran nothing else."""
    longest = 0.0
    while True:
        before = time.monotonic()
        await asyncio.sleep(TICK_S)
        blocked = time.monotonic() - before - TICK_S
        if blocked > max(longest, 0.01):
            longest = blocked
            append(path, kind="blocked", seconds=blocked, at=time.monotonic())


def cpu_s(pid: int) -> float:
    """Return the processor time of a process in seconds (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
