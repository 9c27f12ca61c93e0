"""What tasks came to that a job's model was tried with."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    """Add the columns; no earlier job has asked for any."""
    op.add_column("jobs", sa.Column("evaluating", sa.String(16), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("evaluated", sa.Text(), nullable=False, server_default="null"))
    op.create_index("jobs_by_evaluating", "jobs", ["evaluating"])


def downgrade() -> None:
    """Forget it."""
    op.drop_index("jobs_by_evaluating", "jobs")
    op.drop_column("jobs", "evaluated")
    op.drop_column("jobs", "evaluating")
