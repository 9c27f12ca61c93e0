"""Which opening a prover has made that is still on its way."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Add the column; audits that are open are answered as before."""
    op.add_column("audits", sa.Column("made", sa.String(length=64), nullable=True))


def downgrade() -> None:
    """Forget it; an opening that is on its way arrives all the same."""
    op.execute("UPDATE audits SET state = 'opening' WHERE state = 'showing'")
    op.drop_column("audits", "made")
