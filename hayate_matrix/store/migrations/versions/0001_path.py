"""The first schema: the durable path from a fact to a delivery."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table("meta", sa.Column("name", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False))
