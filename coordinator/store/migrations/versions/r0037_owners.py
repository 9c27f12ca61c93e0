"""Who has joined a federated job with data of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0035"


def upgrade() -> None:
    """Add the column; no earlier job has any."""
    op.add_column("jobs", sa.Column("owners", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("jobs", "owners")
