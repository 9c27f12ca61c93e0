"""Schedules as data: order, memory, bubbles and freedom from deadlock."""

import itertools

import pytest

from trainer.errors import ScheduleError
from trainer.schedule import Action, Schedule, gpipe, makespan, one_forward_one_backward

BOTH = pytest.mark.parametrize("schedule", [one_forward_one_backward, gpipe])


def written(stage: int, stages: int, micros: int, schedule: Schedule = one_forward_one_backward) -> str:
    return " ".join(f"{action.kind[0].upper()}{action.micro}" for action in schedule(stage, stages, micros))


def test_one_forward_one_backward_is_as_drawn() -> None:
    assert written(0, 3, 4) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert written(1, 3, 4) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert written(2, 3, 4) == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert written(0, 4, 2) == "F0 F1 B0 B1"


def test_gpipe_does_all_forwards_first() -> None:
    assert written(1, 3, 3, gpipe) == "F0 F1 F2 B0 B1 B2"


@BOTH
def test_every_micro_batch_passes_once_each_way_in_order(schedule: Schedule) -> None:
    for stages, micros in itertools.product(range(1, 9), range(1, 17)):
        for stage in range(stages):
            actions = schedule(stage, stages, micros)
            for kind in ("forward", "backward"):
                assert [action.micro for action in actions if action.kind == kind] == list(range(micros))
            for micro in range(micros):
                assert actions.index(Action("forward", micro)) < actions.index(Action("backward", micro))


@BOTH
def test_no_number_of_stages_and_micro_batches_deadlocks(schedule: Schedule) -> None:
    for stages, micros in itertools.product(range(1, 17), range(1, 33)):
        makespan(schedule, stages, micros)


@BOTH
def test_the_bubble_is_one_pass_for_each_further_stage(schedule: Schedule) -> None:
    for stages, micros in itertools.product(range(1, 9), range(1, 17)):
        assert makespan(schedule, stages, micros, backward_cost=2) == 3 * (micros + stages - 1)


def test_a_stage_keeps_no_more_micro_batches_than_stages_follow_it() -> None:
    for stages, micros in itertools.product(range(1, 9), range(1, 17)):
        for stage in range(stages):
            held = most = 0
            for action in one_forward_one_backward(stage, stages, micros):
                held += 1 if action.kind == "forward" else -1
                most = max(most, held)
            assert most <= min(stages - stage, micros)


def test_a_schedule_that_waits_for_ever_is_noticed() -> None:
    def backwards_first(stage: int, stages: int, micros: int, lookahead: int = 0) -> tuple[Action, ...]:
        return tuple(reversed(gpipe(stage, stages, micros)))

    with pytest.raises(ScheduleError, match="wait for each other"):
        makespan(backwards_first, 2, 2)


@pytest.mark.parametrize(("stage", "stages", "micros"), [(-1, 2, 1), (2, 2, 1), (0, 1, 0), (0, 0, 1)])
def test_impossible_schedules_are_refused(stage: int, stages: int, micros: int) -> None:
    for schedule in (one_forward_one_backward, gpipe):
        with pytest.raises(ScheduleError, match="there is no such schedule"):
            schedule(stage, stages, micros)
