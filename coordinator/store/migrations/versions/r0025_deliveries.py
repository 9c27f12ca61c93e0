"""Which artifacts nodes have stored, under which leases."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"

_ID = sa.String(64)


def upgrade() -> None:
    """Add the table; what lies there already is named by audits and runs, which go on reading it."""
    op.create_table(
        "deliveries",
        sa.Column("lease", _ID, primary_key=True),
        sa.Column("artifact", _ID, primary_key=True),
        sa.Column("job", _ID, nullable=False),
        sa.Column("node", _ID, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("deliveries_by_job", "deliveries", ["job"])
    op.create_index("deliveries_by_age", "deliveries", ["created"])


def downgrade() -> None:
    """Forget them: what a node says that it has stored is believed."""
    op.drop_table("deliveries")
