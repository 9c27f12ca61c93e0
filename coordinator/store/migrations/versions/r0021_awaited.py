"""How large an opening is, since when it is waited for, and how long its prover has been away."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Add the columns; audits that are open are given their time from the next start on."""
    op.add_column("audits", sa.Column("size", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("audits", sa.Column("asked", sa.Float(), nullable=False, server_default="0"))
    op.add_column("audits", sa.Column("asker", sa.String(length=64), nullable=True))
    op.add_column("audits", sa.Column("away", sa.Float(), nullable=True))
    op.add_column("audits", sa.Column("absent", sa.Float(), nullable=False, server_default="0"))
    op.add_column("audits", sa.Column("excused", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Forget them; who is away when it is asked has left."""
    for column in ("excused", "absent", "away", "asker", "asked", "size"):
        op.drop_column("audits", column)
