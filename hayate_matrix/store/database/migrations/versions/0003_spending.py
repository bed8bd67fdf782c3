"""Limits: what people and rooms have used, and who was told that there is no more."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "spending",
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("hour", sa.BigInteger, primary_key=True),
        sa.Column("requests", sa.Integer, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_micros", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("spending_hour", "spending", ["hour"])
    op.create_table(
        "refusals",
        sa.Column("hour", sa.BigInteger, primary_key=True),
        sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id"), primary_key=True),
        sa.Column("sender", sa.Text, primary_key=True),
        sa.Column("limit_name", sa.Text, primary_key=True),
        sqlite_with_rowid=False,
    )
