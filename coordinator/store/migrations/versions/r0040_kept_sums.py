"""Sums of jobs by state and of ledger rows by kind and state, which the database adds to whenever one of them changes."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"

_OF = (
    ("jobs", "job_sums", ("state",), ("escrow", "paid", "refunded")),
    ("outbox", "outbox_sums", ("kind", "state"), ("amount",)),
)


def upgrade() -> None:
    """What is there is summed once. An earlier version that is still at work keeps them right: the database adds to them."""
    for of, name, by, fields in _OF:
        halves = [f"{field}_{half}" for field in fields for half in ("high", "low")]
        op.create_table(
            name,
            *(sa.Column(key, sa.String(16), nullable=False) for key in by),
            *(sa.Column(field, sa.BigInteger, nullable=False) for field in ("number", *halves)),
            sa.PrimaryKeyConstraint(*by),
        )
        for statement in _triggers(of, name, by, fields):
            op.execute(statement)  # First, since nobody else changes a row from then on until this is stored.
        keys, sums = ", ".join(by), ", ".join(f"sum({half})" for field in fields for half in _halves(field))
        op.execute(f"INSERT INTO {name} SELECT {keys}, count(*), {sums} FROM {of} GROUP BY {keys}")  # noqa: S608 - the table above.


def downgrade() -> None:
    """As it was."""
    for of, name, _, _ in _OF:
        if op.get_bind().dialect.name == "sqlite":
            for event in ("insert", "update", "delete"):
                op.execute(f"DROP TRIGGER {name}_{event}")
        else:
            op.execute(f"DROP TRIGGER {name} ON {of}")
            op.execute(f"DROP FUNCTION {name}_change()")
        op.drop_table(name)


def _triggers(of: str, name: str, by: tuple[str, ...], fields: tuple[str, ...]) -> Iterator[str]:
    columns = ("number", *(f"{field}_{half}" for field in fields for half in ("high", "low")))
    old, new = (("1", *(half for field in fields for half in _halves(f"{row}.{field}"))) for row in ("OLD", "NEW"))
    less = ", ".join(f"{column} = {column} - {value}" for column, value in zip(columns, old, strict=True))
    more = ", ".join(f"{column} = excluded.{column} + {name}.{column}" for column in columns)
    same, keys = " AND ".join(f"{key} = OLD.{key}" for key in by), ", ".join(by)
    values = ", ".join((*(f"NEW.{key}" for key in by), *new))
    take = f"UPDATE {name} SET {less} WHERE {same};"  # noqa: S608 - as above.
    add = f"INSERT INTO {name} VALUES ({values}) ON CONFLICT ({keys}) DO UPDATE SET {more};"  # noqa: S608
    update = f"UPDATE OF {', '.join((*by, *fields))}"
    if op.get_bind().dialect.name == "sqlite":
        for event, on, then in (("insert", "INSERT", add), ("update", update, take + add), ("delete", "DELETE", take)):
            yield f"CREATE TRIGGER {name}_{event} AFTER {on} ON {of} BEGIN {then} END"
        return
    body = f"IF TG_OP <> 'INSERT' THEN {take} END IF; IF TG_OP <> 'DELETE' THEN {add} END IF; RETURN NULL;"
    yield f"CREATE FUNCTION {name}_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$"
    yield f"""CREATE TRIGGER {name} AFTER INSERT OR DELETE OR {update} ON {of}
        FOR EACH ROW EXECUTE FUNCTION {name}_change()"""


def _halves(value: str) -> tuple[str, str]:
    """A number of 64 bits as two, whose sums stay below that however large what is summed."""
    return f"({value} >> 32)", f"({value} & 4294967295)"
