"""One turn: open, steps, end; each is one transaction (CORE-1).

Promise: the model is never asked again for what it answered, a tool that finished is never run again, and the reply and the end of the
         request are one commit. Whatever instant the program dies at, the next start goes on from the last commit (CORE-3).
How: the transcript in memory is what the commits wrote, in the same order. A turn that somebody else ended finds its next commit stale and
     vanishes.
Not here: which turn comes next (lanes), what a model is (runtime), how the reply reaches the room (delivery).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from hayate_matrix.core.transcript import Result, Said, find_open_calls
from hayate_matrix.errors import HayateError, StaleTransition, StopError, TurnFailed, WaitError
from hayate_matrix.harness.endings import fail_request, fail_task, is_told_to_end, owe_answer, word_error
from hayate_matrix.log import get_logger
from hayate_matrix.runtime.contract import Prompt
from hayate_matrix.store.stores import keep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import datetime
    from typing import TypeVar

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.core.ids import ConversationId, EventId, SessionId
    from hayate_matrix.core.transcript import Element, ToolCall
    from hayate_matrix.harness.lanes import Work
    from hayate_matrix.harness.limits import Limiter
    from hayate_matrix.harness.rules import Rules, Senses
    from hayate_matrix.runtime.contract import Runtime, Tool
    from hayate_matrix.store.database import Connection
    from hayate_matrix.store.inbox import InboxRow
    from hayate_matrix.store.stores import Stores
    from hayate_matrix.store.tasks import Task

    T = TypeVar("T")

_log = get_logger(__name__)

_SHOWN_ELEMENTS = 200
"""Elements of the transcript that the model is shown, at most; until sessions are compacted this keeps a long room affordable."""
_CACHED_SESSIONS = 64
"""Sessions whose end is kept in memory, so that a turn in a lively room reads nothing."""
_LONG_S = 30.0
"""A turn that took longer than this counts for when its session was last used; `sessions.idle_s` is a minute at least."""

_UNKNOWN = "The program ended while this ran, so it may have had its effect or not. Check before you do it again."
_KEEPS_FAILING = "I tried this several times and was cut off each time."
_UNREADABLE = "I can't read this message any more: its row in my store is damaged. Please send it again."
_EMPTY = "I have nothing to say to that."


class _RoomDenied(Exception):
    """The room of a request is not on the allowlist any more; its transaction is given up."""


@dataclass(slots=True)
class _Turn:
    """What is known of a running turn; every field repeats something durable."""

    task: Task
    request: InboxRow
    transcript: list[Element]
    begun_at: datetime
    """When this process began it or took it up."""
    steers: int = 0
    is_outdated: bool = False
    """Whether text in `transcript` was changed by others since it was read."""


class Turns:
    """Runs turns; one call of `run` is one turn, begun or gone on with."""

    def __init__(
        self,
        stores: Stores,
        clock: Clock,
        runtime: Runtime,
        tools: Sequence[Tool],
        *,
        rules: Rules,
        limiter: Limiter,
        senses: Senses,
        on_owed: Callable[[ConversationId], None],
    ) -> None:
        self._stores = stores
        self._clock = clock
        self._runtime = runtime
        self._tools = {tool.name: tool for tool in tools}
        self._rules = rules
        self._limiter = limiter
        self._senses = senses
        self._on_owed = on_owed
        self._cache: OrderedDict[SessionId, list[Element]] = OrderedDict()
        self._running: dict[SessionId, _Turn] = {}

    def forget(self, session_ids: Iterable[SessionId]) -> None:
        """Read these sessions anew before the next step: their text was changed."""
        for session_id in session_ids:
            self._cache.pop(session_id, None)
            if session_id in self._running:
                self._running[session_id].is_outdated = True

    async def run(self, work: Work) -> bool:
        """Answer one request to its end, whatever that is; False where nothing was done since the room is not served (ROOM-3).

        Raises:
            StopError: only the operator can mend it.
        """
        turn: _Turn | None = None
        try:
            turn = await self._begin(work)
            if turn is None:
                self._on_owed(work.conversation_id)  # it may have ended with a sentence
                return True
            await self._answer(turn, work)
        except _RoomDenied:
            return False
        except StaleTransition:
            _log.debug("the turn was ended elsewhere", request=work.event_id)
        except asyncio.CancelledError:
            # Who is cancelled while a turn is opened hears of it after the commit.
            turn = turn or next((one for one in self._running.values() if one.request.event_id == work.event_id), None)
            if turn is None or is_told_to_end():
                if turn is not None:
                    await self._suspend(turn)
                raise
            await self._fail(turn, RuntimeError("A part of the turn was cancelled by itself."))
        except StopError:
            raise
        except Exception as error:  # noqa: BLE001 - a turn is where every unforeseen error of a runtime ends (OUT-7)
            await (self._fail(turn, error) if turn is not None else self._give_up(work, error))
        finally:
            self._put_away(work, turn)
        return True

    def _put_away(self, work: Work, turn: _Turn | None) -> None:
        """Forget a turn that runs no more.

        By its request: an open that was rolled back after it ended well leaves one too, and another turn may have its session by now. That
        one hears of changes of the text, this one no more, so this one's is not kept.
        """
        own = [one for one, running in self._running.items() if running.request.event_id == work.event_id]
        for session_id in own:
            del self._running[session_id]
        if turn is not None and turn.task.session_id in own:
            self._remember(turn)

    async def _begin(self, work: Work) -> _Turn | None:
        """Open a queued request, or go on with one that was cut off; None where there is nothing left to do."""
        reference = None
        if work.reply_to is not None:
            reference = await self._find_reference(work, work.reply_to)
        return await self._keep(
            lambda: self._stores.database.transaction("turn.open", lambda connection: self._open(connection, work, reference))
        )

    def _open(self, connection: Connection, work: Work, reference: str | None) -> _Turn | None:
        if not self._senses.is_served(work.room_id):
            raise _RoomDenied
        now = self._clock.now()
        row = self._stores.inbox.claim(connection, work.event_id)
        if row is None:
            begun = self._stores.inbox.find(connection, work.event_id)
            return self._resume(connection, begun) if begun is not None and begun.state == "running" else None
        content = row.content
        if content is None:  # damaged: what was removed is not queued any more
            fail_request(self._stores, connection, row, _UNREADABLE, now)
            return None
        session_id = self._stores.sessions.use_active(connection, row.conversation_id, row.focus, now, idle_s=self._rules.idle_s)
        task = self._stores.tasks.open(connection, row, session_id, now)
        earlier = self._cache.get(session_id)
        if earlier is None:
            earlier = self._stores.sessions.read_last(connection, session_id, _SHOWN_ELEMENTS)
        request = replace(content, reference=reference, versions=())
        entry_id = self._stores.sessions.append(connection, session_id, task.id, request, now, event_id=row.event_id)
        self._stores.tags.add(connection, row.conversation_id, row.tags, session_id, entry_id, now)
        turn = _Turn(task=task, request=row, transcript=[*earlier, request], begun_at=now)
        # Known before the next transaction can change its text: `forget` must find it, however soon it is called.
        self._running[session_id] = turn
        return turn

    def _resume(self, connection: Connection, row: InboxRow) -> _Turn | None:
        """Take up a turn that was cut off; a tool that may have had its effect is named to the model (CORE-3)."""
        now = self._clock.now()
        found = [task for task in self._stores.tasks.find_open(connection, row.conversation_id, row.focus) if task.request == row.event_id]
        if not found:
            return None
        if found[0].state == "running" and found[0].attempts > self._rules.turn_retries:
            sentence = word_error(TurnFailed(_KEEPS_FAILING), task=found[0].id)
            fail_task(self._stores, connection, found[0], row, sentence, now)
            self._acknowledge(connection, row, "⚠️")
            return None
        transcript = self._stores.sessions.read_last(connection, found[0].session_id, _SHOWN_ELEMENTS)
        own = self._stores.sessions.read_task(connection, found[0].id)
        task = self._stores.tasks.move(connection, found[0], "running", now)
        self._stores.sessions.touch(connection, task.conversation_id, task.session_id, now)  # in use again, however long it was down
        turn = self._running[task.session_id] = _Turn(task=task, request=row, transcript=transcript, begun_at=now, steers=task.steers)
        open_calls = find_open_calls(own)
        if open_calls and not self._may_repeat(open_calls[0]):
            result = Result(call_id=open_calls[0].id, name=open_calls[0].name, text=_UNKNOWN, outcome="unknown")
            self._stores.sessions.append(connection, task.session_id, task.id, result, now)
            turn.transcript.append(result)
        return turn

    def _may_repeat(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is None or tool.is_idempotent

    async def _answer(self, turn: _Turn, work: Work) -> None:
        """Ask, write down, do; until the model says something without calling a tool."""
        while True:
            for call in find_open_calls(turn.transcript):
                await self._call(turn, call)
            while turn.is_outdated:  # text may be removed again while it is read anew
                turn.is_outdated = False
                turn.transcript, turn.steers = await self._stores.database.read(partial(self._read_anew, turn=turn))
            said = await self._runtime.prompt(
                Prompt(
                    conversation_id=turn.task.conversation_id,
                    room_id=work.room_id,
                    focus=turn.task.focus,
                    task_id=turn.task.id,
                    tags=turn.task.tags,
                    transcript=tuple(turn.transcript[-_SHOWN_ELEMENTS:]),
                    tools=tuple(self._tools.values()),
                )
            )
            if await self._take_step(turn, said):
                return

    def _read_anew(self, connection: Connection, turn: _Turn) -> tuple[list[Element], int]:
        """Return the transcript as it is now, and how many steers of this turn are in it."""
        sessions = self._stores.sessions
        steers = len(sessions.read_steers(connection, turn.task.id, 0))
        return sessions.read_last(connection, turn.task.session_id, _SHOWN_ELEMENTS), steers

    async def _take_step(self, turn: _Turn, said: Said) -> bool:
        """Write down what the model said; True where it ended the turn."""
        database = self._stores.database
        if said.calls:
            await self._keep(lambda: database.transaction("turn.step", lambda connection: self._append(connection, turn, said)))
            turn.transcript.append(said)
            return False
        steers = await self._keep(lambda: database.transaction("turn.end", lambda connection: self._end(connection, turn, said)))
        turn.transcript.append(said)
        turn.transcript.extend(steers)
        turn.steers += len(steers)
        if not steers:
            self._on_owed(turn.task.conversation_id)
        return not steers

    async def _call(self, turn: _Turn, call: ToolCall) -> None:
        """Run one tool and write down what it gave, and what was steered in meanwhile."""
        result = await self._run_tool(turn, call)

        def append(connection: Connection) -> list[Element]:
            self._append(connection, turn, result)
            return self._stores.sessions.read_steers(connection, turn.task.id, turn.steers)

        steers = await self._keep(lambda: self._stores.database.transaction("turn.result", append))
        turn.transcript.append(result)
        turn.transcript.extend(steers)
        turn.steers += len(steers)

    async def _run_tool(self, turn: _Turn, call: ToolCall) -> Result:
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(sorted(self._tools)) or "none"
            return Result(call_id=call.id, name=call.name, text=f"There is no tool {call.name!r}. Tools: {known}.", outcome="failed")
        try:
            return Result(call_id=call.id, name=call.name, text=await tool.run(call.id, call.arguments))
        except StopError:
            raise
        except Exception as error:  # noqa: BLE001 - what a tool throws is read by the model
            _log.warning("a tool failed", tool=call.name, task=turn.task.id, error=type(error).__name__)
            text = error.problem if isinstance(error, HayateError) else str(error)
            return Result(call_id=call.id, name=call.name, text=text or type(error).__name__, outcome="failed")

    def _append(self, connection: Connection, turn: _Turn, element: Element) -> None:
        """Add one step, if the turn is still this one's to run."""
        self._stores.tasks.check(connection, turn.task)
        self._stores.sessions.append(connection, turn.task.session_id, turn.task.id, element, self._clock.now())
        if isinstance(element, Said):
            self._limiter.note(connection, turn.task.conversation_id, turn.request.sender, element.usage, self._clock.now())

    def _end(self, connection: Connection, turn: _Turn, said: Said) -> list[Element]:
        """Write the last step and end the turn; where a person steered meanwhile, return that instead: the model has not seen it."""
        now = self._clock.now()
        if not self._stores.tasks.end(connection, turn.task, turn.steers, now):
            self._append(connection, turn, said)
            return self._stores.sessions.read_steers(connection, turn.task.id, turn.steers)
        self._stores.inbox.move(connection, turn.request, "done")
        if (now - turn.begun_at).total_seconds() > _LONG_S:  # it was in use until now, not when it was asked
            self._stores.sessions.touch(connection, turn.task.conversation_id, turn.task.session_id, now)
        self._stores.sessions.append(connection, turn.task.session_id, turn.task.id, said, now)
        self._limiter.note(connection, turn.task.conversation_id, turn.request.sender, said.usage, now)
        text = said.text.strip()
        owe_answer(self._stores, connection, turn.request, "reply" if text else "notice", text or _EMPTY, now, task_id=turn.task.id)
        self._acknowledge(connection, turn.request, "✅")
        return []

    async def _fail(self, turn: _Turn, error: Exception) -> None:
        """End the turn with one sentence for the room; the operator finds its cause by the id (OUT-7)."""
        sentence = word_error(error, task=turn.task.id)

        def end(connection: Connection) -> None:
            fail_task(self._stores, connection, turn.task, turn.request, sentence, self._clock.now())
            self._acknowledge(connection, turn.request, "⚠️")

        with contextlib.suppress(StaleTransition):
            await self._keep(lambda: self._stores.database.transaction("turn.fail", end))
        self._on_owed(turn.task.conversation_id)

    async def _give_up(self, work: Work, error: Exception) -> None:
        """End a request whose turn could not even be opened, so that it stops neither those behind it nor every later start."""
        sentence = word_error(error, request=work.event_id)

        def end(connection: Connection) -> None:
            now = self._clock.now()
            row = self._stores.inbox.find(connection, work.event_id)
            for task in self._stores.tasks.find_open(connection, work.conversation_id, work.focus):
                if task.request == work.event_id:
                    self._stores.tasks.move(connection, task, "failed", now)
            if row is not None and row.state in {"queued", "running"}:
                fail_request(self._stores, connection, row, sentence, now)
                self._stores.inbox.remove_text(connection, [row.event_id])  # no session holds it

        await self._keep(lambda: self._stores.database.transaction("turn.give_up", end))
        self._on_owed(work.conversation_id)

    def _acknowledge(self, connection: Connection, request: InboxRow, key: str) -> None:
        if self._rules.ack == "reaction":
            owe_answer(self._stores, connection, request, "reaction", key, self._clock.now())

    async def _suspend(self, turn: _Turn) -> None:
        """Mark the turn as put down in order, so that the next start does not count it as a crash."""
        try:
            await self._stores.database.transaction(
                "turn.suspend", lambda connection: self._stores.tasks.move(connection, turn.task, "suspended", self._clock.now())
            )
        except (StaleTransition, WaitError):
            _log.debug("the turn was not suspended", task=turn.task.id)  # it was stopped for good, or it counts as a crash

    async def _find_reference(self, work: Work, event_id: EventId) -> str | None:
        """Return the text of the message that was replied to: from our own rows, else from the room."""

        def look(connection: Connection) -> str | None:
            row = self._stores.inbox.find(connection, event_id)
            if row is not None and row.conversation_id == work.conversation_id and row.content is not None:
                return row.content.text
            return self._stores.outbox.find_sent_text(connection, work.conversation_id, event_id)

        found = await self._stores.database.read(look)
        return found if found is not None else await self._senses.find_reference(work.room_id, event_id)

    async def _keep(self, commit: Callable[[], Awaitable[T]]) -> T:
        return await keep(self._clock, commit)

    def _remember(self, turn: _Turn) -> None:
        """Keep the end of a session for its next turn; only of a turn whose every element is known to be stored."""
        session_id = turn.task.session_id
        last = turn.transcript[-1]
        if isinstance(last, Said) and not last.calls and not turn.is_outdated:
            self._cache[session_id] = turn.transcript[-_SHOWN_ELEMENTS:]
            self._cache.move_to_end(session_id)
            while len(self._cache) > _CACHED_SESSIONS:
                self._cache.popitem(last=False)
        else:
            self._cache.pop(session_id, None)
