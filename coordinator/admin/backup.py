"""``cottage backup`` and ``cottage restore``: a coordinator's database, keys and files in another folder, and back.

A backup is made while the coordinator runs. What happens after it is not lost with a disk: nodes keep the newest records of their
jobs, and the ledger knows what was paid. So a restored coordinator first asks both (``coordinator.restoring``).
"""

import argparse
import contextlib
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from common.own_folders import make_folder
from common.system_words import reason
from common.terminal import complain, say
from coordinator.errors import StoreError
from coordinator.restoring import mark
from coordinator.services.core.backup_age import note_backup
from coordinator.settings import SettingError, add_database, database_of
from coordinator.version import release

EXIT_REFUSED, EXIT_USAGE = 1, 2
DATABASE, DUMP, MANIFEST, ARTIFACTS = "coordinator.db", "coordinator.dump", "backup.json", "artifacts"
_IS_THERE = " already exists"  # As PostgreSQL says it.
KEYS = ("coordinator.key", "test-wallet.key")


class BackupManifest(msgspec.Struct, frozen=True):
    """What a folder holds. ``made``: Unix seconds; ``sha256``: of the database's file."""

    made: float
    version: str
    database: str
    sha256: str


def main(argv: Sequence[str] | None = None) -> int:
    """Make or restore a backup.

    Returns:
        0, or 1 where that cannot be done, 2 for a wrong option.
    """
    options = _parser().parse_args(argv)
    try:
        options.work(options)
    except SettingError as error:
        complain(f"cottage {options.word}", error)
        return EXIT_USAGE
    except (StoreError, OSError, sqlite3.Error) as error:
        complain(f"cottage {options.word}", error.detail if isinstance(error, StoreError) else reason(error))
        return EXIT_REFUSED
    return 0


def back_up(data: Path, folder: Path, database_url: str | None = None) -> BackupManifest:
    """Copy what a coordinator with its data in ``data`` has to ``folder``; the coordinator may run.

    An earlier backup there is brought up to date: of files only new ones are copied, and the old database stays until
    the new one is there whole.

    Raises:
        StoreError: there is no such coordinator, or its database cannot be copied.
        OSError: the folder cannot be written.
    """
    if not (data / KEYS[0]).exists():
        raise StoreError(f"no coordinator has its data in {data}: name its --data folder")
    make_folder(folder)
    made = time.time()
    name = DATABASE if database_url is None else DUMP
    draft = folder / f"{name}.draft"
    if database_url is None:
        _copy_sqlite(data / DATABASE, draft)
    else:
        _run(database_url, "pg_dump", "--format=custom", f"--file={draft}")
    for key in KEYS:
        if (data / key).exists():
            _copy(data / key, folder / key)
    count = sum(
        _copied(file, folder / ARTIFACTS / file.relative_to(data / ARTIFACTS)) for file in _files(data / ARTIFACTS)
    )
    manifest = BackupManifest(made, release(), name, _digest(draft))
    os.replace(draft, folder / name)
    _write(folder / MANIFEST, msgspec.json.encode(manifest))
    try:
        note_backup(data, made)
    except OSError as error:
        say(f"The coordinator's metrics do not tell of this backup: {reason(error)}")
    say(f"Backed up to {folder}: the database as it was at {time.ctime(made)}, and {count:,} new files.")
    return manifest


def restore(folder: Path, data: Path, database_url: str | None = None) -> None:
    """Put a backup where a coordinator will find it; it asks its nodes and the ledger for the rest when it starts.

    Raises:
        StoreError: the folder holds no whole backup of such a database, or there is a coordinator in ``data`` already.
        OSError: something cannot be written.
    """
    manifest = _manifest(folder)
    wanted = DATABASE if database_url is None else DUMP
    if manifest.database != wanted:
        what = "needs --database-url" if manifest.database == DUMP else "is one of SQLite: leave --database-url out"
        raise StoreError(f"the backup in {folder} {what}")
    if _digest(folder / manifest.database) != manifest.sha256:
        raise StoreError(f"{folder / manifest.database} is not what was backed up: take another backup")
    if (data / DATABASE).exists() or (data / KEYS[0]).exists():
        raise StoreError(f"{data} has a coordinator's data: move it away, or name an empty folder with --data")
    make_folder(data)
    for file in _files(folder / ARTIFACTS):
        _copied(file, data / ARTIFACTS / file.relative_to(folder / ARTIFACTS))
    if database_url is None:
        _copy(folder / DATABASE, data / DATABASE)
    else:
        dump = str(folder / DUMP)
        _run(database_url, "pg_restore", "--no-owner", "--exit-on-error", "--single-transaction", dump)
    mark(data)  # Before the key: without it no coordinator starts here, and with it one asks.
    for key in KEYS:
        if (folder / key).exists():
            _copy(folder / key, data / key)
    say(
        f"Restored to {data}, as it was at {time.ctime(manifest.made)}. Start the coordinator at its old address: "
        "it asks its nodes and the ledger for what came after."
    )


