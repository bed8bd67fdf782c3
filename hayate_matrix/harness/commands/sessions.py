"""`/new`, `/name`, `/resume` and `/close`: which session a focus works in (SES-2).

How: each works within the transaction of its command. Ids are looked for in the conversation of the command alone, so that one of another
     conversation is not found, in the same words as one that never was.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hayate_matrix.harness.commands.answers import Answer, cut, fold, refuse
from hayate_matrix.store.sessions import TITLE_CHARACTERS

if TYPE_CHECKING:
    from datetime import datetime

    from hayate_matrix.core.commands import Command
    from hayate_matrix.store.database import Connection
    from hayate_matrix.store.inbox import InboxRow
    from hayate_matrix.store.sessions import Session
    from hayate_matrix.store.stores import Stores

_ID = re.compile(r"[0-9a-f-]{4,36}")
"""At least four characters of a UUID: fewer would be unique by chance alone."""


class SessionCommands:
    """Changes which session is active."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._sessions = stores.sessions

    def run(self, connection: Connection, row: InboxRow, command: Command, now: datetime) -> Answer:
        """Do one of the four commands and return its answer."""
        match command.name:
            case "new":
                return self._open(connection, row, fold(command.arguments), now)
            case "name":
                return self._rename(connection, row, fold(command.arguments))
            case "resume":
                return self._resume(connection, row, command.arguments.lower(), now)
            case _:
                return self._close(connection, row)

    def _open(self, connection: Connection, row: InboxRow, name: str, now: datetime) -> Answer:
        if len(name) > TITLE_CHARACTERS:
            return refuse("new", _word_length(name))
        session_id = self._sessions.open_new(connection, row.conversation_id, row.focus, now, name=name or None)
        return Answer(f"A fresh session{f': {name}' if name else ''} · {session_id}", is_listing=True)

    def _rename(self, connection: Connection, row: InboxRow, name: str) -> Answer:
        if not name:
            return refuse("name", "`!name` needs a name.")
        if len(name) > TITLE_CHARACTERS:
            return refuse("name", _word_length(name))
        session = self._sessions.find_active(connection, row.conversation_id, row.focus)
        if session is None:
            return Answer("No session is active here that could be named. `!new NAME` begins one.")
        self._sessions.rename(connection, session.id, name)
        return Answer(f"This session is called: {name}", is_listing=True)

    def _resume(self, connection: Connection, row: InboxRow, part: str, now: datetime) -> Answer:
        if not _ID.fullmatch(part):
            return refuse(
                "resume",
                "`!resume` needs the id of a session, or at least four characters of its beginning or its end; `!sessions` lists them.",
            )
        found = self._sessions.find(connection, row.conversation_id, part)
        kept = [session for session in found if session.state != "removed"]
        if len(kept) > 1:
            return refuse("resume", f"Several sessions begin or end with `{part}`: give more of the id; their ends differ sooner.")
        if not found:
            return Answer(f"No session `{part}` was found here. `!sessions` lists those of this room.")
        if not kept:
            return Answer(f"The session `{found[0].id}` is unavailable: session removed.")
        session = kept[0]
        if session.state == "active" and session.focus != row.focus and self._is_at_work(connection, session):
            return Answer("That session is at work in another thread. Wait for its answer, or `!stop` it there.")
        self._sessions.activate(connection, session, row.focus, now)
        title = cut(self._sessions.find_title(connection, session))
        return Answer(f"Resumed{f': {title}' if title else ''} · {session.id}", is_listing=True)

    def _close(self, connection: Connection, row: InboxRow) -> Answer:
        session = self._sessions.find_active(connection, row.conversation_id, row.focus)
        if session is None:
            return Answer("No session is active here.")
        self._sessions.move(connection, session, "closed")
        return Answer("Closed. The next message begins a fresh session.")

    def _is_at_work(self, connection: Connection, session: Session) -> bool:
        return any(task.session_id == session.id for task in self._stores.tasks.find_open(connection, session.conversation_id))


def _word_length(name: str) -> str:
    return f"A name has at most {TITLE_CHARACTERS} characters; this one has {len(name)}."
