"""Who may read which artifact, and store which: what follows from the leases that a node holds, and nothing else.

A holder reads the files of its job, and what it was told of by a command (a state to begin from, an opening to run again). It
stores what it was asked for (an opening, a state, the inputs of an operation), each once, and no larger than it can be. Both end
with the lease; reading a little later, so that a transfer that was under way is not cut.

All in memory: it is made of the stored work whenever that changes, and of all of it when a node comes.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Protocol

from coordinator.domain.audits import answer_time
from coordinator.domain.lease import Lease
from coordinator.domain.wanted import Kind, Wanted, asked_by, inputs_of, named_by
from coordinator.errors import GoneError, NotFoundError, TooLargeError, UnavailableError
from coordinator.services.artifacts.deliveries import Deliveries
from coordinator.services.artifacts.disk_space import Room
from coordinator.services.audits.deadlines import most_bytes
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.services.training.staffing import shape_of
from coordinator.store.ports import Transaction
from protocol.artifacts import anchor_answer, audit_answer
from protocol.federated.sum_messages import VALUE_BYTES
from protocol.ids import Digest
from protocol.task import TaskCommand, TaskReport

GRACE_S = 60.0  # After a lease's end: what was being fetched is whole by then, or begins anew for nothing.
MAX_TOLD = 4096  # Artifacts that a lease's holder was told of beside its job's files; an auditor sees a few a minute.
BEGIN_S = 10.0  # A node's token is good some moments before its leases are known here again.


class ArrayFiles(Protocol):
    """What leases of array jobs open: what they are to run changes by the second, so it is asked for and not told."""

    def may_read(self, lease: Lease, artifact: Digest) -> bool:
        """Whether an artifact is an input of something that a lease is to run."""

    def most_of(self, lease: Lease, answers: str) -> int | None:
        """Bytes that a result may have at most which a lease stores now; None: it is not waited for."""


class _Held:
    """What one lease opens."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.files: frozenset[Digest] = frozenset()
        self.told: OrderedDict[Digest, None] = OrderedDict()
        self.wanted: tuple[Wanted, ...] = ()
        self.bound: dict[str, Digest] = {}
        self.until: float | None = None

    def tell(self, commands: Sequence[TaskCommand]) -> None:
        for digest in (named for command in commands for named in named_by(command)):
            self.told[digest] = None
            self.told.move_to_end(digest)
            if len(self.told) > MAX_TOLD:
                self.told.popitem(last=False)


