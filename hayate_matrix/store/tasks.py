"""Tasks: the record of working on a request, from its first turn to its end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hayate_matrix.core.ids import ConversationId, EventId, Focus, SessionId, TaskId, make_uuid7
from hayate_matrix.errors import StaleTransition
from hayate_matrix.store.schema import IS_OPEN, move, tasks

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection, Row

    from hayate_matrix.core.turns import TaskState
    from hayate_matrix.store.inbox import InboxRow

_OPEN = sa.insert(tasks)
_LIST_OPEN = sa.select(tasks).where(IS_OPEN)
_LIST_OPEN_OF = _LIST_OPEN.where(tasks.c.conversation_id == sa.bindparam("conversation_id"))
_NOTE_STEER = sa.update(tasks).where(tasks.c.id == sa.bindparam("_id")).values(steers=tasks.c.steers + 1)
_END = (
    sa.update(tasks)
    .where(
        tasks.c.id == sa.bindparam("_id"),
        tasks.c.state == "running",
        tasks.c.epoch == sa.bindparam("_epoch"),
        tasks.c.steers == sa.bindparam("_steers"),
    )
    .values(state="done", epoch=tasks.c.epoch + 1, ended_at_ms=sa.bindparam("now_ms"))
)
_CHECK = (
    sa.select(tasks.c.id)
    .where(tasks.c.id == sa.bindparam("id"), tasks.c.state == sa.bindparam("state"), tasks.c.epoch == sa.bindparam("epoch"))
    .with_for_update()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task, with the state and epoch that it was read with."""

    id: TaskId
    conversation_id: ConversationId
    focus: Focus
    session_id: SessionId
    request: EventId
    state: TaskState
    epoch: int
    attempts: int
    """How often it was begun; more than once after crashes."""
    tags: tuple[str, ...] = ()
    """Those of the request, in reading order (SRC-3)."""
    steers: int = 0
    """How often people steered it, up to when it was read."""


class Tasks:
    """Reads and writes tasks within the caller's transaction."""

    def open(self, connection: Connection, request: InboxRow, session_id: SessionId, now: datetime) -> Task:
        """Add a running task for `request`, which works in a session."""
        task = Task(
            id=TaskId(make_uuid7(now)),
            conversation_id=request.conversation_id,
            focus=request.focus,
            session_id=session_id,
            request=request.event_id,
            state="running",
            epoch=0,
            attempts=1,
            tags=request.tags,
        )
        connection.execute(
            _OPEN,
            {
                "id": task.id,
                "conversation_id": task.conversation_id,
                "focus": task.focus,
                "session_id": session_id,
                "request_event_id": task.request,
                "state": task.state,
                "epoch": task.epoch,
                "attempts": task.attempts,
                "made_at_ms": int(now.timestamp() * 1000),
                "tags": " ".join(task.tags),
                "steers": 0,
            },
        )
        return task

    def list_open(self, connection: Connection) -> list[Task]:
        """Return all tasks that have not ended."""
        return [_read(row) for row in connection.execute(_LIST_OPEN)]

    def find_open(self, connection: Connection, conversation_id: ConversationId, focus: Focus | None = None) -> list[Task]:
        """Return the tasks of a conversation, or of one focus of it, that have not ended."""
        found = [_read(row) for row in connection.execute(_LIST_OPEN_OF, {"conversation_id": conversation_id})]
        return [task for task in found if focus is None or task.focus == focus]

    def check(self, connection: Connection, task: Task) -> None:
        """Make sure, until the end of the transaction, that `task` is still in the state and epoch that it was read with.

        Raises:
            StaleTransition: somebody else moved it; the transaction should be given up.
        """
        if connection.execute(_CHECK, {"id": task.id, "state": task.state, "epoch": task.epoch}).first() is None:
            problem = f"The task {task.id} is no longer {task.state} with the epoch {task.epoch}."
            raise StaleTransition(problem)

    def note_steer(self, connection: Connection, task: Task) -> None:
        """Remember that a person steered `task`, so that it can't end before it was seen."""
        connection.execute(_NOTE_STEER, {"_id": task.id})

    def end(self, connection: Connection, task: Task, steers: int, now: datetime) -> bool:
        """Bring `task` to `done` if it was steered `steers` times and no more; False where somebody steered it since.

        Raises:
            StaleTransition: somebody else moved it.
        """
        changed = connection.execute(
            _END, {"_id": task.id, "_epoch": task.epoch, "_steers": steers, "now_ms": int(now.timestamp() * 1000)}
        ).rowcount
        if changed != 1:
            self.check(connection, task)
        return changed == 1

    def move(self, connection: Connection, task: Task, to: TaskState, now: datetime) -> Task:
        """Bring `task` to the state `to` and return it so; StaleTransition where somebody else moved it."""
        attempts = task.attempts + 1 if (task.state, to) == ("running", "running") else task.attempts
        ended = None if to in {"running", "suspended"} else int(now.timestamp() * 1000)
        epoch = move(connection, tasks, task.id, state=task.state, epoch=task.epoch, to=to, attempts=attempts, ended_at_ms=ended)
        return replace(task, state=to, epoch=epoch, attempts=attempts)


def _read(row: Row[*tuple[Any, ...]]) -> Task:
    return Task(
        id=row.id,
        conversation_id=row.conversation_id,
        focus=row.focus,
        session_id=row.session_id,
        request=row.request_event_id,
        state=row.state,
        epoch=row.epoch,
        attempts=row.attempts,
        tags=tuple(row.tags.split()),
        steers=row.steers,
    )
