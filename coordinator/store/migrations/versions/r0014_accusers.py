"""Who has put a bond against the commitment that an audit looks at."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the column."""
    op.add_column("audits", sa.Column("accuser", sa.String(length=64), nullable=True))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("audits", "accuser")
