"""Whose word a held-out loss is."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Add the columns; of losses that were measured before, nothing is known."""
    for table in ("jobs", "rounds"):
        op.add_column(table, sa.Column("agreement", sa.Text(), nullable=False, server_default="null"))


def downgrade() -> None:
    """Forget it."""
    for table in ("rounds", "jobs"):
        op.drop_column(table, "agreement")
