"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make every table."""
    _audits()
    _commits()
    _events()
    _jobs()
    _leases()
    _metrics()
    _nodes()
    _outbox()
    _rounds()
    _runs()


def downgrade() -> None:
    """Drop every table."""
    for table in _TABLES:
        op.drop_table(table)


_TABLES = ("audits", "commits", "events", "jobs", "leases", "metrics", "nodes", "outbox", "rounds", "runs")


def _audits() -> None:
    op.create_table(
        "audits",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("replica", sa.Integer(), nullable=False),
        sa.Column("lease", sa.String(length=64), nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("payout", sa.String(length=64), nullable=False),
        sa.Column("env_class", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("total_steps", sa.BigInteger(), nullable=False),
        sa.Column("root", sa.String(length=64), nullable=False),
        sa.Column("leaves", sa.BigInteger(), nullable=False),
        sa.Column("pseudo_gradient", sa.String(length=64), nullable=False),
        sa.Column("deadline", sa.Float(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("auditor", sa.String(length=64), nullable=True),
        sa.Column("auditor_lease", sa.String(length=64), nullable=True),
        sa.Column("anchor", sa.String(length=64), nullable=True),
        sa.Column("opening", sa.String(length=64), nullable=True),
        sa.Column("tried", sa.Text(), nullable=False),
        sa.Column("verdicts", sa.Text(), nullable=False),
        sa.Column("blame", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("audits_by_job", "audits", ["job", "state"], unique=False)


def _commits() -> None:
    op.create_table(
        "commits",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("replica", sa.Integer(), nullable=False),
        sa.Column("lease", sa.String(length=64), nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("payout", sa.String(length=64), nullable=False),
        sa.Column("root", sa.String(length=64), nullable=False),
        sa.Column("leaves", sa.BigInteger(), nullable=False),
        sa.Column("pseudo_gradient", sa.String(length=64), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("operations", sa.BigInteger(), nullable=False),
        sa.Column("drawable", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("anchor", sa.String(length=64), nullable=True),
        sa.Column("settlement", sa.BigInteger(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job", "epoch", "round", "stage", "replica"),
    )
    op.create_index("commits_by_node", "commits", ["node"], unique=False)


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("events_by_job", "events", ["job", "id"], unique=False)


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("submitter", sa.String(length=64), nullable=False),
        sa.Column("test_wallet", sa.Boolean(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("deadline", sa.Float(), nullable=False),
        sa.Column("quote", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("escrow", sa.BigInteger(), nullable=False),
        sa.Column("verified", sa.BigInteger(), nullable=False),
        sa.Column("paid", sa.BigInteger(), nullable=False),
        sa.Column("refunded", sa.BigInteger(), nullable=False),
        sa.Column("rounds_done", sa.Integer(), nullable=False),
        sa.Column("tokens_done", sa.BigInteger(), nullable=False),
        sa.Column("tokens_per_second", sa.Float(), nullable=False),
        sa.Column("train_loss", sa.Float(), nullable=True),
        sa.Column("validation_loss", sa.Float(), nullable=True),
        sa.Column("first_validation_loss", sa.Float(), nullable=True),
        sa.Column("audits", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(length=64), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("jobs_by_age", "jobs", ["created"], unique=False)
    op.create_index("jobs_by_state", "jobs", ["state"], unique=False)


def _leases() -> None:
    op.create_table(
        "leases",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("payout", sa.String(length=64), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=True),
        sa.Column("replica", sa.Integer(), nullable=True),
        sa.Column("granted", sa.Float(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("end", sa.String(length=16), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("env_class", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("traffic", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("leases_by_job", "leases", ["job", "state"], unique=False)
    op.create_index("leases_by_state", "leases", ["state"], unique=False)


def _metrics() -> None:
    op.create_table(
        "metrics",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("loss", sa.Float(), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("metrics_by_job", "metrics", ["job", "id"], unique=False)


def _nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("payout", sa.String(length=64), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.Column("banned", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("stake", sa.BigInteger(), nullable=False),
        sa.Column("earned", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("address"),
    )


def _outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("signature", sa.String(length=128), nullable=False),
        sa.Column("wire", sa.LargeBinary(), nullable=False),
        sa.Column("last_height", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key"),
        sqlite_autoincrement=True,
    )
    op.create_index("outbox_by_job", "outbox", ["job"], unique=False)
    op.create_index("outbox_by_state", "outbox", ["state"], unique=False)


def _rounds() -> None:
    op.create_table(
        "rounds",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("total_steps", sa.BigInteger(), nullable=False),
        sa.Column("started", sa.Float(), nullable=False),
        sa.Column("contributors", sa.Text(), nullable=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("pot", sa.BigInteger(), nullable=False),
        sa.Column("train_loss", sa.Float(), nullable=True),
        sa.Column("validation_loss", sa.Float(), nullable=True),
        sa.Column("seed", sa.String(length=64), nullable=False),
        sa.Column("concluded", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job", "epoch", "number"),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job"),
    )
