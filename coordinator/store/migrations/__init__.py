"""Alembic's revisions of the store; ``store.sql.migrate`` runs them."""
