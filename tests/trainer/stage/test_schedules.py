"""Schedules as data: order, memory, bubbles and freedom from deadlock."""

import itertools

import pytest

from protocol.models.boundary_bytes import most_in_flight
from tests.trainer.stage.makespan import gpipe, makespan
from trainer.errors import ScheduleError
from trainer.stage.schedule import ActionKind, PipelineAction, PipelineSchedule, one_forward_one_backward, zero_bubble

BOTH = pytest.mark.parametrize("schedule", [one_forward_one_backward, gpipe])


def written(stage: int, stages: int, micros: int, schedule: PipelineSchedule = one_forward_one_backward) -> str:
    return " ".join(f"{action.kind[0].upper()}{action.micro}" for action in schedule(stage, stages, micros))


def test_one_forward_one_backward_is_as_drawn() -> None:
    assert written(0, 3, 4) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert written(1, 3, 4) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert written(2, 3, 4) == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert written(0, 4, 2) == "F0 F1 B0 B1"


def test_every_micro_batch_passes_once_each_way_in_order() -> None:
    for stages, micros in itertools.product(range(1, 9), range(1, 17)):
        for stage in range(stages):
            actions = one_forward_one_backward(stage, stages, micros)
            for kind in ("forward", "backward"):
                assert [action.micro for action in actions if action.kind == kind] == list(range(micros))
            for micro in range(micros):
                assert actions.index(PipelineAction("forward", micro)) < actions.index(
                    PipelineAction("backward", micro)
                )


@BOTH
def test_no_number_of_stages_and_micro_batches_deadlocks(schedule: PipelineSchedule) -> None:
    for stages, micros in itertools.product(range(1, 17), range(1, 33)):
        makespan(schedule, stages, micros)


@BOTH
def test_the_bubble_is_one_pass_for_each_further_stage(schedule: PipelineSchedule) -> None:
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
    def backwards_first(stage: int, stages: int, micros: int, lookahead: int = 0) -> tuple[PipelineAction, ...]:
        return tuple(reversed(gpipe(stage, stages, micros)))

    with pytest.raises(ScheduleError, match="wait for each other"):
        makespan(backwards_first, 2, 2)


@pytest.mark.parametrize(("stage", "stages", "micros"), [(-1, 2, 1), (2, 2, 1), (0, 1, 0), (0, 0, 1)])
def test_impossible_schedules_are_refused(stage: int, stages: int, micros: int) -> None:
    for schedule in (one_forward_one_backward, zero_bubble):
        with pytest.raises(ScheduleError, match="there is no such schedule"):
            schedule(stage, stages, micros)


# --- zero bubble and looking ahead ---------------------------------------------------------------------------------------

GRID = list(itertools.product(range(1, 9), range(1, 17), range(4)))


def test_zero_bubble_is_as_drawn() -> None:
    assert written(0, 3, 4, zero_bubble) == "F0 F1 F2 I0 W0 I1 F3 I2 W1 W2 I3 W3"
    assert written(1, 3, 4, zero_bubble) == "F0 F1 I0 F2 I1 W0 I2 F3 W1 W2 I3 W3"
    assert written(2, 3, 4, zero_bubble) == "F0 I0 F1 I1 F2 I2 W0 W1 F3 I3 W2 W3"


def test_every_half_of_a_backward_pass_comes_once_in_order_and_after_the_half_before() -> None:
    for stages, micros, lookahead in GRID:
        for stage in range(stages):
            actions = zero_bubble(stage, stages, micros, lookahead)
            if stages == 1:
                assert actions == one_forward_one_backward(stage, stages, micros)
                continue
            order: tuple[ActionKind, ...] = ("forward", "inputs", "weights")
            for kind in order:
                assert [action.micro for action in actions if action.kind == kind] == list(range(micros))
            places = {(action.kind, action.micro): place for place, action in enumerate(actions)}
            for micro in range(micros):
                assert places["forward", micro] < places["inputs", micro] < places["weights", micro]


@pytest.mark.parametrize("schedule", [one_forward_one_backward, zero_bubble])
def test_no_lookahead_deadlocks(schedule: PipelineSchedule) -> None:
    for stages, micros, lookahead in GRID:
        makespan(schedule, stages, micros, lookahead=lookahead, transfer=2)


def test_zero_bubble_leaves_a_third_of_the_bubble_and_at_most_four_units() -> None:
    for stages, micros in itertools.product(range(2, 9), range(8, 33)):
        found = makespan(zero_bubble, stages, micros)
        assert 3 * micros + stages - 1 <= found <= 3 * micros + stages + 3
        assert found < makespan(one_forward_one_backward, stages, micros)


def test_looking_ahead_hides_the_link() -> None:
    blind = makespan(one_forward_one_backward, 2, 32, transfer=1)
    ahead = makespan(one_forward_one_backward, 2, 32, transfer=1, lookahead=1)
    assert blind >= 4 * 32
    assert ahead <= 3 * 32 + 5
    assert makespan(zero_bubble, 2, 32, transfer=1, lookahead=2) <= 3 * 32 + 2


def test_looking_ahead_keeps_no_more_than_it_says() -> None:
    for stages, micros, lookahead in GRID:
        for stage in range(stages):
            limit = most_in_flight(stages, stage, lookahead)
            for schedule, most in (
                (one_forward_one_backward, limit),
                (zero_bubble, most_in_flight(stages, 0, lookahead)),
            ):
                held = peak = 0
                for action in schedule(stage, stages, micros, lookahead):
                    held += (action.kind == "forward") - (action.kind in ("backward", "weights"))
                    peak = max(peak, held)
                assert peak <= min(most, micros)


def test_a_lookahead_below_nothing_is_refused() -> None:
    for schedule in (one_forward_one_backward, zero_bubble):
        with pytest.raises(ScheduleError, match="looking -1 ahead"):
            schedule(0, 2, 4, -1)
