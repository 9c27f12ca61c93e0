"""Audits by other environment classes, and how often they found nothing."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the columns; nobody was audited by another class before."""
    for name in ("ending", "afar"):
        op.add_column("audits", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("nodes", sa.Column("afar", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("nodes", "afar")
    for name in ("afar", "ending"):
        op.drop_column("audits", name)
