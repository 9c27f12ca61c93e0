"""Pauses, stops, sharing and pace of jobs; their logs; what their accounts are told."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_PACE = '{"at":0.0,"fraction":0.0,"seconds":[]}'
_COLUMNS = (
    ("wish", sa.String(16), ""),
    ("halt", sa.String(16), ""),
    ("shared", sa.Boolean(), sa.false()),
    ("warned", sa.Boolean(), sa.false()),
    ("pace", sa.Text(), _PACE),
)


def upgrade() -> None:
    """Add the columns; jobs of before were never paused, and their pace is measured anew."""
    for name, kind, value in _COLUMNS:
        op.add_column("jobs", sa.Column(name, kind, nullable=False, server_default=value))
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "logs",
        sa.Column("id", number, primary_key=True),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("stage", sa.Integer),
        sa.Column("replica", sa.Integer),
        sqlite_autoincrement=True,
    )
    op.create_index("logs_by_job", "logs", ["job", "id"])
    op.create_table(
        "notice_settings",
        sa.Column("account_id", sa.String(64), primary_key=True),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("webhook", sa.String(500), nullable=False),
        sa.Column("webhook_kinds", sa.Text, nullable=False),
        sa.Column("mail", sa.String(254), nullable=False),
        sa.Column("mail_kinds", sa.Text, nullable=False),
        sa.Column("confirmed", sa.Boolean, nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_table(
        "notices",
        sa.Column("id", number, primary_key=True),
        sa.Column("account_id", sa.String(64), nullable=False),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("channel", sa.String(16), nullable=False),
        sa.Column("target", sa.String(500), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("due", sa.Float, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("notices_by_account", "notices", ["account_id", "id"])
    op.create_index("notices_by_state", "notices", ["state", "due"])


def downgrade() -> None:
    """Forget them; only with nothing paused."""
    for table in ("notices", "notice_settings", "logs"):
        op.drop_table(table)
    for name, _, _ in _COLUMNS:
        op.drop_column("jobs", name)
