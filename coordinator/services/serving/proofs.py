"""Answers that were found wrong are proven so by machines of the answerer's own class, or cost no stake.

A check lets rounding pass, so it proves nothing. Whom it blames has lost its pay, place and standing. Whether it loses stake is
for two owners' machines to say, which compute the same bits (``trainer.serve.proving``): the one beside the coordinator, where it
is of the class, and other replicas of the deployment.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from coordinator.domain import accusations as rules
from coordinator.domain.accusations import OPERATOR, AccusedAnswer, Witness
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.domain.serving import ServedFiles
from coordinator.errors import CottageError, StoreAwayError
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.period_jobs import AT_WORK
from coordinator.services.serving.deployments import Deployments
from coordinator.store.ports import col
from coordinator.store.records import NodeRecord
from protocol.job.job import ServeSpec
from protocol.node import Command
from protocol.serving import (
    MODEL_ARCHIVE,
    CancelCommand,
    CheckCommand,
    ProveCommand,
    ProvenReport,
    RefusedReport,
    adapters_of,
)
from protocol.task import AskModel, ModelSaid

LOOK_S = 5.0
PROOF_S = 900.0  # For loading a model and its passes: 33 of one answer.

LOG = logging.getLogger(__name__)


class AnswerProving(Protocol):
    """Runs a model somewhere else: the coordinator never imports torch."""

    async def prove(self, held: ServedFiles, command: ProveCommand, seconds: float) -> ProvenReport:
        """Whether no rounding explains an answer; raises CottageError."""


class AnswerProofs:
    """Has accused answers looked at: by the machine beside the coordinator one after the other, by each node one at a time."""

    def __init__(
        self, context: Context, desk: JobDesk, nodes: Nodes, deployments: Deployments, prover: AnswerProving | None
    ) -> None:
        """``prover``: None where this machine cannot run models; then other nodes alone are asked."""
        self._context, self._desk, self._nodes, self._deployments = context, desk, nodes, deployments
        self._prover = prover
        self._beside = asyncio.Lock()
        self._asked: dict[tuple[str, str], asyncio.Future[ProvenReport | RefusedReport]] = {}
        self._silent: set[tuple[str, str]] = set()  # Accused answers and leases that could not say anything of them.

    async def run(self) -> None:
        """For ever. A machine that says nothing for a while keeps no answer waiting but the one that it is asked about."""
        under_way: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                for accused in await self._waiting():
                    if accused.id not in under_way:
                        looking = self._look_at(accused)
                        under_way[accused.id] = asyncio.create_task(looking, name="answer-proof")
                await self._context.clock.sleep(LOOK_S)
                ended = {name: task for name, task in under_way.items() if task.done()}
                under_way = {name: task for name, task in under_way.items() if name not in ended}
                for task in ended.values():
                    task.result()
        finally:
            for task in under_way.values():
                task.cancel()
            await asyncio.gather(*under_way.values(), return_exceptions=True)

    async def _waiting(self) -> Sequence[AccusedAnswer]:
        """Those that somebody should look at, the oldest first; the others are dropped, with people's words."""
        async with self._context.store.transaction() as tx:
            found = await tx.find(AccusedAnswer, col(AccusedAnswer.state).equals("open"))
        waiting: list[AccusedAnswer] = []
        for accused in found:
            async with self._desk.open(accused.job) as work:
                if why := await self._over(work, accused):
                    await self._store(work, rules.dropped(accused, why))
                else:
                    waiting.append(accused)
        return waiting

    async def _look_at(self, accused: AccusedAnswer) -> None:
        """Hear one machine."""
        async with self._desk.open(accused.job) as work:
            job = work.job
        witness = None
        if OPERATOR not in accused.heard:
            async with self._beside:
                witness = await self._own(job, accused)
        if witness is None:
            async with self._desk.open(accused.job) as work:
                able = self._able(work, accused)
            witness = await self._of_node(able[0], accused) if able else None
        if witness is None:
            return
        async with self._desk.open(accused.job) as work:
            (newest,) = await work.tx.find(AccusedAnswer, col(AccusedAnswer.id).equals(accused.id))
            if newest.state == "open":
                await self._store(work, rules.heard(newest, witness))

    @staticmethod
    async def _over(work: UnitOfWork, accused: AccusedAnswer) -> str:
        """Why nobody need look any more; empty: somebody should."""
        if (await work.tx.get(NodeRecord, accused.node)).banned:
            return "it is sent away already"
        if work.now - accused.began > rules.LIFE_S:
            return "no two machines of its class could say in a day"
        return "" if work.job.state in AT_WORK else "no two machines of its class could say before the deployment ended"

    async def _store(self, work: UnitOfWork, accused: AccusedAnswer) -> None:
        """Keep it; one that is over without people's words, and with all that follows."""
        if accused.state != "open":
            accused = msgspec.structs.replace(accused, evidence=b"", ended=work.now)
            work.count(f"accusations_{accused.state}_total")
            self._silent = {pair for pair in self._silent if pair[0] != accused.id}
        await work.tx.update(accused)
        if accused.state == "proven":
            await self._deployments.proven(work, accused)
        elif accused.state != "open":
            work.note("audit", f"a wrong answer of node {accused.node} costs it no stake: {accused.detail}")

    def _able(self, work: UnitOfWork, accused: AccusedAnswer) -> Sequence[Lease]:
        """Nodes that can say something of it, in an order by lot: of its class and of owners that have not said anything."""
        able = [
            lease
            for lease in work.leases.values()
            if (lease.state, lease.env_class) == ("ready", accused.env_class)
            and lease.payout not in accused.heard
            and (accused.id, lease.id) not in self._silent
            and not self._is_asked(lease)
            and self._nodes.session(lease.node) is not None
        ]
        return sorted(able, key=lambda lease: (self._context.entropy(4), lease.id))

    def _is_asked(self, lease: Lease) -> bool:
        return any(asked == lease.id for asked, _ in self._asked)

    async def _own(self, job: Job, accused: AccusedAnswer) -> Witness | None:
        """What the machine beside the coordinator finds; None: nothing, since it cannot."""
        if self._prover is None or (accused.id, OPERATOR) in self._silent:
            return None
        try:
            weights = (job.spec.serve or ServeSpec()).weights
            held = ServedFiles(job.files[MODEL_ARCHIVE], weights, adapters_of(job.files))
            found = await self._prover.prove(held, _question(accused), PROOF_S)
        except StoreAwayError:
            raise
        except (CottageError, KeyError) as error:
            LOG.warning("a wrong answer of node %s in job %s is not proven here: %s", accused.node, job.id, error)
            self._silent.add((accused.id, OPERATOR))
            return None
        return Witness(OPERATOR, "", found.env_class, found.wrong, found.digest)

    async def _of_node(self, lease: Lease, accused: AccusedAnswer) -> Witness | None:
        """What a node finds; None: it says nothing in time."""
        session, question = self._nodes.session(lease.node), _question(accused)
        if session is None or self._is_asked(lease):
            return None
        key = lease.id, question.id
        self._asked[key] = asyncio.get_running_loop().create_future()
        try:
            session.send(Command(lease.id, lease.fence, AskModel(question)))
            async with self._context.clock.timeout(PROOF_S):
                said = await self._asked[key]
        except TimeoutError:
            session.send(Command(lease.id, lease.fence, AskModel(CancelCommand(question.id))))
            said = RefusedReport(question.id, "failed", "it says nothing")
        finally:
            del self._asked[key]
        if isinstance(said, RefusedReport):
            self._silent.add((accused.id, lease.id))
            return None
        # It computes in the class that it has its seat for, whatever it says now: other bits are found to be others.
        return Witness(lease.payout, lease.node, lease.env_class, said.wrong, said.digest)

    def said(self, lease: Lease, body: ModelSaid) -> None:
        """A node has spoken."""
        for report in body.reports:
            if isinstance(report, ProvenReport | RefusedReport):
                asked = self._asked.get((lease.id, report.id))
                if asked is not None and not asked.done():
                    asked.set_result(report)


def _question(accused: AccusedAnswer) -> ProveCommand:
    check = msgspec.json.decode(accused.evidence, type=CheckCommand)
    return ProveCommand(accused.id, check, accused.seed)
