"""The tables of the harness and the one way in which a row changes its state.

Sealed columns are LargeBinary and hold what `sealing` made; ids, times, states and counts stay readable. Times are milliseconds since the
epoch, UTC.
Order is by `seq`, numbers of our own, never by times or ids (IN-11). The store's statements are built once, with parameters: building one
takes four times as long as running it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hayate_matrix.core.turns import is_legal
from hayate_matrix.errors import StaleTransition

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table


def _is_one_of(column: sa.Column[str], *words: str) -> sa.ColumnElement[bool]:
    """Return a condition with the words in its text: a database uses an index of some rows only where it can read that these are they."""
    return column.in_([sa.literal_column(f"'{word}'") for word in words])


metadata = sa.MetaData()
_Seq = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite numbers rows by itself only where the column is exactly INTEGER."""

meta = sa.Table("meta", metadata, sa.Column("name", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False))
KEY_ID = "sealing.key"
"""Name of the row of `meta` that tells the key which the texts are sealed with."""
READ_KEY_ID = sa.select(meta.c.value).where(meta.c.name == KEY_ID)

conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("room_id", sa.Text, nullable=False, unique=True),
    sa.Column("made_at_ms", sa.BigInteger, nullable=False),
    sa.Column("is_present", sa.Boolean, nullable=False),
    sa.Column("is_paused", sa.Boolean, nullable=False),
    sa.Column("answered_at_ms", sa.BigInteger),
    sa.Column("streak", sa.Integer, nullable=False),
    sa.Column("streak_sender", sa.Text),
)

inbox = sa.Table(
    "inbox",
    metadata,
    sa.Column("seq", _Seq, primary_key=True, autoincrement=True),
    sa.Column("event_id", sa.Text, nullable=False, unique=True),
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("focus", sa.Text, nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    sa.Column("answers", sa.Text, nullable=False),
    sa.Column("target", sa.Text),
    sa.Column("reply_to", sa.Text),
    sa.Column("sent_at_ms", sa.BigInteger, nullable=False),
    sa.Column("received_at_ms", sa.BigInteger, nullable=False),
    sa.Column("content", sa.LargeBinary),
    sa.Column("tags", sa.Text, nullable=False, server_default=""),
    sqlite_autoincrement=True,
)
HAS_WORK = _is_one_of(inbox.c.state, "queued", "running")
sa.Index("inbox_open", inbox.c.conversation_id, inbox.c.seq, sqlite_where=HAS_WORK, postgresql_where=HAS_WORK)
sa.Index("inbox_target", inbox.c.target, sqlite_where=inbox.c.target.is_not(None), postgresql_where=inbox.c.target.is_not(None))
sa.Index("inbox_reply", inbox.c.reply_to, sqlite_where=inbox.c.reply_to.is_not(None), postgresql_where=inbox.c.reply_to.is_not(None))
sa.Index("inbox_focus", inbox.c.conversation_id, inbox.c.focus, inbox.c.kind)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id"), nullable=False),
    sa.Column("focus", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("made_at_ms", sa.BigInteger, nullable=False),
    sa.Column("used_at_ms", sa.BigInteger, nullable=False),
    sa.Column("touched", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("name", sa.LargeBinary),
)
sa.Index("sessions_touched", sessions.c.conversation_id, sessions.c.touched)
sa.Index("sessions_used", sessions.c.state, sessions.c.used_at_ms)
IS_ACTIVE = sessions.c.state == sa.literal_column("'active'")
HAS_TEXT = _is_one_of(sessions.c.state, "active", "closed")
sa.Index(
    "sessions_active",
    sessions.c.conversation_id,
    sessions.c.focus,
    unique=True,
    sqlite_where=IS_ACTIVE,
    postgresql_where=IS_ACTIVE,
)

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id"), nullable=False),
    sa.Column("focus", sa.Text, nullable=False),
    sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), nullable=False),
    sa.Column("request_event_id", sa.Text, sa.ForeignKey("inbox.event_id"), nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("made_at_ms", sa.BigInteger, nullable=False),
    sa.Column("ended_at_ms", sa.BigInteger),
    sa.Column("tags", sa.Text, nullable=False, server_default=""),
    sa.Column("steers", sa.Integer, nullable=False, server_default="0"),
)
sa.Index("tasks_session", tasks.c.session_id)
IS_OPEN = _is_one_of(tasks.c.state, "running", "suspended")
sa.Index("tasks_open", tasks.c.conversation_id, tasks.c.focus, unique=True, sqlite_where=IS_OPEN, postgresql_where=IS_OPEN)

