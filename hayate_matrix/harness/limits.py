"""Limits per person and per room: what is asked beyond one is not taken, and the room is told so once (CORE-6).

Promise: what was accepted is worked on whatever it costs; with no limit set nothing is counted and no statement is run.
How: decided when a message is accepted, in its transaction: by the requests that are open, and by what was used in this hour and on this
     day of the UTC clock, so that the sentence can say when it ends. What a turn used is counted with the step that used it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from hayate_matrix.store.spending import HOURS_A_DAY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hayate_matrix.core.ids import ConversationId, RoomId, UserId
    from hayate_matrix.core.transcript import Usage
    from hayate_matrix.harness.rules import Limits, Rules
    from hayate_matrix.store.database import Connection
    from hayate_matrix.store.stores import Stores

_HOUR_S = 3600
_MICROS = 1_000_000
Whose = Literal["person", "room"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that is not taken; `sentence` is for the room, None where this person was told so before."""

    sentence: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    """One limit that leaves no room for another request."""

    name: str
    words: str
    since: int
    """The hour in which its window began."""
    ends: str


class Limiter:
    """Decides what is taken, and counts."""

    def __init__(self, stores: Stores, rules: Rules, is_served: Callable[[RoomId], bool]) -> None:
        self._stores = stores
        self._is_served = is_served
        limits: dict[Whose, Limits] = {"person": rules.person_limits, "room": rules.room_limits}
        self._limits = {whose: those for whose, those in limits.items() if those.is_set}
        self._tidied = 0
        """The hour at which old rows were removed last; a repetition is harmless."""

    def refuse(self, connection: Connection, conversation_id: ConversationId, sender: UserId, now: datetime) -> Refusal | None:
        """Return why another request of `sender` is not taken; None where it is, and it is counted then."""
        if not self._limits:
            return None
        hour = _find_hour(now)
        if self._tidied != hour:
            self._stores.spending.forget(connection, hour - 2 * HOURS_A_DAY)
            self._tidied = hour
        for whose, subject in self._list_subjects(conversation_id, sender):
            reached = self._find_reached(connection, whose, subject, hour)
            if reached is not None:
                is_new = self._stores.spending.tell(connection, conversation_id, sender, reached.name, reached.since)
                who = "one person" if whose == "person" else "this room"
                sentence = f"I leave this message out: the limit of {reached.words} for {who} is reached. It ends {reached.ends}."
                return Refusal(sentence=sentence if is_new else None)
        for whose, subject in self._list_subjects(conversation_id, sender):
            if self._limits[whose].requests_hour is not None:
                self._stores.spending.add(connection, subject, hour, requests=1)
            if self._limits[whose].queue is not None:  # it has ended: the next time is told again
                self._stores.spending.forget_told(connection, conversation_id, sender, f"{whose}_queue")
        return None

    def note(self, connection: Connection, conversation_id: ConversationId, sender: UserId, usage: Usage | None, now: datetime) -> None:
        """Count what a step of a turn used."""
        if usage is None:
            return
        for whose, subject in self._list_subjects(conversation_id, sender):
            if self._limits[whose].counts_usage:
                self._stores.spending.add(connection, subject, _find_hour(now), tokens=usage.tokens, cost_micros=usage.cost_micros)

    def _list_subjects(self, conversation_id: ConversationId, sender: UserId) -> Iterator[tuple[Whose, str]]:
        for whose in self._limits:
            yield whose, sender if whose == "person" else conversation_id

    def _find_reached(self, connection: Connection, whose: Whose, subject: str, hour: int) -> _Reached | None:
        """Return the limit that ends last of those that are reached."""
        limits = self._limits[whose]
        today = hour - hour % HOURS_A_DAY
        if limits.requests_hour is not None or limits.counts_usage:
            spent = self._stores.spending.read(connection, subject, hour)
            midnight = f"at {_write(today + HOURS_A_DAY)}"
            if limits.money_day is not None and spent.cost_micros >= limits.money_day * _MICROS:
                return _Reached(name=f"{whose}_money_day", words=f"{limits.money_day:g} in money a day", since=today, ends=midnight)
            if limits.tokens_day is not None and spent.tokens >= limits.tokens_day:
                return _Reached(name=f"{whose}_tokens_day", words=f"{limits.tokens_day:,} tokens a day", since=today, ends=midnight)
            if limits.requests_hour is not None and spent.requests >= limits.requests_hour:
                words, ends = f"{_count(limits.requests_hour)} an hour", f"at {_write(hour + 1)}"
                return _Reached(name=f"{whose}_requests_hour", words=words, since=hour, ends=ends)
        if limits.queue is not None and self._count_waiting(connection, whose, subject) >= limits.queue:
            words = f"{_count(limits.queue)} at a time"
            return _Reached(name=f"{whose}_queue", words=words, since=hour, ends="when one of them is answered")
        return None

    def _count_waiting(self, connection: Connection, whose: Whose, subject: str) -> int:
        """Return how many requests wait; those that are held with a room that is not served are nobody's burden elsewhere."""
        found = self._stores.inbox.count_waiting(connection, whose, subject)
        return sum(number for room_id, number in found.items() if self._is_served(room_id))


def _find_hour(now: datetime) -> int:
    return int(now.timestamp()) // _HOUR_S


def _write(hour: int) -> str:
    return f"{datetime.fromtimestamp(hour * _HOUR_S, UTC):%H:%M UTC on %Y-%m-%d}"


def _count(number: int) -> str:
    return f"{number:,} request{'' if number == 1 else 's'}"
