"""Indices in which lists, counts and what waits are found without reading what has ended."""

from collections.abc import Mapping

from alembic import op

revision = "0035"
down_revision = "0034"

_BEFORE: Mapping[str, Mapping[str, list[str]]] = {
    "jobs": {
        "jobs_by_state": ["state"],
        "jobs_by_evaluating": ["evaluating"],
        "jobs_by_age": ["created"],
        "jobs_by_account": ["account_id", "created"],
    },
    "leases": {"leases_by_state": ["state"]},
    "audits": {"audits_by_node": ["node", "state"]},
    "outbox": {"outbox_by_state": ["state"], "outbox_by_job": ["job"]},
}
_AFTER: Mapping[str, Mapping[str, list[str]]] = {
    "jobs": {
        "jobs_by_state": ["state", "created", "id"],
        "jobs_by_evaluating": ["evaluating", "created", "id"],
        "jobs_by_age": ["created", "id"],
        "jobs_by_account": ["account_id", "created", "id"],
        "jobs_by_shared": ["shared", "created", "id"],
        "jobs_by_end": ["state", "ended", "escrow", "paid", "refunded"],
    },
    "leases": {"leases_by_state": ["state", "end", "ended"]},
    "audits": {
        "audits_by_node": ["node", "canary", "round", "id", "state"],
        "audits_of_job": ["job", "round", "id"],
        "audits_by_auditor": ["auditor", "canary", "round", "id"],
        "audits_by_round": ["round", "id"],
        "audits_by_state": ["state", "round", "id"],
    },
    "outbox": {
        "outbox_by_state": ["state", "kind", "id", "amount"],
        "outbox_by_kind": ["kind", "id"],
        "outbox_of_job": ["job", "id"],
        "outbox_by_job": ["job", "kind", "state", "id", "amount"],
    },
}


def upgrade() -> None:
    """Columns after those that are asked for give the order, or the figures that are summed."""
    _replace(_BEFORE, _AFTER)


def downgrade() -> None:
    """As it was."""
    _replace(_AFTER, _BEFORE)


def _replace(old: Mapping[str, Mapping[str, list[str]]], new: Mapping[str, Mapping[str, list[str]]]) -> None:
    for table, indices in old.items():
        for name in indices:
            op.drop_index(name, table)
    for table, indices in new.items():
        for name, columns in indices.items():
            op.create_index(name, table, columns)
