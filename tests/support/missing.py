"""What this machine lacks: a test that needs it fails in CI, and is left out elsewhere, which the end of the run says loudly."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

_MARK = "NOT RUN: "


def stop_without(why: str) -> NoReturn:
    """End the test for want of something that can be installed; `why` says how."""
    if os.environ.get("CI"):
        pytest.fail(why, pytrace=False)
    leave_out(why)


def leave_out(why: str) -> NoReturn:
    """Leave the test out, in CI too: there is nothing to be installed."""
    pytest.skip(_MARK + why)


def count_left_out(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """Return how many tests were left out, by reason."""
    reasons = [str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple)]
    return Counter(reason.partition(_MARK)[2] for reason in reasons if _MARK in reason)
