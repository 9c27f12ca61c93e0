"""Who asked for an audit that was not drawn."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column; audits of before were drawn."""
    op.add_column("audits", sa.Column("challenger", sa.String(length=64), nullable=True))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("audits", "challenger")
