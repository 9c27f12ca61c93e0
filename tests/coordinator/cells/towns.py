"""Several cells in one thread: a coordinator each over one store, on one clock, and nodes that are led as fronts lead them."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from coordinator.assembly import AmongCells, CoordinatorParts
from coordinator.config import Config
from coordinator.domain.cells import Cell, CellState, awaits, cell_of, place, watch
from coordinator.services.network.cell_nodes import NodeExchange, told
from coordinator.services.network.far_nodes import FarNode
from coordinator.services.network.nodes import NodeRefusedError
from coordinator.store.kinds import job_of
from coordinator.store.memory import MemoryStore, _Memory
from coordinator.store.ports import Condition, Store, Transaction
from protocol.federated.federations import FederationTold, FederationWish
from protocol.identity import NodeKey
from protocol.ids import NodeAddress
from protocol.job.job import JobSpec
from protocol.node import PROTOCOL, Assign, Beat, Command, CoordinatorMessage, Heartbeat, HeldLease, Hello
from protocol.rest.api import NewJob
from protocol.task import StopTask
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import profile
from tests.sim.world import HOST, NONCE, SimClock

WAY_S = 1.0  # Between two connections of a node.
TOLD_S = 2.0  # As fronts have it: within it what was led to a cell shows in what that one tells.


class CellMemory:
    """The store of a cell over one in memory: it finds the cell's own jobs, as ``SqlStore`` does."""

    def __init__(self, whole: MemoryStore, cell: Cell) -> None:
        self._whole, self._cell = whole, cell

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._whole.transaction() as tx:
            assert isinstance(tx, _Memory)
            yield _OwnMemory(tx, self._cell)

    async def close(self) -> None:
        return


class _OwnMemory(_Memory):
    def __init__(self, whole: _Memory, cell: Cell) -> None:
        super().__init__(whole._rows, whole._numbers)
        self.written, self.deleted, self._tx, self._cell = whole.written, whole.deleted, whole, cell

    @property
    def everywhere(self) -> Transaction:
        return self._tx

    def _where(self, kind: type[msgspec.Struct], where: Sequence[Condition]) -> list[msgspec.Struct]:
        found, job = super()._where(kind, where), job_of(kind)
        return found if job is None else [one for one in found if self._cell.has(getattr(one, job))]


class TownNode:
    """A machine of an owner of its own; ``cell``: where it is connected now."""

    def __init__(self, number: int, **fields: Any) -> None:
        self.number, self.fields = number, fields
        self.key = NodeKey(number.to_bytes(32, "big"))
        self.cell: int | None = None
        self.away_until = 0.0
        self.closed: list[str] = []
        self.refused: list[NodeRefusedError] = []
        self.moves: list[int] = []
        self.sent: list[CoordinatorMessage] = []
        self.leases: dict[str, int] = {}
        self._heard = 0

    @property
    def node(self) -> str:
        return self.key.address

    def hello(self) -> Hello:
        payout = NodeKey((500 + self.number).to_bytes(32, "big")).address
        shown = msgspec.structs.replace(profile(f"node-{self.number}"), **self.fields)
        signature = self.key.sign("cottage-hello", NONCE, HOST.encode())
        return Hello(PROTOCOL, self.node, payout, signature, shown, self.held())

    def held(self) -> tuple[HeldLease, ...]:
        fresh, self._heard = self.sent[self._heard :], len(self.sent)
        for message in fresh:
            match message:
                case Assign(lease=lease, fence=fence):
                    self.leases[lease] = fence
                case Command(lease=lease, body=StopTask()):
                    self.leases.pop(lease, None)
                case Beat(gone=gone):
                    self.leases = {one: fence for one, fence in self.leases.items() if one not in gone}
        return tuple(HeldLease(lease, fence) for lease, fence in self.leases.items())


class TownBeside:
    """Implements ``CellsBeside`` without a network between. ``parts``: of the coordinator of each cell."""

    def __init__(self, cell: Cell, parts: Callable[[], Sequence[CoordinatorParts]]) -> None:
        self._cell, self._parts = cell, parts
        self.claims: list[tuple[str, int]] = []

    def _others(self) -> list[CoordinatorParts]:
        return [one for one in self._parts() if one.context.cell != self._cell]

    def known(self) -> Mapping[str, FarNode]:
        lists = [told(parts.nodes, parts.leases, self._cell.has) for parts in self._others()]
        return {one.candidate.node: one for found in lists for one in found}

    def free(self) -> frozenset[str]:
        return frozenset(node for node, one in self.known().items() if one.free)

    async def look(self) -> None:
        return

    def came(self, nodes: Sequence[str]) -> None:
        for parts in self._others():
            for node in nodes:
                parts.nodes.is_elsewhere(node, 0.0)

    async def wish(self, node: NodeAddress, asked: FederationWish) -> FederationTold:
        return await self._parts()[cell_of(asked.job, self._cell.of)].federations.grant(node, asked)

    def claim(self, payee: str, cells: Collection[int]) -> None:
        self.claims += [(payee, number) for number in sorted(cells)]


