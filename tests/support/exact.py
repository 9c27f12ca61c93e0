"""The planner's bottleneck problem for OR-Tools' CP-SAT, which proves what no plan can beat.

Same terms as ``coordinator.domain.placement.cost.pace``: computing with layers of its own choice, links both ways, lines in all.
Replicas need no number here: who follows whom is enough, so plans that differ in numbering only are one.

With ways left out, seats alone remain, and the stages between are alike, so that only one order of them is looked at: proven in
seconds at 64 nodes, where the whole problem may take longer than anybody waits. What no seating beats, no plan beats. A model
of its own: the order in which the solver is told the whole one decides whether that takes it a second or minutes.
"""

from itertools import pairwise

from ortools.sat.python import cp_model

from coordinator.domain.placement.cost import Load
from coordinator.domain.placement.fleet import Fleet

SCALE = 10**6  # Microseconds; coefficients are rounded down, so the bound holds for the exact problem too.


def least_beat(fleet: Fleet, load: Load, stages: int, seconds: float) -> tuple[float, float, bool]:
    """Best beat found, the proven lower bound, and whether they met; every node has a seat."""
    count = len(fleet.nodes)
    nodes, steps = range(count), range(stages)
    model = cp_model.CpModel()
    at = [[model.new_bool_var("") for _ in steps] for _ in nodes]
    follows = {(a, b): model.new_bool_var("") for a in nodes for b in nodes if a != b}
    layers = [model.new_int_var(1, load.layers - stages + 1, "") for _ in steps]
    beat = model.new_int_var(0, 10**10, "")
    model.add(sum(layers) == load.layers)
    for node in nodes:
        model.add_exactly_one(at[node])
        model.add(sum(follows[node, b] for b in nodes if b != node) + at[node][stages - 1] == 1)
        model.add(sum(follows[a, node] for a in nodes if a != node) + at[node][0] == 1)
        work = int(SCALE * load.layer_operations / fleet.speed[node])
        for stage in steps:
            model.add(beat >= work * layers[stage]).only_enforce_if(at[node][stage])
            model.add(beat >= int(SCALE * _line(fleet, load, node, stage, stages)) * at[node][stage])
    for stage in steps:
        model.add(sum(at[node][stage] for node in nodes) == count // stages)
    for (a, b), chosen in follows.items():
        link = max(load.forward_bytes * fleet.byte[a][b], load.backward_bytes * fleet.byte[b][a])
        model.add(beat >= int(SCALE * link) * chosen)
        for stage in range(stages - 1):
            model.add_implication(at[a][stage], at[b][stage + 1]).only_enforce_if(chosen)
    return _solve(model, beat, seconds)


def floor_beat(fleet: Fleet, load: Load, stages: int, seconds: float) -> float:
    """The proven lower bound with ways left out."""
    count = len(fleet.nodes)
    nodes, steps, most = range(count), range(stages), load.layers - stages + 1
    work = [int(SCALE * load.layer_operations / speed) for speed in fleet.speed]
    lines = [[int(SCALE * _line(fleet, load, node, stage, stages)) for stage in steps] for node in nodes]
    model = cp_model.CpModel()
    # A beat is one of the terms that bound it: between two of them there is nothing to prove.
    terms = {*(each * held for each in work for held in range(1, most + 1)), *(line for row in lines for line in row)}
    beat = model.new_int_var_from_domain(cp_model.Domain.from_values(sorted(terms)), "")
    at = [[model.new_bool_var("") for _ in steps] for _ in nodes]
    layers = [model.new_int_var(1, most, "") for _ in steps]
    model.add(sum(layers) == load.layers)
    for node in nodes:
        model.add_exactly_one(at[node])
        for stage in steps:
            model.add(beat >= work[node] * layers[stage]).only_enforce_if(at[node][stage])
            model.add(beat >= lines[node][stage] * at[node][stage])
    for stage in steps:
        model.add(sum(at[node][stage] for node in nodes) == count // stages)
    for one, other in pairwise(layers[1:-1]):
        model.add(one >= other)
    return _solve(model, beat, seconds)[1]


def _solve(model: cp_model.CpModel, beat: cp_model.IntVar, seconds: float) -> tuple[float, float, bool]:
    model.minimize(beat)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    value = solver.objective_value / SCALE if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else float("inf")
    return value, solver.best_objective_bound / SCALE, status == cp_model.OPTIMAL


def _line(fleet: Fleet, load: Load, node: int, stage: int, stages: int) -> float:
    first, last = stage == 0, stage == stages - 1
    sent = load.forward_bytes * (not last) + load.backward_bytes * (not first)
    got = load.forward_bytes * (not first) + load.backward_bytes * (not last)
    return max(sent / fleet.up[node], got / fleet.down[node])
