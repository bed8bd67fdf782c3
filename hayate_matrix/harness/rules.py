"""What the operator decides about the harness, and what the rest of the program lends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hayate_matrix.core.triggers import Speaker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hayate_matrix.core.allowlist import Policy
    from hayate_matrix.core.ids import EventId, RoomId, UserId
    from hayate_matrix.core.triggers import Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one person, or one room, may ask for; None is no limit (CORE-6)."""

    queue: int | None = None
    """Requests that are queued or running at a time."""
    requests_hour: int | None = None
    tokens_day: int | None = None
    money_day: float | None = None
    """In the currency in which the runtime reports."""

    @property
    def is_set(self) -> bool:
        """Whether there is any limit."""
        return self != Limits()

    @property
    def counts_usage(self) -> bool:
        """Whether it matters what turns use."""
        return self.tokens_day is not None or self.money_day is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Plain values out of the settings."""

    policy: Policy
    find_names: Callable[[], tuple[str, ...]] = tuple
    """The bot's display names as they are now; its local part counts anyhow."""
    parallel_turns: int = 16
    turn_retries: int = 3
    trigger: Trigger = "thread"
    room_triggers: Mapping[str, Trigger] = field(default_factory=dict)
    loop_breaker: int = 8
    typing: bool = True
    receipts: bool = True
    ack: Literal["none", "reaction"] = "none"
    idle_s: float = 86_400.0
    """Seconds after which a session that nobody used is closed (SES-3)."""
    keep_days: int | None = None
    """Days after which a session that nobody used loses its text; None keeps it for ever."""
    command_power: Mapping[str, int] = field(default_factory=dict)
    person_limits: Limits = Limits()
    room_limits: Limits = Limits()

    @property
    def speaker(self) -> Speaker:
        """The bot, as people call it."""
        return Speaker(user_id=self.policy.own_user_id, names=self.find_names())


def _is_never_low() -> bool:
    return False


def _read_no_power(_room_id: RoomId, _user_id: UserId) -> int | None:
    return None


def _is_always_served(_room_id: RoomId) -> bool:
    return True


async def _find_nothing(_room_id: RoomId, _event_id: EventId) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Senses:
    """What the harness can't know by itself."""

    is_disk_low: Callable[[], bool] = _is_never_low
    """Whether no new turn should be opened (STO-11)."""
    is_served: Callable[[RoomId], bool] = _is_always_served
    """Whether the room is on the allowlist now (ROOM-3); asked in the store's thread."""
    read_power: Callable[[RoomId, UserId], int | None] = _read_no_power
    """The power level of somebody in a room; None where it can't be known, which refuses commands that need one."""
    find_reference: Callable[[RoomId, EventId], Awaitable[str | None]] = _find_nothing
    """The text of a message that was replied to (IN-6), fetched and decrypted if need be; best effort, bounded in time, never raises."""
