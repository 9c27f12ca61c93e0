"""Whose leaves are compared at an audit, and who says otherwise."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the columns; audits of before compared nothing."""
    for name in ("sides", "apart"):
        op.add_column("audits", sa.Column(name, sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Forget them."""
    for name in ("apart", "sides"):
        op.drop_column("audits", name)
