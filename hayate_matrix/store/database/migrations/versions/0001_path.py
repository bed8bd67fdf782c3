"""The first schema: the durable path from a fact to a delivery."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_Seq = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_HAS_WORK = sa.text("state IN ('queued', 'running')")
_HAS_TARGET = sa.text("target IS NOT NULL")
_IS_ACTIVE = sa.text("state = 'active'")
_IS_OPEN = sa.text("state IN ('running', 'suspended')")
_HAS_EVENT = sa.text("event_id IS NOT NULL")
_IS_OWED = sa.text("state IN ('pending', 'held')")


def upgrade() -> None:
    """Make the tables."""
    op.create_table("meta", sa.Column("name", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False))
    op.create_table(
        "conversations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("room_id", sa.Text, nullable=False, unique=True),
        sa.Column("made_at_ms", sa.BigInteger, nullable=False),
        sa.Column("is_present", sa.Boolean, nullable=False),
        sa.Column("is_paused", sa.Boolean, nullable=False),
        sa.Column("answered_at_ms", sa.BigInteger),
        sa.Column("streak", sa.Integer, nullable=False),
        sa.Column("streak_sender", sa.Text),
    )
    op.create_table(
        "inbox",
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
        sqlite_autoincrement=True,
    )
    op.create_index("inbox_open", "inbox", ["conversation_id", "seq"], sqlite_where=_HAS_WORK, postgresql_where=_HAS_WORK)
    op.create_index("inbox_target", "inbox", ["target"], sqlite_where=_HAS_TARGET, postgresql_where=_HAS_TARGET)
    op.create_index("inbox_focus", "inbox", ["conversation_id", "focus", "kind"])
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id"), nullable=False),
        sa.Column("focus", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("made_at_ms", sa.BigInteger, nullable=False),
        sa.Column("used_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_index(
        "sessions_active", "sessions", ["conversation_id", "focus"], unique=True, sqlite_where=_IS_ACTIVE, postgresql_where=_IS_ACTIVE
    )
    op.create_table(
        "tasks",
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
    )
    op.create_index("tasks_open", "tasks", ["conversation_id", "focus"], unique=True, sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN)
    op.create_table(
        "entries",
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
    op.create_index("entries_session", "entries", ["session_id", "seq"])
    op.create_index("entries_task", "entries", ["task_id", "kind"])
    op.create_index("entries_event", "entries", ["event_id"], sqlite_where=_HAS_EVENT, postgresql_where=_HAS_EVENT)
    op.create_table(
        "outbox",
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
        sqlite_autoincrement=True,
    )
    op.create_index("outbox_owed", "outbox", ["conversation_id", "seq"], sqlite_where=_IS_OWED, postgresql_where=_IS_OWED)
    op.create_table(
        "sent_events",
        sa.Column("event_id", sa.Text, primary_key=True),
        sa.Column("delivery_id", sa.Text, sa.ForeignKey("outbox.id"), nullable=False),
        sa.Column("part", sa.Integer, nullable=False),
    )
    op.create_index("sent_events_delivery", "sent_events", ["delivery_id", "part"])
