"""The harness as the rest of the program sees it: a sink for facts, a start, a stop.

Promise: whatever was accepted is answered, also by a later process; whatever is owed is delivered once, or the operator is told.
How: the parts hand each other ids, after the commit that made them true; all of it can be found again in the database, which is what
     `start` does.
Not here: SQL (store), Matrix (the edge), the model (runtime).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hayate_matrix.harness.commands import Commands
from hayate_matrix.harness.delivery import Deliveries
from hayate_matrix.harness.intake import Intake
from hayate_matrix.harness.lanes import Lanes, Work
from hayate_matrix.harness.limits import Limiter
from hayate_matrix.harness.presence import Presence
from hayate_matrix.harness.rules import Senses
from hayate_matrix.harness.turn import Turns
from hayate_matrix.harness.upkeep import Upkeep
from hayate_matrix.log import get_logger
from hayate_matrix.store.conversations import find_conversation, get_room
from hayate_matrix.store.sessions import StoredSessions
from hayate_matrix.store.stores import Stores

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.core.deliveries import FactSink, Gateway
    from hayate_matrix.core.ids import ConversationId, RoomId
    from hayate_matrix.core.transcript import SessionProvider
    from hayate_matrix.harness.commands import Effects
    from hayate_matrix.harness.intake import Accepted
    from hayate_matrix.harness.rules import Rules
    from hayate_matrix.runtime.contract import Runtime, Tool
    from hayate_matrix.store.database import Connection, Database
    from hayate_matrix.store.inbox import InboxRow
    from hayate_matrix.store.sealing import Sealer

_log = get_logger(__name__)


class Harness:
    """Takes facts, runs turns, delivers answers."""

    def __init__(  # noqa: PLR0913 - all that it is built of
        self,
        database: Database,
        sealer: Sealer,
        *,
        clock: Clock,
        runtime: Runtime,
        gateway: Gateway,
        rules: Rules,
        tools: Sequence[Tool] = (),
        senses: Senses | None = None,
        provider: SessionProvider | None = None,
    ) -> None:
        """Build the parts; `provider` resolves pointers to texts, the database where it is None (SES-4)."""
        senses = senses or Senses()
        self._stores = Stores(database, sealer)
        limiter = Limiter(self._stores, rules, senses.is_served)
        self._presence = Presence(gateway, clock, rules)
        self._deliveries = Deliveries(self._stores, clock, gateway, on_change=self._note_change, on_fault=self._note_fault)
        self._turns = Turns(self._stores, clock, runtime, tools, rules=rules, limiter=limiter, senses=senses, on_owed=self._deliveries.wake)
        self._lanes = Lanes(
            clock,
            self._run,
            limit=rules.parallel_turns,
            is_disk_low=senses.is_disk_low,
            on_change=self._note_change,
            on_fault=self._note_fault,
        )
        self._commands = Commands(
            self._stores,
            clock,
            rules=rules,
            senses=senses,
            provider=provider or StoredSessions(database, self._stores.sessions),
            hand_on=self._follow,
            on_change=self._note_change,
            on_fault=self._note_fault,
        )
        self._upkeep = Upkeep(self._stores, clock, rules, on_removed=self._turns.forget, on_fault=self._note_fault)
        self._intake = Intake(self._stores, clock, rules, limiter, self._feed)
        self._is_served = senses.is_served
        self._releases = 0
        self._changed = asyncio.Event()
        self._fault: BaseException | None = None
        self._early: list[Accepted] | None = []
        """What was accepted before `start` had read the database; None from then on."""

    @property
    def sink(self) -> FactSink:
        """Where the edge hands facts over; it works from the start, also before `start`."""
        return self._intake

    async def start(self) -> None:
        """Take up what earlier runs left: requests in order, turns that were cut off, commands, deliveries.

        Facts that come in meanwhile are part of it or come behind it, never both.
        """
        rows, rooms, denied = await self._stores.database.read(self._find_open)
        # No await from here to the end of the loops: what is accepted meanwhile is either among `rows` or in `_early`, or both.
        early, self._early = self._early or [], None
        known = {row.event_id for row in rows}
        for room_id in denied:
            self._lanes.hold(room_id)
        # What was running comes first: its lane must not begin another turn before it.
        for row in sorted(rows, key=lambda row: (row.state != "running", row.seq)):
            self._take_up(row, rooms[row.conversation_id])
        for accepted in early:
            accepted.work = [work for work in accepted.work if work.event_id not in known]
            accepted.commands = [command for command in accepted.commands if command[1] not in known]
            self._feed(accepted)
        _log.info("the harness has started", open=len(rows))
        await self._deliveries.recover()
        self._commands.open()
        self._upkeep.open()
        self._lanes.open()

    async def stop(self) -> None:
        """End in order: turns are put down at their last step, what is not settled stays owed; nothing is lost."""
        await self._upkeep.close()
        await self._lanes.close()
        await self._commands.close()
        await self._intake.drain()
        await self._deliveries.close()
        await self._presence.close()

    async def idle(self) -> None:
        """Return when nothing is queued, running or on its way; what is held does not count.

        Raises:
            the fault that ended the harness, if one did
        """
        while not (self._lanes.is_idle and self._commands.is_idle and self._deliveries.is_idle):
            self._raise_fault()
            self._changed.clear()
            await self._changed.wait()
        self._raise_fault()

    async def watch(self) -> None:
        """Wait for ever, and raise what the harness can't go on with (a store that fails): the program should stop then."""
        while True:
            self._raise_fault()
            self._changed.clear()
            await self._changed.wait()

    async def release(self, room_id: RoomId) -> None:
        """Take up what waits for a room, which may have become allowed, or the bot may speak in it again."""
        self._releases += 1
        self._commands.release()
        self._lanes.release(room_id)
        found = await self._stores.database.read(lambda connection: find_conversation(connection, room_id))
        if found is not None:
            self._deliveries.wake(found.id)

    async def _run(self, work: Work) -> bool:
        """Answer a request, or run a command that waited among them; False where its room is not served any more."""
        while True:
            releases = self._releases
            if await self._begin(work):
                return True
            if self._releases == releases:  # else it may be this room that was released, after the answer was given
                self._lanes.hold(work.room_id)
                return False

    async def _begin(self, work: Work) -> bool:
        if work.is_command:
            return await self._commands.run_one(work.event_id)
        self._presence.begin(work.room_id)
        try:
            return await self._turns.run(work)
        finally:
            self._presence.end(work.room_id)

    def _feed(self, accepted: Accepted) -> None:
        """Hand on what a batch of facts asks for."""
        self._turns.forget(accepted.changed)
        for event_id in accepted.stopped:
            self._lanes.cancel(event_id)
        if self._early is not None:
            self._early.append(accepted)
            return
        for room_id, event_id in accepted.read.items():
            self._presence.mark_read(room_id, event_id)
        for conversation_id, event_id in accepted.commands:
            self._commands.add(conversation_id, event_id)
        for work in accepted.work:
            self._lanes.add(work)
        self._wake(accepted.owed)
        self._note_change()

    def _follow(self, effects: Effects) -> None:
        """Hand on what a command asks for."""
        self._turns.forget(effects.changed)
        for event_id in effects.stopped:
            self._lanes.cancel(event_id)
        if effects.conversation_id is not None:
            self._wake([effects.conversation_id])

    def _wake(self, conversations: Iterable[ConversationId]) -> None:
        for conversation_id in conversations:
            self._deliveries.wake(conversation_id)

    def _take_up(self, row: InboxRow, room_id: RoomId) -> None:
        """Go on with a request or command of an earlier run."""
        if row.kind == "command":
            self._commands.add(row.conversation_id, row.event_id)
            return
        work = Work(
            conversation_id=row.conversation_id,
            room_id=room_id,
            focus=row.focus,
            event_id=row.event_id,
            reply_to=row.reply_to,
            is_command=row.kind == "ordered",
        )
        self._lanes.add(work)

    def _find_open(self, connection: Connection) -> tuple[list[InboxRow], dict[ConversationId, RoomId], set[RoomId]]:
        rows = self._stores.inbox.list_open(connection)
        rooms = {conversation_id: get_room(connection, conversation_id) for conversation_id in {row.conversation_id for row in rows}}
        return rows, rooms, {room_id for room_id in rooms.values() if not self._is_served(room_id)}

    def _note_change(self) -> None:
        self._changed.set()

    def _note_fault(self, error: BaseException) -> None:
        _log.error("a fault in the harness", error=type(error).__name__)
        self._fault = self._fault or error
        self._changed.set()

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault
