"""New SQLite databases as the migrations leave them, without running all migrations for each.

A coordinator's start is a test's most frequent step, and three dozen migrations took most of it.
"""

from functools import cache

from sqlalchemy import Connection, create_engine, inspect

from coordinator.store.sql import migrate


def migrate_a_copy(connection: Connection, to: str = "head") -> None:
    """As ``coordinator.store.sql.migrate``; a new SQLite database gets what one had that was migrated before."""
    if to == "head" and connection.dialect.name == "sqlite" and not inspect(connection).get_table_names():
        for statement in _statements():
            connection.exec_driver_sql(statement)
        connection.commit()
    else:
        migrate(connection, to)


@cache
def _statements() -> tuple[str, ...]:
    with create_engine("sqlite://").connect() as connection:
        migrate(connection)
        made = connection.exec_driver_sql(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite!_%' ESCAPE '!' "
            "ORDER BY type = 'index', rowid"
        )
        statements = [str(sql) for (sql,) in made]
        version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
    return (*statements, f"INSERT INTO alembic_version VALUES ('{version}')")
