"""Where the learning rate's schedule stood in a round of fixed time."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_TABLES = ("audits", "rounds")


def upgrade() -> None:
    """Add the column; rounds of before had a fixed number of steps and need none."""
    for table in _TABLES:
        op.add_column(table, sa.Column("rate_step", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Forget it."""
    for table in _TABLES:
        op.drop_column(table, "rate_step")
