"""Answers to changing requests, by their idempotency keys."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_ID = sa.String(64)


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "replays",
        sa.Column("account_id", _ID, primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("fingerprint", _ID, nullable=False),
        sa.Column("resource", _ID, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("location", sa.String(400), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("replays_by_time", "replays", ["created"])


def downgrade() -> None:
    """Forget the answers: a request that is repeated is carried out again."""
    op.drop_table("replays")
