"""What the bench says about its figures."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.report import Report

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]


def test_a_bar_that_is_not_met_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads "NOT met" reads too that the run did not fail, and what to do; where all are met, nothing of it is said."""
    report = Report()
    report.alone("PERF-0", "something", 1.0, "ms", bar=2.0)
    report.finish()
    assert "not met" not in capsys.readouterr().out
    report.alone("PERF-0", "something else", 3.0, "ms", bar=2.0)
    report.finish()
    assert "1 of these bars is not met. That is a figure and no failure (the exit code is 0)" in capsys.readouterr().out


def test_how_long_it_takes_is_said_before() -> None:
    """The list of names and the README say how long the bench runs."""
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout
    assert "about six minutes" in next(line for line in listed.splitlines() if "make bench" in line)
    assert "`make bench` takes about six minutes" in (ROOT / "README.md").read_text()
