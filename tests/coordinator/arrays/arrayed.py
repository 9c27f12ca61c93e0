"""A coordinator on a bench with nodes that run elements as they are told to, in one thread, on a clock that the test moves.

Nodes keep what a real agent keeps: leases, runs in their order, reports until they are acknowledged. What a container would
write follows from an element alone, so honest nodes agree.
"""

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from coordinator.assembly import AmongCells, CoordinatorParts, assemble
from coordinator.config import Config
from coordinator.domain.arrays.votes import ElementCourse
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.errors import InvalidError, NotFoundError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.services.network.nodes import NodeSession
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import Store, col
from coordinator.store.records import CommitRecord, EventRecord
from protocol.identity import NodeKey
from protocol.ids import Digest
from protocol.job.array import ArrayElement, ArraySpec, CheckerSpec, VerifiedBy, element_lines
from protocol.job.elements import ArrayReady, DropElements, ElementEnd, ElementRun, ElementsMoved, RunElements
from protocol.job.job import JobSpec
from protocol.job.results import packed
from protocol.node import (
    PROTOCOL,
    Acknowledged,
    Assign,
    Beat,
    Command,
    CoordinatorMessage,
    Heartbeat,
    HeldLease,
    Hello,
    Report,
)
from protocol.rest.api import NewJob
from protocol.task import StopTask, TaskReport
from tests.coordinator.bench import CONFIG
from tests.coordinator.fakes import BUDGET, COORDINATOR, WALLET, AllDelivered, FakeChain, FakeModels, profile
from tests.sim.world import HOST, NONCE, SimClock

BEAT_S = 2.0
IMAGE = b"an image"


class MemoryArtifacts:
    """Artifacts in a dict."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def keep(self, data: bytes) -> Digest:
        digest = hashlib.sha256(data).hexdigest()
        self.kept[digest] = data
        return digest

    async def put(self, chunks: AsyncIterator[bytes], expect: str | None, limit: int) -> str:
        digest = self.keep(b"".join([chunk async for chunk in chunks]))
        if expect not in (None, digest):
            raise InvalidError("another digest")
        return digest

    async def has(self, digest: str) -> bool:
        return digest in self.kept

    async def size(self, digest: str) -> int:
        if digest not in self.kept:
            raise NotFoundError(f"no artifact {digest}")
        return len(self.kept[digest])

    async def read(self, digest: str, start: int, stop: int) -> AsyncIterator[bytes]:
        yield self.kept[digest][start:stop]

    def total(self) -> int:
        return 10**12

    def free(self) -> int:
        return 10**11


def truth(index: int) -> bytes:
    """The archive that the command makes of an element."""
    return packed({"result.txt": f"the square of {index} is {index * index}".encode()})


NOTHING = packed({})
Answer = Callable[[ElementRun], ElementEnd]
Look = Callable[[ElementRun, bytes], ElementEnd]


def right(run: ElementRun, data: bytes | None = None, seconds: float = 1.0) -> ElementEnd:
    """The end of a run with this archive, the true one where none is given."""
    data = truth(run.index) if data is None else data
    digest = hashlib.sha256(data).hexdigest()
    return ElementEnd(run.run, "exited", 0, digest, len(data), 1, data, seconds)


def fails(run: ElementRun, code: int = 1) -> ElementEnd:
    return ElementEnd(run.run, "exited", code, seconds=1.0, tail=("Traceback", "it is broken"))


def looks(run: ElementRun, data: bytes) -> ElementEnd:
    """What the submitter's checker says of a result: whether it is the true one."""
    return right(run, NOTHING) if data == truth(run.index) else fails(run)


