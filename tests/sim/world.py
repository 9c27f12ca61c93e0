"""A network in one thread: real services on a virtual clock, nodes that speak the wire in memory, and one seed for all chance.

Each turn of ``World.turn`` does one small thing (deliver a message, beat, tick, carry money) in an order that the seed chooses.
Faults are crashes of nodes and of the coordinator (at any wait of the store or the ledger, before or after the commit), cut
connections with everything in flight, partitions, duplicates, failed workers, hung workers, and a ledger that loses answers.
"""

import dataclasses
import random
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

from coordinator.assembly import AmongCells, CoordinatorParts, assemble
from coordinator.config import Config
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.services.network.nodes import NodeRefusedError, NodeSession
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import Transaction
from ledger.errors import LedgerUnavailableError
from protocol.codec import decode, encode
from protocol.identity import NodeKey
from protocol.node import (
    PROTOCOL,
    Acknowledged,
    Assign,
    Beat,
    Command,
    CoordinatorMessage,
    Goodbye,
    Heartbeat,
    HeldLease,
    Hello,
    KeepRecords,
    ListRecords,
    NodeMessage,
    RecordsEntry,
    RecordsKept,
    RecordsReturned,
    Report,
    ReturnRecords,
    Unanswered,
    WorkerKind,
)
from protocol.task import (
    AuditReport,
    BeginRound,
    OpenOuter,
    OpenStep,
    Progress,
    ShowLeaf,
    StepOpened,
    StopTask,
    TaskCommand,
    TaskFailed,
    TaskReport,
    Traffic,
    WorkerLog,
)
from tests.coordinator.fake_task import FakeTask
from tests.coordinator.fakes import (
    COORDINATOR,
    COORDINATOR_KEY,
    WALLET,
    AllDelivered,
    FakeChain,
    FakeForger,
    FakeModels,
    Lie,
    Peers,
    profile,
)
from tests.coordinator.rerun import ScriptedJudge
from tests.sim.federated.summing import SimSums

NONCE, HOST = b"n" * 32, "sim"
UNKNOWN = -1  # How many reports an agent made that died: the coordinator says.
RESTORE_S = 3.0
IDLE_S = 5.0  # The longest that a worker looks at nothing: without a bound one of hundreds idles past any patience, by chance.


class CrashError(BaseException):
    """The coordinator is killed: nothing may catch it."""


class SimClock:
    """Time that moves when the world moves it, or when somebody sleeps."""

    def __init__(self) -> None:
        self.t = 1_000_000.0

    def now(self) -> float:
        return self.t

    def time(self) -> float:
        return self.t

    async def sleep(self, seconds: float) -> None:
        self.t += seconds

    def timeout(self, _seconds: float | None) -> AbstractAsyncContextManager[object]:
        return nullcontext()


class FaultyStore:
    """A store under which the process may die: before, at, or just after a commit."""

    def __init__(self, inner: MemoryStore, world: "World") -> None:
        self._inner = inner
        self._world = world

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self._world.may_crash()
        async with self._inner.transaction() as tx:
            yield tx
            self._world.may_crash()
        self._world.may_crash()

    async def close(self) -> None:
        await self._inner.close()


