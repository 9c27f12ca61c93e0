"""Sums of jobs and ledger rows in a row for each cell that adds to them: cells do not wait for each other there."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"

_OF = (
    ("jobs", "job_sums", ("state",), ("escrow", "paid", "refunded")),
    ("outbox", "outbox_sums", ("kind", "state"), ("amount",)),
)
_CELL = "coalesce(nullif(current_setting('cottage.cell', true), ''), '0')::smallint"


def upgrade() -> None:
    """What is there is summed anew, for the first cell."""
    _make_anew(("cell",))


def downgrade() -> None:
    """As they were."""
    _make_anew(())


def _make_anew(part: tuple[str, ...]) -> None:
    for of, name, by, fields in _OF:
        _drop(of, name)
        halves = [f"{field}_{half}" for field in fields for half in ("high", "low")]
        op.create_table(
            name,
            *(sa.Column(key, sa.SmallInteger, nullable=False) for key in part),
            *(sa.Column(key, sa.String(16), nullable=False) for key in by),
            *(sa.Column(field, sa.BigInteger, nullable=False) for field in ("number", *halves)),
            sa.PrimaryKeyConstraint(*part, *by),
        )
        for statement in _triggers(of, name, part, by, fields):
            op.execute(statement)  # First, since nobody else changes a row from then on until this is stored.
        keys, sums = ", ".join(by), ", ".join(f"sum({half})" for field in fields for half in _halves(field))
        first = "0, " if part else ""
        op.execute(f"INSERT INTO {name} SELECT {first}{keys}, count(*), {sums} FROM {of} GROUP BY {keys}")  # noqa: S608 - the table above.


def _drop(of: str, name: str) -> None:
    if op.get_bind().dialect.name == "sqlite":
        for event in ("insert", "update", "delete"):
            op.execute(f"DROP TRIGGER {name}_{event}")
    else:
        op.execute(f"DROP TRIGGER {name} ON {of}")
        op.execute(f"DROP FUNCTION {name}_change()")
    op.drop_table(name)


def _triggers(of: str, name: str, part: tuple[str, ...], by: tuple[str, ...], fields: tuple[str, ...]) -> Iterator[str]:
    columns = ("number", *(f"{field}_{half}" for field in fields for half in ("high", "low")))
    old, new = (("1", *(half for field in fields for half in _halves(f"{row}.{field}"))) for row in ("OLD", "NEW"))
    more = ", ".join(f"{column} = excluded.{column} + {name}.{column}" for column in columns)
    here = "0" if op.get_bind().dialect.name == "sqlite" else _CELL
    keys, cell = ", ".join((*part, *by)), [here] if part else []

    def added(row: str, values: tuple[str, ...]) -> str:
        listed = ", ".join((*cell, *(f"{row}.{key}" for key in by), *values))
        return f"INSERT INTO {name} VALUES ({listed}) ON CONFLICT ({keys}) DO UPDATE SET {more};"  # noqa: S608 - as above.

    # A row may have been another cell's before: what is left here may be less than nothing, and the sum over cells is right.
    take, add = added("OLD", tuple(f"-{value}" for value in old)), added("NEW", new)
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
