"""`python -m tests.bench [NAME ...]`: measures all, or those named, and prints ours beside the peer's."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import warnings
from pathlib import Path

from tests.bench import backlog, harness, lookup, rooms, roundtrip, sharing, tags
from tests.bench.report import Report
from tests.support.person import HAS_OLM, WHY_NO_OLM

MEASURES = {
    "harness": harness.measure,
    "lookup": lookup.measure,
    "tags": tags.measure,
    "roundtrip": roundtrip.measure,
    "rooms": rooms.measure,
    "backlog": backlog.measure,
    "sharing": sharing.measure,
}


async def main(names: list[str]) -> None:
    """Run what is named."""
    report = Report()
    if not names:
        report.say(f"measuring all of {', '.join(MEASURES)}: about six minutes; one alone: python -m tests.bench NAME")
    for name in names or list(MEASURES):
        if name == "roundtrip" and not HAS_OLM:
            report.note("PERF-1", f"not measured: {WHY_NO_OLM}")
            continue
        report.say(f"measuring {name}")
        with tempfile.TemporaryDirectory(prefix="hayate-bench-") as folder:
            await MEASURES[name](Path(folder), report)
    report.finish()


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    unknown = set(sys.argv[1:]) - MEASURES.keys()
    if unknown:
        sys.exit(f"There is no measure {', '.join(sorted(unknown))}. Measures: {', '.join(MEASURES)}.")
    asyncio.run(main(sys.argv[1:]))
