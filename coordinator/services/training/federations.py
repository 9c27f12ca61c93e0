"""Owners look at a federated job, join it with data of their own, and leave it: asked over their nodes' own connections.

A node's connection may be in another cell than the job, and the node at work there. So what its owner wants is asked of the job's
cell, and the node stays where it is until the job has a seat for it (``network.cell_nodes``).
"""

from typing import Protocol

from common.untrusted_text import untrusted
from coordinator.domain.job import LIVE, Job, JoinedOwner
from coordinator.errors import UnavailableError
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.network.nodes import NodeSession
from coordinator.services.training.runs import Runs
from coordinator.store.ports import col
from protocol.federated.federations import FederationTold, FederationWish, terms_digest
from protocol.ids import NodeAddress

NOT_HERE = (
    "there is no federation {job} here that invites node {node}: have its initiator name this address in its document"
)
AWAY = "no coordinator of this network carries it just now: another one is about to, try again in a moment"
CHANGED = "the job is not the one that was looked at: look at it once more before you join"


class FederationsBeside(Protocol):
    """Federations of other cells."""

    async def wish(self, node: NodeAddress, asked: FederationWish) -> FederationTold:
        """What the job's cell grants a node that it invites, and is connected here.

        Raises:
            UnavailableError: nobody carries that cell for longer than it takes another one to.
        """


class Federations:
    """Answers owners' wishes. Who is not invited hears the same as where there is nothing."""

    def __init__(self, context: Context, desk: JobDesk, runs: Runs, beside: FederationsBeside | None = None) -> None:
        """``beside``: those of other cells, where there are any."""
        self._context = context
        self._desk = desk
        self._runs = runs
        self._beside = beside

    async def wish(self, session: NodeSession, asked: FederationWish) -> None:
        """Grant what can be granted, and say how the job stands."""
        node = session.node
        if not await self._invites(asked.job, node):
            session.send(FederationTold(asked.job, untrusted(NOT_HERE.format(job=asked.job[:8], node=node))))
        elif self._context.cell.has(asked.job):
            session.send(await self.grant(node, asked))
        else:
            session.send(await self._led(node, asked))

    async def grant(self, node: NodeAddress, asked: FederationWish) -> FederationTold:
        """What this cell's job grants a node that it invites; granted twice it is as if it had been once.

        Raises:
            OtherCellError: it is another cell's.
        """
        problem = ""
        async with self._desk.open(asked.job) as work:
            match asked.what:
                case "join":
                    problem = self._join(work, node, asked)
                case "leave":
                    self._leave(work, node)
            told = _told(work.job, node, problem)
            if asked.what != "look":
                await self._runs.advance(work)
        return told

    async def _invites(self, job: str, node: NodeAddress) -> bool:
        async with self._context.everywhere.transaction() as tx:
            found = await tx.find(Job, col(Job.id).equals(job), limit=1)
        federated = found[0].spec.federated if found else None
        return federated is not None and node in federated.owners

    async def _led(self, node: NodeAddress, asked: FederationWish) -> FederationTold:
        """What a job of another cell grants: that cell is asked where it is more than a look.

        While nobody carries it, whatever else the node says waits here, but for its heartbeats.
        """
        problem = ""
        if asked.what != "look" and self._beside is not None:
            try:
                return await self._beside.wish(node, asked)
            except UnavailableError:
                problem = AWAY
        async with self._context.everywhere.transaction() as tx:
            return _told(await tx.get(Job, asked.job), node, problem)

    def _join(self, work: UnitOfWork, node: NodeAddress, asked: FederationWish) -> str:
        """Returns why it cannot, or nothing; joining again changes what is told of the data."""
        if work.job.state not in LIVE:
            return f"the federation is over: it is {work.job.state}"
        if asked.terms != terms_digest(work.job.spec):
            return CHANGED
        before = next((owner for owner in work.job.owners if owner.node == node), None)
        owner = JoinedOwner(node, work.now if before is None else before.at, asked.rows)
        if owner != before:
            work.change(owners=(*(one for one in work.job.owners if one.node != node), owner))
        if before is None:
            work.note("joined", f"node {node} has joined with data of its owner")
        return ""

    def _leave(self, work: UnitOfWork, node: NodeAddress) -> None:
        if all(owner.node != node for owner in work.job.owners):
            return
        work.change(owners=tuple(owner for owner in work.job.owners if owner.node != node))
        work.note("lost", f"node {node} takes no part any more: its owner has left the federation")
        for lease in [lease for lease in work.leases.values() if lease.node == node]:
            work.end(lease.id, "left", "its owner has left the federation")


def _told(job: Job, node: NodeAddress, problem: str) -> FederationTold:
    joined = any(owner.node == node for owner in job.owners)
    return FederationTold(
        job.id,
        untrusted(problem),
        job.spec,
        job.state.value,
        job.quote.parameters,
        len(job.owners),
        joined,
        job.rounds_done,
    )
