"""What members say of outer steps, audits of them, and who was silent in a dispute."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the columns; rounds of before are known without, so nothing of the kind is drawn of them."""
    for table in ("commits", "audits"):
        op.add_column(table, sa.Column("outer", sa.Text(), nullable=False, server_default="null"))
    op.add_column("audits", sa.Column("silent", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("commits", sa.Column("parameters", sa.String(64)))


def downgrade() -> None:
    """Forget them; only with no such audit open."""
    op.drop_column("commits", "parameters")
    op.drop_column("audits", "silent")
    for table in ("commits", "audits"):
        op.drop_column(table, "outer")
