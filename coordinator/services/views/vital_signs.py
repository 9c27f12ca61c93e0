"""What an operator's monitoring has to know beside what is counted anyway: looked up whenever somebody asks for the metrics."""

import asyncio
import shutil
from collections import Counter
from typing import Literal

from coordinator.domain.job import Job, JobState
from coordinator.errors import StoreAwayError
from coordinator.metrics import Gauges
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.core.backup_age import backup_age
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.network.nodes import Nodes, NodeSession
from coordinator.services.payments.withdrawals import Sponsor
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import MONEY_ROWS, OPEN_ROWS, FileRecord, OutboxRecord
from coordinator.version import release
from ledger.errors import LedgerError
from ledger.money import UNIT

ANSWER_S = 5.0  # Prometheus waits 10 s for all of it.
LEDGER_S = 30.0  # An endpoint counts what it is asked.
BEAT_S = 1.0

Doing = Literal["busy", "free", "draining", "paused", "short of stake"]
_STATES: tuple[Doing, ...] = ("busy", "free", "draining", "paused", "short of stake")


class VitalSigns:
    """Gauges of what is here and what is stored. What did not answer has none but the one that says so."""

    def __init__(
        self, context: Context, nodes: Nodes, leases: Leases, sponsor: Sponsor, artifacts: ArtifactStore
    ) -> None:
        self._context = context
        self._nodes = nodes
        self._leases = leases
        self._sponsor = sponsor
        self._artifacts = artifacts
        self._turn = asyncio.Lock()
        self._stored: Gauges = {}
        self._on_ledger: Gauges = {}
        self._asked: float | None = None
        context.metrics.watch(self._gauges)

    async def look(self) -> None:
        """Learn how everything does; takes ``ANSWER_S`` at the most, whatever is away."""
        async with self._turn, asyncio.TaskGroup() as group:
            group.create_task(self._look_into_store(), name="look-into-store")
            now = self._context.clock.now()
            if self._asked is None or now - self._asked >= LEDGER_S:
                self._asked = now
                group.create_task(self._look_at_ledger(), name="look-at-ledger")

    async def run(self) -> None:
        """Measure for ever how late the event loop comes."""
        clock = self._context.clock
        while True:
            due = clock.now() + BEAT_S
            await clock.sleep(BEAT_S)
            self._context.metrics.observe("loop_late_seconds", max(0.0, clock.now() - due))

    def _gauges(self) -> Gauges:
        config = self._context.config
        disk = shutil.disk_usage(config.data)
        used = self._artifacts.total() - self._artifacts.free()
        doing = Counter(self._doing(session) for session in self._nodes.sessions() if not session.operator)
        looking = len(self._nodes.auditors())
        backed_up = backup_age(config.data, self._context.clock.time())
        return {
            ("build_info", release()): 1.0,
            **{("nodes", state): float(doing[state]) for state in _STATES},
            ("auditors", "here"): float(looking),
            ("auditors", "away"): float(len(config.auditors) - looking),
            ("disk_free_bytes",): float(disk.free),
            ("disk_bytes",): float(disk.total),
            **({} if backed_up is None else {("backup_age_seconds",): backed_up}),
            ("artifacts_used_bytes",): float(used),
            ("artifacts_limit_bytes",): float(self._artifacts.total()),
            **self._stored,
            **self._on_ledger,
        }

    def _doing(self, session: NodeSession) -> Doing:
        if self._leases.is_busy(session.node):
            return "busy"
        if self._nodes.is_draining(session.node):
            return "draining"
        if not session.accepting:
            return "paused"
        return "short of stake" if self._nodes.short_of_stake(session.node) else "free"

    async def _look_into_store(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S), self._context.everywhere.transaction() as tx:
                counted = await _counted(tx, self._context.clock.time())
                if (
                    self._context.cell.number
                ):  # All cells have one database: told by each, a sum would have it several times.
                    counted = {}
                self._stored = {**counted, ("database_up",): 1.0}
        except (StoreAwayError, TimeoutError):
            self._stored = {("database_up",): 0.0}

    async def _look_at_ledger(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                lamports = await self._sponsor.lamports()
                tokens = await self._sponsor.held(self._sponsor.info.coordinator)
        except (LedgerError, TimeoutError):
            self._on_ledger = {("ledger_up",): 0.0}
        else:
            self._on_ledger = {
                ("ledger_up",): 1.0,
                ("wallet_lamports",): float(lamports),
                ("wallet_tokens",): tokens / UNIT,
            }


async def _counted(tx: Transaction, now: float) -> Gauges:
    jobs = await tx.sums(Job, col(Job.paid), (col(Job.state),))
    kept = await tx.sums(FileRecord, col(FileRecord.length), ())
    left: Condition = col(OutboxRecord.state).in_((*OPEN_ROWS, "failed"))
    rows = await tx.sums(
        OutboxRecord, col(OutboxRecord.amount), (col(OutboxRecord.kind), col(OutboxRecord.state)), left
    )
    counted: Counter[tuple[str, str]] = Counter(
        {(part, state): 0 for part in ("money", "records") for state in (*OPEN_ROWS, "failed")}
    )
    for (kind, state), (number, _) in rows.items():
        counted[_part(str(kind)), str(state)] += number
    oldest = dict.fromkeys(("money", "records"), now)
    for kind, state in (key for key in rows if key[1] != "failed"):
        same = (col(OutboxRecord.state).equals(state), col(OutboxRecord.kind).equals(kind))  # type: ignore[arg-type]
        for first in await tx.find(
            OutboxRecord, *same, limit=1
        ):  # Another cell may have told the ledger of it meanwhile.
            oldest[_part(str(kind))] = min(oldest[_part(str(kind))], first.created)
    return {
        **{("jobs", state.value): float(jobs.get((state,), (0, 0))[0]) for state in JobState},
        **{("outbox_rows", *key): float(number) for key, number in counted.items()},
        **{("outbox_oldest_seconds", part): now - since for part, since in oldest.items()},
        ("uploaded_bytes",): float(kept.get((), (0, 0))[1]),
    }


def _part(kind: str) -> str:
    return "money" if kind in MONEY_ROWS else "records"
