"""What a person asks the bot itself, answered once.

Promise: a command's effect, its answer and its end are one commit, so that no restart runs it twice (CMD-3).
How: commands wait in the inbox like requests, but for no turn: one task for each conversation takes them in order. Those that change
     which session a focus works in wait in its lane instead, and are handed to `run_one` from there.
Not here: which words are commands (core/commands).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from hayate_matrix.core.commands import COMMANDS, parse_command
from hayate_matrix.core.transcript import Steer
from hayate_matrix.errors import StopError
from hayate_matrix.harness.commands.answers import Answer, Effects, refuse
from hayate_matrix.harness.commands.lookups import Found, Lookups, Missed
from hayate_matrix.harness.commands.sessions import SessionCommands
from hayate_matrix.harness.endings import fail_request, owe_answer, stop_tasks, word_error
from hayate_matrix.log import get_logger
from hayate_matrix.store.conversations import find_conversation, get_room, set_pause
from hayate_matrix.store.stores import keep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.core.commands import Command
    from hayate_matrix.core.deliveries import DeliveryKind
    from hayate_matrix.core.ids import ConversationId, EventId
    from hayate_matrix.core.transcript import SessionProvider
    from hayate_matrix.harness.rules import Rules, Senses
    from hayate_matrix.store.database import Connection
    from hayate_matrix.store.inbox import InboxRow
    from hayate_matrix.store.stores import Stores

_log = get_logger(__name__)

_LOOKUPS = {"hashtags", "sessions"}
_OF_SESSIONS = {"new", "name", "resume", "close"}


class _Outdated(Exception):
    """What was looked up may show what was removed meanwhile: it is looked up again."""


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
        self._queues: dict[ConversationId, deque[EventId]] = {}
        self._tasks: dict[ConversationId, asyncio.Task[None]] = {}
        self._denied: list[tuple[ConversationId, EventId]] = []
        """Commands of rooms that are not served: they wait in the inbox until `release`."""
        self._releases = 0
        self._is_open = False

    @property
    def is_idle(self) -> bool:
        """Whether no command waits or runs."""
        return not self._queues and not self._tasks

    def open(self) -> None:
        """Begin to run what waits."""
        self._is_open = True
        for conversation_id in tuple(self._queues):
            self._wake(conversation_id)

    def add(self, conversation_id: ConversationId, event_id: EventId) -> None:
        """Queue one command behind those of its conversation."""
        self._queues.setdefault(conversation_id, deque()).append(event_id)
        self._wake(conversation_id)

    def release(self) -> None:
        """Try those again whose rooms were not served: one may be now."""
        self._releases += 1
        denied, self._denied = self._denied, []
        for conversation_id, event_id in denied:
            self.add(conversation_id, event_id)

    async def close(self) -> None:
        """Run no more; what waits is run at the next start."""
        self._is_open = False
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wake(self, conversation_id: ConversationId) -> None:
        if self._is_open and self._queues.get(conversation_id) and conversation_id not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run_all(conversation_id), name=f"commands {conversation_id}")
            self._tasks[conversation_id] = task
            task.add_done_callback(partial(self._end, conversation_id))

    def _end(self, conversation_id: ConversationId, task: asyncio.Task[None]) -> None:
        del self._tasks[conversation_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._is_open = False
            self._on_fault(error)
        self._wake(conversation_id)
        self._on_change()

    async def _run_all(self, conversation_id: ConversationId) -> None:
        queue = self._queues[conversation_id]
        while queue:
            releases = self._releases
            event_id = queue[0]
            is_done = await self.run_one(event_id)
            queue.popleft()
            if is_done:
                continue
            if self._releases == releases:
                self._denied.append((conversation_id, event_id))
            else:  # its room may be the one that was released, after the answer was given
                queue.append(event_id)
        del self._queues[conversation_id]

    async def run_one(self, event_id: EventId) -> bool:
        """Run one command to its end; one that was run before changes nothing. False where its room is not served (ROOM-3)."""
        try:
            effects = await keep(self._clock, partial(self._try, event_id))
        except StopError:
            raise
        except Exception as error:  # noqa: BLE001 - one broken command must not silence the others
            effects = await self._fail(event_id, error)
        if effects is None:
            return False
        self._hand_on(effects)
        return True

    async def _try(self, event_id: EventId) -> Effects | None:
        """Look up and commit, as often as what was looked up was removed meanwhile."""
        while True:
            found, seen = await self._look(event_id)
            run = partial(self._run, event_id=event_id, found=found, seen=seen)
            with contextlib.suppress(_Outdated):
                return await self._stores.database.transaction("command.run", run)

    async def _look(self, event_id: EventId) -> tuple[Answer | None, tuple[int, int]]:
        """Return the answer of a command that only reads, None for another or where it may not be used; and what was known then."""

        def look(connection: Connection) -> Answer | Found | Missed | None:
            row = self._stores.inbox.find(connection, event_id)
            command = parse_command(row.content.text) if row is not None and row.content is not None else None
            if row is None or command is None or command.name not in _LOOKUPS or self._refuse(connection, row, command):
                return None
            return self._lookups.look(connection, row, command)

        removals = self._stores.removals
        found, last = await self._stores.database.read(lambda connection: (look(connection), self._stores.inbox.find_last(connection)))
        seen = (last, removals)
        if isinstance(found, Missed):
            return await self._lookups.explain(found), seen
        return (await self._lookups.show(found) if isinstance(found, Found) else found), seen

    def _run(self, connection: Connection, event_id: EventId, found: Answer | None, seen: tuple[int, int]) -> Effects | None:
        effects = Effects()
        row = self._stores.inbox.find(connection, event_id)
        if row is None or row.state != "queued":
            return effects
        if not self._senses.is_served(get_room(connection, row.conversation_id)):
            return None
        if found is not None and self._is_outdated(connection, row, seen):
            raise _Outdated
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

    def _is_outdated(self, connection: Connection, row: InboxRow, seen: tuple[int, int]) -> bool:
        """Tell whether texts were removed since `seen`, by people in the room or by retention."""
        last, removals = seen
        return self._stores.removals != removals or self._stores.inbox.has_redaction_since(connection, row.conversation_id, last)

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
        why = "it was stopped by a person"
        stop_tasks(self._stores, connection, found, why, now, stopped=effects.stopped, changed=effects.changed)
        return "Stopped." if found else "Nothing is running here."

    def _pause(self, connection: Connection, row: InboxRow, now: datetime, effects: Effects) -> str:
        """End all work for the room, in every thread of it, and begin none until `!unpause` (ROOM-10)."""
        set_pause(connection, row.conversation_id, is_paused=True)
        found = self._stores.tasks.find_open(connection, row.conversation_id)
        stop_tasks(self._stores, connection, found, "the room was paused", now, stopped=effects.stopped, changed=effects.changed)
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

        return await keep(self._clock, lambda: self._stores.database.transaction("command.fail", end))


def _show(requests: Sequence[InboxRow]) -> str:
    """Return how many there are, and the tags that they carry (LBL-6)."""
    tags = sorted({tag for request in requests for tag in request.tags})
    return f"{len(requests)} ({' '.join(f'#{tag}' for tag in tags)})" if tags else str(len(requests))
