"""Nodes that come back after their lease has run out: they open what was drawn of them meanwhile, under the old lease, and go.

Who comes back under its key and fence, with its worker alive, has the records that an audit asks for. It is given nothing else to
do until it has opened them, and its word counts for nothing else. Whoever said goodbye, failed, was sent away, or comes back
without the worker, is not waited for. Whose worker died, and who has its records, is away until another one is made of them.
"""

from collections.abc import Awaitable, Callable

from coordinator.domain.job import LIVE
from coordinator.domain.lease import Lease
from coordinator.services.artifacts.access import ArtifactAccess
from coordinator.services.core.leases import Leases
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord
from protocol.node import Acknowledged

Round = tuple[int, int]
_WHAT = {
    True: "is back with the records of its rounds, and opens what is drawn",
    False: "is back after a crash, and makes a worker of the records on its disk",
}
OPENED = "what was drawn of it is opened: the lease is over"


class Returns:
    """Looks at who is back, asks them, and lets them go."""

    def __init__(
        self,
        desk: JobDesk,
        leases: Leases,
        nodes: Nodes,
        doors: ArtifactAccess,
        advance: Callable[[UnitOfWork], Awaitable[None]],
    ) -> None:
        self._desk = desk
        self._leases = leases
        self._nodes = nodes
        self._doors = doors
        self._advance = advance
        self._rounds: dict[str, frozenset[Round]] = {}  # Of leases whose holders are back: what they committed to.
        self._greeted: set[tuple[str, str]] = set()  # Leases and connections that were told which reports are stored.

    async def attend(self, node: str | None = None) -> None:
        """Look at what those that have come back, or this one, have to open."""
        if node is None:
            self._rounds = {lease: made for lease, made in self._rounds.items() if self._leases.may_return(lease)}
            self._greeted = {(lease, token) for lease, token in self._greeted if self._leases.may_return(lease)}
        here = self._leases.back_with(node)
        for lease in (*here, *self._leases.restoring(node)):
            session = self._nodes.session(lease.node)
            fresh = session is not None and lease in here and (lease.id, session.token) not in self._greeted
            if lease.id in self._rounds and not fresh:
                continue
            async with self._desk.open(lease.job) as work:
                await self._advance(work)
                if fresh and session is not None and lease.id in work.returned:
                    self._greeted.add((lease.id, session.token))
                    session.send(Acknowledged(lease.id, max(0, work.returned[lease.id].seq)))
                if lease.id not in self._rounds:
                    self._rounds[lease.id] = await _rounds(work, lease)
                    if self._awaits(work, lease):
                        work.note("audit", f"node {lease.node} {_WHAT[lease in here]}")

    def tell(self, work: UnitOfWork) -> None:
        """After each commit: ask those that are back, and let go who has nothing left to open."""
        if not (lost := self._leases.lost(work.job.id)):
            return
        restoring = self._leases.restoring()
        for lease in lost:
            here = self._leases.is_back(lease.id) or lease in restoring
            session = self._nodes.session(lease.node) if here else None
            if work.job.state not in LIVE or (lease.id in self._rounds and not self._awaits(work, lease)):
                self._leases.forget(lease.id)
                self._doors.ended(lease)
                if session is not None:
                    session.stop(lease, OPENED)
            elif lease in restoring:
                self._doors.restores(work, lease)
            elif session is not None and lease.id in self._rounds:
                commands = work.openings(lease.id, anew=self._leases.died(lease.id))
                self._doors.opens(work, lease, commands)
                session.tell(lease, commands)

    def _awaits(self, work: UnitOfWork, lease: Lease) -> bool:
        """Whether something of it is drawn and not opened, or may still be drawn."""
        if any(audit.lease == lease.id and audit.unopened for audit in work.audits.values()):
            return True
        if work.run is None:
            return False
        over = work.run.round
        still = {*work.run.undrawn} | ({(over.epoch, over.number)} if over is not None else set())
        return not self._rounds.get(lease.id, frozenset()).isdisjoint(still)


async def _rounds(work: UnitOfWork, lease: Lease) -> frozenset[Round]:
    """What a lease's holder has committed to, the round in flight as well, which may be completed without it."""
    made = await work.tx.find(
        CommitRecord, col(CommitRecord.job).equals(work.job.id), col(CommitRecord.lease).equals(lease.id)
    )
    over = None if work.run is None else work.run.round
    seat = None if over is None else over.seat(lease.id)
    flying = {(over.epoch, over.number)} if over is not None and seat is not None and seat.commit is not None else set()
    return frozenset({(commit.epoch, commit.round) for commit in made if commit.drawable} | flying)
