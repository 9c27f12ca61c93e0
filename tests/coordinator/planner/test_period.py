"""The rounds that a job gets on the machines of its plan, and how that is said."""

import pytest

from coordinator.domain.placement import Placement
from coordinator.domain.rounds import period
from protocol.job.job import TrainingSpec
from protocol.task import Layers

STEPS = 1000
LAYERS = (Layers(0, 4),)


def training(**changes: object) -> TrainingSpec:
    values: dict[str, object] = {"tokens": STEPS * 4 * 128, "batch": 4, "sequence": 128, "inner_steps": 50}
    return TrainingSpec(**(values | changes))  # type: ignore[arg-type]


def plan(step: float, exchange: float) -> Placement:
    return Placement(LAYERS, {}, step_seconds=step, round_seconds=50 * step + exchange)


def test_quick_lines_leave_the_short_rounds_of_the_beginning() -> None:
    rounds = period.planned(training(period="growing"), 1, plan(1.0, 0.1))
    assert rounds.round(0) == (0, 13)


def test_slow_lines_make_the_first_rounds_longer() -> None:
    rounds = period.planned(training(period="growing"), 1, plan(1.0, 10.0))
    assert rounds.round(0) == (0, 40)
    assert {
        stretch.period for stretch in period.planned(training(period="growing"), 1, plan(1.0, 100.0)).stretches
    } == {400}


def test_without_a_plan_the_document_alone_counts() -> None:
    assert period.planned(training(period="growing"), 1, None).round(0) == (0, 13)


@pytest.mark.parametrize("kind", ["fixed", "growing"])
def test_a_job_takes_its_steps_and_the_exchange_of_every_round(kind: str) -> None:
    found = plan(2.0, 30.0)
    rounds = period.planned(training(period=kind), 1, found)
    assert period.seconds(training(period=kind), rounds, found) == pytest.approx(2000 + 30 * rounds.rounds)


def test_the_reason_names_lengths_and_times() -> None:
    job, found = training(period="growing"), plan(1.0, 10.0)
    assert period.words(job, period.planned(job, 1, found), found) == (
        "rounds of 40 to 50 inner steps, growing as learning slows: an exchange takes 10 s and a step 1 s: "
        "from 40 steps a round on, exchanges take at most 20% of the time"
    )
    fixed = training(inner_steps=50)
    assert period.words(fixed, period.planned(fixed, 1, found), found).startswith(
        "rounds of 50 inner steps as asked for: "
    )


def test_one_replica_exchanges_nothing_and_it_is_said() -> None:
    found = plan(1.0, 0.0)
    assert "nothing has to be exchanged" in period.words(training(), period.planned(training(), 1, found), found)
