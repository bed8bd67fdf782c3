"""The real bot, measured: `python -m tests.bench.measured NOTES run ...` writes spans, commits and blocked times to NOTES.

The span of a message begins when the sync answer that holds it was received and ends when its answer is handed to the connection.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from tests.bench.watching import append, watch_loop
from tests.support.crashing import end_with_parent


def measure(notes: str) -> None:
    """Put the clocks in place."""
    from hayate_matrix import app  # noqa: PLC0415  after the parent is watched
    from hayate_matrix.matrix.http import Http  # noqa: PLC0415
    from hayate_matrix.matrix.keystore import KeyStore  # noqa: PLC0415
    from hayate_matrix.store.database import Database  # noqa: PLC0415

    counts = {"edge": 0, "harness": 0}
    start: dict[str, Any] = {}
    transact, write, request, run = KeyStore._transact, Database._write, Http.request, app.App.run

    def count_edge(self: KeyStore, name: str, work: Any) -> Any:
        counts["edge"] += 1
        return transact(self, name, work)

    def count_harness(self: Database, first: Any, take: Any) -> Any:
        counts["harness"] += 1  # what waits together is one commit
        return write(self, first, take)

    async def time_request(self: Http, label: str, *arguments: Any, **more: Any) -> Any:
        if label == "send" and start:
            before = start.pop("counts")
            commits = {name: counts[name] - before[name] for name in counts}
            append(notes, kind="span", seconds=time.monotonic() - start.pop("at"), **commits)
        answer = await request(self, label, *arguments, **more)
        joined = answer.get("rooms", {}).get("join", {}) if label == "sync" else {}
        if any(event.get("type") == "m.room.encrypted" for part in joined.values() for event in part.get("timeline", {}).get("events", [])):
            start.update(at=time.monotonic(), counts=dict(counts))
        return answer

    async def run_watched(self: app.App) -> None:
        watching = asyncio.create_task(watch_loop(notes))
        try:
            await run(self)
        finally:
            watching.cancel()

    KeyStore._transact = count_edge  # type: ignore[method-assign]
    Database._write = count_harness  # type: ignore[method-assign]
    Http.request = time_request  # type: ignore[method-assign]
    app.App.run = run_watched  # type: ignore[method-assign]


if __name__ == "__main__":
    end_with_parent()
    measure(sys.argv[1])
    from hayate_matrix.cli.main import main

    append(sys.argv[1], kind="imported", at=time.monotonic())
    main(sys.argv[2:])
