"""What is wrong with a database, in one sentence with the way out; and which faults pass by themselves."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from alembic.util import CommandError
from sqlalchemy import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InternalError,
    InvalidRequestError,
    NoSuchModuleError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from coordinator.errors import StoreAwayError, StoreError

ANSWER_S = 30.0  # For one statement: a disk under load takes seconds, and one that never answers must hold nobody.
MAX_SAID = 300  # Characters of what a driver says.

# What SQLite says, and what to do about it.
_SQLITE = (
    ("SQLITE_BUSY", "is held by another process: end that one (another coordinator, a backup), then start again"),
    ("SQLITE_LOCKED", "is held by another process: end that one (another coordinator, a backup), then start again"),
    ("SQLITE_NOTADB", "is no SQLite database: restore it from a backup, or name another folder with --data"),
    ("SQLITE_CORRUPT", "is damaged: restore it from a backup, or name another folder with --data"),
    ("SQLITE_READONLY", "cannot be written: let the user that the coordinator runs as write it and its folder"),
    ("SQLITE_FULL", "is on a disk that is full: make room there, then start again"),
    ("SQLITE_CANTOPEN", "cannot be opened: its folder must exist, and be writable for the coordinator's user"),
    ("SQLITE_IOERR", "cannot be read or written: look at the disk that it is on"),
)


# Classes of PostgreSQL's error codes (its manual, appendix A) that say nothing against the statement: connection, authorization,
# read-only server, no such database, rollback by deadlock, resources, objects in use, operator, system, internal.
_POSTGRES = frozenset({"08", "28", "3D", "40", "53", "55", "57", "58", "F0", "XX"})
_READ_ONLY = "25006"


@asynccontextmanager
async def answering() -> AsyncIterator[None]:
    """What is asked of the database within: a fault that may pass is a StoreAwayError, any other goes on as it is.

    Raises:
        StoreAwayError: no connection, no answer within ANSWER_S, or a refusal that is no fault of the statement.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            yield
    except (PoolTimeoutError, OSError) as error:
        raise StoreAwayError(said(error) or f"no answer within {ANSWER_S:g} s") from error
    except DBAPIError as error:
        if not _may_pass(error):
            raise
        raise StoreAwayError(said(error)) from error
    except sqlite3.Error as error:
        if not may_pass(error):
            raise
        raise StoreAwayError(said(error)) from error


def _may_pass(error: DBAPIError) -> bool:
    if isinstance(
        error, InternalError
    ):  # The driver or the server lost its way, as when a server dies while it is asked.
        return True
    return error.connection_invalidated or (error.orig is not None and may_pass(error.orig))


def may_pass(error: BaseException) -> bool:
    """Whether what a driver raised says nothing against the statement."""
    state, name = getattr(error, "sqlstate", None), getattr(error, "sqlite_errorname", "")
    if state == _READ_ONLY:
        return True
    return (state or "")[:2] in _POSTGRES or any(name.startswith(start) for start, _ in _SQLITE)


def passes(error: StoreError) -> bool:
    """Whether what kept a database from being opened may be over in a moment, as a lost connection is."""
    cause = error.__cause__
    return isinstance(cause, OSError) or (isinstance(cause, DBAPIError) and _may_pass(cause))


def unusable(url: str, error: Exception) -> StoreError:
    """Why a database cannot be opened, for whoever starts the coordinator."""
    where = shown(url)
    match error:
        case ArgumentError() | NoSuchModuleError():
            return StoreError(f"{where} names no database: write it as postgresql+asyncpg://USER:PASSWORD@HOST/NAME")
        case InvalidRequestError():
            return StoreError(f"{where} has no driver that does not block: write postgresql+asyncpg://... instead")
        case ModuleNotFoundError(name="asyncpg"):
            return StoreError(f"{where} needs the Python package asyncpg: install cottage[postgres]")
        case ModuleNotFoundError():
            return StoreError(
                f"{where} would need the Python package {error.name}: write postgresql+asyncpg://USER:PASSWORD@HOST/NAME"
            )
        case CommandError():
            return StoreError(
                f"the database {where} was written by a newer version of Cottage ({said(error)}): "
                "start that version, or restore the backup from before"
            )
    name = getattr(getattr(error, "orig", error), "sqlite_errorname", "")
    for start, advice in _SQLITE:
        if name.startswith(start):
            return StoreError(f"the database {where} {advice}")
    return StoreError(f"the database {where} cannot be used: {said(error)}. Start it, or correct --database-url")


UNUSABLE = (SQLAlchemyError, sqlite3.Error, CommandError, OSError, ModuleNotFoundError)
"""What opening a database may raise for want of a usable one."""


def check_address(url: str) -> None:
    """See whether a database could have this address. Nothing is connected.

    Raises:
        StoreError: none could; the text says what to write.
    """
    try:
        create_async_engine(url, poolclass=NullPool)
    except UNUSABLE as error:
        raise unusable(url, error) from error


def shown(url: str) -> str:
    """A database's address without its password; the file, where it is one."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return "--database-url"
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        return parsed.database
    return parsed.render_as_string(hide_password=True)


def said(error: BaseException) -> str:
    """What the driver said, on one line and without the statement, which holds people's data."""
    told = str(getattr(error, "orig", None) or error)
    return " ".join(told.split())[:MAX_SAID]
