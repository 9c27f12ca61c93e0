"""What each job has brought this node, kept on its own disk so that the owner need not believe anybody's web page."""

import datetime as dt
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, assert_never, get_args

import msgspec

from common.untrusted_text import Untrusted, untrusted
from desktop.answers import EarningsDay, EarningsSummary, JobEarnings, PayReason, WalletView
from protocol.node import MAX_ACCOUNTS, Due, JobEarned, LedgerInfo, ShareState

_SCHEMA = """
CREATE TABLE IF NOT EXISTS earned (
    coordinator TEXT NOT NULL, job TEXT NOT NULL, verified INTEGER NOT NULL, paid INTEGER NOT NULL,
    signature TEXT NOT NULL, first REAL NOT NULL, changed REAL NOT NULL, PRIMARY KEY (coordinator, job));
CREATE TABLE IF NOT EXISTS wallet (
    address TEXT PRIMARY KEY, balance INTEGER NOT NULL, seen REAL NOT NULL);
CREATE TABLE IF NOT EXISTS ledger (coordinator TEXT PRIMARY KEY, told TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS gained (
    at REAL NOT NULL, coordinator TEXT NOT NULL, job TEXT NOT NULL, verified INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS gained_at ON gained (at);
CREATE TABLE IF NOT EXISTS worked (
    lease TEXT PRIMARY KEY, coordinator TEXT NOT NULL, job TEXT NOT NULL, name TEXT NOT NULL, began REAL NOT NULL,
    seconds REAL NOT NULL, trouble TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS worked_job ON worked (coordinator, job);
CREATE TABLE IF NOT EXISTS account (
    coordinator TEXT NOT NULL, job TEXT NOT NULL, told TEXT NOT NULL, PRIMARY KEY (coordinator, job));
"""
DAYS = 30  # Bars that a window can show.
MAX_JOBS = 500  # Rows of an answer, the newest; the sums are of all.

Standing = Literal["working", "paid", "pending", "not paid"]
Why = (
    ShareState
    | Literal[
        "",
        "failed",
        "unheard",
        "nothing told",
        "spare",
        "no round: cancelled",
        "no round: failed",
        "no round: stopped",
        "no round: paused",
        "no round: left",
        "no round: expired",
        "no round: stalled",
        "no round: replaced",
        "no round: rejected",
        "no round yet",
    ]
)
"""Why a job stands as it does: of some shares, as the coordinator told it; or, without one, what became of the seat.

``unheard``: the coordinator is away, and what it said last may be no longer so; ``nothing told``: it has never said anything.
"""
_DUE = frozenset(get_args(Due))
_OVER = frozenset({"settled", "failed", "cancelled"})


class Grown(NamedTuple):
    """How much more of a job is verified and paid than was known."""

    verified: int
    paid: int


