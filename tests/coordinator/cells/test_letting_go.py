"""Which idle nodes a cell lets go, and where they are led: pure decisions, and what comes of them over time."""

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain.cells import (
    ARRIVE_S,
    FEW,
    GAP,
    LEAST_GAP,
    MANY,
    MAX_NAMED,
    STAY_S,
    CellState,
    IdleNode,
    awaits,
    leaving,
    may_part,
    named,
    to_let_go,
)
from coordinator.services.network.claims import Claims
from tests.sim.world import SimClock

ALL = 3
WAY = 2  # Turns that a node is between two cells.


def states(*idle: int, wanted: Mapping[int, int] | None = None) -> dict[int, CellState]:
    lacking = wanted or {}
    return {number: CellState(wanted=lacking.get(number, 0), idle=count) for number, count in enumerate(idle)}


def apart(every: dict[int, CellState], number: int) -> tuple[CellState, dict[int, CellState]]:
    return every[number], {other: state for other, state in every.items() if other != number}


# --- how many go by themselves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("idle", "wanted", "go"),
    [
        ((0, 0, 0), {}, 0),
        ((2, 0, 0), {}, 0),  # Two more are no reason to move.
        ((3, 0, 0), {}, 2),
        ((90, 0, 0), {}, FEW),
        ((10, 9, 8), {}, 0),
        ((100, 85, 85), {}, 0),  # A fifth more is none, either.
        ((100, 75, 75), {}, FEW),
        ((5, 5, 0), {}, 1),  # Of two rich ones each gives no more than it has beyond the mean.
        ((4, 0, 0), {0: 4}, 0),  # What its own jobs lack it keeps.
        ((4, 4, 4), {1: 6}, 2),
        ((1, 0, 0), {1: 1}, 0),
        ((0, 0, 5), {1: 9}, 0),
    ],
)
def test_idle_nodes_even_out_slowly_and_not_for_little(idle: tuple[int, ...], wanted: dict[int, int], go: int) -> None:
    assert to_let_go(*apart(states(*idle, wanted=wanted), 0)) == go


def test_who_is_alone_lets_nobody_go() -> None:
    assert to_let_go(CellState(idle=100), {}) == 0


@given(
    idle=st.lists(st.integers(0, 300), min_size=2, max_size=6),
    wanted=st.lists(st.integers(0, 50), min_size=6, max_size=6),
)
def test_all_together_give_no_more_than_the_poor_ones_lack(idle: list[int], wanted: list[int]) -> None:
    every = {number: CellState(wanted[number], count) for number, count in enumerate(idle)}
    levels = {number: state.idle - state.wanted for number, state in every.items()}
    mean = sum(levels.values()) / len(levels)
    given_up = {number: to_let_go(*apart(every, number)) for number in every}
    for number, count in given_up.items():
        assert 0 <= count <= FEW
        assert count == 0 or levels[number] - count >= mean - 1e-9, "nobody falls below what all have"
        gap = levels[number] - min(levels.values())
        assert count == 0 or gap > max(LEAST_GAP, GAP * levels[number])
    lacking = sum(max(0.0, mean - level) for level in levels.values())
    assert sum(given_up.values()) <= lacking + 1e-9


# --- which ones ---------------------------------------------------------------------------------------------------------------


def test_who_is_waited_for_goes_first_and_who_has_just_come_stays() -> None:
    idle = [IdleNode("called", ARRIVE_S), IdleNode("called, new", ARRIVE_S - 0.1), IdleNode("wished", STAY_S)]
    idle += [IdleNode("wished, new", STAY_S - 0.1), IdleNode("new", 0.0), IdleNode("other", 3 * STAY_S)]
    others = {1: CellState(wishes=("wished", "wished, new", "called"))}
    called = {"called", "called, new", "somebody else"}
    assert leaving(idle, called, CellState(idle=4), others) == ["called", "wished", "other"]
    assert leaving(idle, (), CellState(idle=4), {1: CellState(idle=4)}) == []
    assert leaving(idle, called, CellState(idle=4), {1: CellState(idle=4)}) == ["called"], "also where nobody is richer"


