"""What people and rooms have asked for and used, hour by hour, and who was told of a limit (CORE-6).

Promise: what is added within a transaction counts from its commit on, once.
How: a row for each subject (a conversation or a person) and hour of the UTC clock. Two days are kept, since no limit looks further back.
Not here: the limits, and what is said beyond one (harness/limits).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from hayate_matrix.store.schema import refusals, spending

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from hayate_matrix.core.ids import ConversationId, UserId

HOURS_A_DAY = 24

_KEY = (spending.c.subject == sa.bindparam("_subject"), spending.c.hour == sa.bindparam("_hour"))
_READ = sa.select(spending).where(
    spending.c.subject == sa.bindparam("_subject"), spending.c.hour.between(sa.bindparam("_since"), sa.bindparam("_hour"))
)
_MORE = (
    sa.update(spending)
    .where(*_KEY)
    .values(
        requests=spending.c.requests + sa.bindparam("_requests", type_=sa.Integer),
        tokens=spending.c.tokens + sa.bindparam("_tokens", type_=sa.BigInteger),
        cost_micros=spending.c.cost_micros + sa.bindparam("_cost_micros", type_=sa.BigInteger),
    )
)
_FIRST = sa.insert(spending)
_WAS_TOLD = sa.select(refusals.c.hour).where(
    refusals.c.conversation_id == sa.bindparam("conversation_id"),
    refusals.c.sender == sa.bindparam("sender"),
    refusals.c.limit_name == sa.bindparam("limit_name"),
    refusals.c.hour == sa.bindparam("hour"),
)
_TELL = sa.insert(refusals)
_FORGET_ONE = sa.delete(refusals).where(
    refusals.c.conversation_id == sa.bindparam("_conversation_id"),
    refusals.c.sender == sa.bindparam("_sender"),
    refusals.c.limit_name == sa.bindparam("_limit_name"),
)
_FORGET = sa.delete(spending).where(spending.c.hour < sa.bindparam("before"))
_FORGET_TOLD = sa.delete(refusals).where(refusals.c.hour < sa.bindparam("before"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What one subject has used up to now."""

    requests: int = 0
    """In this hour."""
    tokens: int = 0
    """On this day, as is the cost."""
    cost_micros: int = 0
    """Millionths of the currency in which the runtime reports."""


class Spending:
    """Reads and writes within the caller's transaction; an hour is a count of hours since the epoch."""

    def read(self, connection: Connection, subject: str, hour: int) -> Spent:
        """Return what a subject has used in `hour` and on its day."""
        rows = connection.execute(_READ, {"_subject": subject, "_since": hour - hour % HOURS_A_DAY, "_hour": hour}).all()
        return Spent(
            requests=sum(row.requests for row in rows if row.hour == hour),
            tokens=sum(row.tokens for row in rows),
            cost_micros=sum(row.cost_micros for row in rows),
        )

    def add(self, connection: Connection, subject: str, hour: int, *, requests: int = 0, tokens: int = 0, cost_micros: int = 0) -> None:
        """Count what a subject used in `hour`."""
        more = {"_subject": subject, "_hour": hour, "_requests": requests, "_tokens": tokens, "_cost_micros": cost_micros}
        if not connection.execute(_MORE, more).rowcount:
            first = {"subject": subject, "hour": hour, "requests": requests, "tokens": tokens, "cost_micros": cost_micros}
            connection.execute(_FIRST, first)

    def tell(self, connection: Connection, conversation_id: ConversationId, sender: UserId, limit: str, hour: int) -> bool:
        """Remember that somebody is told of a limit in the window that began at `hour`; False where it was remembered before."""
        told = {"conversation_id": conversation_id, "sender": sender, "limit_name": limit, "hour": hour}
        if connection.execute(_WAS_TOLD, told).first() is not None:
            return False
        connection.execute(_TELL, told)
        return True

    def forget_told(self, connection: Connection, conversation_id: ConversationId, sender: UserId, limit: str) -> None:
        """Forget that somebody was told of a limit, which has ended."""
        connection.execute(_FORGET_ONE, {"_conversation_id": conversation_id, "_sender": sender, "_limit_name": limit})

    def forget(self, connection: Connection, before: int) -> None:
        """Remove the rows of the hours before this one."""
        connection.execute(_FORGET, {"before": before})
        connection.execute(_FORGET_TOLD, {"before": before})