class SimNode:
    """A machine with an agent: keeps leases, reports and workers as a real one does."""

    def __init__(
        self,
        world: "World",
        number: int,
        lie: Lie | None = None,
        accuse: bool = False,
        blind: bool | tuple[int, ...] = False,
        owner: int | None = None,
        flops: float | None = None,
        env_class: str = "cpu",
        careless: bool = False,
        upload: float = 0.0,
        rerun: float = 0.0,
        scheme: "Scheme | None" = None,
    ) -> None:
        """Take ``blind`` as whose lies it does not see, by number; ``owner``: whose wallet it is paid to, by number.

        ``upload``: seconds that each opening takes, one after the other; ``rerun``: that each audit takes it.
        ``scheme``: what it plans, from round to round.
        ``careless``: its owner goes on when told that the machine did not answer; others do not while a world has faults.
        """
        self.world = world
        self.key = NodeKey(number.to_bytes(32, "big"))
        self.payout = NodeKey((500 + (owner or number)).to_bytes(32, "big")).address
        self.profile = profile(f"node-{number}", flops or 1e9 + number, env_class)
        friends = blind if isinstance(blind, tuple) else ()
        keys = frozenset(NodeKey(friend.to_bytes(32, "big")).address for friend in friends)
        self.blind: bool | frozenset[str] = keys if isinstance(blind, tuple) else blind
        self.lie = lie
        self.accuse = accuse
        self.up = True
        self.away_until = 0.0
        self.hung = False
        self.ever_hung = False
        self.accepting = True
        self.careless = careless
        self.upload = upload
        self.rerun = rerun
        self.scheme = scheme
        self.leaving = False
        self.sent_out = False  # Of a job, for what an audit found.
        self.records: dict[RecordsEntry, bytes] = {}  # What it keeps for the coordinator, on its disk.
        self.session: NodeSession | None = None
        self.out: deque[bytes] = deque()
        self.inbox: deque[bytes] = deque()
        self.beat_at = 0.0
        self.worked_at = 0.0
        self.forget()

    def forget(self) -> None:
        """The process died: everything in memory is gone."""
        self.tasks: dict[str, FakeTask] = {}
        self.fences: dict[str, int] = {}
        self.said: dict[str, int] = {}
        self.kept: dict[str, list[Report]] = {}
        self.uploading: deque[tuple[float, str, StepOpened | AuditReport]] = deque()
        self.restored: dict[
            str, float
        ] = {}  # Leases of which only records are here: from when on another worker has them.
        self.asked: dict[str, list[TaskCommand]] = {}
        self.cut()

    def crash(self, seconds: float) -> None:
        """The process died, and its folder is there: another one makes workers of the records in so many seconds."""
        disk = {lease: (self.fences[lease], task) for lease, task in self.tasks.items() if task.roots}
        self.forget()
        for lease, (fence, task) in disk.items():
            self.tasks[lease], self.fences[lease] = task, fence
            self.kept[lease], self.said[lease], self.asked[lease] = [], UNKNOWN, []
            self.restored[lease] = self.world.clock.t + seconds

    def held(self) -> tuple[HeldLease, ...]:
        """What it says that it holds."""
        return tuple(HeldLease(lease, self.fences[lease], self._worker(lease)) for lease in self.tasks)

    def _worker(self, lease: str) -> WorkerKind:
        if lease not in self.restored:
            return "lives"
        return "restored" if self.world.clock.t >= self.restored[lease] else "restoring"

    def cut(self) -> None:
        """The connection is gone, with everything in flight."""
        self.session = None
        self.out.clear()
        self.inbox.clear()

    async def connect(self) -> None:
        """Greet; whatever was not acknowledged is sent again."""
        parts = self.world.parts
        if parts is None:
            return
        held = self.held()
        signature = self.key.sign("cottage-hello", NONCE, HOST.encode())
        hello = Hello(PROTOCOL, self.key.address, self.payout, signature, self.profile, held)
        self.cut()
        try:
            self.session = await parts.nodes.enter(hello, NONCE, HOST, self._receive, lambda _reason: self.cut())
        except NodeRefusedError as refused:
            self.away_until = self.world.clock.t + (refused.retry_seconds or 30.0)
            return
        for reports in self.kept.values():
            self.out.extend(encode(report) for report in reports)
        await parts.conversation.begin(self.session, hello)

    def send(self, message: NodeMessage) -> None:
        if self.session is not None:
            self.out.append(encode(message))

    def beat(self) -> None:
        self.send(Heartbeat(self.held(), self.accepting))

    def work(self) -> None:
        """Workers do what has become possible."""
        while self.uploading and self.uploading[0][0] <= self.world.clock.t:
            _, lease, body = self.uploading.popleft()
            if lease in self.tasks:
                self.report(lease, body)
        for lease, task in list(self.tasks.items()):
            if self.hung:
                continue
            if lease not in self.restored:
                self.say(lease, [*task.work(), *self.world.sums.trained(task, self.key)])
            elif self.said[lease] != UNKNOWN and self._worker(lease) == "restored":
                asked, self.asked[lease] = self.asked[lease], []
                for command in asked:
                    self.say(lease, task.act(command))

    def obey(self) -> None:
        """Act on the oldest message of the coordinator."""
        message: CoordinatorMessage = decode(self.inbox.popleft(), CoordinatorMessage)
        match message:
            case Assign():
                task = FakeTask(
                    message,
                    self.key.address,
                    self.world.peers,
                    self.lie,
                    self.profile.env_class,
                    accuse=self.accuse,
                    blind=self.blind,
                    choose=None if self.scheme is None else partial(self.scheme.lie, self),
                )
                self.tasks[message.lease], self.fences[message.lease] = task, message.fence
                self.kept[message.lease], self.said[message.lease] = [], 0
                self.say(message.lease, task.start())
            case Command():
                self._obey(message)
            case Acknowledged():
                if self.said.get(message.lease) == UNKNOWN:
                    self.said[message.lease] = message.seq
                kept = self.kept.get(message.lease, [])
                self.kept[message.lease] = [report for report in kept if report.seq > message.seq]
            case Beat():
                for lease in message.gone:
                    self.drop(lease)
            case KeepRecords():
                self.records[message.entry] = message.data
            case ListRecords():
                self.send(RecordsKept(tuple(self.records)))
            case ReturnRecords():
                self.send(RecordsReturned(message.entry, self.records.get(message.entry, b"")))
            case Unanswered():
                self.accepting = self.careless or self.lie is not None
            case _:
                pass

    def _obey(self, message: Command) -> None:
        if message.lease not in self.tasks:
            return
        if isinstance(message.body, StopTask):
            self.sent_out = self.sent_out or message.body.reason.startswith("audit")
            self.drop(message.lease)
        elif self.scheme is not None and (seconds := self.scheme.cuts(self, message.body)):
            self.world._leave(self)
            self.cut()
            self.away_until = self.world.clock.t + seconds
        elif self.scheme is not None and (seconds := self.scheme.crashes(self, message.body)):
            self.world._leave(self)
            self.crash(seconds + RESTORE_S)
            self.away_until = self.world.clock.t + seconds
        elif message.lease in self.restored:
            if isinstance(message.body, OpenStep | OpenOuter | ShowLeaf):
                self.asked[message.lease].append(message.body)
        elif self.scheme is not None and self.scheme.leaves(self, message.body):
            self.send(Goodbye("another time"))
            self.leaving = True
        elif not self.hung:
            task = self.tasks[message.lease]
            sums = self.world.sums.act(task, self.key, message.body)
            self.say(message.lease, task.act(message.body) if sums is None else sums)

    def begin_anew(self) -> None:
        """Come back as somebody else: keys and wallets are free."""
        number = self.world.fresh_number()
        self.key = NodeKey(number.to_bytes(32, "big"))
        self.payout = NodeKey((500 + number).to_bytes(32, "big")).address
        self.forget()

    def drop(self, lease: str) -> None:
        self.tasks.pop(lease, None)
        self.kept.pop(lease, None)
        self.restored.pop(lease, None)

    def say(self, lease: str, bodies: list[TaskReport]) -> None:
        for body in bodies:
            takes = self.upload if isinstance(body, StepOpened) and body.opening is not None else 0.0
            takes = self.rerun if isinstance(body, AuditReport) else takes
            if takes and isinstance(body, StepOpened | AuditReport):
                before = max((due for due, _, _ in self.uploading), default=self.world.clock.t)
                self.uploading.append((before + takes, lease, body))
            else:
                self.report(lease, body)

    def report(self, lease: str, body: TaskReport) -> None:
        lossy = isinstance(body, Progress | Traffic | WorkerLog)
        seq = 0 if lossy else self.said[lease] + 1
        report = Report(lease, self.fences[lease], seq, body)
        if not lossy:
            self.said[lease] = seq
            self.kept[lease].append(report)
        self.send(report)

    def _receive(self, message: CoordinatorMessage) -> None:
        self.inbox.append(encode(message))


