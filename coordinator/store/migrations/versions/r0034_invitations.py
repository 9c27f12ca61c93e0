"""Invitations to lend, where a network asks for them."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"

_ID = sa.String(64)


def upgrade() -> None:
    """Add the table; there were none before."""
    op.create_table(
        "invitations",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("digest", _ID, nullable=False, unique=True),
        sa.Column("account_id", _ID, nullable=False),
        sa.Column("owner", _ID, nullable=False),
        sa.Column("note", sa.String(100), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
        sa.Column("node", _ID),
        sa.Column("used", sa.Float),
        sa.Column("withdrawn", sa.Float),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("invitations_by_account", "invitations", ["account_id"])


def downgrade() -> None:
    """Forget them: a version without them lets everybody lend."""
    op.drop_table("invitations")