class EarningsFile:
    """The file of earnings."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it."""
        self._database = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def record(self, coordinator: str, earned: JobEarned, now: float) -> Grown | None:
        """Take over the totals of a job; amounts never fall, whatever a coordinator says later.

        Returns:
            what grew; None where nothing did.
        """
        known = self._database.execute(
            "SELECT verified, paid FROM earned WHERE coordinator = ? AND job = ?", (coordinator, earned.job)
        ).fetchone()
        with self._database:
            self._database.execute("BEGIN")
            if earned.state is not None:
                row: tuple[object, ...] = (coordinator, earned.job, msgspec.json.encode(earned).decode())
                self._database.execute("INSERT OR REPLACE INTO account VALUES (?, ?, ?)", row)
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

    def record_ledger(self, coordinator: str, info: LedgerInfo) -> None:
        """Remember where a coordinator keeps the money, for when it is not connected."""
        row = (coordinator, msgspec.json.encode(info).decode())
        self._database.execute("INSERT OR REPLACE INTO ledger VALUES (?, ?)", row)

    def ledger(self, coordinator: str) -> LedgerInfo | None:
        """Where that is; None for one that has never said."""
        found = self._database.execute("SELECT told FROM ledger WHERE coordinator = ?", (coordinator,)).fetchone()
        return msgspec.json.decode(found[0], type=LedgerInfo) if found else None

    def record_seat(self, coordinator: str, lease: str, job: str, name: str, began: float) -> None:
        """Remember a seat before it is worked: the process may be killed before it can say how that ended."""
        row = (lease, coordinator, job, name, began)
        self._database.execute("INSERT OR IGNORE INTO worked VALUES (?, ?, ?, ?, ?, 0, '')", row)

    def record_work(
        self, coordinator: str, lease: str, job: str, name: str, began: float, seconds: float, trouble: str
    ) -> None:
        """Remember that a seat was held for so many more seconds; ``trouble``: how it failed, empty where it did not."""
        row = (lease, coordinator, job, name, began, seconds, trouble)
        self._database.execute(
            "INSERT INTO worked VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (lease) DO UPDATE SET"
            " seconds = seconds + excluded.seconds, trouble = excluded.trouble",
            row,
        )

    def unsettled(self, coordinator: str) -> tuple[str, ...]:
        """Jobs of a coordinator of which it has more to say, the newest first: what it told last was not the end.

        These are jobs with a seat here and jobs that brought something: an older book may lack a seat.
        """
        known = self._accounts()
        jobs = self._database.execute(
            "SELECT job, max(began) AS at FROM worked WHERE coordinator = ?1 GROUP BY job"
            " UNION ALL SELECT job, first AS at FROM earned WHERE coordinator = ?1"
            " AND job NOT IN (SELECT job FROM worked WHERE coordinator = ?1) ORDER BY at DESC",
            (coordinator,),
        )
        return tuple(job for job, _ in jobs if not _is_closed(known.get((coordinator, job))))[:MAX_ACCOUNTS]

    def summary(
        self, now: float = 0.0, working: Collection[str] = (), rpc: str = "", heard: str | None = None
    ) -> EarningsSummary:
        """All of it.

        Args:
            now: Unix seconds, for the days and for what is still to be hoped for.
            working: jobs that hold this node now.
            rpc: the ledger's address, for the proofs; empty where not known.
            heard: the coordinator that this node is connected to now.
        """
        seats = self._seats()
        rows = self._database.execute(
            "SELECT coordinator, job, verified, paid, signature, first, changed FROM earned"
        ).fetchall()
        known = {(row[0], row[1]) for row in rows}
        rows += [(*key, 0, 0, "", seat[1], seat[1] + seat[2]) for key, seat in seats.items() if key not in known]
        accounts = self._accounts()
        jobs = [
            _job(
                row,
                seats.get((row[0], row[1])),
                accounts.get((row[0], row[1])),
                row[1] in working,
                rpc,
                row[0] == heard,
            )
            for row in rows
        ]
        jobs.sort(key=lambda job: (-job.changed, job.job))
        wallet = self._database.execute("SELECT * FROM wallet ORDER BY seen DESC LIMIT 1").fetchone()
        days = self._days(now)
        return EarningsSummary(
            sum(job.verified for job in jobs),
            sum(job.paid for job in jobs),
            WalletView(*wallet) if wallet else None,
            tuple(jobs[:MAX_JOBS]),
            days[-1].verified,
            sum(day.verified for day in days[-7:]),
            days,
        )

    def _accounts(self) -> dict[tuple[str, str], JobEarned]:
        """What each coordinator has said last of each job."""
        rows = self._database.execute("SELECT coordinator, job, told FROM account")
        return {(row[0], row[1]): msgspec.json.decode(row[2], type=JobEarned) for row in rows}

    def _seats(self) -> dict[tuple[str, str], tuple[str, float, float, str]]:
        """For each job its name, when it began, seconds in all, and the trouble of the newest seat."""
        rows = self._database.execute(
            "SELECT coordinator, job, name, min(began), sum(seconds),"
            " (SELECT trouble FROM worked AS w WHERE w.coordinator = worked.coordinator AND w.job = worked.job"
            " ORDER BY began DESC LIMIT 1) FROM worked GROUP BY coordinator, job"
        )
        return {(row[0], row[1]): (row[2], row[3], row[4], row[5]) for row in rows}

    def _days(self, now: float) -> tuple[EarningsDay, ...]:
        today = dt.datetime.fromtimestamp(now).astimezone().date()
        first = today - dt.timedelta(days=DAYS - 1)
        sums = dict.fromkeys((first + dt.timedelta(days=n) for n in range(DAYS)), 0)
        since = dt.datetime.combine(first, dt.time()).astimezone().timestamp()
        for at, verified in self._database.execute("SELECT at, verified FROM gained WHERE at >= ?", (since,)):
            day = dt.datetime.fromtimestamp(at).astimezone().date()
            if day in sums:
                sums[day] += verified
        return tuple(EarningsDay(day.isoformat(), verified) for day, verified in sums.items())


_FIRST: tuple[Standing, ...] = ("working", "pending", "paid", "not paid")


