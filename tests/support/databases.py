"""A private PostgreSQL, as Debian has it, in a folder of its own: reached over a Unix socket, and killed like a power cut.

And new SQLite databases as the migrations leave them, without running all of these for each: a coordinator's start is a test's
most frequent step, and three dozen migrations took most of it.
"""

import asyncio
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Connection, create_engine, inspect

from coordinator.store.sql import SqlStore, migrate

START_S = 60.0
PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
needs_postgres = pytest.mark.skipif(
    PROGRAMS is None or not (PROGRAMS / "postgres").exists(), reason="PostgreSQL is not installed"
)


class Postgres:
    """One cluster. ``start`` after ``kill`` recovers it from its log, as after a power cut."""

    def __init__(self, folder: Path | None = None, durable: bool = True) -> None:
        """Make an empty cluster, or take the one in ``folder``; it does not run yet.

        Args:
            durable: also a power cut would lose nothing. Who kills processes alone need not wait for the disk.
        """
        assert PROGRAMS is not None
        # Not below pytest's folder, where another user may not look; a socket's path has 107 bytes at most.
        self.folder = folder or Path(tempfile.mkdtemp(prefix="cottage-pg-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._user = pwd.getpwnam("postgres").pw_uid if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self.folder, self._user, -1)
        self._process: subprocess.Popen[bytes] | None = None
        self._words = ("-c", "listen_addresses=", *(() if durable else ("-c", "fsync=off")))
        self._migrated = ""  # A database that others are copies of.
        if not (self.folder / "data").exists():
            words = ("-U", "cottage", "--auth=trust", "-E", "UTF8", "--locale=C")
            self._run("initdb", "-D", str(self.folder / "data"), *words)

    def start(self) -> None:
        """Run, and wait until it takes connections."""
        assert PROGRAMS is not None
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAMS / "postgres", "-D", self.folder / "data", "-k", self.folder, *self._words],
                user=self._user,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while self._call("pg_isready", "-h", str(self.folder), "-q").returncode:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            assert self._process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.05)

    def url(self) -> str:
        """The address of a new database."""
        return self._address(self._created())

    def migrated_url(self) -> str:
        """The same, which a coordinator need not migrate: a copy of one that was, for a quarter of what that takes."""
        if not self._migrated:
            name = self._created()
            with ThreadPoolExecutor(1) as elsewhere:  # An event loop may run here.
                elsewhere.submit(asyncio.run, _opened_once(self._address(name))).result()
            self._migrated = name
        return self._address(self._created("-T", self._migrated, "-S", "file_copy"))

    def _created(self, *words: str) -> str:
        name = f"d{secrets.token_hex(8)}"
        self._run("createdb", "-h", str(self.folder), "-U", "cottage", *words, name)
        return name

    def _address(self, name: str) -> str:
        return f"postgresql+asyncpg://cottage@/{name}?host={self.folder}"

    @property
    def process(self) -> int:
        """The number of its first process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill -9, all of its processes."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def stop(self) -> None:
        """End it as an operator does: all of it lies on the disk."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def freeze(self) -> None:
        """Let it stand still: connections stay, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def remove(self) -> None:
        """End it and everything of it."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.kill()
        shutil.rmtree(self.folder)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        first = psutil.Process(self._process.pid)
        every = [first, *first.children(recursive=True)]
        for process in every:
            if process.is_running():
                process.send_signal(number)
        if number == signal.SIGKILL:
            psutil.wait_procs(every[1:])

    def _run(self, program: str, *words: str) -> None:
        done = self._call(program, *words)
        assert done.returncode == 0, done.stdout.decode()

    def _call(self, program: str, *words: str) -> "subprocess.CompletedProcess[bytes]":
        assert PROGRAMS is not None
        return subprocess.run(
            [PROGRAMS / program, *words], user=self._user, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )


async def _opened_once(url: str) -> None:
    await (await SqlStore.open(url)).close()


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