entries = sa.Table(
    "entries",
    metadata,
    sa.Column("seq", _Seq, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), nullable=False),
    sa.Column("task_id", sa.Text, sa.ForeignKey("tasks.id"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("event_id", sa.Text),
    sa.Column("made_at_ms", sa.BigInteger, nullable=False),
    sa.Column("content", sa.LargeBinary),
    sqlite_autoincrement=True,
)
sa.Index("entries_session", entries.c.session_id, entries.c.seq)
IS_REQUEST = entries.c.kind == sa.literal_column("'request'")
# With the kind, although it is the same in each row: SQLite looks at it again, and would read the entry for it.
sa.Index("entries_requests", entries.c.session_id, entries.c.kind, entries.c.seq, sqlite_where=IS_REQUEST, postgresql_where=IS_REQUEST)
sa.Index("entries_task", entries.c.task_id, entries.c.kind)
sa.Index(
    "entries_event", entries.c.event_id, sqlite_where=entries.c.event_id.is_not(None), postgresql_where=entries.c.event_id.is_not(None)
)

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("seq", _Seq, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id"), nullable=False),
    sa.Column("task_id", sa.Text, sa.ForeignKey("tasks.id")),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("request_event_id", sa.Text),
    sa.Column("thread", sa.Text),
    sa.Column("mention", sa.Text),
    sa.Column("made_at_ms", sa.BigInteger, nullable=False),
    sa.Column("settled_at_ms", sa.BigInteger),
    sa.Column("reason", sa.Text),
    sa.Column("text", sa.LargeBinary, nullable=False),
    sa.Column("tags", sa.Text, nullable=False, server_default=""),
    sa.Column("links", sa.Text),
    sqlite_autoincrement=True,
)
sa.Index("outbox_task", outbox.c.task_id)
IS_OWED = _is_one_of(outbox.c.state, "pending", "held")
sa.Index("outbox_owed", outbox.c.conversation_id, outbox.c.seq, sqlite_where=IS_OWED, postgresql_where=IS_OWED)
IS_UNCERTAIN = _is_one_of(outbox.c.state, "uncertain")
sa.Index("outbox_uncertain", outbox.c.conversation_id, sqlite_where=IS_UNCERTAIN, postgresql_where=IS_UNCERTAIN)

sent_events = sa.Table(
    "sent_events",
    metadata,
    sa.Column("event_id", sa.Text, primary_key=True),
    sa.Column("delivery_id", sa.Text, sa.ForeignKey("outbox.id"), nullable=False),
    sa.Column("part", sa.Integer, nullable=False),
)
sa.Index("sent_events_delivery", sent_events.c.delivery_id, sent_events.c.part)

tags = sa.Table(
    "tags",
    metadata,
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id"), primary_key=True),
    sa.Column("tag", sa.Text, primary_key=True),
    sa.Column("ordinal", sa.BigInteger, primary_key=True),
    sa.Column("session_id", sa.Text, nullable=False),
    sa.Column("entry_id", sa.Text, nullable=False),
    sa.Column("indexed_at_ms", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("tags_entry", tags.c.entry_id, tags.c.tag, unique=True)

spending = sa.Table(
    "spending",
    metadata,
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("hour", sa.BigInteger, primary_key=True),
    sa.Column("requests", sa.Integer, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("cost_micros", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("spending_hour", spending.c.hour)

refusals = sa.Table(
    "refusals",
    metadata,
    sa.Column("hour", sa.BigInteger, primary_key=True),
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id"), primary_key=True),
    sa.Column("sender", sa.Text, primary_key=True),
    sa.Column("limit_name", sa.Text, primary_key=True),
    sqlite_with_rowid=False,
)


@functools.cache
def _make_move(table: Table, names: tuple[str, ...]) -> sa.Update:
    """Build the statement of a move once: building it takes longer than running it."""
    column = table.c.event_id if table.name == "inbox" else table.c.id
    values = {name: sa.bindparam(f"_{name}", type_=table.c[name].type) for name in names}
    return (
        sa.update(table)
        .where(column == sa.bindparam("_key"), table.c.state == sa.bindparam("_state"), table.c.epoch == sa.bindparam("_epoch"))
        .values(state=sa.bindparam("to"), epoch=table.c.epoch + 1, **values)
    )


def move(connection: Connection, table: Table, key: str, *, state: str, epoch: int, to: str, **values: Any) -> int:  # noqa: ANN401 - column values
    """Bring the row `key` from `state` and `epoch` to the state `to` and return its new epoch.

    Raises:
        StaleTransition: the move is not legal, or the row is elsewhere by now; nothing was changed, the transaction should be given up.
    """
    if not is_legal(table.name, state, to):
        problem = f"A row of {table.name} can't go from {state} to {to}."
        raise StaleTransition(problem)
    parameters = {"_key": key, "_state": state, "_epoch": epoch, "to": to, **{f"_{name}": value for name, value in values.items()}}
    result = connection.execute(_make_move(table, tuple(values)), parameters)
    if result.rowcount != 1:
        problem = f"The row {key} of {table.name} is no longer {state} with the epoch {epoch}."
        raise StaleTransition(problem)
    return epoch + 1
