"""Power levels as each room version computes them."""

from __future__ import annotations

from typing import Any

import pytest

from hayate_matrix.core.power import CREATOR_POWER, find_needed, find_power, has_privileged_creators

CREATOR, ADMIN, USER = "@creator:x", "@admin:x", "@user:x"


@pytest.mark.requirement("ROOM-2", "CMD-2")
@pytest.mark.parametrize(
    ("version", "levels", "expected"),
    [
        ("11", None, {CREATOR: 100, USER: 0}),
        ("11", {}, {CREATOR: 0, USER: 0}),
        ("11", {"users": {ADMIN: 100}, "users_default": 5}, {CREATOR: 5, ADMIN: 100, USER: 5}),
        ("12", None, {CREATOR: CREATOR_POWER, USER: 0}),
        ("12", {"users": {ADMIN: 150, CREATOR: 0}}, {CREATOR: CREATOR_POWER, ADMIN: 150, USER: 0}),
        ("9", {"users": {ADMIN: "75"}}, {ADMIN: 75}),
        ("11", {"users": {ADMIN: True}, "users_default": None}, {ADMIN: 0, USER: 0}),
        ("11", {"users": [ADMIN]}, {ADMIN: 0}),
        ("org.example.custom", None, {CREATOR: 100}),
        (None, None, {CREATOR: 100}),
    ],
)
def test_power_of_a_user(version: str | None, levels: dict[str, Any] | None, expected: dict[str, int]) -> None:
    """Creators of version 12 stand above all; levels as strings count where old rooms have them; nonsense is the default."""
    assert {user: find_power(user, version=version, creators=[CREATOR], levels=levels) for user in expected} == expected


@pytest.mark.requirement("ROOM-10")
@pytest.mark.parametrize(
    ("levels", "is_state", "needed"),
    [
        (None, False, 0),
        (None, True, 0),
        ({}, False, 0),
        ({}, True, 50),
        ({"events_default": 10, "state_default": 60}, False, 10),
        ({"events_default": 10, "state_default": 60}, True, 60),
        ({"events": {"m.room.message": 25}}, False, 25),
        ({"events": "nonsense"}, False, 0),
    ],
)
def test_level_that_sending_takes(levels: dict[str, Any] | None, is_state: bool, needed: int) -> None:
    """A named level counts before the default, and the defaults are the specification's."""
    assert find_needed("m.room.message", is_state=is_state, levels=levels) == needed


@pytest.mark.parametrize(("version", "expected"), [("11", False), ("12", True), ("13", True), ("1²", False), ("", False), (None, False)])
def test_which_versions_have_privileged_creators(version: str | None, expected: bool) -> None:
    """Only versions that are numbers from 12 on do."""
    assert has_privileged_creators(version) is expected
