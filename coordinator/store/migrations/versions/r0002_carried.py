"""What members carry from round to round: in commitments and audits."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_TABLES = ("commits", "audits")
_COLUMNS = ("carried", "local")


def upgrade() -> None:
    """Add the columns."""
    for table in _TABLES:
        for column in _COLUMNS:
            op.add_column(table, sa.Column(column, sa.String(length=64), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    for table in _TABLES:
        with op.batch_alter_table(table) as batch:
            for column in _COLUMNS:
                batch.drop_column(column)
