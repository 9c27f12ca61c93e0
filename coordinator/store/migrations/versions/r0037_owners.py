"""Who has joined a federated job with data of their own, and how many of its rounds were begun."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    """Add the columns; no earlier job has any."""
    op.add_column("jobs", sa.Column("owners", sa.Text(), nullable=False, server_default="[]"))
    op.add_column("rounds", sa.Column("released", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("released", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("jobs", "released")
    op.drop_column("rounds", "released")
    op.drop_column("jobs", "owners")
