"""Ids of our own."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from hayate_matrix.core.ids import make_uuid7


@pytest.mark.requirement("SES-1")
def test_an_id_is_a_uuid_of_version_7_with_its_time() -> None:
    """RFC 9562 reads it: version, variant, and the milliseconds in front; no two are alike."""
    now = datetime(2026, 11, 1, 19, 34, 13, 185000, tzinfo=UTC)
    made = [make_uuid7(now) for _ in range(2000)]
    assert len(set(made)) == len(made)
    for text in made:
        value = uuid.UUID(text)
        assert str(value) == text
        assert (value.version, value.variant) == (7, uuid.RFC_4122)
        assert value.int >> 80 == int(now.timestamp() * 1000)
