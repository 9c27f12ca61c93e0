"""Audits without what was never used of them: who asks in another's place, and whether a prover is excused."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    """Drop the columns: no audit has ever had anything but their defaults."""
    for column in ("excused", "asker"):
        op.drop_column("audits", column)


def downgrade() -> None:
    """Add them again, with those."""
    op.add_column("audits", sa.Column("asker", sa.String(length=64), nullable=True))
    op.add_column("audits", sa.Column("excused", sa.Boolean(), nullable=False, server_default=sa.false()))
