"""How a model tells held-out pairs of answers apart."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    """Add the columns; of what was measured before, only the loss is known."""
    for table in ("jobs", "rounds"):
        op.add_column(table, sa.Column("preference", sa.Text(), nullable=False, server_default="null"))


def downgrade() -> None:
    """Forget it."""
    for table in ("rounds", "jobs"):
        op.drop_column(table, "preference")
