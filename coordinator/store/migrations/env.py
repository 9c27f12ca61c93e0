"""Runs revisions on the connection that ``store.sql.migrate`` hands over."""

from alembic import context

from coordinator.store.kept_sums import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
