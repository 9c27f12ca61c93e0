"""Indexes of what the pages about earnings and incidents ask for."""

from alembic import op

revision = "0009"
down_revision = "0008"

_INDEXES = (("commits_by_payout", "commits", "payout"), ("events_by_time", "events", "time"))


def upgrade() -> None:
    """Add them."""
    for name, table, column in _INDEXES:
        op.create_index(name, table, [column])


def downgrade() -> None:
    """Drop them."""
    for name, table, _ in _INDEXES:
        op.drop_index(name, table)
