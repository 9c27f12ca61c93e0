"""What each job has brought this node, kept on its own disk so that the owner need not believe anybody's web page."""

import datetime as dt
import sqlite3
from collections.abc import Collection
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from transport.wire.node import Earned

_SCHEMA = """
CREATE TABLE IF NOT EXISTS earned (
    coordinator TEXT NOT NULL, job TEXT NOT NULL, verified INTEGER NOT NULL, paid INTEGER NOT NULL,
    signature TEXT NOT NULL, first REAL NOT NULL, changed REAL NOT NULL, PRIMARY KEY (coordinator, job));
CREATE TABLE IF NOT EXISTS wallet (
    address TEXT PRIMARY KEY, balance INTEGER NOT NULL, seen REAL NOT NULL);
CREATE TABLE IF NOT EXISTS gained (
    at REAL NOT NULL, coordinator TEXT NOT NULL, job TEXT NOT NULL, verified INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS gained_at ON gained (at);
CREATE TABLE IF NOT EXISTS worked (
    lease TEXT PRIMARY KEY, coordinator TEXT NOT NULL, job TEXT NOT NULL, name TEXT NOT NULL, began REAL NOT NULL,
    seconds REAL NOT NULL, trouble TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS worked_job ON worked (coordinator, job);
"""
DAYS = 30  # Bars that a window can show.
MAX_JOBS = 500  # Rows of an answer, the newest; the sums are of all.
PATIENCE_S = 86_400.0  # Audits end within minutes of a round; after a day nothing more is to be hoped for.

Standing = Literal["working", "paid", "pending", "not paid"]
Why = Literal["", "saving up", "not checked yet", "failed", "nothing verified"]


class JobEarnings(msgspec.Struct, frozen=True):
    """One job, in millionths of the token; ``signature``: the ledger's receipt of the last payment.

    Attributes:
        first, changed: Unix seconds of the first and the last news of it.
        seconds: how long this node held a seat in it.
        why: what ``standing`` rests on. ``saving up``: verified, and paid once it is worth the ledger's fee; ``not checked yet``:
            rounds wait for their audit; ``failed``: ``detail`` says how; ``nothing verified``: no round with this node counted.
        proof: the command that checks the coordinator's word against the ledger.
    """

    coordinator: str
    job: str
    verified: int
    paid: int
    signature: str
    first: float
    changed: float
    name: str = ""
    seconds: float = 0.0
    standing: Standing = "pending"
    why: Why = ""
    detail: str = ""
    proof: str = ""


class WalletView(msgspec.Struct, frozen=True):
    """The payout wallet as the ledger showed it at ``seen`` (unix seconds)."""

    address: str
    balance: int
    seen: float


class Day(msgspec.Struct, frozen=True):
    """What was verified on one local day, ``2026-11-22``."""

    day: str
    verified: int


class Summary(msgspec.Struct, frozen=True):
    """Everything earned, newest job first. ``days``: the last DAYS local days, the oldest first; ``today`` is the last."""

    verified: int
    paid: int
    wallet: WalletView | None
    jobs: tuple[JobEarnings, ...]
    today: int = 0
    week: int = 0
    days: tuple[Day, ...] = ()


