"""Why a share will never be paid."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Add the column; of earlier shares nobody knows."""
    op.add_column("commits", sa.Column("why", sa.String(16), nullable=False, server_default=""))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("commits", "why")