class ArtifactAccess:
    """``room`` None: disks are endless, as in worlds that have none."""

    def __init__(
        self, context: Context, nodes: Nodes, deliveries: Deliveries, room: Room | None, arrays: ArrayFiles
    ) -> None:
        self._context = context
        self._nodes = nodes
        self._deliveries = deliveries
        self._room = room
        self._arrays = arrays
        self._held: dict[str, _Held] = {}
        self._of_node: dict[str, set[str]] = {}

    # --- what leases open -------------------------------------------------------------------------------------------------

    def told(self, work: UnitOfWork, lease: Lease, commands: Sequence[TaskCommand]) -> None:
        """A lease is live, and its holder, who is here, has been told all of these."""
        held = self._held.get(lease.id)
        if held is None:
            held = self._held[lease.id] = _Held(lease)
            self._of_node.setdefault(lease.node, set()).add(lease.id)
        held.files = inputs_of(work.job)
        held.tell(commands)
        held.wanted = _wanted(work, lease, commands)
        asked = {one.answers for one in held.wanted}
        held.bound = {answers: digest for answers, digest in held.bound.items() if answers in asked}

    def opens(self, work: UnitOfWork, lease: Lease, commands: Sequence[TaskCommand]) -> None:
        """A lease ran out, and its holder is back: it stores what it was asked for, and reads nothing."""
        self.told(work, lease, commands)
        held = self._held[lease.id]
        held.until, held.files = None, frozenset()
        held.told.clear()

    def restores(self, work: UnitOfWork, lease: Lease) -> None:
        """A lease ran out, and its holder makes another worker of records: it reads its job's files once more, for so long.

        What was asked before may be sent as soon as the worker is there, which may be before it is known here.
        """
        held = self._held.setdefault(lease.id, _Held(lease))
        self._of_node.setdefault(lease.node, set()).add(lease.id)
        held.files, held.wanted = inputs_of(work.job), _wanted(work, lease, ())
        held.until = self._context.clock.now() + self._context.config.return_seconds + GRACE_S

    def ended(self, lease: Lease) -> None:
        """A lease is over: nothing is stored under it any more, and soon nothing is read."""
        self._forget()
        until = self._context.clock.now() + GRACE_S
        if (held := self._held.get(lease.id)) is not None and (held.until is None or held.until > until):
            held.wanted, held.until = (), until

    def _forget(self) -> None:
        now = self._context.clock.now()
        for lease, held in [(lease, held) for lease, held in self._held.items() if held.until and held.until <= now]:
            del self._held[lease]
            self._of_node[held.lease.node].discard(lease)
            if not self._of_node[held.lease.node]:
                del self._of_node[held.lease.node]

    def _leases(self, node: str) -> list[_Held]:
        self._forget()
        return [self._held[lease] for lease in self._of_node.get(node, ())]

    # --- transfers ----------------------------------------------------------------------------------------------------------

    async def check_read(self, node: str, artifact: Digest) -> None:
        """See that a node may read an artifact now.

        Raises:
            NotFoundError: it may not, whether the artifact is here or not.
            UnavailableError: it is not known yet which leases the node holds.
        """
        await self._begun(node)
        if not any(self._reads(held, artifact) for held in self._leases(node)):
            self._context.metrics.count("artifacts_withheld_total")
            raise NotFoundError(
                f"no artifact {artifact} is here for this node: it reads the files of jobs that it holds a lease in",
                "digest",
            )

    def _reads(self, held: _Held, artifact: Digest) -> bool:
        return artifact in held.files or artifact in held.told or self._arrays.may_read(held.lease, artifact)

    @asynccontextmanager
    async def storing(
        self, node: str, lease: str, answers: str, artifact: Digest, size: int, address: str
    ) -> AsyncIterator[None]:
        """Let a node store an artifact inside; when the body ends well, it was delivered.

        Args:
            answers: the question that it answers: ``protocol.artifacts``.
            size: of the artifact, as its sender says before the first byte.
            address: where it comes from.
        Raises:
            GoneError: that was not asked under this lease, or not any more, or answered with another artifact.
            TooLargeError: it is larger than what is waited for can be.
            UnavailableError: there is no room for it now, or it is not known yet which leases the node holds.
        """
        await self._begun(node)
        held, wanted = self._asked(node, lease, answers, artifact)
        if size > wanted.most:
            self._context.metrics.count("artifacts_refused_total")
            raise TooLargeError(f"{size:,} bytes: {wanted.kind} of this stage has {wanted.most:,} at most")
        mine = answers not in held.bound
        held.bound[answers] = artifact
        owner = f"owner {held.lease.payout}"
        try:
            with nullcontext() if self._room is None else self._room.take(size, owner, f"address {address}"):
                yield
        except BaseException:
            if mine:  # Nothing has come of it: what its sender means is still open.
                held.bound.pop(answers, None)
            raise
        await self._deliveries.keep(lease, held.lease.job, node, artifact, wanted.kind, size)

    def _asked(self, node: str, lease: str, answers: str, artifact: Digest) -> tuple[_Held, Wanted]:
        for held in self._leases(node):
            for wanted in held.wanted:
                bound = wanted.artifact or held.bound.get(wanted.answers)
                if (held.lease.id, wanted.answers) == (lease, answers) and bound in (None, artifact):
                    return held, wanted
            most = self._arrays.most_of(held.lease, answers) if held.lease.id == lease else None
            if most is not None and held.bound.get(answers) in (None, artifact):
                return held, Wanted(answers, "a result", most)
        self._context.metrics.count("artifacts_refused_total")
        raise GoneError(
            f"artifact {artifact} is not waited for as {answers[:60]} under lease {lease[:40]}: a node stores what it is asked "
            "for under a lease that it holds, each answer once"
        )

    async def believed(self, tx: Transaction, lease: str, report: TaskReport) -> TaskReport:
        """A report without artifacts that were not stored under the lease."""
        return await self._deliveries.believed(tx, lease, report)

    async def _begun(self, node: str) -> None:
        session = self._nodes.session(node)
        try:
            async with asyncio.timeout(BEGIN_S):
                if session is not None:
                    await session.begun.wait()
        except TimeoutError:
            raise UnavailableError("this node has just come, and its leases are looked up: ask again") from None


def _wanted(work: UnitOfWork, lease: Lease, commands: Sequence[TaskCommand]) -> tuple[Wanted, ...]:
    """What is awaited of a lease's holder."""
    openings = [
        Wanted(audit_answer(audit.id), "an opening", most_bytes(work, audit), audit.made)
        for audit in work.audits_with(lease.id)
        if audit.unopened and lease.id == audit.lease
    ]
    openings += [
        Wanted(anchor_answer(audit.id), "an anchor", _most(work, lease, "a state"), audit.anchor)
        for audit in work.audits_with(lease.id)
        if audit.state == "replaying" and audit.anchor_in == "auditor" and lease.id == audit.auditor_lease
    ]
    others = [
        Wanted(answers, kind, _most(work, lease, kind)) for answers, kind in filter(None, map(asked_by, commands))
    ]
    return (*openings, *others)


def _most(work: UnitOfWork, lease: Lease, kind: Kind) -> int:
    """Bytes of a state of the lease's stage, of a masked update, or of an operation's inputs, at most."""
    if kind == "a masked update" and work.run is not None:
        return VALUE_BYTES * work.run.summed
    if kind != "a state" or work.run is None or lease.stage is None:
        return answer_time.MAX_INPUT_BYTES + answer_time.HEAD_BYTES
    layers = work.run.layers
    return answer_time.outer_bytes(shape_of(work), layers[lease.stage], layers[-1].last, 0)
