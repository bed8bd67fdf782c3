"""In which order things were committed, written down by triggers of the database itself, and told again step by step.

How: the journal's rows are part of the transactions that they tell of, so one that was given up left none.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hayate_matrix.store.sealing import Sealer

_MAKE = """
CREATE TABLE journal (n INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT NOT NULL, event_id TEXT NOT NULL);
CREATE TRIGGER journal_accept AFTER INSERT ON inbox WHEN new.state = 'queued'
BEGIN INSERT INTO journal (what, event_id) VALUES ('queued', new.event_id); END;
CREATE TRIGGER journal_move AFTER UPDATE OF state ON inbox WHEN new.state <> old.state
BEGIN INSERT INTO journal (what, event_id) VALUES (new.state, new.event_id); END;
CREATE TRIGGER journal_edit AFTER UPDATE OF content ON inbox WHEN new.content IS NOT NULL
BEGIN INSERT INTO journal (what, event_id) VALUES ('edited', new.event_id); END;
CREATE TRIGGER journal_redact AFTER UPDATE OF content ON inbox WHEN new.content IS NULL AND old.content IS NOT NULL
BEGIN INSERT INTO journal (what, event_id) VALUES ('redacted', new.event_id); END;
"""
_STEPS = """
SELECT journal.n, journal.what, inbox.event_id, inbox.kind, inbox.focus, conversations.room_id, tasks.session_id,
    tasks.made_at_ms AS opened_at_ms, tasks.ended_at_ms,
    (SELECT max(made_at_ms) FROM outbox WHERE request_event_id = inbox.event_id) AS answered_at_ms
FROM journal JOIN inbox USING (event_id) JOIN conversations ON conversations.id = inbox.conversation_id
LEFT JOIN tasks ON tasks.request_event_id = inbox.event_id ORDER BY journal.n
"""
_INDEX = """
SELECT conversations.room_id, tags.tag, tags.ordinal, entries.event_id, entries.kind, entries.session_id = tags.session_id AS is_whole
FROM tags JOIN conversations ON conversations.id = tags.conversation_id LEFT JOIN entries ON entries.id = tags.entry_id
ORDER BY tags.conversation_id, tags.tag, tags.ordinal
"""
_ACTIVE = """
SELECT conversations.room_id, sessions.focus, sessions.id FROM sessions
JOIN conversations ON conversations.id = sessions.conversation_id WHERE sessions.state = 'active'
"""
_SESSIONS = """
SELECT conversations.room_id, sessions.id, sessions.name FROM sessions JOIN conversations ON conversations.id = sessions.conversation_id
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened to a request or a command."""

    n: int
    what: str
    """`queued`, `edited` (while it was queued), `redacted`, or the state that it went to."""
    event_id: str
    kind: str
    focus: str
    room_id: str
    session_id: str | None
    """Of a request the session that it was taken up in, whenever that was."""
    opened_at_ms: int | None
    ended_at_ms: int | None
    answered_at_ms: int | None
    """Of a command when its answer was written."""


def make_journal(path: Path) -> None:
    """Let the database at `path` write a journal from now on."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_MAKE)


class Stored:
    """What a database at rest holds, read without the store."""

    def __init__(self, path: Path, sealer: Sealer) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.row_factory = sqlite3.Row
            self.steps = [Step(**row) for row in connection.execute(_STEPS)]
            self.index = [dict(row) for row in connection.execute(_INDEX)]
            self.active = [(row["room_id"], row["focus"], row["id"]) for row in connection.execute(_ACTIVE)]
            rows = connection.execute(_SESSIONS).fetchall()
            self.rooms: dict[str, str] = {row["id"]: row["room_id"] for row in rows}
            """The room of each session."""
            self.names = {row["id"]: sealer.try_open("sessions.name", row["id"], row["name"]) if row["name"] else None for row in rows}
            rows = connection.execute("SELECT id, text FROM outbox WHERE kind = 'reply'").fetchall()
            self.replies = [sealer.try_open("outbox.text", row["id"], row["text"]) or "" for row in rows]


def list_sessions(path: Path) -> list[str]:
    """Return the ids of all sessions, in the order in which they were made."""
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM sessions ORDER BY rowid")]