def test_arrays_elsewhere_get_a_crowd_bit_by_bit() -> None:
    idle = [IdleNode(f"{number:04}", STAY_S) for number in range(2 * MANY)]
    others = {1: CellState(idle=2 * MANY, wishes=tuple(one.node for one in idle))}
    assert leaving(idle, (), CellState(idle=2 * MANY), others) == [one.node for one in idle[:MANY]]


def test_a_cell_names_what_it_waits_for_within_bounds() -> None:
    claims = {"b": {f"b{number:03}" for number in range(MAX_NAMED)}, "a": {"x", "y"}, "c": {"z"}, "d": set[str]()}
    told = named(claims)
    assert told["a"] == ("x", "y")
    assert told["b"] == tuple(f"b{number:03}" for number in range(MAX_NAMED - 2))
    assert set(told) == {"a", "b"}
    assert named({}) == {}


def test_a_node_is_led_to_who_waits_for_it_and_of_two_jobs_to_the_first() -> None:
    every = {
        0: CellState(wanted=1, claims={"c": ("n",)}, wishes=("m",)),
        1: CellState(wanted=5, claims={"b": ("n", "o")}, wishes=("m", "n")),
        2: CellState(),
    }
    assert awaits(every, "n") == 1
    assert awaits(every, "m") == 1, "where most is lacked"
    assert awaits(every, "other") is None
    assert awaits({}, "n") is None


@pytest.mark.parametrize(
    ("own", "other", "goes"),
    [
        (CellState(auditors=2), CellState(auditors=0), True),
        (CellState(auditors=2), CellState(auditors=1), False),
        (CellState(auditors=1), CellState(auditors=0), False),
        (CellState(auditors=1), CellState(auditors=0, looks=3), True),
        (CellState(auditors=1, looks=1), CellState(auditors=0, looks=3), False),
        (CellState(auditors=0), CellState(auditors=0, looks=3), False),
    ],
)
def test_an_auditor_goes_where_there_is_none_unless_it_is_the_last_one_here_and_needed(
    own: CellState, other: CellState, goes: bool
) -> None:
    assert may_part(own, {1: other}) is goes


# --- over time ----------------------------------------------------------------------------------------------------------------


class SimCell:
    """A cell whose jobs need so many nodes at once, whichever they are, as ``Staffing`` plans and claims."""

    def __init__(self, number: int, clock: SimClock) -> None:
        self.number, self.clock = number, clock
        self.idle: dict[str, float] = {}
        self.busy: dict[str, set[str]] = {}
        self.waiting: dict[str, int] = {}
        self.beside: frozenset[str] = frozenset()
        self.claims = Claims(clock, beside=lambda: self.beside.difference(self.idle))

    def plan(self) -> None:
        for job, need in sorted(self.waiting.items()):
            if len(self.idle) >= need:
                taken = sorted(self.idle, key=lambda node: (node in self.claims.claimed(job), node))[:need]
                for node in taken:
                    del self.idle[node]
                self.busy[job] = set(taken)
                del self.waiting[job]
                self.claims.drop(job)
            elif self.claims.is_due(job):
                there = self.claims.spare(job) | (self.idle.keys() - self.claims.claimed(job))
                if not self.claims.renew(job, there):
                    order = sorted(there, key=lambda node: (node not in self.idle, node))
                    self.claims.claim(job, order[:need] if len(order) >= need else ())

    def free_for(self, other: int) -> set[str]:
        return self.idle.keys() - self.claims.kept_from(lambda job: int(job[0]) == other)

    def state(self) -> CellState:
        here = {*self.idle, *(node for nodes in self.busy.values() for node in nodes)}
        idle = self.idle.keys() - self.claims.claimed()
        return CellState(self.claims.wanted(here), len(idle), len(here), named(self.claims.away(here)))

    def leaving(self, others: Mapping[int, CellState]) -> list[str]:
        self.claims.hear({job: nodes for one in others.values() for job, nodes in one.claims.items()})
        own = self.claims.kept_from(lambda job: int(job[0]) != self.number)
        idle = [IdleNode(node, self.clock.t - at) for node, at in self.idle.items() if node not in own]
        return leaving(idle, self.claims.called, self.state(), others)


