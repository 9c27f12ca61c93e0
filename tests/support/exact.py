"""The planner's bottleneck problem for OR-Tools' CP-SAT, which proves what no plan can beat.

Same terms as ``coordinator.domain.placement.cost.pace``: computing with layers of its own choice, links both ways, lines in all.
Replicas need no number here: who follows whom is enough, so plans that differ in numbering only are one.

With ways left out, seats alone remain, and the stages between are alike, so that only one order of them is looked at: proven in
seconds at 64 nodes, where the whole problem may take longer than anybody waits. What no seating beats, no plan beats.
"""

from itertools import pairwise

from ortools.sat.python import cp_model

from coordinator.domain.placement.cost import Load
from coordinator.domain.placement.fleet import Fleet

SCALE = 10**6  # Microseconds; coefficients are rounded down, so the bound holds for the exact problem too.


class _Seats:
    """Every node has a seat, on stages with as many layers as the solver likes; ``beat`` is to be the least."""

    def __init__(self, fleet: Fleet, load: Load, stages: int, with_ways: bool) -> None:
        self.load, self.nodes, self.steps = load, range(len(fleet.nodes)), range(stages)
        self.model = cp_model.CpModel()
        self.work = [int(SCALE * load.layer_operations / speed) for speed in fleet.speed]
        self.lines = [[int(SCALE * _line(fleet, load, n, s, stages)) for s in self.steps] for n in self.nodes]
        self.ways = [
            [
                int(SCALE * max(load.forward_bytes * fleet.byte[a][b], load.backward_bytes * fleet.byte[b][a]))
                for b in self.nodes
            ]
            for a in self.nodes
        ]
        values = cp_model.Domain(0, 10**10) if with_ways else self._terms()
        self.beat = self.model.new_int_var_from_domain(values, "")
        self.at = [[self.model.new_bool_var("") for _ in self.steps] for _ in self.nodes]
        self.layers = [self.model.new_int_var(1, load.layers - stages + 1, "") for _ in self.steps]
        self.model.add(sum(self.layers) == load.layers)
        for node in self.nodes:
            self.model.add_exactly_one(self.at[node])
            for stage in self.steps:
                seated = self.at[node][stage]
                self.model.add(self.beat >= self.work[node] * self.layers[stage]).only_enforce_if(seated)
                self.model.add(self.beat >= self.lines[node][stage] * seated)
        for stage in self.steps:
            self.model.add(sum(self.at[node][stage] for node in self.nodes) == len(self.nodes) // stages)

        if with_ways:
            self._join()
        else:
            self._order()

    def _terms(self) -> cp_model.Domain:
        """Whatever a beat without ways may be: one of the terms that bound it. Between two of them there is nothing to prove.

        (With ways they are thousands, and only slow the solver down.)
        """
        computing = [work * count for work in self.work for count in range(1, self.load.layers - len(self.steps) + 2)]
        return cp_model.Domain.from_values(sorted({*computing, *(line for lines in self.lines for line in lines)}))

    def _order(self) -> None:
        """Of all orders of the stages between, take one in which none holds less than the next."""
        for one, other in pairwise(self.layers[1:-1]):
            self.model.add(one >= other)

    def _join(self) -> None:
        """Every node but those of the last stage is followed by one of the next."""
        model, at, last = self.model, self.at, self.steps[-1]
        follows = {(a, b): model.new_bool_var("") for a in self.nodes for b in self.nodes if a != b}
        for node in self.nodes:
            model.add(sum(follows[node, b] for b in self.nodes if b != node) + at[node][last] == 1)
            model.add(sum(follows[a, node] for a in self.nodes if a != node) + at[node][0] == 1)
        for (a, b), chosen in follows.items():
            model.add(self.beat >= self.ways[a][b] * chosen)
            for stage in self.steps[:-1]:
                model.add_implication(at[a][stage], at[b][stage + 1]).only_enforce_if(chosen)

    def solve(self, seconds: float) -> tuple[float, float, bool]:
        """Best beat found, the bound, and whether they met."""
        self.model.minimize(self.beat)
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        status = solver.solve(self.model)
        value = solver.objective_value / SCALE if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else float("inf")
        return value, solver.best_objective_bound / SCALE, status == cp_model.OPTIMAL


def floor_beat(fleet: Fleet, load: Load, stages: int, seconds: float) -> float:
    """The proven lower bound with ways left out."""
    return _Seats(fleet, load, stages, with_ways=False).solve(seconds)[1]


def least_beat(fleet: Fleet, load: Load, stages: int, seconds: float) -> tuple[float, float, bool]:
    """Best beat found, the proven lower bound, and whether they met; every node has a seat."""
    return _Seats(fleet, load, stages, with_ways=True).solve(seconds)


def _line(fleet: Fleet, load: Load, node: int, stage: int, stages: int) -> float:
    first, last = stage == 0, stage == stages - 1
    sent = load.forward_bytes * (not last) + load.backward_bytes * (not first)
    got = load.forward_bytes * (not first) + load.backward_bytes * (not last)
    return max(sent / fleet.up[node], got / fleet.down[node])
