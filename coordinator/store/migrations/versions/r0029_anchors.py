"""Where the anchor is that an audit's opening is said from."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    """Add the column; earlier openings show what they need."""
    op.add_column("audits", sa.Column("anchor_in", sa.String(16), nullable=False, server_default="opening"))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("audits", "anchor_in")