class SimTown:
    """Cells that hear of each other a turn late, and nodes that take some turns from one to another."""

    def __init__(self, idle: tuple[int, ...]) -> None:
        self.clock = SimClock()
        self.cells = [SimCell(number, self.clock) for number in range(len(idle))]
        for cell, count in zip(self.cells, idle, strict=True):
            cell.idle = {f"{cell.number}-{node:03}": 0.0 for node in range(count)}
        self.told = {cell.number: cell.state() for cell in self.cells}
        self.coming: list[tuple[int, str]] = []
        self.moves: list[str] = []

    def turn(self) -> None:
        self.clock.t += 1.0
        told, self.told = self.told, {cell.number: cell.state() for cell in self.cells}
        for cell in self.cells:
            cell.plan()
            others = {number: state for number, state in told.items() if number != cell.number}
            for node in cell.leaving(others):
                del cell.idle[node]
                self.coming.append((WAY, node))
        for cell in self.cells:
            cell.beside = frozenset().union(*(x.free_for(cell.number) for x in self.cells if x is not cell))
        arrived = [node for turns, node in self.coming if turns == 0]
        self.coming = [(turns - 1, node) for turns, node in self.coming if turns > 0]
        for node in arrived:
            self.moves.append(node)
            self.cells[self._place(node)].idle[node] = self.clock.t

    def _place(self, node: str) -> int:
        """As fronts do it."""
        if (cell := awaits(self.told, node)) is not None:
            return cell
        return min(self.told, key=lambda number: (self.told[number].idle - self.told[number].wanted, number))

    def waiting(self) -> int:
        return sum(len(cell.waiting) for cell in self.cells)


@settings(max_examples=60, deadline=None)
@given(
    idle=st.tuples(*[st.integers(0, 12)] * ALL),
    needs=st.lists(st.tuples(st.integers(0, ALL - 1), st.integers(1, 12)), max_size=5),
    seed=st.integers(0, 9_999),
)
def test_wants_are_met_where_all_have_enough_and_then_everything_comes_to_rest(
    idle: tuple[int, ...], needs: list[tuple[int, int]], seed: int
) -> None:
    town, chance = SimTown(idle), Random(seed)
    left = sum(idle)
    for number, (cell, need) in enumerate(needs):
        if need <= left:  # Together they have enough.
            left -= need
            town.cells[cell].waiting[f"{cell}{chance.randrange(10_000):04}{number}"] = need
    wanted = town.waiting()
    for _ in range(60 + 60 * wanted):  # A claim that comes second begins anew after some seconds.
        town.turn()
    assert town.waiting() == 0, "each job has its nodes, wherever these were"
    town.moves.clear()
    for _ in range(60):
        town.turn()
    assert not town.moves, "and nobody wanders"
    levels = [len(cell.idle) for cell in town.cells]
    assert sum(levels) == left
    assert max(levels) - min(levels) <= max(LEAST_GAP, GAP * max(levels))


def test_what_no_cell_can_have_draws_nobody_to_and_fro() -> None:
    town = SimTown((6, 6, 6))
    town.cells[0].waiting["00"], town.cells[1].waiting["11"] = 40, 50
    for _ in range(30):
        town.turn()
    town.moves.clear()
    for _ in range(300):
        town.turn()
    assert not town.moves
    town.cells[2].waiting["22"] = 18  # It is met all the same, by all that there are.
    for _ in range(60):
        town.turn()
    assert town.cells[2].busy["22"]


def test_of_two_jobs_that_need_the_same_nodes_the_first_begins_and_the_other_waits_for_its_end() -> None:
    town = SimTown((4, 4, 0))
    town.cells[0].waiting["0b"], town.cells[1].waiting["1a"] = 8, 8
    for _ in range(40):
        town.turn()
    assert len(town.cells[0].busy["0b"]) == 8
    assert list(town.cells[1].waiting) == ["1a"]
    freed = town.cells[0].busy.pop("0b")
    town.cells[0].idle |= dict.fromkeys(freed, town.clock.t)
    for _ in range(40):
        town.turn()
    assert len(town.cells[1].busy["1a"]) == 8


def test_a_large_network_evens_out_without_a_rush() -> None:
    town = SimTown((300, 0, 0))
    most = 0
    for _ in range(150):
        before = len(town.moves)
        town.turn()
        most = max(most, len(town.moves) - before)
    assert most <= FEW
    assert max(len(cell.idle) for cell in town.cells) < 130
    assert len(town.moves) == len(set(town.moves)), "nobody goes twice"
