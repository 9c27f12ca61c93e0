"""Disputes that somebody has bonded on the ledger: each gets its verdict once the audit that it is about is over.

Who accuses a node puts a bond against an audit that it took part in, or against any committed step, which is then audited. The
coordinator is bound to decide before a deadline. What was proven decides it: for the accuser (the bond returns), or against it
(the bond goes to the accused). What nobody could prove is left to expire, which gives the bond back.
"""

import hashlib
import logging
from typing import Literal

import msgspec

from common.untrusted_text import untrusted
from coordinator.domain.audits import penalty
from coordinator.domain.audits.trust import Audit
from coordinator.errors import NotFoundError
from coordinator.services.audits.disputes import evidence_digest
from coordinator.services.audits.evidence import place_of
from coordinator.services.audits.sampling import AuditSampling
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import JobDesk
from coordinator.services.payments.chain import ChainPort
from coordinator.services.training.runs import ACTIVE
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import DisputeRecord, OutboxRecord
from ledger import addresses
from ledger.addresses import StepPlace, audit_of
from ledger.errors import LedgerError
from ledger.states import DisputeState

POLL_S = 10.0
MAX_VERDICTS = 200  # Queued at a time, the most urgent first.
MAX_REMEMBERED = 10_000  # Bonds about which it was said why they cannot be decided.

Ruled = tuple[Literal["upheld", "rejected"], str]

LOG = logging.getLogger(__name__)


class BondedDisputes:
    """Looks for bonded disputes, has what they accuse audited, and queues their verdicts."""

    def __init__(self, context: Context, desk: JobDesk, chain: ChainPort, drawing: AuditSampling) -> None:
        self._context = context
        self._desk = desk
        self._chain = chain
        self._drawing = drawing
        self._said: dict[str, str] = {}

    async def run(self) -> None:
        """Look for ever; without stakes there is nothing that anybody could put a bond against."""
        while True:
            if self._context.config.min_stake > 0:
                await self.poll()
            await self._context.clock.sleep(POLL_S)

    async def poll(self) -> None:
        """Queue a verdict for everything that is bonded and decided."""
        try:
            waiting = await self._chain.waiting_disputes()
        except LedgerError as error:
            LOG.warning("bonded disputes cannot be looked for: %s", error)
            return
        now = self._context.clock.time()
        open_ = [state for state in waiting if now < state.deadline and not self._is_elsewhere(state)]
        # Bonds over nothing stay open until their deadlines: they come last, however many there are.
        open_.sort(key=lambda state: (state.address in self._said, state.deadline))
        for state in open_[:MAX_VERDICTS]:
            audit, place = audit_of(state.audit), addresses.place_of(state.audit)
            if audit is not None:
                await self._decide(audit, state)
            elif place is not None:
                await self._look_at(place, state)

    async def _decide(self, audit: str, state: DisputeState) -> None:
        """A dispute over an audit that the challenger took part in."""
        async with self._context.everywhere.transaction() as tx:
            known = await tx.find(Audit, col(Audit.id).equals(audit))
            found = await _outcome(tx, audit, state) if known else None
        if not known:
            self._cannot(state, f"there is no audit {audit}")
        elif not self._context.cell.has(known[0].job):
            self._remember(state, "another cell decides it")
        elif found is not None:
            await self._rule(known[0].job, audit, state, found)

    async def _look_at(self, place: StepPlace, state: DisputeState) -> None:
        """A dispute over a committed step: it is audited for this challenger, once, and the audit's end decides."""
        async with self._context.store.transaction() as tx:
            about: tuple[Condition, ...] = (
                col(Audit.job).equals(place.job),
                col(Audit.accuser).equals(state.challenger),
            )
            audits = await tx.find(Audit, *about)
            mine = [audit for audit in audits if place_of(audit) == place]
            found = await _ended(tx, mine[0]) if mine else None
        if found is not None:
            await self._rule(place.job, state.audit.hex(), state, found)
        elif not mine:
            await self._begin(place, state)

    async def _begin(self, place: StepPlace, state: DisputeState) -> None:
        try:
            async with self._desk.open(place.job) as work:
                running = work.job.state in ACTIVE
                why = "its job does not run" if not running else ""
                why = why or await self._drawing.accused(work, place, state.node, state.challenger)
        except NotFoundError as error:
            why = error.detail
        if why:
            self._cannot(state, why)

    def _cannot(self, state: DisputeState, why: str) -> None:
        """Say once why a bond cannot be decided, and look at others first from now on."""
        if self._remember(state, why):
            LOG.info("the bond %s of %s cannot be decided: %s", state.address, state.challenger, why)

    def _remember(self, state: DisputeState, why: str) -> bool:
        """Look at others first from now on; whether that is new."""
        if self._said.get(state.address) == why:
            return False
        while len(self._said) >= MAX_REMEMBERED:
            self._said.pop(next(iter(self._said)))
        self._said[state.address] = why
        return True

    def _is_elsewhere(self, state: DisputeState) -> bool:
        """Whether it is over a step of a job that another cell carries; of an audit its name does not tell."""
        place = addresses.place_of(state.audit)
        return place is not None and not self._context.cell.has(place.job)

    async def _rule(self, job: str, subject: str, state: DisputeState, found: Ruled) -> None:
        outcome, evidence = found
        key = f"verdict:{subject}:{state.challenger}"
        async with self._desk.open(job) as work:
            if await work.tx.find(OutboxRecord, col(OutboxRecord.key).equals(key), limit=1):
                return
            payload: dict[str, str | int] = {
                "node": state.node,
                "accuser": state.challenger,
                "audit": subject,
                "evidence": evidence,
                "upheld": int(outcome == "upheld"),
            }
            where = "back to the challenger" if outcome == "upheld" else "to the accused"
            what = f"audit {subject}" if len(subject) == 32 else f"a step of node {state.node}"
            detail = f"the dispute over {what} is {outcome}: the bond goes {where}"
            await work.store_now(
                OutboxRecord(key, work.job.id, "verdict", payload, work.now, int(state.bond), detail=untrusted(detail))
            )


async def _outcome(tx: Transaction, audit: str, state: DisputeState) -> Ruled | None:
    """What was proven between these two, and the digest of what proves it; None while nothing is."""
    for record in await tx.find(DisputeRecord, col(DisputeRecord.id).equals(audit)):
        dispute = record.dispute
        if record.over and dispute.winner and (dispute.prover, dispute.challenger) == (state.node, state.challenger):
            return ("upheld" if dispute.winner == "challenger" else "rejected"), evidence_digest(record)
    return None


async def _ended(tx: Transaction, audit: Audit) -> Ruled | None:
    """What an audit that a bond asked for has proven, and the digest of what proves it; None while nothing is."""
    goes = penalty.bond_goes(audit)
    if goes is None:
        return None
    records = await tx.find(DisputeRecord, col(DisputeRecord.id).equals(audit.id), col(DisputeRecord.over).equals(True))
    proof = evidence_digest(records[0]) if records else hashlib.sha256(msgspec.json.encode(audit)).hexdigest()
    return ("upheld" if goes == "challenger" else "rejected"), proof