class Scheme:
    """What a node does with intent, from round to round; by default it is honest."""

    def lie(self, _node: SimNode, _begun: BeginRound) -> Lie | None:
        """What it lies about in a round that begins."""
        return None

    def leaves(self, _node: SimNode, _command: TaskCommand) -> bool:
        """Whether it says goodbye instead of doing what it is told."""
        return False

    def cuts(self, _node: SimNode, _command: TaskCommand) -> float:
        """For how long it cuts its line, instead of doing what it is told; its worker lives on."""
        return 0.0

    def crashes(self, _node: SimNode, _command: TaskCommand) -> float:
        """For how long it has its agent and worker dead, instead of doing what it is told; its folder stays."""
        return 0.0

    def turn(self, node: SimNode) -> None:
        """It may do something at any time."""


class World:
    """Everything, and the one source of chance."""

    def __init__(
        self,
        seed: int,
        nodes: int,
        faults: float = 1.0,
        settings: dict[str, Any] | None = None,
        operators: tuple[int, ...] = (),
        **odd: dict[int, dict[str, Any]],
    ) -> None:
        """Take ``operators`` as the numbers of the nodes that are the operator's own auditors."""
        self.chance = random.Random(seed)
        self.faults = faults
        self.crashes = True
        self.happened: Counter[str] = Counter()
        self.clock = SimClock()
        self.records = MemoryStore()
        self.chain = FakeChain(self._ledger_fault, lambda: self._fault("slow block", 0.2))
        self.peers, self.sums = Peers(), SimSums()
        self.config = Config(
            data=Path(),
            ledger_url="http://ledger.test",
            lease_seconds=10.0,
            heartbeat_seconds=2.0,
            start_grace_seconds=5.0,
            start_seconds=60.0,
            stall_seconds=20.0,
            audit_seconds=15.0,
            audit_patience_seconds=5.0,
            return_seconds=60.0,
            settle_every=2,
            validations=1,
            min_stake=1_000,
        )
        self.config = dataclasses.replace(self.config, **(settings or {}))
        self.judge, self.forger = ScriptedJudge(), FakeForger(self.peers)
        special = odd.get("special", {})
        self.nodes = [SimNode(self, number, **special.get(number, {})) for number in range(1, nodes + 1)]
        own = {self.nodes[number - 1].key.address for number in operators}
        self.config = dataclasses.replace(self.config, auditors=frozenset(own))
        for node in self.nodes:
            if node.key.address not in own:
                self.chain.stakes[node.key.address] = 1_000_000
        self.parts: CoordinatorParts | None = None
        self.among: AmongCells | None = None  # Where its coordinator carries a cell.
        self._ticked = self._carried = 0.0
        self._fresh = 10_000

    def join(self) -> None:
        """Somebody new comes to the network."""
        node = SimNode(self, len(self.nodes) + 1)
        self.nodes.append(node)
        self.chain.stakes[node.key.address] = 1_000_000

    def fresh_number(self) -> int:
        """Of a node that nobody has seen."""
        self._fresh += 1
        return self._fresh

    async def start(self) -> CoordinatorParts:
        """A coordinator begins, from whatever the database holds."""
        while True:
            try:
                self.parts = assemble(
                    self.config,
                    self.clock,
                    FaultyStore(self.records, self),
                    self.chain,
                    cast(ModelWorkshop, FakeModels()),
                    cast(ArtifactStore, self.sums.artifacts),
                    COORDINATOR,
                    WALLET,
                    self.chance.randbytes,
                    self.judge,
                    self.forger,
                    deliveries=AllDelivered(self.records, self.clock),
                    key=COORDINATOR_KEY,
                    among=self.among,
                )
                await self.parts.recover()
            except CrashError:
                self._fall()
                continue
            return self.parts

    def may_crash(self) -> None:
        """Called wherever the coordinator waits for its store."""
        if self.crashes and self.chance.random() < 0.0004 * self.faults:
            raise CrashError

    async def turn(self) -> None:
        """One small thing happens."""
        self.clock.t += self.chance.uniform(0.0, 0.08)
        try:
            if self.parts is None:
                await self.start()
            assert self.parts is not None
            await self._upkeep(self.parts)
            await self._node_turn(self.chance.choice(self.nodes))
        except CrashError:
            self._fall()
        except BaseExceptionGroup as group:
            if group.subgroup(CrashError) is None:
                raise
            self._fall()
        self.check_leases()

    async def _upkeep(self, parts: CoordinatorParts) -> None:
        if self.clock.t - self._ticked > 0.5:
            self._ticked = self.clock.t
            await parts.upkeep.tick()
            while parts.upkeep.waiting():
                await parts.upkeep.assemble_next()
            while parts.runs.sums.waiting():
                await parts.runs.sums.add_next(parts.runs.advance)
        if self.clock.t - self._carried > 0.7:
            self._carried = self.clock.t
            self.chain.height += 1
            await parts.lanes.drain()
            await parts.draw_blocks.poll()
            await parts.referee.poll()
            await parts.canaries.poll()
            await parts.stakes.look()

    async def _node_turn(self, node: SimNode) -> None:
        self._node_faults(node)
        if node.scheme is not None:
            node.scheme.turn(node)
        if not node.up or self.clock.t < node.away_until:
            if self.clock.t >= node.away_until:
                node.up = True
            return
        if node.session is None:
            await node.connect()
            return
        if self.clock.t >= node.beat_at:
            node.beat_at = self.clock.t + 2.0
            node.beat()
        if self.chance.random() < 0.1 or self.clock.t - node.worked_at > IDLE_S:
            node.worked_at = self.clock.t
            node.work()
        for _ in range(self.chance.randint(0, 3)):
            if node.out and node.session is not None:
                await self._deliver(node)
        for _ in range(self.chance.randint(0, 3)):
            if node.inbox and not node.leaving:
                node.obey()
        if node.leaving and not node.out:
            node.leaving = False
            self._leave(node)
            node.forget()
            node.away_until = self.clock.t + 1.0

    async def _deliver(self, node: SimNode) -> None:
        assert self.parts is not None
        assert node.session is not None
        message: NodeMessage = decode(node.out.popleft(), NodeMessage)
        await self.parts.conversation.receive(node.session, message)
        if self._fault("duplicate", 0.02) and isinstance(message, Report) and node.session is not None:
            await self.parts.conversation.receive(node.session, message)

    def _node_faults(self, node: SimNode) -> None:
        if node.lie is not None or node.scheme is not None:
            return  # Liars are there to be caught: one whose machine breaks before he is drawn shows nothing.
        if not node.up or self.clock.t < node.away_until:
            return
        if self._fault("node crash", 0.0008):
            self._leave(node)
            if self.chance.random() < 0.5:
                node.crash(self.chance.choice((1.0, 10.0)))
            else:
                node.forget()  # With its disk.
            node.up = False
            node.hung = False
            node.away_until = self.clock.t + self.chance.choice((0.5, 5.0, 30.0))
        elif self._fault("cut", 0.002):
            self._leave(node)
            node.cut()
        elif self._fault("partition", 0.0008):
            node.cut()  # The coordinator does not notice.
            node.away_until = self.clock.t + self.chance.choice((1.0, 8.0, 25.0))
        elif self._fault("hang", 0.0002):
            node.hung = node.ever_hung = True
        elif node.tasks and self._fault("worker failure", 0.0002):
            lease = self.chance.choice(sorted(node.tasks))
            node.say(lease, [TaskFailed("out of memory")])
            node.tasks.pop(lease)

    def _leave(self, node: SimNode) -> None:
        if node.session is not None and self.parts is not None:
            self.parts.nodes.leave(node.session)

    def _fault(self, what: str, probability: float) -> bool:
        if self.chance.random() >= probability * self.faults:
            return False
        self.happened[what] += 1
        return True

    def _ledger_fault(self, what: str) -> None:
        if self._fault("ledger", 0.03):
            raise LedgerUnavailableError(f"no answer ({what})")
        if self.crashes and self.chance.random() < 0.002 * self.faults:
            raise CrashError

    def check_leases(self) -> None:
        """At any moment: a node holds one lease, a seat has one holder."""
        if self.parts is None:
            return
        live = list(self.parts.leases._live.values())  # A turn is over in less than it takes to ask node by node.
        assert len({lease.node for lease in live}) == len(live), "a node holds one lease at a time"
        seats = [(lease.job, lease.seat) for lease in live if lease.seat]
        assert len(set(seats)) == len(seats), "a seat has one holder"

    def _fall(self) -> None:
        """The coordinator is dead: its memory and every connection are gone."""
        self.happened["coordinator crash"] += 1
        self.parts = None
        for node in self.nodes:
            node.cut()
