"""Withdrawals whose fee and rent the coordinator pays."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"

_ID = sa.String(64)


def upgrade() -> None:
    """Add the table; there were none before."""
    op.create_table(
        "withdrawals",
        sa.Column("signature", sa.String(128), primary_key=True),
        sa.Column("owner", _ID, nullable=False),
        sa.Column("target", _ID, nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("fee", sa.BigInteger, nullable=False),
        sa.Column("lamports", sa.BigInteger, nullable=False),
        sa.Column("wire", sa.LargeBinary, nullable=False),
        sa.Column("last_height", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("withdrawals_by_state", "withdrawals", ["state"])
    op.create_index("withdrawals_by_age", "withdrawals", ["created"])


def downgrade() -> None:
    """Forget them: those under way go on by themselves, and the day's budget begins anew."""
    op.drop_table("withdrawals")
