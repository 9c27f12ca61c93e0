"""What the embedded ledger remembers: accounts and transactions, written together or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
create table if not exists account (address blob primary key, content blob not null) without rowid;
create table if not exists entry (
    number integer primary key, signature text not null unique, slot integer not null, time integer not null,
    error text, memo text, wire blob not null, meta blob not null
);
create table if not exists mention (
    address blob not null, number integer not null, primary key (address, number)
) without rowid;
create table if not exists setting (name text primary key, content blob not null) without rowid;
"""
LOCK_TIMEOUT_S = 0.5  # A server that is just ending lets go of its file sooner; one that runs never does.


@dataclass(frozen=True)
class Entry:
    """One processed transaction. ``error`` and ``meta`` are JSON, ``time`` is Unix seconds."""

    signature: str
    slot: int
    time: int
    error: str | None
    memo: str | None
    wire: bytes
    meta: bytes


class LocalStore:
    """One SQLite file. Every method is synchronous and short; the caller has one thread.

    Raises:
        sqlite3.Error: from any method, when the disk refuses; the caller must stop serving then.
    """

    def __init__(self, path: Path | str) -> None:
        self._db = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")  # A confirmed payment survives a power cut.
        self._db.execute("pragma locking_mode = exclusive")  # Two servers on one file would fork the ledger.
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file; a checkpoint leaves one file behind."""
        self._db.close()

    def setting(self, name: str) -> bytes | None:
        """A value kept for ever, or None on the first start."""
        row = self._db.execute("select content from setting where name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def keep_setting(self, name: str, content: bytes) -> None:
        """Write a value once and for ever."""
        self._db.execute("insert into setting values (?, ?)", (name, content))

    def accounts(self) -> Iterator[tuple[bytes, bytes]]:
        """Every account: address, serialised content."""
        yield from self._db.execute("select address, content from account")

    def record(self, entry: Entry, accounts: Mapping[bytes, bytes | None], mentioned: Iterable[bytes]) -> None:
        """Write a transaction, the accounts it changed (None: gone) and whom it mentions, atomically."""
        run = self._db.execute
        run("begin immediate")
        try:
            for address, content in accounts.items():
                if content is None:
                    run("delete from account where address = ?", (address,))
                else:
                    run("insert or replace into account values (?, ?)", (address, content))
            number = run(
                "insert into entry (signature, slot, time, error, memo, wire, meta) values (?, ?, ?, ?, ?, ?, ?)",
                (entry.signature, entry.slot, entry.time, entry.error, entry.memo, entry.wire, entry.meta),
            ).lastrowid
            rows = [(address, number) for address in mentioned]
            self._db.executemany("insert or ignore into mention values (?, ?)", rows)
            run("commit")
        except sqlite3.Error:
            if self._db.in_transaction:
                run("rollback")
            raise

    def find(self, signature: str) -> Entry | None:
        """The transaction with this signature."""
        row = self._db.execute(
            "select signature, slot, time, error, memo, wire, meta from entry where signature = ?", (signature,)
        ).fetchone()
        return None if row is None else Entry(*row)

    def mentions(self, address: bytes, before: str | None, until: str | None, limit: int) -> list[Entry]:
        """Transactions that mention an address, newest first, between two signatures, both exclusive."""
        rows = self._db.execute(
            """select signature, slot, time, error, memo, wire, meta from mention join entry using (number)
               where address = :address
                 and number < coalesce((select number from entry where signature = :before), 9223372036854775807)
                 and number > coalesce((select number from entry where signature = :until), 0)
               order by number desc limit :limit""",
            {"address": address, "before": before, "until": until, "limit": limit},
        )
        return [Entry(*row) for row in rows]

    def count(self) -> int:
        """Number of transactions so far."""
        return int(self._db.execute("select count(*) from entry").fetchone()[0])

    def last_slot(self) -> int:
        """Slot of the newest transaction, 0 when there is none."""
        return int(self._db.execute("select coalesce(max(slot), 0) from entry").fetchone()[0])
