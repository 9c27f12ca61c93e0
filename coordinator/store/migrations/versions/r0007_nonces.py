"""Durable nonces, preparing steps and lookup tables of what is told to the ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_COLUMNS = (("nonce", 64), ("step", 16), ("lookup", 64))


def upgrade() -> None:
    """Add the columns; transactions of before carried blockhashes and prepared nothing."""
    for name, length in _COLUMNS:
        op.add_column("outbox", sa.Column(name, sa.String(length), nullable=False, server_default=""))


def downgrade() -> None:
    """Forget them; only with nothing on its way."""
    for name, _ in _COLUMNS:
        op.drop_column("outbox", name)
