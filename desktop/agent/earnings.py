"""What each job has brought this node, kept on its own disk so that the owner need not believe anybody's web page."""

import sqlite3
from pathlib import Path

import msgspec

from transport.wire.node import Earned

_SCHEMA = """
CREATE TABLE IF NOT EXISTS earned (
    coordinator TEXT NOT NULL, job TEXT NOT NULL, verified INTEGER NOT NULL, paid INTEGER NOT NULL,
    signature TEXT NOT NULL, first REAL NOT NULL, changed REAL NOT NULL, PRIMARY KEY (coordinator, job));
CREATE TABLE IF NOT EXISTS wallet (
    address TEXT PRIMARY KEY, balance INTEGER NOT NULL, seen REAL NOT NULL);
"""


class JobEarnings(msgspec.Struct, frozen=True):
    """One job, in millionths of the token; ``signature``: the ledger's receipt of the last payment."""

    coordinator: str
    job: str
    verified: int
    paid: int
    signature: str
    first: float
    changed: float


class WalletView(msgspec.Struct, frozen=True):
    """The payout wallet as the ledger showed it at ``seen`` (unix seconds)."""

    address: str
    balance: int
    seen: float


class Summary(msgspec.Struct, frozen=True):
    """Everything earned, newest job first."""

    verified: int
    paid: int
    wallet: WalletView | None
    jobs: tuple[JobEarnings, ...]


class Earnings:
    """The file of earnings."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it."""
        self._database = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def record(self, coordinator: str, earned: Earned, now: float) -> bool:
        """Take over the totals of a job; amounts never fall, whatever a coordinator says later. True: something grew."""
        cursor = self._database.execute(
            "INSERT INTO earned VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (coordinator, job) DO UPDATE SET"
            " verified = max(verified, excluded.verified), paid = max(paid, excluded.paid),"
            " signature = CASE WHEN excluded.signature = '' THEN signature ELSE excluded.signature END,"
            " changed = excluded.changed"
            " WHERE excluded.verified > verified OR excluded.paid > paid",
            (coordinator, earned.job, earned.verified, earned.paid, earned.signature, now, now),
        )
        return cursor.rowcount > 0

    def record_wallet(self, address: str, balance: int, now: float) -> None:
        """Remember what the ledger says about the payout wallet."""
        self._database.execute("INSERT OR REPLACE INTO wallet VALUES (?, ?, ?)", (address, balance, now))

    def summary(self) -> Summary:
        """All of it."""
        rows = self._database.execute("SELECT * FROM earned ORDER BY changed DESC, job").fetchall()
        jobs = tuple(JobEarnings(*row) for row in rows)
        wallet = self._database.execute("SELECT * FROM wallet ORDER BY seen DESC LIMIT 1").fetchone()
        return Summary(
            sum(job.verified for job in jobs),
            sum(job.paid for job in jobs),
            WalletView(*wallet) if wallet else None,
            jobs,
        )
