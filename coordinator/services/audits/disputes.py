"""Disputes of a job: opened by an auditor's finding, played by both sides, decided by one operation that is run here.

Everything but ``Referee`` happens on an open desk. An audit that is disputed waits; what the dispute proved becomes its outcome,
and where it proved nothing (both were silent, a side left, the operation cannot be run by itself) a second auditor decides as
without a dispute.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

import msgspec

from coordinator.domain.audits import dispute as disputes
from coordinator.domain.audits import trust
from coordinator.domain.audits.dispute import SIDES, Dispute, Side
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job
from coordinator.domain.rounds.run import training_of
from coordinator.errors import CottageError, StoreAwayError
from coordinator.services.audits.deadlines import Deadlines
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import AccusedFalsely
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.store.ports import col
from coordinator.store.records import DisputeRecord, RunRecord
from ledger import events as ledger_events
from protocol.audit import BisectAnswer, ReplayStep
from protocol.disputes import DisputeEvidence, SaidAnswer, digest_of
from protocol.ids import Digest

PROVEN = frozenset({"malformed", "contradiction", "operation"})  # Ways to lose that nobody gets into by being slow.

LOG = logging.getLogger(__name__)


def evidence_of(record: DisputeRecord) -> DisputeEvidence:
    """A dispute as it is published once it is over."""
    dispute = record.dispute
    return DisputeEvidence(
        audit=record.id,
        job=record.job,
        prover=dispute.prover,
        challenger=dispute.challenger,
        first=dispute.first,
        replay=dispute.replay,
        said=tuple(SaidAnswer(one.side, one.answer) for one in dispute.log),
        step=dispute.step,
        index=dispute.index,
        questions=dispute.questions,
        winner=dispute.winner,
        why=dispute.why,
        detail=dispute.detail,
    )


def evidence_digest(record: DisputeRecord) -> Digest:
    """What the ledger is told of a dispute that is over."""
    return digest_of(evidence_of(record))


class Judge(Protocol):
    """Runs one operation."""

    async def agrees(self, inputs: Digest, record: bytes) -> bool | None:
        """Whether an operation gives what its record says; None: the artifact is of another record, or cannot be run.

        Args:
            inputs: artifact with the operation's inputs.
            record: what the side committed to.
        """

    async def belongs(self, job: Job, dispute: Dispute, env_class: str, record: bytes) -> bool | None:
        """Whether a record is the one that stands at the disputed place when the step is run again; None: it cannot be run here.

        Args:
            env_class: of the dispute.
        """


class DisputeService:
    """Opens, plays and concludes disputes."""

    def __init__(self, context: Context, nodes: Nodes, deadlines: Deadlines) -> None:
        self._context = context
        self._nodes = nodes
        self._deadlines = deadlines

    def open(self, work: UnitOfWork, audit: Audit, accuser: str) -> None:
        """An auditor found a difference: it and the prover are asked, where the prover is here to answer.

        Once of each audit: where a dispute has proven nothing of the prover, who accuses it next is confirmed by another, or not.
        """
        config = self._context.config
        if not config.disputes or audit.lease not in work.leases or audit.opening is None or audit.id in work.disputed:
            return
        prover = work.leases[audit.lease]
        every = work.job.spec.training.commit_every
        first = audit.step - audit.step % every
        # A segment is disputed as a whole: the state after it binds the prover.
        last = min(first + every, audit.leaves) - 1
        replay = msgspec.structs.replace(audit, auditor_lease=prover.id, step=last).command_for(prover.id)
        assert isinstance(replay, ReplayStep)
        deadline = self._deadlines.answer(work, audit, (audit.node, accuser))
        dispute = Dispute(audit.id, audit.node, accuser, replay, first, deadline)
        work.dispute(DisputeRecord(audit.id, work.job.id, False, dispute, work.now))
        work.count("disputes_total")
        place = f"step {audit.step} of stage {audit.stage} of replica {audit.replica} in round {audit.round + 1}"
        work.note("dispute", f"node {accuser} disputes {place} of node {audit.node}")

    def answered(self, work: UnitOfWork, lease: str, answer: BisectAnswer) -> None:
        """A side answered."""
        record, node = work.disputes.get(answer.dispute), work.leases[lease].node
        for side in SIDES:
            if record is not None and getattr(record.dispute, side) == node:
                deadline = self._deadline(work, record.dispute)
                self._keep(work, record, disputes.answered(record.dispute, side, answer, deadline))

    def ruled(self, work: UnitOfWork, dispute: str, right: Side | None, detail: str) -> None:
        """The operation was run."""
        record = work.disputes.get(dispute)
        if record is not None:
            self._keep(work, record, disputes.ruled(record.dispute, right, detail))

    def advance(self, work: UnitOfWork) -> None:
        """End disputes whose time is over, or whose sides have left."""
        here = {lease.node for lease in work.leases.values()}
        for record in list(work.disputes.values()):
            gone = [side for side in SIDES if getattr(record.dispute, side) not in here]
            if gone and disputes.question(record.dispute) is not None:
                left = f"the {' and the '.join(gone)} left"
                self._keep(work, record, disputes.dropped(record.dispute, left))
            elif late := self._late(work, record.dispute):
                away = [side for side, node in late.items() if self._nodes.session(node) is None]
                left = f"the {' and the '.join(away)} was not connected"
                ended = disputes.dropped(record.dispute, left) if away else disputes.overdue(record.dispute)
                self._keep(work, record, ended)

    def _late(self, work: UnitOfWork, dispute: Dispute) -> dict[Side, str]:
        """The nodes that an answer is awaited of, once all of them have let the deadline pass."""
        awaited = {side: getattr(dispute, side) for side in SIDES if disputes.query_for(dispute, side) is not None}
        late = all(self._nodes.late(node, dispute.deadline, work.now) for node in awaited.values())
        return awaited if late else {}

    def drop(self, work: UnitOfWork, why: str) -> None:
        """Leave all of them undecided."""
        for record in list(work.disputes.values()):
            self._keep(work, record, disputes.dropped(record.dispute, why))

    def extend(self, work: UnitOfWork) -> None:
        """Give everybody the full time again: nobody could answer while the coordinator was away."""
        for record in list(work.disputes.values()):
            deadline = self._deadline(work, record.dispute)
            self._keep(work, record, msgspec.structs.replace(record.dispute, deadline=deadline))

    def _deadline(self, work: UnitOfWork, dispute: Dispute) -> float:
        """Of the present question, or the next one."""
        audit = work.audits.get(dispute.id)
        if audit is None:
            return work.now + self._context.config.audit_seconds
        return self._deadlines.answer(work, audit, (dispute.prover, dispute.challenger))

    def _keep(self, work: UnitOfWork, record: DisputeRecord, after: Dispute) -> None:
        ended = work.now if after.over else None
        work.dispute(msgspec.structs.replace(record, dispute=after, over=after.over, ended=ended))
        if not after.over:
            return
        event = ledger_events.Ruled(
            job=work.job.id,
            round=after.replay.round,
            audit=record.id,
            node=after.prover,
            challenger=after.challenger,
            winner=after.winner or "nobody",
            evidence=evidence_digest(msgspec.structs.replace(record, dispute=after)),
        )
        work.memo(f"ruled:{record.id}", event)
        who = "nobody" if after.winner is None else f"the {after.winner}"
        work.note(
            "dispute",
            f"the dispute with node {after.prover} ends after {after.questions} questions for {who}: {after.detail}",
        )
        audit = work.audits.get(record.id)
        if audit is not None and not audit.over:
            work.audits[audit.id] = concluded(audit, after, work.now + self._context.config.audit_patience_seconds)
            if outcome(after) == "false":
                work.record(AccusedFalsely(after.challenger, audit.id, after.detail))


def outcome(dispute: Dispute) -> Literal["guilty", "false", "open"]:
    """What an ended dispute proved: of the prover, of the challenger, or nothing.

    Silence proves nothing: machines hang, and what the prover has opened is here for another auditor, who decides. A challenger
    that now comes to the same as the prover has erred about this, and what it reported may be about something else than the step.
    """
    if dispute.winner is None or dispute.why not in PROVEN:
        return "open"
    return "guilty" if dispute.winner == "challenger" else "false"


def concluded(audit: Audit, dispute: Dispute, deadline: float) -> Audit:
    """The audit after its dispute; another auditor has until ``deadline`` where nothing was proven."""
    match outcome(dispute):
        case "guilty":
            return trust.convicted(audit, dispute.detail)
        case "false":
            return trust.cleared(audit, f"falsely accused: {dispute.detail}")
        case "open":
            silent = dispute.why == "silence" and dispute.loser == "prover"
            return msgspec.structs.replace(audit, deadline=deadline, silent=silent)


class Referee:
    """Runs the operations that disputes came down to, one at a time, outside of any transaction."""

    def __init__(
        self,
        context: Context,
        desk: JobDesk,
        service: DisputeService,
        advance: Callable[[UnitOfWork], Awaitable[None]],
        judge: Judge | None,
    ) -> None:
        """Take ``judge`` None where nothing can be run: then a second auditor decides."""
        self._context = context
        self._desk = desk
        self._disputes = service
        self._advance = advance
        self._judge = judge
        self._waiting: dict[str, DisputeRecord] = {}
        self._wake = asyncio.Event()
        desk.on_stored(self._notice)

    async def run(self) -> None:
        """Rule for ever."""
        while True:
            self._wake.clear()
            await self.poll()
            await self._wake.wait()

    async def poll(self) -> None:
        """Rule on everything that waits."""
        for record in list(self._waiting.values()):
            async with self._context.store.transaction() as tx:
                job, audit = await tx.get(Job, record.job), await tx.get(Audit, record.id)
                runs = await tx.find(RunRecord, col(RunRecord.job).equals(record.job))
            training = training_of(runs[0].run if runs else None, job.spec.training)  # As workers do it.
            job = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, training=training))
            right, detail = await self._rule(job, audit, record.dispute)
            self._waiting.pop(record.id, None)
            try:
                async with self._desk.open(record.job) as work:
                    self._disputes.ruled(work, record.id, right, detail)
                    await self._advance(work)
            except StoreAwayError:
                self._waiting.setdefault(record.id, record)
                raise

    async def _rule(self, job: Job, audit: Audit, dispute: Dispute) -> tuple[Side | None, str]:
        """Run the operation that is left; where both sides' own do what they say, run the step up to there to see whose it is."""
        found: dict[Side, bool | None] = {}
        if self._judge is None:
            return None, "no operation can be run here"
        for side in SIDES:
            spoken = dispute.said[side]
            try:
                found[side] = None if spoken.inputs is None else await self._judge.agrees(spoken.inputs, spoken.record)
            except CottageError as error:
                LOG.warning("dispute %s: the operation cannot be run: %s", dispute.id, error.detail)
                return None, f"operation {dispute.index} cannot be run here"
        right = [side for side in SIDES if found[side]]
        what = f"operation {dispute.index} of step {dispute.step}"
        if len(right) == 1:
            return right[0], f"{what} gives what the {right[0]} said"
        try:
            due = [s for s in SIDES if await self._judge.belongs(job, dispute, audit.env_class, dispute.said[s].record)]
        except CottageError as error:
            LOG.warning("dispute %s: the step cannot be run again: %s", dispute.id, error.detail)
            due = []
        if len(due) == 1:
            return due[0], f"{what} is the one that the {due[0]} recorded"
        return None, f"{what} does not tell who is right"

    def _notice(self, work: UnitOfWork) -> None:
        for record in (*work.ended_disputes, *work.disputes.values()):
            if record.dispute.phase == "judging":
                self._waiting[record.id] = record
                self._wake.set()
            else:
                self._waiting.pop(record.id, None)
