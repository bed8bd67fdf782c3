"""Facts become requests, commands or nothing, once.

Promise: when `accept` returns, every fact is a row of the inbox, and the same fact again changes nothing (IN-1).
How: a batch is one transaction (`batch` decides what each fact asks for); what must follow in memory (a lane to feed, a turn to cancel)
     is collected in it and handed on after the commit.
Not here: whether a room is served (the edge never hands over facts of other rooms), what a request is answered (turn).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from hayate_matrix.core.ids import is_storable
from hayate_matrix.harness.intake.batch import Batch
from hayate_matrix.log import get_logger
from hayate_matrix.store.stores import keep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.core.facts import AnyFact
    from hayate_matrix.harness.intake.batch import Accepted
    from hayate_matrix.harness.limits import Limiter
    from hayate_matrix.harness.rules import Rules
    from hayate_matrix.store.database import Connection
    from hayate_matrix.store.stores import Stores

_log = get_logger(__name__)

_BATCH_SIZE = 200
"""Facts in one transaction: others wait for the writer meanwhile, about 0.2 s."""


class Intake:
    """The sink that the edge hands its facts to."""

    def __init__(self, stores: Stores, clock: Clock, rules: Rules, limiter: Limiter, hand_on: Callable[[Accepted], None]) -> None:
        self._stores = stores
        self._clock = clock
        self._rules = rules
        self._limiter = limiter
        self._hand_on = hand_on
        self._running: set[asyncio.Task[None]] = set()

    async def accept(self, facts: Sequence[AnyFact]) -> None:
        """Return when all `facts` are durable; the same fact again changes nothing.

        A caller that is cancelled meanwhile leaves the batch to end by itself, so that nothing durable stays unnoticed.
        """
        task = asyncio.ensure_future(self._accept(list(facts)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.shield(task)

    async def drain(self) -> None:
        """Return when no batch is being taken."""
        while self._running:
            await asyncio.wait(self._running)

    async def _accept(self, facts: Sequence[AnyFact]) -> None:
        for start in range(0, len(facts), _BATCH_SIZE):
            some = facts[start : start + _BATCH_SIZE]
            take = partial(self._take, facts=some)
            self._hand_on(await keep(self._clock, lambda: self._stores.database.transaction("intake.accept", take)))  # noqa: B023 - awaited here

    def _take(self, connection: Connection, facts: Sequence[AnyFact]) -> Accepted:
        known, targets = self._stores.inbox.find_known(connection, [fact.event_id for fact in facts if _is_storable(fact)])
        batch = Batch(self._stores, self._rules, self._limiter, connection, self._clock.now(), targets)
        for fact in facts:
            if not _is_storable(fact):
                _log.warning("a fact that can't be stored is passed over", kind=type(fact).__name__)
            elif fact.event_id not in known:
                known.add(fact.event_id)
                batch.take(fact)
        return batch.accepted


def _is_storable(fact: AnyFact) -> bool:
    """Tell whether the ids of a fact are text that every database takes; one hostile event must not stop all that come after it."""
    ids = (fact.event_id, fact.room_id, fact.sender, *(getattr(fact, name, None) or "" for name in ("target", "thread", "reply_to")))
    return all(is_storable(name) for name in ids)