def together(summaries: Sequence[EarningsSummary]) -> EarningsSummary:
    """What several cards of one computer have brought, as one: their parts of a job are added up."""
    if len(summaries) == 1:
        return summaries[0]
    jobs: dict[tuple[str, str], JobEarnings] = {}
    for job in (job for summary in summaries for job in summary.jobs):
        key = job.coordinator, job.job
        jobs[key] = _added(jobs[key], job) if key in jobs else job
    days = [
        EarningsDay(day[0].day, sum(one.verified for one in day))
        for day in zip(*(s.days for s in summaries), strict=True)
    ]
    wallets = [summary.wallet for summary in summaries if summary.wallet is not None]
    return EarningsSummary(
        sum(summary.verified for summary in summaries),
        sum(summary.paid for summary in summaries),
        max(wallets, key=lambda wallet: wallet.seen, default=None),
        tuple(sorted(jobs.values(), key=lambda job: (-job.changed, job.job))[:MAX_JOBS]),
        sum(summary.today for summary in summaries),
        sum(summary.week for summary in summaries),
        tuple(days),
    )


def _added(one: JobEarnings, other: JobEarnings) -> JobEarnings:
    reasons = (*one.reasons, *(reason for reason in other.reasons if reason not in one.reasons))
    return msgspec.structs.replace(
        one,
        verified=one.verified + other.verified,
        paid=one.paid + other.paid,
        signature=max(one, other, key=lambda job: job.changed).signature or one.signature or other.signature,
        first=min(one.first, other.first),
        changed=max(one.changed, other.changed),
        name=one.name or other.name,
        seconds=one.seconds + other.seconds,
        standing=min(one.standing, other.standing, key=_FIRST.index),
        reasons=reasons[:64],
    )


def _job(
    row: tuple[str, str, int, int, str, float, float],
    seat: tuple[str, float, float, str] | None,
    account: JobEarned | None,
    working: bool,
    rpc: str,
    heard: bool,
) -> JobEarnings:
    name, _, seconds, trouble = seat or ("", 0.0, 0.0, "")
    standing, reasons = standing_of(row[2], row[3], account, working, untrusted(trouble), heard)
    proof = f"cottage ledger check {row[1]} --coordinator {row[0]}" + (f" --rpc {rpc}" if rpc else "")
    return JobEarnings(*row, untrusted(name), seconds, standing, reasons, proof)


def standing_of(
    verified: int, paid: int, account: JobEarned | None, working: bool, trouble: Untrusted, heard: bool
) -> tuple[Standing, tuple[PayReason, ...]]:
    """How a job stands for its lender, and why.

    Args:
        account: what its coordinator said last; None: nothing, or nothing but the sums.
        working: this node has a lease of it now.
        trouble: how its newest seat failed here; empty where it did not.
        heard: its coordinator is connected now.
    """
    tallies = () if account is None else tuple(t for t in account.tallies if t.state != "paid" and t.shares)
    over = account is not None and account.state in _OVER
    reasons = [PayReason(tally.state, tally.shares, tally.amount) for tally in tallies]
    waits = _DUE - {"unaudited", "looking"} if over else _DUE
    due = any(tally.state in waits for tally in tallies) or (account is None and verified > paid)
    if working:
        return "working", tuple(reasons)
    if not reasons and verified == 0:
        reasons.append(PayReason(_without(account, trouble), detail=trouble))
        due = not over and reasons[0].why in ("no round: paused", "nothing told", "no round yet")
    elif not reasons and verified > paid:
        reasons.append(PayReason("saving", amount=verified - paid))
    elif trouble:
        reasons.append(PayReason("failed", detail=trouble))
    if due and not heard:
        reasons.append(PayReason("unheard"))
    if due:
        return "pending", tuple(reasons)
    return ("paid" if verified else "not paid"), tuple(reasons)


def _without(account: JobEarned | None, trouble: str) -> Why:
    """Why there is no share at all: what happened here comes first, then to the seat, then to the job."""
    if trouble:
        return "failed"
    if account is None or account.state is None or account.seat is None:
        return "nothing told"
    match account.seat:
        case "spare":
            return "spare"
        case "left" | "expired" | "stalled" | "replaced" | "rejected":
            return _NO_ROUND[account.seat]
        case "failed":
            return "failed"
        case "held" | "stopped":
            return _NO_ROUND.get(account.state, "no round yet")
        case _:
            assert_never(account.seat)


_NO_ROUND: Mapping[str, Why] = {
    "left": "no round: left",
    "expired": "no round: expired",
    "stalled": "no round: stalled",
    "replaced": "no round: replaced",
    "rejected": "no round: rejected",
    "cancelled": "no round: cancelled",
    "failed": "no round: failed",
    "settled": "no round: stopped",
    "verifying": "no round: stopped",
    "paused": "no round: paused",
}


def _is_closed(account: JobEarned | None) -> bool:
    """Whether nothing can follow what a coordinator said of a job."""
    return account is not None and account.state in _OVER and not any(t.state in _DUE for t in account.tallies)
