"""Arrays that are at work, in memory: read once, changed with each piece of work, and read again where that was not stored."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.domain.arrays.board import ArrayBoard
from coordinator.domain.arrays.votes import ElementCourse, rules_of
from coordinator.domain.lease import Lease
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.network.nodes import Nodes, NodeSession
from coordinator.store.ports import col
from protocol.artifacts import result_answer
from protocol.codec import MessageError
from protocol.ids import Digest
from protocol.job.array import MAX_LIST_BYTES, ArrayElement, ArraySpec, read_elements
from protocol.job.elements import MAX_QUEUED, MAX_TOGETHER, DropElements, ElementRun, RunElements
from protocol.node import Command

MAX_LISTS = 8  # Of arrays that are not at work; one has some megabytes.


@dataclass
class _SentRuns:
    """What a connection has carried."""

    session: NodeSession
    runs: set[int] = field(default_factory=set)


@dataclass
class OpenArray:
    """An array at work.

    Attributes:
        drops: run numbers that a lease shall forget, once this work is stored.
        heard: lease -> when it last said anything of its runs, or was given some after it had none.
        draining: leases that get nothing more.
        asked_back: nodes that another job waits for.
        fed, looked, staffed, counted: when that was done last.
        told: why it waits, as it was noted last. given: runs that had been given then.
    """

    spec: ArraySpec
    board: ArrayBoard
    elements: Sequence[ArrayElement]
    sent: dict[str, _SentRuns] = field(default_factory=dict)
    drops: dict[str, list[int]] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    asked_back: frozenset[str] = frozenset()
    fed: float = float("-inf")
    looked: float = float("-inf")
    staffed: float = float("-inf")
    counted: float | None = None
    told: str = ""
    given: int = 0


def array_of(work: UnitOfWork) -> ArraySpec:
    """The section of the document."""
    assert work.job.spec.array is not None
    return work.job.spec.array


async def elements_of(artifacts: ArtifactStore, digest: Digest) -> tuple[ArrayElement, ...]:
    """The list of elements.

    Raises:
        NotFoundError: it is not here. MessageError: it is no such list.
    """
    size = await artifacts.size(digest)
    if size > MAX_LIST_BYTES:
        raise MessageError(f"the list of elements has {size:,} bytes: {MAX_LIST_BYTES:,} are read", "array.elements")
    data = b"".join([chunk async for chunk in artifacts.read(digest, 0, size)])
    return await asyncio.to_thread(read_elements, data)  # Ten thousand take up to half a second.


class OpenArrays:
    """All of them."""

    def __init__(self, context: Context, nodes: Nodes, artifacts: ArtifactStore) -> None:
        self._context, self._nodes, self._artifacts = context, nodes, artifacts
        self._open: dict[str, OpenArray] = {}
        self._touched: dict[str, UnitOfWork] = {}  # Work that has changed an array, and is not stored yet.
        self._lists: dict[str, Sequence[ArrayElement]] = {}

    def attend(self, desk: JobDesk) -> None:
        """Tell nodes what is new after each commit; whoever hands out leases comes before."""
        desk.on_stored(self._stored)

    async def of(self, work: UnitOfWork) -> OpenArray:
        """The array of a job on the desk. What the work does to it is forgotten where it is not stored."""
        job = work.job.id
        if job in self._touched and self._touched[job] is not work:
            self._open.pop(job, None)  # That work failed: what it made of the array never was.
        self._touched[job] = work
        if job not in self._open:
            spec = array_of(work)
            elements = await self.listed(job, spec)
            begun = await work.tx.find(ElementCourse, col(ElementCourse.job).equals(job))
            self._open[job] = OpenArray(
                spec, ArrayBoard(job, len(elements), rules_of(spec), begun, self._seed, spec.batch), elements
            )
        return self._open[job]

    def _seed(self) -> str:
        return self._context.entropy(16).hex()

    async def listed(self, job: str, spec: ArraySpec) -> Sequence[ArrayElement]:
        """The elements of a job. Those that were asked for last are kept: pages of the same job follow each other."""
        if job in self._open:
            return self._open[job].elements
        if job not in self._lists:
            if len(self._lists) >= MAX_LISTS:
                del self._lists[next(iter(self._lists))]
            self._lists[job] = await elements_of(self._artifacts, spec.elements)
        return self._lists[job]

    async def save(self, work: UnitOfWork, array: OpenArray) -> None:
        """Store what has changed of its elements."""
        changed, array.board.changed = array.board.changed, {}
        new = [course for course in changed.values() if not array.board.is_stored(course.index)]
        known = [course for course in changed.values() if array.board.is_stored(course.index)]
        await work.tx.insert_all(new)
        for course in (*new, *await work.tx.update_all(known)):
            array.board.stored(course)

    def at_work(self) -> dict[str, OpenArray]:
        """Those in memory, by job."""
        return self._open

    def close(self, job: str) -> None:
        """A job is over."""
        self._open.pop(job, None)
        self._touched.pop(job, None)

    # --- what nodes are told ----------------------------------------------------------------------------------------------

    def _stored(self, work: UnitOfWork) -> None:
        """Send what is new to each node, and everything to one that has come anew."""
        job = work.job.id
        if self._touched.get(job) is not work:
            return
        del self._touched[job]
        array = self._open.get(job)
        if array is None:
            return
        for lease in work.ended:
            for known in (array.sent, array.heard, array.drops):
                known.pop(lease.id, None)
            array.draining.discard(lease.id)
        for lease in work.leases.values():
            session = self._nodes.session(lease.node)
            if session is not None and lease.state == "ready":
                self._send(array, lease, session)

    def _send(self, array: OpenArray, lease: Lease, session: NodeSession) -> None:
        known = array.sent.get(lease.id)
        if known is None or known.session is not session:
            known = array.sent[lease.id] = _SentRuns(session)
        if drops := [run for run in array.drops.pop(lease.id, []) if run in known.runs]:
            for start in range(0, len(drops), MAX_QUEUED):
                session.send(Command(lease.id, lease.fence, DropElements(tuple(drops[start : start + MAX_QUEUED]))))
        held = array.board.of_lease(lease.id)
        if len(held) == len(known.runs) and held.keys() == known.runs:
            return
        fresh = [self._told(array, lease.id, run, index) for run, index in held.items() if run not in known.runs]
        for start in range(0, len(fresh), MAX_TOGETHER):
            session.send(Command(lease.id, lease.fence, RunElements(tuple(fresh[start : start + MAX_TOGETHER]))))
        known.runs = set(held)

    @staticmethod
    def _told(array: OpenArray, lease: str, run: int, index: int) -> ElementRun:
        of, seed = array.board.look_of(lease, run) or (None, None)
        return ElementRun(run, index, array.elements[index], of, seed, alone=array.board.is_alone(lease, run))

    # --- what nodes may read and store ------------------------------------------------------------------------------------

    def may_read(self, lease: Lease, artifact: Digest) -> bool:
        """Whether an artifact is an input of something that a lease is to run, or a result that it is to look at."""
        array = self._open.get(lease.job)
        if array is None:
            return False
        held = array.board.of_lease(lease.id).values()
        return any(artifact in array.elements[index].inputs.values() for index in held) or (
            artifact in array.board.looks_of(lease.id)
        )

    def most_of(self, lease: Lease, answers: str) -> int | None:
        """Bytes that a result may have at most which a lease stores now; None: it is not waited for."""
        array = self._open.get(lease.job)
        if array is None:
            return None
        awaited = any(answers == result_answer(run) for run in array.board.of_lease(lease.id))
        return most_bytes(array.spec) if awaited else None


def most_bytes(spec: ArraySpec) -> int:
    """Of a result: what may be written, with what its archive adds for each of many small files."""
    return (spec.disk_mb << 20) * 2 + (1 << 20)
