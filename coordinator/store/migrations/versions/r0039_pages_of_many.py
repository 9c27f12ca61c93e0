"""Indices in which a node's newest work, an account's jobs that failed lately and days' incidents are found."""

from collections.abc import Mapping

from alembic import op

revision = "0039"
down_revision = "0038"

_NEW: Mapping[str, Mapping[str, list[str]]] = {
    "jobs": {"jobs_of_account": ["account_id", "state", "ended"]},
    "leases": {"leases_by_node": ["node", "granted", "fence", "id"]},
    "commits": {"commits_of_node": ["node", "job"]},
    "events": {"events_by_kind": ["kind", "time", "id"]},
}


def upgrade() -> None:
    """Nothing else changes: an earlier version works with them."""
    for table, indices in _NEW.items():
        for name, columns in indices.items():
            op.create_index(name, table, columns)


def downgrade() -> None:
    """As it was."""
    for table, indices in _NEW.items():
        for name in indices:
            op.drop_index(name, table)
