"""The ledger, as everybody may read it."""

from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlencode

from coordinator.client.line import HttpLine, place
from protocol.disputes import DisputeDetail, DisputeView
from protocol.evidence import RoundEvidence
from protocol.rest import ledger

AuditState = Literal["drawn", "opening", "showing", "replaying", "passed", "failed", "void"]
AUDIT_STATES: tuple[AuditState, ...] = ("drawn", "opening", "showing", "replaying", "passed", "failed", "void")
KINDS: tuple[ledger.EntryKind, ...] = (
    "fund",
    "accept",
    "event",
    "settle",
    "promise",
    "refund",
    "slash",
    "verdict",
    "table",
)


class PublicCalls:
    """Calls of the client that need no key: transactions, audits, disputes, evidence."""

    _line: HttpLine

    async def ledger_entries(
        self, kinds: Sequence[ledger.EntryKind] = (), job: str | None = None, limit: int | None = None
    ) -> Sequence[ledger.LedgerEntry]:
        """Transactions on the ledger, newest first.

        Args:
            kinds: only these; empty: all.
            job: only its.
            limit: at most so many; None: all.
        """
        return await self._line.list(_asked("ledger", kind=",".join(kinds), job=job), ledger.LedgerEntry, limit)

    async def ledger_audits(
        self, state: AuditState | None = None, job: str | None = None, limit: int | None = None
    ) -> Sequence[ledger.NodeAudit]:
        """Audits of all jobs or of one, those of the latest rounds first."""
        return await self._line.list(_asked("ledger/audits", state=state, job=job), ledger.NodeAudit, limit)

    async def ledger_totals(self) -> ledger.LedgerTotals:
        """Where all the money is."""
        return await self._line.get("ledger/totals", ledger.LedgerTotals)

    async def job_ledger(self, job: str) -> ledger.JobLedger:
        """The job's escrow, as the ledger has it."""
        return await self._line.get(f"{place('job', job)}/ledger", ledger.JobLedger)

    async def disputes(self, job: str | None = None) -> Sequence[DisputeView]:
        """All disputes, or those of one job, newest first."""
        return await self._line.list(_asked("disputes", job=job), DisputeView)

    async def dispute(self, audit: str) -> DisputeDetail:
        """A dispute, with every answer once it is over."""
        return await self._line.get(place("dispute", audit), DisputeDetail)

    async def promise(self, job: str) -> ledger.PromiseView:
        """What the job's payees can claim from the ledger."""
        return await self._line.get(f"{place('job', job)}/promise", ledger.PromiseView)

    async def evidence(self, job: str, number: int) -> Sequence[RoundEvidence]:
        """What is published about a round (counted from 0): once for each time that it was completed."""
        return await self._line.get(f"{place('job', job)}/rounds/{number}/evidence", tuple[RoundEvidence, ...])

    async def node_account(self, node: str) -> ledger.NodeAccount:
        """A node's stake, audits and earnings."""
        return await self._line.get(place("node", node), ledger.NodeAccount)


def _asked(path: str, **wanted: str | None) -> str:
    query = urlencode({name: value for name, value in wanted.items() if value})
    return f"{path}?{query}" if query else path
