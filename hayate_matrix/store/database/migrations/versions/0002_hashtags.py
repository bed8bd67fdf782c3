"""Hashtags and named sessions: the index, the tags of requests, tasks and deliveries, and how sessions are ordered."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the index and the columns; what is there is untagged."""
    for table in ("inbox", "tasks", "outbox"):
        op.add_column(table, sa.Column("tags", sa.Text, nullable=False, server_default=""))
    is_reply = sa.text("reply_to IS NOT NULL")
    op.create_index("inbox_reply", "inbox", ["reply_to"], sqlite_where=is_reply, postgresql_where=is_reply)
    op.add_column("tasks", sa.Column("steers", sa.Integer, nullable=False, server_default="0"))
    op.execute(
        "UPDATE tasks SET steers = (SELECT count(*) FROM entries WHERE entries.task_id = tasks.id AND entries.kind = 'steer')"
        " WHERE state IN ('running', 'suspended')"
    )
    op.create_index("tasks_session", "tasks", ["session_id"])
    op.add_column("outbox", sa.Column("links", sa.Text))
    op.create_index("outbox_task", "outbox", ["task_id"])
    is_uncertain = sa.text("state IN ('uncertain')")
    op.create_index("outbox_uncertain", "outbox", ["conversation_id"], sqlite_where=is_uncertain, postgresql_where=is_uncertain)
    op.add_column("sessions", sa.Column("touched", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("sessions", sa.Column("name", sa.LargeBinary))
    # A session's last entry tells when it was used, in an order of our own.
    op.execute("UPDATE sessions SET touched = coalesce((SELECT max(seq) FROM entries WHERE entries.session_id = sessions.id), 0)")
    op.create_index("sessions_touched", "sessions", ["conversation_id", "touched"])
    op.create_index("sessions_used", "sessions", ["state", "used_at_ms"])
    is_request = sa.text("kind = 'request'")
    op.create_index("entries_requests", "entries", ["session_id", "kind", "seq"], sqlite_where=is_request, postgresql_where=is_request)
    op.create_table(
        "tags",
        sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id"), primary_key=True),
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("ordinal", sa.BigInteger, primary_key=True),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("entry_id", sa.Text, nullable=False),
        sa.Column("indexed_at_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("tags_entry", "tags", ["entry_id", "tag"], unique=True)
