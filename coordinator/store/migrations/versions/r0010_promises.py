"""Shares that were made claimable from the ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the column; nothing was promised before."""
    op.add_column("commits", sa.Column("promised", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Forget it; payouts are cumulative, so what was claimed is not paid again."""
    op.drop_column("commits", "promised")