class CellBench(Bench):
    """The coordinator of one cell."""

    def __init__(self, town: "CellTown", cell: Cell, config: Config) -> None:
        self.cell = cell
        self.beside = TownBeside(cell, town.parts)
        among = AmongCells(cell, self.beside, lambda: town.heard, partial(town.tell, cell.number))
        super().__init__(config, town.stores[cell.number], clock=town.clock, among=None if cell.of == 1 else among)

    @property
    def exchange(self) -> NodeExchange:
        assert self.parts.exchange is not None
        return self.parts.exchange


class CellTown:
    """``stores``: of each cell, which may be one. ``heard``: what cells told a turn ago."""

    def __init__(self, cells: int = 3, config: Config = CONFIG, stores: Sequence[Store] = ()) -> None:
        self.clock = SimClock()
        whole = MemoryStore()
        self.stores = stores or [CellMemory(whole, Cell(number, cells)) for number in range(cells)]
        self.led: deque[tuple[float, int]] = deque()
        self.states: dict[int, CellState] = {}
        self.heard: dict[int, CellState] = {}
        self.nodes: list[TownNode] = []
        self.benches: list[CellBench] = []
        for number in range(cells):
            self.benches.append(CellBench(self, Cell(number, cells), config))

    def parts(self) -> list[CoordinatorParts]:
        return [one.parts for one in self.benches]

    def tell(self, number: int, state: CellState) -> None:
        self.states[number] = msgspec.json.decode(msgspec.json.encode(state), type=CellState)

    async def come(self, count: int, cell: int | None = None, **fields: Any) -> list[TownNode]:
        """New nodes, which are led to this cell, or to any."""
        made = [TownNode(len(self.nodes) + 1 + number, **fields) for number in range(count)]
        self.nodes += made
        for node in made:
            await self.connect(node, cell)
        return made

    async def connect(self, node: TownNode, cell: int | None = None) -> None:
        number = self._place(node) if cell is None else cell
        parts, hello = self.benches[number].parts, node.hello()
        try:
            session = await parts.nodes.enter(hello, NONCE, HOST, node.sent.append, partial(self._closed, node))
        except NodeRefusedError as refused:
            node.refused.append(refused)
            return
        node.cell = number
        node.moves.append(number)
        await parts.conversation.begin(session, hello)

    def _closed(self, node: TownNode, reason: str) -> None:
        node.closed.append(reason)
        node.cell, node.away_until = None, self.clock.t + WAY_S

    def _place(self, node: TownNode) -> int:
        """As fronts do it: where it holds something, where it is waited for, where nodes lack."""
        held = [bench.cell.number for bench in self.benches if bench.parts.leases.of_node(node.node)]
        if held:
            return held[0]
        every = {bench.cell.number: self.heard.get(bench.cell.number, CellState()) for bench in self.benches}
        if node.fields.get("auditor"):
            return watch(every, every)
        if (cell := awaits(every, node.node)) is not None:
            return cell
        while self.led and self.led[0][0] < self.clock.t - TOLD_S:
            self.led.popleft()
        for _, cell in self.led:
            state = every[cell]
            every[cell] = msgspec.structs.replace(state, idle=state.idle + 1, nodes=state.nodes + 1)
        self.led.append((self.clock.t, chosen := place(every, every)))
        return chosen

    async def turn(self) -> None:
        """A second: everybody does what is due, and nodes that were let go come back."""
        self.heard = dict(self.states)
        for node in [node for node in self.nodes if node.cell is not None]:
            parts = self.benches[node.cell or 0].parts
            if (session := parts.nodes.session(node.node)) is not None:
                await parts.conversation.receive(session, Heartbeat(node.held()))
        for bench in self.benches:
            await bench.parts.upkeep.tick()
            await bench.parts.lanes.drain()
            if bench.parts.exchange is not None:
                bench.exchange.turn()
                await bench.exchange.follow()
        self.clock.t += 1.0
        for node in self.nodes:
            if node.cell is None and node.away_until <= self.clock.t and not node.refused:
                await self.connect(node)

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await self.turn()

    async def submit(self, cell: int, document: JobSpec) -> str:
        """A job of this cell, with its money in escrow."""
        parts = self.benches[cell].parts
        job = (await parts.jobs.create(NewJob(document))).id
        async with parts.desk.open(job) as work:
            await parts.funding.queue_funding(work)
        await parts.lanes.drain()
        await self.turn()
        return job

    def held(self, job: str) -> set[str]:
        """Nodes that work for a job."""
        return {lease.node for bench in self.benches for lease in bench.parts.leases.of_job(job)}

    def here(self, cell: int) -> int:
        return len(self.benches[cell].parts.nodes.sessions())
