"""The tables of jobs that are paid by periods: elements of arrays, and answers that were found wrong."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

from coordinator.store.tables import metadata

__all__ = ["accused_answers", "elements", "metadata"]

_ID = String(64)

elements = Table(
    "elements",
    metadata,
    Column("job", _ID, nullable=False),
    Column("index", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("tries", Text, nullable=False),
    Column("result", _ID),
    Column("size", BigInteger, nullable=False),
    Column("files", Integer, nullable=False),
    Column("checked", Boolean, nullable=False),
    Column("lost", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("settled", BigInteger, nullable=False),
    Column("version", Integer, nullable=False),
    PrimaryKeyConstraint("job", "index"),
    Index("elements_in_order", "job", "settled", "state"),
)

accused_answers = Table(
    "accused_answers",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("job", _ID, nullable=False),
    Column("node", _ID, nullable=False),
    Column("owner", _ID, nullable=False),
    Column("env_class", Text, nullable=False),
    Column("check", LargeBinary, nullable=False),
    Column("answer", _ID, nullable=False),
    Column("seed", _ID, nullable=False),
    Column("began", Float, nullable=False),
    Column("state", String(16), nullable=False),
    Column("witnesses", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("ended", Float),
    Column("version", Integer, nullable=False),
    Index("accused_answers_by_state", "state", "began", "id"),
)
