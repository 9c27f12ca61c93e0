"""Which audits one of the operator's own auditors has to run again, and since when they wait."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Add the columns; audits that are open go on without a look."""
    for name in ("look", "looking"):
        op.add_column("audits", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("audits", sa.Column("began", sa.Float(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Forget them; other nodes audit what is still open."""
    for name in ("began", "looking", "look"):
        op.drop_column("audits", name)
