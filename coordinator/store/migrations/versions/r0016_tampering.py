"""When somebody last reached into a job on a node."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the column; of before nothing is known."""
    op.add_column("nodes", sa.Column("tampered", sa.Float(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("nodes", "tampered")
