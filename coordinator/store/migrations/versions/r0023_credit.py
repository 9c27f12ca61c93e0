"""What a node's verified work is worth as credit, by account, and with what probability a look was due."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"

_ID = sa.String(64)


def upgrade() -> None:
    """Add the table and the columns; who never had a fault keeps the credit of its verified work, which nobody has looked at."""
    op.create_table(
        "credit",
        sa.Column("node", _ID, primary_key=True),
        sa.Column("account_id", _ID, primary_key=True),
        sa.Column("watched", sa.Boolean, primary_key=True),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("exact", sa.Boolean, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.execute(
        "INSERT INTO credit (node, account_id, watched, amount, exact, version) "
        "SELECT commits.node, jobs.account_id, 1 = 0, SUM(commits.amount), nodes.passed > 0, 0 "
        "FROM commits JOIN jobs ON jobs.id = commits.job JOIN nodes ON nodes.address = commits.node "
        "WHERE commits.state = 'verified' AND nodes.faults = 0 GROUP BY commits.node, jobs.account_id, nodes.passed"
    )
    op.add_column("commits", sa.Column("look", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("audits", sa.Column("owners", sa.Text(), nullable=False, server_default="[]"))
    for name in ("watched", "proven"):
        op.add_column("audits", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("audits", sa.Column("share", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("audits", sa.Column("looks", sa.Integer(), nullable=False, server_default="0"))
    op.drop_index("commits_by_node", "commits")
    op.create_index("commits_by_node", "commits", ["node", "state"])
    op.create_index("audits_by_node", "audits", ["node", "state"])
    op.add_column("nodes", sa.Column("rounds", sa.Integer(), nullable=False, server_default="0"))
    for name in ("afar", "passed"):
        op.drop_column("nodes", name)


def downgrade() -> None:
    """Forget them; everybody begins as a newcomer."""
    for name in ("passed", "afar"):
        op.add_column("nodes", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
    op.drop_column("nodes", "rounds")
    op.drop_index("audits_by_node", "audits")
    op.drop_index("commits_by_node", "commits")
    op.create_index("commits_by_node", "commits", ["node"])
    for name in ("looks", "share", "proven", "watched", "owners"):
        op.drop_column("audits", name)
    op.drop_column("commits", "look")
    op.drop_table("credit")