class Grown(NamedTuple):
    """How much more of a job is verified and paid than was known."""

    verified: int
    paid: int


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

    def record(self, coordinator: str, earned: Earned, now: float) -> Grown | None:
        """Take over the totals of a job; amounts never fall, whatever a coordinator says later.

        Returns:
            what grew; None where nothing did.
        """
        known = self._database.execute(
            "SELECT verified, paid FROM earned WHERE coordinator = ? AND job = ?", (coordinator, earned.job)
        ).fetchone()
        with self._database:
            self._database.execute("BEGIN")
            cursor = self._database.execute(
                "INSERT INTO earned VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (coordinator, job) DO UPDATE SET"
                " verified = max(verified, excluded.verified), paid = max(paid, excluded.paid),"
                " signature = CASE WHEN excluded.signature = '' THEN signature ELSE excluded.signature END,"
                " changed = excluded.changed"
                " WHERE excluded.verified > verified OR excluded.paid > paid",
                (coordinator, earned.job, earned.verified, earned.paid, earned.signature, now, now),
            )
            if cursor.rowcount <= 0:
                return None
            verified, paid = known or (0, 0)
            grown = Grown(max(0, earned.verified - verified), max(0, earned.paid - paid))
            row = (now, coordinator, earned.job, grown.verified)
            if grown.verified:
                self._database.execute("INSERT INTO gained VALUES (?, ?, ?, ?)", row)
        return grown

    def record_wallet(self, address: str, balance: int, now: float) -> None:
        """Remember what the ledger says about the payout wallet."""
        self._database.execute("INSERT OR REPLACE INTO wallet VALUES (?, ?, ?)", (address, balance, now))

    def record_work(
        self, coordinator: str, lease: str, job: str, name: str, began: float, seconds: float, trouble: str
    ) -> None:
        """Remember a seat that was held; ``trouble``: how it failed, empty where it did not."""
        row = (lease, coordinator, job, name, began, seconds, trouble)
        self._database.execute("INSERT OR REPLACE INTO worked VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def summary(self, now: float = 0.0, working: Collection[str] = (), rpc: str = "") -> Summary:
        """All of it.

        Args:
            now: Unix seconds, for the days and for what is still to be hoped for.
            working: jobs that hold this node now.
            rpc: the ledger's address, for the proofs; empty where not known.
        """
        seats = self._seats()
        rows = self._database.execute(
            "SELECT coordinator, job, verified, paid, signature, first, changed FROM earned"
        ).fetchall()
        known = {(row[0], row[1]) for row in rows}
        rows += [(*key, 0, 0, "", seat[1], seat[1] + seat[2]) for key, seat in seats.items() if key not in known]
        jobs = [_job(row, seats.get((row[0], row[1])), now, row[1] in working, rpc) for row in rows]
        jobs.sort(key=lambda job: (-job.changed, job.job))
        wallet = self._database.execute("SELECT * FROM wallet ORDER BY seen DESC LIMIT 1").fetchone()
        days = self._days(now)
        return Summary(
            sum(job.verified for job in jobs),
            sum(job.paid for job in jobs),
            WalletView(*wallet) if wallet else None,
            tuple(jobs[:MAX_JOBS]),
            days[-1].verified,
            sum(day.verified for day in days[-7:]),
            days,
        )

    def _seats(self) -> dict[tuple[str, str], tuple[str, float, float, str]]:
        """For each job its name, when it began, seconds in all, and the trouble of the newest seat."""
        rows = self._database.execute(
            "SELECT coordinator, job, name, min(began), sum(seconds),"
            " (SELECT trouble FROM worked AS w WHERE w.coordinator = worked.coordinator AND w.job = worked.job"
            " ORDER BY began DESC LIMIT 1) FROM worked GROUP BY coordinator, job"
        )
        return {(row[0], row[1]): (row[2], row[3], row[4], row[5]) for row in rows}

    def _days(self, now: float) -> tuple[Day, ...]:
        today = dt.datetime.fromtimestamp(now).astimezone().date()
        first = today - dt.timedelta(days=DAYS - 1)
        sums = dict.fromkeys((first + dt.timedelta(days=n) for n in range(DAYS)), 0)
        since = dt.datetime.combine(first, dt.time()).astimezone().timestamp()
        for at, verified in self._database.execute("SELECT at, verified FROM gained WHERE at >= ?", (since,)):
            day = dt.datetime.fromtimestamp(at).astimezone().date()
            if day in sums:
                sums[day] += verified
        return tuple(Day(day.isoformat(), verified) for day, verified in sums.items())


def _job(
    row: tuple[str, str, int, int, str, float, float],
    seat: tuple[str, float, float, str] | None,
    now: float,
    working: bool,
    rpc: str,
) -> JobEarnings:
    name, _, seconds, trouble = seat or ("", 0.0, 0.0, "")
    standing, why = _standing(row[2], row[3], now - row[6], working, bool(trouble))
    detail = trouble if why == "failed" else ""
    proof = f"cottage ledger check {row[1]} --coordinator {row[0]}" + (f" --rpc {rpc}" if rpc else "")
    return JobEarnings(*row, name, seconds, standing, why, detail, proof)


def _standing(verified: int, paid: int, silent_s: float, working: bool, failed: bool) -> tuple[Standing, Why]:
    if working:
        return "working", ""
    if verified > paid:
        return "pending", "saving up"
    if verified:
        return "paid", ""
    if failed:
        return "not paid", "failed"
    return ("pending", "not checked yet") if silent_s < PATIENCE_S else ("not paid", "nothing verified")
