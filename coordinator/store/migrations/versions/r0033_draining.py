"""Nodes that get no new seat, because their operator says so."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    """Add the column; nobody has drained a node before."""
    op.add_column("nodes", sa.Column("draining", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("nodes", "draining")
