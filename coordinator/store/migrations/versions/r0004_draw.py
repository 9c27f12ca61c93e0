"""Draws from blocks of the ledger, and what is known of nodes' conduct."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns; rounds of before were drawn when they ended, and nothing is known of anybody."""
    op.add_column("rounds", sa.Column("beacon", sa.Text(), nullable=False, server_default="null"))
    op.add_column("audits", sa.Column("seed", sa.String(length=64), nullable=False, server_default=""))
    for column in ("twice", "canary"):
        op.add_column("audits", sa.Column(column, sa.Boolean(), nullable=False, server_default=sa.false()))
    for column in ("passed", "faults"):
        op.add_column("nodes", sa.Column(column, sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Forget them."""
    for table, columns in {
        "rounds": ["beacon"],
        "audits": ["seed", "twice", "canary"],
        "nodes": ["passed", "faults"],
    }.items():
        for column in columns:
            op.drop_column(table, column)
