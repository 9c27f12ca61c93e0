"""A first plan is looked for again only where somebody came or went: each search holds everybody up."""

import importlib
from typing import Any

import msgspec
import pytest

from coordinator.domain import placement
from coordinator.services.training.plan_search import PlanSearch
from tests.coordinator.jobs.test_lifecycle import JOB
from tests.coordinator.planner.test_measured_network import between
from tests.coordinator.planner.test_placement import SHAPE, TRAINING, node

POOR = [node(number, memory_mb=8) for number in range(1, 4)]


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many nodes plans were looked for."""
    found: list[int] = []
    choose = placement.choose

    def counted(shape: Any, training: Any, candidates: Any, *more: Any) -> Any:
        found.append(len(candidates))
        return choose(shape, training, candidates, *more)

    monkeypatch.setattr(placement, "choose", counted)
    return found


def search() -> PlanSearch:
    class Links:
        map = None

    return PlanSearch(Links())  # type: ignore[arg-type]


def test_what_was_looked_for_in_vain_is_looked_for_again_once_somebody_else_is_free(searched: list[int]) -> None:
    job = msgspec.structs.replace(JOB, quote=msgspec.structs.replace(JOB.quote, stages=1))
    plans = search()
    for _ in range(3):
        assert plans.find(job, SHAPE, POOR, (2, 1), ()) is None
    assert searched == [3, 3], "once with each number of replicas"
    assert plans.find(job, SHAPE, POOR[:2], (2, 1), ()) is None
    assert searched == [3, 3, 2, 2]
    found = plans.find(job, SHAPE, [*POOR, node(9)], (2, 1), ())
    assert found is not None
    assert set(found.seats.values()) == {node(9).node}


def test_a_plan_that_was_found_and_not_stored_is_found_again(searched: list[int]) -> None:
    job = msgspec.structs.replace(JOB, quote=msgspec.structs.replace(JOB.quote, stages=1))
    plans = search()
    assert plans.find(job, SHAPE, [node(9)], (1,), ()) == plans.find(job, SHAPE, [node(9)], (1,), ()) is not None
    assert len(searched) == 2


def test_a_plan_that_nobody_could_look_at_waits_for_another_auditor(searched: list[int]) -> None:
    job = msgspec.structs.replace(JOB, quote=msgspec.structs.replace(JOB.quote, stages=1))
    plans = search()
    assert plans.find(job, SHAPE, [node(9)], (1,), [node(1)]) is not None
    plans.unseen(job.id)
    assert plans.find(job, SHAPE, [node(9)], (1,), [node(1)]) is None
    assert plans.is_unseen(job.id)
    assert len(searched) == 1
    assert plans.find(job, SHAPE, [node(9)], (1,), [node(2)]) is not None
    assert not plans.is_unseen(job.id)


def test_the_same_plan_is_looked_for_once_and_any_other_one_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    # The package has a function of that name.
    choosing = importlib.import_module("coordinator.domain.placement.choose")
    search_all = choosing._search

    def counted(problem: Any, *more: Any) -> Any:
        looked.append(len(problem.fleet.nodes))
        return search_all(problem, *more)

    monkeypatch.setattr(choosing, "_search", counted)
    few = [node(number, 1.73e9) for number in range(1, 4)]
    first = choosing.choose(SHAPE, TRAINING, few, 1, 2)
    assert choosing.choose(SHAPE, TRAINING, list(reversed(few)), 1, 2) == first
    assert looked == [3]
    others = [*few[:2], msgspec.structs.replace(few[2], floor=1)]
    for training, nodes, stages, replicas in (
        (TRAINING, few, 2, 1),
        (TRAINING, others, 1, 2),
        (msgspec.structs.replace(TRAINING, tokens=TRAINING.tokens + 1), few, 1, 2),
    ):
        choosing.choose(SHAPE, training, nodes, stages, replicas)
    choosing.choose(SHAPE, TRAINING, few, 1, 2, between(few, lambda _a, _b: 0.2))
    assert looked == [3] * 5
    for _ in range(2):  # Of so many nobody writes down what is between them.
        choosing.choose(SHAPE, TRAINING, [node(number) for number in range(1, 98)], 1, 2)
    assert looked == [3] * 5 + [97] * 2
