"""Buckets of submitters' own, which models go to."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    """Add the table; nobody had named one before."""
    op.create_table(
        "outputs",
        sa.Column("job", sa.String(64), primary_key=True),
        sa.Column("account_id", sa.String(64), nullable=False),
        sa.Column("url", sa.String(300), nullable=False),
        sa.Column("endpoint", sa.String(500), nullable=False),
        sa.Column("region", sa.String(40), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("secret", sa.String(200), nullable=False),
        sa.Column("checkpoints", sa.Boolean, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("due", sa.Float, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("sent", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("outputs_by_due", "outputs", ["state", "due"])


def downgrade() -> None:
    """Forget them, and their keys."""
    op.drop_table("outputs")
