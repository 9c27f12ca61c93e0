"""Answers that a check has found wrong, until others have said whether rounding explains them."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"

_ID = sa.String(64)


def upgrade() -> None:
    """A table for them."""
    op.create_table(
        "accused_answers",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("job", _ID, nullable=False),
        sa.Column("node", _ID, nullable=False),
        sa.Column("owner", _ID, nullable=False),
        sa.Column("env_class", sa.Text, nullable=False),
        sa.Column("check", sa.LargeBinary, nullable=False),
        sa.Column("answer", _ID, nullable=False),
        sa.Column("seed", _ID, nullable=False),
        sa.Column("began", sa.Float, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("witnesses", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("ended", sa.Float),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("accused_answers_by_state", "accused_answers", ["state", "began", "id"])


def downgrade() -> None:
    """As it was."""
    op.drop_table("accused_answers")