@dataclass
class ElementNode:
    """A machine that runs elements.

    ``pace``: seconds of one; ``look_pace``: of a checker; ``answer``: how each ends; ``look``: how a checker ends; ``hung``: it
    beats and does nothing; ``late``: that a run has begun it tells with its end, as agents do of short ones.
    """

    world: "ArrayWorld"
    number: int
    owner: int
    address: str
    slots: int = 1
    pace: float = 1.0
    look_pace: float | None = None
    flops: float = 1e12
    answer: Answer = right
    look: Look = looks
    hung: bool = False
    late: bool = False
    up: bool = True
    session: NodeSession | None = None
    lease: Assign | None = None
    queue: deque[ElementRun] = field(default_factory=deque)
    running: dict[int, tuple[ElementRun, float]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    ran: list[int] = field(default_factory=list)
    looked: list[int] = field(default_factory=list)
    kept: list[Report] = field(default_factory=list)
    inbox: deque[CoordinatorMessage] = field(default_factory=deque)
    seq: int = 0
    beaten: float = 0.0

    @property
    def key(self) -> NodeKey:
        return NodeKey(self.number.to_bytes(32, "big"))

    @property
    def node(self) -> str:
        return self.key.address

    @property
    def payout(self) -> str:
        return NodeKey((500 + self.owner).to_bytes(32, "big")).address

    async def connect(self) -> None:
        parts, self.inbox = self.world.parts, deque()
        held = () if self.lease is None else (HeldLease(self.lease.lease, self.lease.fence),)
        shown = msgspec.structs.replace(profile(f"node-{self.number}", self.flops), containers=True, sandbox="docker")
        signature = self.key.sign("cottage-hello", NONCE, HOST.encode())
        hello = Hello(PROTOCOL, self.node, self.payout, signature, shown, held)
        self.session = await parts.nodes.enter(
            hello, NONCE, HOST, self.inbox.append, lambda _reason: self._cut(), self.address
        )
        await parts.conversation.begin(self.session, hello)
        for report in list(self.kept):
            await self._send(report)

    def _cut(self) -> None:
        self.session = None

    async def _send(self, report: Report) -> None:
        if self.session is not None:
            await self.world.parts.conversation.receive(self.session, report)

    async def say(self, body: TaskReport) -> None:
        assert self.lease is not None
        self.seq += 1
        report = Report(self.lease.lease, self.lease.fence, self.seq, body)
        self.kept.append(report)
        await self._send(report)

    def forget(self) -> None:
        """Its lease is over, or its process died."""
        self.lease, self.seq = None, 0
        self.queue.clear()
        self.running.clear()
        self.kept.clear()

    async def hear(self) -> None:
        while self.inbox:
            match self.inbox.popleft():
                case Assign() as lease:
                    self.forget()
                    self.lease, self.seen = lease, set()
                    if lease.spec.array is not None:  # What trains or serves is held, and does nothing.
                        await self.say(ArrayReady("cpu", self.slots))
                case Command(body=RunElements(runs=runs)):
                    fresh = [run for run in runs if run.run not in self.seen]
                    self.seen |= {run.run for run in fresh}
                    self.queue.extend(fresh)
                case Command(body=DropElements(runs=runs)):
                    self.queue = deque(run for run in self.queue if run.run not in runs)
                    self.running = {number: one for number, one in self.running.items() if number not in runs}
                case Command(body=StopTask()):
                    self.forget()
                case Beat(gone=gone):
                    if self.lease is not None and self.lease.lease in gone:
                        self.forget()
                case Acknowledged(seq=seq):
                    self.kept = [report for report in self.kept if report.seq > seq]
                case _:
                    pass

    async def work(self) -> None:
        now, ended, begun = self.world.clock.t, [], []
        if self.lease is None or self.hung:
            return
        for number, (run, until) in list(self.running.items()):
            if until <= now:
                del self.running[number]
                (self.ran if run.check is None else self.looked).append(run.index)
                ended.append(self.end_of(run))
                begun += [number] if self.late else []
        while self.queue and len(self.running) < self.slots:
            run = self.queue.popleft()
            pace = self.pace if run.check is None or self.look_pace is None else self.look_pace
            self.running[run.run] = (run, now + pace)
            begun += [] if self.late else [run.run]
        for start in range(0, max(1, len(ended)), 64):
            if begun or ended:
                await self.say(ElementsMoved(tuple(begun) if start == 0 else (), tuple(ended[start : start + 64])))

    def end_of(self, run: ElementRun) -> ElementEnd:
        if run.check is None:
            return self.answer(run)
        return self.look(run, self.world.kept(run.check))

    async def beat(self) -> None:
        if self.session is not None and self.world.clock.t - self.beaten >= BEAT_S:
            self.beaten = self.world.clock.t
            held = () if self.lease is None else (HeldLease(self.lease.lease, self.lease.fence),)
            await self.world.parts.conversation.receive(self.session, Heartbeat(held))


class ArrayWorld:
    """Nodes and a coordinator that may die. ``seed``: of all lots."""

    def __init__(
        self,
        store: Store | None = None,
        seed: int = 0,
        config: Config = CONFIG,
        artifacts: ArtifactStore | None = None,
        among: AmongCells | None = None,
        clock: SimClock | None = None,
    ) -> None:
        self.clock = clock or SimClock()
        self.store = store or MemoryStore()
        self.chain = FakeChain()
        self.artifacts = MemoryArtifacts() if artifacts is None else cast(MemoryArtifacts, artifacts)
        self.nodes: list[ElementNode] = []
        self._config, self._among = config, among
        self._drawn = seed << 32
        self.parts = self._assemble()

    def _assemble(self) -> CoordinatorParts:
        return assemble(
            self._config,
            self.clock,
            self.store,
            self.chain,
            cast(ModelWorkshop, FakeModels()),
            cast(ArtifactStore, self.artifacts),
            COORDINATOR,
            WALLET,
            self._entropy,
            deliveries=AllDelivered(self.store, self.clock),
            among=self._among,
        )

    def _entropy(self, size: int) -> bytes:
        self._drawn += 1
        return hashlib.shake_128(self._drawn.to_bytes(16)).digest(size)

    async def come(
        self, number: int, owner: int | None = None, address: str | None = None, **fields: object
    ) -> ElementNode:
        """A node, of an owner and an address of its own unless told otherwise."""
        node = ElementNode(self, number, owner or number, address or f"198.51.{number}.7")
        for name, value in fields.items():
            setattr(node, name, value)
        self.nodes.append(node)
        await node.connect()
        return node

    def document(self, count: int = 20, budget: int = BUDGET, hours: float = 24.0, **array: object) -> JobSpec:
        """An array of squares, whose files are here."""
        elements = [ArrayElement(name=f"e{number}", arguments=(str(number),)) for number in range(count)]
        listed, image = self.artifacts.keep(element_lines(elements)), self.artifacts.keep(IMAGE)
        verify = cast(VerifiedBy, array.pop("verify", "replicated"))
        array |= {"checker": CheckerSpec(command=("look",))} if verify == "checked" and "checker" not in array else {}
        fields = {"image": image, "command": ("square",), "elements": listed, "count": count, "verify": verify}
        return JobSpec("squares", budget=budget, deadline_hours=hours, array=ArraySpec(**cast(dict, fields | array)))

    async def submit(self, document: JobSpec) -> str:
        """The job, with its money in escrow."""
        job = (await self.parts.jobs.create(NewJob(document))).id
        async with self.parts.desk.open(job) as work:
            await self.parts.funding.queue_funding(work)
        for _ in range(5):
            await self.parts.lanes.drain()
            await self.turn()
        return job

    async def turn(self, seconds: float = 0.5) -> None:
        """Everybody hears, works and beats; the coordinator looks at its jobs, and time passes."""
        for node in self.nodes:
            if node.up and node.session is None:
                await node.connect()
            if node.up:
                await node.hear()
                await node.work()
                await node.beat()
        await self.parts.upkeep.tick()
        await self.parts.lanes.drain()
        self.clock.t += seconds

    async def until_over(self, job: str, turns: int = 2_000, seconds: float = 0.5) -> Job:
        """Until its life is over."""
        for _ in range(turns):
            await self.turn(seconds)
            if (stored := await self.stored(job)).state in ("settled", "failed", "cancelled"):
                return stored
        raise AssertionError(f"job {job} is {stored.state} after {turns} turns: {await self.courses(job)}")

    async def kill(self) -> None:
        """kill -9 of the coordinator, and a new one over what is stored."""
        self.parts = self._assemble()
        await self.parts.recover()
        for node in self.nodes:
            node.session = None
            node.inbox.clear()

    async def crash(self, node: ElementNode) -> None:
        """kill -9 of an agent: it comes back with nothing."""
        if node.session is not None:
            self.parts.conversation.left(node.session)
        node.session = None
        node.forget()

    def kept(self, digest: Digest) -> bytes:
        """An artifact, wherever this world has them."""
        if isinstance(self.artifacts, DiskArtifacts):
            return self.artifacts.path(digest).read_bytes()
        return self.artifacts.kept[digest]

    async def stored(self, job: str) -> Job:
        async with self.store.transaction() as tx:
            return await tx.get(Job, job)

    async def courses(self, job: str) -> list[ElementCourse]:
        async with self.store.transaction() as tx:
            return await tx.find(ElementCourse, col(ElementCourse.job).equals(job))

    async def shares(self, job: str) -> list[CommitRecord]:
        async with self.store.transaction() as tx:
            return await tx.find(CommitRecord, col(CommitRecord.job).equals(job))

    async def leases(self, job: str) -> list[Lease]:
        async with self.store.transaction() as tx:
            return await tx.find(Lease, col(Lease.job).equals(job))

    async def timeline(self, job: str) -> list[str]:
        """What the job's log says."""
        async with self.store.transaction() as tx:
            return [str(one.text) for one in await tx.find(EventRecord, col(EventRecord.job).equals(job))]

    async def results(self, job: str) -> dict[int, bytes]:
        """Element -> its archive, of those that are done."""
        return {one.index: self.artifacts.kept[one.result] for one in await self.courses(job) if one.result is not None}

    async def earned(self, job: str, nodes: Sequence[ElementNode]) -> dict[int, int]:
        """What nodes were verified, by number."""
        found = dict.fromkeys((node.number for node in nodes), 0)
        numbers = {node.node: node.number for node in nodes}
        for share in await self.shares(job):
            if share.state == "verified" and share.node in numbers:
                found[numbers[share.node]] += share.amount
        return found
