"""Power levels as the room version computes them (Matrix specification, m.room.power_levels, and room version 12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

CREATOR_POWER = 2**63
"""Creators of rooms from version 12 on stand above every level that can be written (at most 2^53 - 1)."""
_DEFAULT_CREATOR_POWER = 100
"""Level of the creator where the room has no power levels event, before version 12."""
_FIRST_VERSION_WITH_CREATORS = 12


def has_privileged_creators(version: str | None) -> bool:
    """Whether creators stand above all levels; versions that are no numbers are not known to."""
    return version is not None and version.isascii() and version.isdigit() and int(version) >= _FIRST_VERSION_WITH_CREATORS


def find_power(user_id: str, *, version: str | None, creators: Collection[str], levels: Mapping[str, Any] | None) -> int:
    """Return the power level of a user.

    Args:
        user_id: whose.
        version: the room's version, None where not known.
        creators: the sender of the create event and, from version 12 on, `additional_creators`.
        levels: the content of `m.room.power_levels` as it stands now (the last event replaces all before), None without one.
    """
    if user_id in creators and has_privileged_creators(version):
        return CREATOR_POWER
    if levels is None:
        return _DEFAULT_CREATOR_POWER if user_id in creators else 0
    users = levels.get("users")
    named = users.get(user_id) if isinstance(users, dict) else None
    return _read_level(named, default=_read_level(levels.get("users_default"), default=0))


def find_needed(event_type: str, *, is_state: bool, levels: Mapping[str, Any] | None) -> int:
    """Return the level that sending an event of this type takes."""
    if levels is None:
        return 0
    events = levels.get("events")
    named = events.get(event_type) if isinstance(events, dict) else None
    default = _read_level(levels.get("state_default"), default=50) if is_state else _read_level(levels.get("events_default"), default=0)
    return _read_level(named, default=default)


def _read_level(value: object, *, default: int) -> int:
    """Return a level; room versions before 10 allow numbers written as strings."""
    if isinstance(value, bool):
        return default
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        try:
            return int(value.strip())
        except ValueError:
            return default
    return default
