"""The status file: what the running bot says and `doctor` reads."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hayate_matrix.core.status import Status, Trouble, dump_status, load_status

TIMES = st.datetimes(min_value=dt.datetime(2000, 1, 1), timezones=st.just(dt.UTC))  # noqa: DTZ001  hypothesis adds the zone
NUMBERS = st.integers(min_value=0, max_value=10**9)


@pytest.mark.requirement("NEW-2", "ACC-2")
@given(
    st.builds(
        Status,
        pid=NUMBERS,
        started_at=TIMES,
        written_at=TIMES,
        is_stopped=st.booleans(),
        user_id=st.text(max_size=20),
        last_sync_at=st.none() | TIMES,
        failures=NUMBERS,
        trouble=st.none() | st.builds(Trouble, code=st.text(max_size=9), text=st.text(max_size=20), at=TIMES),
        ended_by=st.none() | st.builds(Trouble, code=st.text(max_size=9), text=st.text(max_size=20), at=TIMES),
        is_cross_signed=st.none() | st.booleans(),
        rooms_served=NUMBERS,
        counts=st.dictionaries(st.text(max_size=9), NUMBERS, max_size=4),
    )
)
def test_what_the_bot_says_is_what_is_read(status: Status) -> None:
    """Every status survives the file."""
    assert load_status(dump_status(status)) == status


@pytest.mark.requirement("NEW-2")
@given(st.data())
def test_a_cut_or_foreign_file_is_no_status(data: st.DataObject) -> None:
    """A file that was cut, is of another version or is no status at all is as if there were none."""
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    text = dump_status(Status(pid=1, started_at=now, written_at=now, trouble=Trouble(code="wait", text="x", at=now)))
    cut = data.draw(st.integers(min_value=0, max_value=len(text.rstrip()) - 1))
    assert load_status(text[:cut]) is None
    assert load_status(text.replace('"version": 1', '"version": 2')) is None
    assert load_status(data.draw(st.sampled_from(["", "null", "[]", "3", '"x"', "{}", '{"version": 1}']))) is None
