"""How a turn ends when it does not end by itself: stopped from outside, or failed.

Promise: whoever waits for an answer learns that none comes, in one sentence, once (OUT-7); the transcript has no call without a result.
How: each function works within the caller's transaction, so that the end and its sentence are one commit.
"""

from __future__ import annotations

import asyncio
import secrets
import traceback
from typing import TYPE_CHECKING

from hayate_matrix.core.ids import EventId
from hayate_matrix.core.transcript import Note, Result, find_open_calls
from hayate_matrix.errors import TurnFailed
from hayate_matrix.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from hayate_matrix.core.deliveries import DeliveryKind
    from hayate_matrix.core.ids import SessionId, TaskId
    from hayate_matrix.store.database import Connection
    from hayate_matrix.store.inbox import InboxRow
    from hayate_matrix.store.stores import Stores
    from hayate_matrix.store.tasks import Task

_log = get_logger(__name__)

_BROKEN = "Something went wrong while I worked on this."


def stop_task(stores: Stores, connection: Connection, task: Task, why: str, now: datetime) -> None:
    """End `task` as stopped; what was said stays in the transcript (CORE-4).

    The turn that runs it finds its next step stale; the caller cancels it after the commit, so that it ends at once.
    """
    _close_transcript(stores, connection, task, why, now)
    stores.tasks.move(connection, task, "stopped", now)
    request = stores.inbox.find(connection, task.request)
    if request is not None and request.state == "running":
        stores.inbox.move(connection, request, "stopped")


def stop_tasks(
    stores: Stores,
    connection: Connection,
    found: Iterable[Task],
    why: str,
    now: datetime,
    *,
    stopped: list[EventId],
    changed: set[SessionId],
) -> None:
    """End the tasks `found`; their requests are added to `stopped` and their sessions to `changed`, to be handed on after the commit."""
    for task in found:
        stop_task(stores, connection, task, why, now)
        stopped.append(task.request)
        changed.add(task.session_id)


def fail_task(stores: Stores, connection: Connection, task: Task, request: InboxRow, sentence: str, now: datetime) -> None:
    """End `task` as failed, with a sentence for the room."""
    _close_transcript(stores, connection, task, "it failed", now)
    stores.tasks.move(connection, task, "failed", now)
    fail_request(stores, connection, request, sentence, now, task_id=task.id)


def fail_request(
    stores: Stores, connection: Connection, request: InboxRow, sentence: str, now: datetime, *, task_id: TaskId | None = None
) -> None:
    """End a request or command as failed, with a sentence for the room."""
    stores.inbox.move(connection, request, "failed")
    owe_answer(stores, connection, request, "notice", sentence, now, task_id=task_id)


def owe_answer(
    stores: Stores,
    connection: Connection,
    request: InboxRow,
    kind: DeliveryKind,
    text: str,
    now: datetime,
    *,
    task_id: TaskId | None = None,
    links: Sequence[tuple[str, EventId]] | None = None,
) -> None:
    """Owe the room an answer to `request`: where it was asked, to whoever asked, with the tags of what was asked."""
    stores.outbox.add(
        connection,
        request.conversation_id,
        kind,
        text,
        now,
        task_id=task_id,
        request=request.answers,
        thread=EventId(request.focus) if request.focus else None,
        mention=None if kind == "reaction" else request.sender,
        tags=() if kind == "reaction" else request.tags,
        links=links,
    )


def is_told_to_end() -> bool:
    """Tell, of a CancelledError, whether this task was told to end; if not, what it waited for was, which is an error like another."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def word_error(error: Exception, **values: str) -> str:
    """Log `error` with an id and return the sentence for the room, which holds the id and nothing that only the operator should read."""
    error_id = secrets.token_hex(4)
    if isinstance(error, TurnFailed):
        _log.warning("a turn failed", error_id=error_id, **values)
        return f"{error.problem.rstrip()} (error {error_id})"
    # The error's own text may hold what people wrote; where it happened does not.
    place = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__)[-6:]))
    _log.error("a turn failed", error_id=error_id, error=type(error).__name__, place=place, **values)
    return f"{_BROKEN} (error {error_id})"


def _close_transcript(stores: Stores, connection: Connection, task: Task, why: str, now: datetime) -> None:
    for call in find_open_calls(stores.sessions.read_task(connection, task.id)):
        result = Result(call_id=call.id, name=call.name, text="It ended before it gave a result.", outcome="stopped")
        stores.sessions.append(connection, task.session_id, task.id, result, now)
    stores.sessions.append(connection, task.session_id, task.id, Note(text=f"The answer ends here: {why}."), now)
    stores.sessions.touch(connection, task.conversation_id, task.session_id, now)  # it was in use until now, however long the turn took
