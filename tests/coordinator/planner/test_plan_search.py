"""A first plan is looked for again only where somebody came or went: each search holds everybody up."""

from typing import Any

import msgspec
import pytest

from coordinator.domain import placement
from coordinator.services.training.plan_search import PlanSearch
from tests.coordinator.jobs.test_lifecycle import JOB
from tests.coordinator.planner.test_placement import SHAPE, node

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
