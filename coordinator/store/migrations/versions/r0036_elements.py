"""Elements of array jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"

_ID = sa.String(64)


def upgrade() -> None:
    """A table for what became of each element that was begun."""
    op.create_table(
        "elements",
        sa.Column("job", _ID, nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("tries", sa.Text, nullable=False),
        sa.Column("result", _ID),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("files", sa.Integer, nullable=False),
        sa.Column("checked", sa.Boolean, nullable=False),
        sa.Column("lost", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("settled", sa.BigInteger, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("job", "index"),
    )
    op.create_index("elements_in_order", "elements", ["job", "settled", "state"])


def downgrade() -> None:
    """As it was."""
    op.drop_table("elements")
