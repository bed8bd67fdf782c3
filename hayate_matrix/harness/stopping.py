"""Ending a turn from outside: by a command, because its message was removed, or because the bot was sent out of the room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hayate_matrix.core.transcript import Note, Result, find_open_calls

if TYPE_CHECKING:
    from datetime import datetime

    from hayate_matrix.store.database import Connection
    from hayate_matrix.store.stores import Stores
    from hayate_matrix.store.tasks import Task


def stop_task(stores: Stores, connection: Connection, task: Task, why: str, now: datetime) -> None:
    """End `task` as stopped within the caller's transaction; what was said stays in the transcript (CORE-4).

    The turn that runs it finds its next step stale; the caller cancels it after the commit, so that it ends at once.
    """
    for call in find_open_calls(stores.sessions.read_task(connection, task.id)):
        result = Result(call_id=call.id, name=call.name, text="It was stopped before it gave a result.", outcome="stopped")
        stores.sessions.append(connection, task.session_id, task.id, result, now)
    stores.sessions.append(connection, task.session_id, task.id, Note(text=f"The answer ends here: {why}."), now)
    stores.tasks.move(connection, task, "stopped", now)
    request = stores.inbox.find(connection, task.request)
    if request is not None and request.state == "running":
        stores.inbox.move(connection, request, "stopped")
