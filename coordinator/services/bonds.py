"""Disputes that somebody has bonded on the ledger: each gets its verdict once the audit that it is about is over.

Who accuses a node puts a bond against the audit; the coordinator is bound to decide before a deadline. What the dispute proved
decides it: for the accuser (the bond returns), or against it (the bond goes to the accused). What nobody could prove is left to
expire, which gives the bond back.
"""

import logging
from typing import Literal

from coordinator.domain.trust import Audit
from coordinator.services.chain import Chain
from coordinator.services.context import Context
from coordinator.services.disputes import evidence_digest
from coordinator.services.work import Desk
from coordinator.store.ports import Transaction
from coordinator.store.records import DisputeRecord, OutboxRecord
from ledger.addresses import audit_of
from ledger.errors import LedgerError
from ledger.states import DisputeState

POLL_SECONDS = 10.0
MAX_VERDICTS = 200  # Queued at a time, the most urgent first.

log = logging.getLogger(__name__)


class Bonds:
    """Looks for bonded disputes, and queues their verdicts."""

    def __init__(self, context: Context, desk: Desk, chain: Chain) -> None:
        self._context = context
        self._desk = desk
        self._chain = chain

    async def run(self) -> None:
        """Look for ever; without stakes there is nothing that anybody could put a bond against."""
        while True:
            if self._context.config.min_stake > 0:
                await self.poll()
            await self._context.clock.sleep(POLL_SECONDS)

    async def poll(self) -> None:
        """Queue a verdict for everything that is bonded and decided."""
        try:
            waiting = await self._chain.waiting_disputes()
        except LedgerError as error:
            log.warning("bonded disputes cannot be looked for: %s", error)
            return
        for state in waiting[:MAX_VERDICTS]:
            audit = audit_of(state.audit)
            if audit is not None and self._context.clock.time() < state.deadline:
                await self._decide(audit, state)

    async def _decide(self, audit: str, state: DisputeState) -> None:
        async with self._context.store.transaction() as tx:
            known = await tx.find(Audit, ("id", "=", audit))
            found = await _outcome(tx, audit, state) if known else None
            key = f"verdict:{audit}:{state.challenger}"
            told = await tx.find(OutboxRecord, ("key", "=", key), limit=1)
        if found is None or told:
            return
        outcome, evidence = found
        async with self._desk.open(known[0].job) as work:
            payload: dict[str, str | int] = {
                "node": state.node, "accuser": state.challenger, "audit": audit, "evidence": evidence,
                "upheld": int(outcome == "upheld"),
            }  # fmt: skip
            where = "back to the challenger" if outcome == "upheld" else "to the accused"
            detail = f"the dispute over audit {audit} is {outcome}: the bond goes {where}"
            await work.store_now(
                OutboxRecord(key, work.job.id, "verdict", payload, work.now, int(state.bond), detail=detail)
            )


async def _outcome(
    tx: Transaction, audit: str, state: DisputeState
) -> tuple[Literal["upheld", "rejected"], str] | None:
    """What was proven between these two, and the digest of what proves it; None while nothing is."""
    for record in await tx.find(DisputeRecord, ("id", "=", audit)):
        dispute = record.dispute
        if record.over and dispute.winner and (dispute.prover, dispute.challenger) == (state.node, state.challenger):
            return ("upheld" if dispute.winner == "challenger" else "rejected"), evidence_digest(record)
    return None
