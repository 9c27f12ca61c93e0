"""Accounts, how they sign in, what they did, and which files and jobs are whose."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_ID = sa.String(64)
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_LOCAL = "0" * 32  # What there was before belongs to the built-in account.
_NEW = ("accounts", "sessions", "api_keys", "credentials", "challenges", "trail", "files")


def upgrade() -> None:
    """Add the tables; every job so far is the built-in account's."""
    op.add_column("jobs", sa.Column("account_id", sa.String(64), nullable=False, server_default=_LOCAL))
    op.create_index("jobs_by_account", "jobs", ["account_id", "created"])
    op.create_table(
        "accounts",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("key", sa.String(64), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("password", sa.String(200), nullable=False),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )

    op.create_table(
        "sessions",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("account_id", _ID, nullable=False),
        sa.Column("method", sa.String(16), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("seen", sa.Float, nullable=False),
        sa.Column("address", _ID, nullable=False),
        sa.Column("agent", sa.String(200), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("sessions_by_account", "sessions", ["account_id"])
    op.create_table(
        "api_keys",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("account_id", _ID, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("digest", _ID, nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float),
        sa.Column("used", sa.Float),
        sa.Column("revoked", sa.Float),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("api_keys_by_account", "api_keys", ["account_id"])
    op.create_table(
        "credentials",
        sa.Column("id", sa.String(1400), primary_key=True),
        sa.Column("account_id", _ID, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("public_key", sa.LargeBinary, nullable=False),
        sa.Column("sign_count", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("used", sa.Float),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("credentials_by_account", "credentials", ["account_id"])
    op.create_table(
        "challenges",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("account_id", _ID, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("challenges_by_age", "challenges", ["created"])
    op.create_table(
        "trail",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("account_id", _ID, nullable=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("actor", _ID, nullable=False),
        sa.Column("via", sa.String(80), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("address", _ID, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("trail_by_account", "trail", ["account_id", "id"])
    op.create_table(
        "files",
        sa.Column("account_id", _ID, nullable=False),
        sa.Column("artifact", _ID, nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "artifact"),
    )


def downgrade() -> None:
    """Forget who is who."""
    for name in reversed(_NEW):
        op.drop_table(name)
    op.drop_index("jobs_by_account", "jobs")
    op.drop_column("jobs", "account_id")