def restored_otherwise(data: Path) -> None:
    """Have the next coordinator of ``data`` ask, whose database was brought back by its own means.

    Raises:
        StoreError: no coordinator has its data there.
    """
    if not (data / KEYS[0]).exists():
        raise StoreError(f"no coordinator has its data in {data}: restore its keys and files, too")
    mark(data)
    say("The coordinator asks its nodes and the ledger when it starts.")


def _copy_sqlite(source: Path, target: Path) -> None:
    """SQLite's own online backup, looked through once it is there."""
    if not source.exists():
        raise StoreError(f"there is no database {source}: if it is PostgreSQL, name it with --database-url")
    target.unlink(missing_ok=True)
    with (
        contextlib.closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as here,
        contextlib.closing(sqlite3.connect(target)) as there,
    ):
        here.backup(there)
        there.execute("PRAGMA journal_mode=DELETE")
        [(found,)] = there.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        raise StoreError(f"the database {source} is damaged: {found}")


def _run(database_url: str, program: str, *words: str) -> None:
    """One of PostgreSQL's own programs; the password is not among its words, which every user of the machine can read."""
    try:
        url = make_url(database_url).set(drivername="postgresql")
    except ArgumentError as error:
        raise StoreError(
            "--database-url names none: write it as postgresql+asyncpg://USER:PASSWORD@HOST/NAME"
        ) from error
    name = url.set(password=None).render_as_string(hide_password=False)
    try:
        done = subprocess.run(
            [program, *words, f"--dbname={name}"],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | ({"PGPASSWORD": str(url.password)} if url.password else {}),
        )
    except FileNotFoundError as error:
        raise StoreError(f"{program} is not installed: it comes with PostgreSQL's client programs") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        # What follows the error is the statement, or a question.
        fault = next((line for line in said if line.startswith(f"{program}: error: ")), said[-1])
        if _IS_THERE in fault:
            raise StoreError(f"the database {url.database} has tables already: make an empty one, and name that")
        raise StoreError(f"{program} failed: {fault.removeprefix(f'{program}: error: ')}")


def _manifest(folder: Path) -> BackupManifest:
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=BackupManifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"{folder} holds no whole backup: name the folder that `cottage backup` has made") from error


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file()) if folder.exists() else iter(())


def _copied(source: Path, target: Path) -> bool:
    """Copy a file that is named by what it holds, unless it is there; whether it was copied."""
    with contextlib.suppress(FileNotFoundError):  # The coordinator may have deleted it meanwhile.
        if target.exists() and target.stat().st_size == source.stat().st_size:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy(source, target)
        return True
    return False


def _copy(source: Path, target: Path) -> None:
    """Whole, or not there."""
    draft = target.with_name(f"{target.name}.draft")
    shutil.copy2(source, draft)
    os.replace(draft, target)


def _write(target: Path, data: bytes) -> None:
    draft = target.with_name(f"{target.name}.draft")
    draft.write_bytes(data)
    os.replace(draft, target)


def _digest(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cottage", description="A coordinator's backup, made while it runs, and its return."
    )
    words = parser.add_subparsers(dest="word", required=True)
    making = words.add_parser("backup", help="copy a coordinator's database, keys and files to another folder")
    making.add_argument("folder", type=Path, help="where to; an earlier backup there is brought up to date")
    making.set_defaults(work=lambda options: back_up(options.data, options.folder, database_of(options)))
    returning = words.add_parser("restore", help="put a backup where a coordinator will find it")
    returning.add_argument("folder", type=Path, nargs="?", help="a folder that `cottage backup` has made")
    returning.set_defaults(work=_restore)
    for one in (making, returning):
        one.add_argument("--data", type=Path, required=True, help="the coordinator's data folder")
        add_database(one)
    return parser


def _restore(options: argparse.Namespace) -> None:
    if options.folder is None:
        restored_otherwise(options.data)
    else:
        restore(options.folder, options.data, database_of(options))


if __name__ == "__main__":
    sys.exit(main())
