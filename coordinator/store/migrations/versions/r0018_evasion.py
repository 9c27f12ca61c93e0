"""When a node last did not show what was drawn of it."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Add the column; what was before cost no stake, so it does not count."""
    op.add_column("nodes", sa.Column("evaded", sa.Float(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("nodes", "evaded")
