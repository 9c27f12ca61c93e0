"""What each machine offered and was paid, day by day."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    """Add the table; nobody had counted before."""
    op.create_table(
        "machine_days",
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("seconds", sa.Integer, nullable=False),
        sa.Column("gigaflop", sa.BigInteger, nullable=False),
        sa.Column("earned", sa.BigInteger, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("node", "day"),
    )
    op.create_index("machine_days_by_day", "machine_days", ["day"])


def downgrade() -> None:
    """Forget them: forecasts begin anew."""
    op.drop_table("machine_days")
