"""What a person asks the bot itself, answered once.

Promise: a command's effect, its answer and its end are one commit, so that no restart runs it twice (CMD-3).
How: commands wait in the inbox like requests, but for no turn: one task takes them in order. Those that change which session a focus
     works in wait in its lane instead, and are handed to `run_one` from there.
Not here: which words are commands (core/commands).
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from hayate_matrix.core.commands import COMMANDS, parse_command
from hayate_matrix.core.transcript import Steer
from hayate_matrix.errors import StopError, WaitError
from hayate_matrix.harness.commands.answers import Answer, Effects, refuse
from hayate_matrix.harness.commands.lookups import Found, Lookups
from hayate_matrix.harness.commands.sessions import SessionCommands
from hayate_matrix.harness.endings import fail_request, owe_answer, stop_task, word_error
from hayate_matrix.log import get_logger
from hayate_matrix.store.conversations import find_conversation, get_room, set_pause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.core.commands import Command
    from hayate_matrix.core.deliveries import DeliveryKind
    from hayate_matrix.core.ids import EventId
    from hayate_matrix.core.transcript import SessionProvider
    from hayate_matrix.harness.rules import Rules, Senses
    from hayate_matrix.store.database import Connection
    from hayate_matrix.store.inbox import InboxRow
    from hayate_matrix.store.stores import Stores

_log = get_logger(__name__)

_WAIT_S = 5.0
"""Between two tries while the disk is full."""
_LOOKUPS = {"hashtags", "sessions"}
_OF_SESSIONS = {"new", "name", "resume", "close"}


class Commands:
    """Runs commands in the order in which they came."""

    def __init__(
        self,
        stores: Stores,
        clock: Clock,
        *,
        rules: Rules,
        senses: Senses,
        provider: SessionProvider,
        hand_on: Callable[[Effects], None],
        on_change: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._stores = stores
        self._clock = clock
        self._rules = rules
        self._senses = senses
        self._lookups = Lookups(stores, provider)
        self._sessions = SessionCommands(stores)
        self._hand_on = hand_on
        self._on_change = on_change
        self._on_fault = on_fault
        self._queue: deque[EventId] = deque()
        self._denied: list[EventId] = []
        """Commands of rooms that are not served: they wait in the inbox until `release`."""
        self._releases = 0
        self._task: asyncio.Task[None] | None = None
        self._is_open = False

    @property
    def is_idle(self) -> bool:
        """Whether no command waits or runs."""
        return not self._queue and self._task is None

    def open(self) -> None:
        """Begin to run what waits."""
        self._is_open = True
        self._wake()

    def add(self, event_id: EventId) -> None:
        """Queue one command."""
        self._queue.append(event_id)
        self._wake()

    async def close(self) -> None:
        """Run no more; what waits is run at the next start."""
        self._is_open = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _wake(self) -> None:
        if self._is_open and self._queue and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run_all(), name="commands")
            self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._is_open = False
            self._on_fault(error)
        self._wake()
        self._on_change()

    def release(self) -> None:
        """Try those again whose rooms were not served: one may be now."""
        self._releases += 1
        self._queue.extend(self._denied)
        self._denied.clear()
        self._wake()

    async def _run_all(self) -> None:
        while self._queue:
            releases = self._releases
            event_id = self._queue.popleft()
            if not await self.run_one(event_id):
                # Its room may be the one that was released, after the answer was given.
                (self._denied if self._releases == releases else self._queue).append(event_id)

    async def run_one(self, event_id: EventId) -> bool:
        """Run one command to its end; one that was run before changes nothing. False where its room is not served (ROOM-3)."""
        while True:
            try:
                found = await self._look(event_id)
                effects = await self._stores.database.transaction("command.run", partial(self._run, event_id=event_id, found=found))
            except StopError:
                raise
            except WaitError:
                await self._clock.sleep(_WAIT_S)
                continue
            except Exception as error:  # noqa: BLE001 - one broken command must not silence the others
                effects = await self._fail(event_id, error)
            if effects is None:
                return False
            self._hand_on(effects)
            return True

    async def _look(self, event_id: EventId) -> Answer | None:
        """Return the answer of a command that only reads, or None for another."""

        def look(connection: Connection) -> Answer | Found | None:
            row = self._stores.inbox.find(connection, event_id)
            command = parse_command(row.content.text) if row is not None and row.content is not None else None
            if row is None or command is None or command.name not in _LOOKUPS:
                return None
            return self._lookups.look(connection, row, command)

        found = await self._stores.database.read(look)
        return await self._lookups.show(found) if isinstance(found, Found) else found

    def _run(self, connection: Connection, event_id: EventId, found: Answer | None) -> Effects | None:
        effects = Effects()
        row = self._stores.inbox.find(connection, event_id)
        if row is None or row.state != "queued":
            return effects
        if not self._senses.is_served(get_room(connection, row.conversation_id)):
            return None
        command = parse_command(row.content.text) if row.content is not None else None
        if command is None:  # another version of the program took it for one, or its row is damaged
            answer = Answer("I don't know that command. `!help` shows those that I know.")
        else:
            answer = self._refuse(connection, row, command) or found or self._do(connection, row, command, effects)
        kind: DeliveryKind = "listing" if answer.is_listing else "notice"
        owe_answer(self._stores, connection, row, kind, answer.text, self._clock.now(), links=answer.links)
        self._stores.inbox.move(connection, row, "done")
        effects.conversation_id = row.conversation_id
        return effects

    def _refuse(self, connection: Connection, row: InboxRow, command: Command) -> Answer | None:
        """Return why this person may not use the command, or None where it may be used (CMD-2)."""
        needed = self._rules.command_power.get(command.name, COMMANDS[command.name].power)
        if needed <= 0:
            return None
        power = self._senses.read_power(get_room(connection, row.conversation_id), row.sender)
        if power is None:
            return Answer(f"`!{command.name}` needs the power level {needed}, and I can't see yours.")
        return None if power >= needed else Answer(f"`!{command.name}` needs the power level {needed}; yours is {power}.")

    def _do(self, connection: Connection, row: InboxRow, command: Command, effects: Effects) -> Answer:
        now = self._clock.now()
        if command.name in _OF_SESSIONS:
            return self._sessions.run(connection, row, command, now)
        if command.name == "steer" and not command.arguments:
            return refuse("steer", "`!steer` needs a text.")
        return Answer(self._act(connection, row, command, now, effects))

    def _act(self, connection: Connection, row: InboxRow, command: Command, now: datetime, effects: Effects) -> str:
        match command.name:
            case "help":
                return "\n".join(f"- {usage.line}" for usage in COMMANDS.values())
            case "status":
                return self._report(connection, row)
            case "stop":
                return self._stop(connection, row, now, effects)
            case "pause":
                return self._pause(connection, row, now, effects)
            case "unpause":
                set_pause(connection, row.conversation_id, is_paused=False)
                return "I answer here again. What was said meanwhile is not answered."
            case _:
                return self._steer(connection, row, command, now)

    def _report(self, connection: Connection, row: InboxRow) -> str:
        requests = [other for other in self._stores.inbox.list_open(connection, row.conversation_id) if other.kind != "command"]
        running = [request for request in requests if request.state == "running"]
        waiting = [request for request in requests if request.state == "queued"]
        owed = self._stores.outbox.count_unsettled(connection, row.conversation_id)
        parts = [f"running: {_show(running)}", f"waiting: {_show(waiting)}", f"to be sent: {owed.get('pending', 0)}"]
        if owed.get("held"):
            parts.append(f"held back: {owed['held']}")
        if owed.get("uncertain"):
            parts.append(f"for the operator: {owed['uncertain']}")
        if self._is_paused(connection, row):
            parts.append("paused: nothing is answered until `!unpause`")
        return "In this room: " + " · ".join(parts)

    def _is_paused(self, connection: Connection, row: InboxRow) -> bool:
        found = find_conversation(connection, get_room(connection, row.conversation_id))
        return found is not None and found.is_paused

    def _stop(self, connection: Connection, row: InboxRow, now: datetime, effects: Effects) -> str:
        found = self._stores.tasks.find_open(connection, row.conversation_id, row.focus)
        for task in found:
            stop_task(self._stores, connection, task, "it was stopped by a person", now)
            effects.stopped.append(task.request)
            effects.changed.add(task.session_id)
        return "Stopped." if found else "Nothing is running here."

    def _pause(self, connection: Connection, row: InboxRow, now: datetime, effects: Effects) -> str:
        """End all work for the room, in every thread of it, and begin none until `!unpause` (ROOM-10)."""
        set_pause(connection, row.conversation_id, is_paused=True)
        for task in self._stores.tasks.find_open(connection, row.conversation_id):
            stop_task(self._stores, connection, task, "the room was paused", now)
            effects.stopped.append(task.request)
            effects.changed.add(task.session_id)
        for other in self._stores.inbox.list_open(connection, row.conversation_id):
            if other.kind == "request" and other.state == "queued":
                self._stores.inbox.move(connection, other, "dropped")
        return "Paused: I answer nothing here until `!unpause`. What is said meanwhile is not answered later."

    def _steer(self, connection: Connection, row: InboxRow, command: Command, now: datetime) -> str:
        found = self._stores.tasks.find_open(connection, row.conversation_id, row.focus)
        if not found:
            return "Nothing is running here that could be steered. Send it as a message."
        for task in found:
            element = Steer(sender=row.sender, text=command.arguments)
            self._stores.sessions.append(connection, task.session_id, task.id, element, now, event_id=row.event_id)
            self._stores.tasks.note_steer(connection, task)
        return "Passed on."

    async def _fail(self, event_id: EventId, error: Exception) -> Effects:
        """End a command that broke, with one sentence (OUT-7)."""
        sentence = word_error(error, command=event_id)

        def end(connection: Connection) -> Effects:
            row = self._stores.inbox.find(connection, event_id)
            if row is None or row.state != "queued":
                return Effects()
            fail_request(self._stores, connection, row, sentence, self._clock.now())
            return Effects(conversation_id=row.conversation_id)

        return await self._stores.database.transaction("command.fail", end)


def _show(requests: Sequence[InboxRow]) -> str:
    """Return how many there are, and the tags that they carry (LBL-6)."""
    tags = sorted({tag for request in requests for tag in request.tags})
    return f"{len(requests)} ({' '.join(f'#{tag}' for tag in tags)})" if tags else str(len(requests))
