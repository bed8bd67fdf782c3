"""What is owed to rooms goes out, in order, and is settled once.

Promise: rows of one conversation leave in the order in which they were owed (OUT-2), and no row waits for those of another.
How: one task for each conversation that is owed something. Nothing is claimed: the row's id makes a repeated delivery harmless, so after
     a crash the oldest row that is not settled is simply delivered again (OUT-1). What is held stops the rows behind it, so that order
     outlives the silence.
     The stored text is raw; its label is put in front at this moment, so that a retry labels once (LBL-1).
Not here: waiting out rate limits and broken connections (the gateway does), rendering.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from hayate_matrix.core.hashtags import put_label
from hayate_matrix.errors import DeliveryHeld, DeliveryUncertain, GiveUpError, StaleTransition, StopError, WaitError
from hayate_matrix.harness.endings import is_told_to_end
from hayate_matrix.log import get_logger
from hayate_matrix.store.conversations import set_answered
from hayate_matrix.store.stores import keep

if TYPE_CHECKING:
    from collections.abc import Callable

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.core.deliveries import Delivery, Gateway, Sent
    from hayate_matrix.core.ids import ConversationId
    from hayate_matrix.core.turns import DeliveryState
    from hayate_matrix.store.database import Connection
    from hayate_matrix.store.outbox import Owed
    from hayate_matrix.store.stores import Stores

_log = get_logger(__name__)

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
"""Between tries of a row that failed in a way that nobody foresaw: as between those of OUT-2."""
_TRIES = 5
"""Unforeseen failures in a row after which the operator decides, so that the rows behind go on."""


class Deliveries:
    """Brings the outbox to the gateway."""

    def __init__(
        self, stores: Stores, clock: Clock, gateway: Gateway, *, on_change: Callable[[], None], on_fault: Callable[[BaseException], None]
    ) -> None:
        self._stores = stores
        self._clock = clock
        self._gateway = gateway
        self._on_change = on_change
        self._on_fault = on_fault
        self._tasks: dict[ConversationId, asyncio.Task[None]] = {}
        self._woken: set[ConversationId] = set()
        self._is_open = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way; what is held does not count."""
        return not self._tasks

    async def recover(self) -> None:
        """Begin with what earlier runs left owed; what was held is tried again."""
        self._is_open = True

        def release(connection: Connection) -> list[ConversationId]:
            self._stores.outbox.release(connection)
            return self._stores.outbox.list_indebted(connection)

        for conversation_id in await keep(self._clock, lambda: self._stores.database.transaction("delivery.release", release)):
            self.wake(conversation_id)

    def wake(self, conversation_id: ConversationId) -> None:
        """Look whether something is owed to this conversation."""
        if not self._is_open:
            return
        self._woken.add(conversation_id)
        if conversation_id not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run(conversation_id), name=f"delivery {conversation_id}")
            self._tasks[conversation_id] = task
            task.add_done_callback(lambda task: self._end(conversation_id, task))

    async def close(self) -> None:
        """Stop where it is; what is not settled stays owed."""
        self._is_open = False
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, conversation_id: ConversationId, task: asyncio.Task[None]) -> None:
        del self._tasks[conversation_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._is_open = False
            self._on_fault(error)
        elif conversation_id in self._woken:
            self.wake(conversation_id)
        self._on_change()

    async def _run(self, conversation_id: ConversationId) -> None:
        """Deliver what is owed until there is no more, or it is held."""
        while conversation_id in self._woken:
            self._woken.discard(conversation_id)
            owed = await self._find_next(conversation_id)
            while owed is not None:
                try:
                    owed = await self._deliver(owed)
                except StaleTransition:
                    _log.debug("the delivery was moved on elsewhere", conversation=conversation_id)
                    owed = await self._find_next(conversation_id)

    async def _find_next(self, conversation_id: ConversationId) -> Owed | None:
        return await self._stores.database.read(lambda connection: self._stores.outbox.find_next(connection, conversation_id))

    async def _deliver(self, owed: Owed) -> Owed | None:
        """Bring one row to its room, settle it, and return the next one; None where there is none, or all are held."""
        if owed.is_damaged:
            return await self._end_row(owed, "refused", "damaged")
        for attempt in range(1, _TRIES + 1):
            try:
                sent = await self._gateway.deliver(_label(owed))
            except DeliveryHeld as error:
                _log.info("a delivery is held", delivery=owed.delivery.id, reason=error.code)
                await self._hold(owed)
                return None
            except (DeliveryUncertain, GiveUpError) as error:
                return await self._end_row(owed, "uncertain" if isinstance(error, DeliveryUncertain) else "refused", error.code)
            except StopError:
                raise
            except WaitError:
                await self._clock.sleep(_FIRST_WAIT_S)
                return owed
            except (Exception, asyncio.CancelledError) as error:  # an unforeseen fault of the edge must not end deliveries to a room
                if isinstance(error, asyncio.CancelledError) and is_told_to_end():
                    raise
                # Without the error's text, which may hold what people wrote.
                _log.error("a delivery failed", delivery=owed.delivery.id, attempt=attempt, error=type(error).__name__)
                await self._clock.sleep(min(_FIRST_WAIT_S * 2 ** (attempt - 1), _LONGEST_WAIT_S))
            else:
                return await self._settle(owed, sent)
        return await self._end_row(owed, "uncertain", "unforeseen")

    async def _settle(self, owed: Owed, sent: Sent) -> Owed | None:
        def settle(connection: Connection) -> Owed | None:
            now = self._clock.now()
            self._stores.outbox.settle(connection, owed, sent.event_ids, now)
            set_answered(connection, owed.conversation_id, now)
            # What was owed since then woke this task.
            return None if owed.is_last else self._stores.outbox.find_next(connection, owed.conversation_id)

        return await keep(self._clock, lambda: self._stores.database.transaction("delivery.settle", settle))

    async def _hold(self, owed: Owed) -> None:
        def hold(connection: Connection) -> None:
            self._stores.outbox.hold(connection, owed.conversation_id)

        await keep(self._clock, lambda: self._stores.database.transaction("delivery.hold", hold))

    async def _end_row(self, owed: Owed, state: DeliveryState, reason: str) -> Owed | None:
        """Take a row out of the way (refused), or give it to the operator (uncertain), and return the next one."""
        _log.warning("a delivery ended unsent", delivery=owed.delivery.id, state=state, reason=reason)

        def end(connection: Connection) -> None:
            self._stores.outbox.move(connection, owed, state, self._clock.now(), reason=reason)

        await keep(self._clock, lambda: self._stores.database.transaction("delivery.end", end))
        return await self._find_next(owed.conversation_id)


def _label(owed: Owed) -> Delivery:
    return replace(owed.delivery, text=put_label(owed.tags, owed.delivery.text)) if owed.tags else owed.delivery
