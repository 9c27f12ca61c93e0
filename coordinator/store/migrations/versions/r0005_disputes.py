"""Disputes."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "disputes",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("over", sa.Boolean(), nullable=False),
        sa.Column("dispute", sa.Text(), nullable=False),
        sa.Column("began", sa.Float(), nullable=False),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
    )
    op.create_index("disputes_by_job", "disputes", ["job", "over"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("disputes")
