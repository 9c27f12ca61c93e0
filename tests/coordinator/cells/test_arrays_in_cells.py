"""Arrays in several cells: each has its share of all nodes, and a job elsewhere that needs several at once gets its own."""

from functools import partial

import pytest

from coordinator.assembly import AmongCells, CoordinatorParts
from coordinator.domain.cells import STAY_S, Cell, CellState, awaits, place
from coordinator.store.memory import MemoryStore
from tests.coordinator.arrays.arrayed import ArrayWorld, ElementNode, truth
from tests.coordinator.cells.towns import CellMemory, TownBeside
from tests.coordinator.fakes import DATASET, spec
from tests.sim.world import SimClock

TURNS = 40  # Of half a second each.


class ArrayTown:
    """Worlds that are cells of one network."""

    def __init__(self, cells: int = 2) -> None:
        whole, self.clock = MemoryStore(), SimClock()
        self.states: dict[int, CellState] = {}
        self.worlds: list[ArrayWorld] = []
        for number in range(cells):
            cell = Cell(number, cells)
            tell = partial(self.states.__setitem__, number)
            among = AmongCells(cell, TownBeside(cell, self._parts), lambda: dict(self.states), tell)
            world = ArrayWorld(CellMemory(whole, cell), seed=number, among=among, clock=self.clock)
            world.artifacts.kept[DATASET] = b"text"
            self.worlds.append(world)

    def _parts(self) -> list[CoordinatorParts]:
        return [one.parts for one in self.worlds]

    async def turns(self, count: int) -> None:
        for turn in range(count):
            for at, world in enumerate(self.worlds):
                for node in [node for node in world.nodes if node.session is None]:
                    self._lead(node, at)
                await world.turn(0.0)
                if turn % 2:
                    assert world.parts.exchange is not None
                    world.parts.exchange.turn()
            self.clock.t += 0.5

    def _lead(self, node: ElementNode, at: int) -> None:
        every = {number: self.states.get(number, CellState()) for number in range(len(self.worlds))}
        to = awaits(every, node.node)
        to = place(every, every) if to is None else to
        self.worlds[at].nodes.remove(node)
        self.worlds[to].nodes.append(node)
        node.world = self.worlds[to]

    def held(self, job: str) -> int:
        return sum(lease.job == job for world in self.worlds for lease in world.parts.leases.live())


@pytest.fixture
def town() -> ArrayTown:
    return ArrayTown()


async def test_an_array_has_all_nodes_that_it_can_use_wherever_they_were(town: ArrayTown) -> None:
    for number in range(1, 4):
        await town.worlds[0].come(number)
        await town.worlds[1].come(10 + number)
    quote = await town.worlds[0].parts.jobs.quote(town.worlds[0].document(200))
    assert quote.nodes_available == 6
    job = await town.worlds[0].submit(town.worlds[0].document(200))
    await town.turns(TURNS + 2 * int(STAY_S))
    assert town.held(job) == 6
    for _ in range(200):
        await town.turns(2)
    assert (await town.worlds[0].stored(job)).state == "settled"
    assert await town.worlds[0].results(job) == {index: truth(index) for index in range(200)}


async def test_arrays_of_two_cells_come_to_equal_shares_though_one_had_everything(town: ArrayTown) -> None:
    for number in range(1, 7):
        await town.worlds[0].come(number)
    first = await town.worlds[0].submit(town.worlds[0].document(3_000))
    await town.turns(10)
    assert town.held(first) == 6
    second = await town.worlds[1].submit(town.worlds[1].document(3_000))
    await town.turns(2 * TURNS)
    assert (town.held(first), town.held(second)) == (3, 3)
    await town.turns(4 * TURNS)
    assert (town.held(first), town.held(second)) == (3, 3), "and there it stays"


async def test_a_job_elsewhere_that_needs_its_seats_at_once_gets_them_from_an_array(town: ArrayTown) -> None:
    for number in range(1, 7):
        await town.worlds[0].come(number)
    array = await town.worlds[0].submit(town.worlds[0].document(3_000))
    await town.turns(10)
    training = await town.worlds[1].submit(spec(2, 1))
    await town.turns(2 * TURNS)
    assert (town.held(training), town.held(array)) == (2, 4)
