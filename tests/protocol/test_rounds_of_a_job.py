"""The period: how many inner steps each round has, and why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import codec
from protocol.job.job import MAX_PERIOD, TrainingSpec, total_steps
from protocol.job.rounds import EXCHANGE_SHARE, SHORTEST_SHARE, Schedule, Stretch, carried, schedule, total_rounds

STEPS = 1000


def training(**changes: object) -> TrainingSpec:
    values: dict[str, object] = {"tokens": STEPS * 4 * 128, "batch": 4, "sequence": 128, "inner_steps": 50}
    return codec.convert(values | changes, TrainingSpec)


def periods(planned: Schedule) -> list[int]:
    return [planned.round(index)[1] for index in range(planned.rounds)]


jobs = st.builds(
    lambda tokens, inner, shortest, period: training(
        tokens=tokens, inner_steps=inner, shortest_period=shortest, period=period
    ),
    st.integers(1, 10**7),
    st.integers(1, 200),
    st.none() | st.integers(1, 300),
    st.sampled_from(["fixed", "growing"]),
)


@given(spec=jobs, replicas=st.integers(1, 8), floor=st.integers(1, 400))
def test_rounds_follow_each_other_without_gap_and_cover_every_step(
    spec: TrainingSpec, replicas: int, floor: int
) -> None:
    planned = schedule(spec, replicas, floor)
    assert planned.steps == total_steps(spec, replicas)
    assert planned.rounds == total_rounds(spec, replicas, floor)
    at = 0
    for index in range(planned.rounds):
        first, steps = planned.round(index)
        assert first == at
        assert 1 <= steps <= MAX_PERIOD
        at += steps
    assert at == planned.steps
    assert planned.round(planned.rounds) == (planned.steps, 0)


def test_a_fixed_period_is_what_the_document_says_whatever_the_lines_carry() -> None:
    assert periods(schedule(training(), 1, floor=400)) == [50] * 20


def test_a_growing_period_begins_short_and_never_shrinks() -> None:
    found = periods(schedule(training(period="growing"), 1))
    assert found[0] == -(-50 // SHORTEST_SHARE)
    assert max(found) == 50
    assert sorted(found[:-1]) == found[:-1]
    assert len(found) > 20


def test_the_shortest_period_can_be_chosen() -> None:
    assert periods(schedule(training(period="growing", shortest_period=2), 1))[0] == 2
    assert set(periods(schedule(training(period="growing", shortest_period=50), 1))) == {50}


@given(floor=st.integers(1, 500))
def test_no_growing_round_but_the_last_is_shorter_than_the_lines_carry(floor: int) -> None:
    planned = schedule(training(period="growing"), 1, floor)
    assert all(steps >= floor for steps in periods(planned)[:-1])


def test_a_job_of_a_trillion_steps_is_planned_at_once() -> None:
    planned = schedule(training(tokens=10**13, batch=1, sequence=8, period="growing"), 1)
    first, steps = planned.round(planned.rounds - 1)
    assert first + steps == planned.steps > 10**12


def test_the_period_that_a_home_line_carries_is_the_papers_formula() -> None:
    """H >= N x bits / (uplink x step x share), of the time spent waiting against the time spent stepping."""
    parameters, bits, copies, uplink = 100_000_000, 4.25, 3, 20e6
    exchange = parameters * bits * copies / uplink
    assert exchange == pytest.approx(63.75)
    steps, reason = carried(exchange, step=2.0, share=0.2)
    assert steps == 128  # 63.75 s of 319 s.
    assert reason == (
        "an exchange takes 64 s and a step 2 s: from 128 steps a round on, exchanges take at most 20% of the time"
    )


@given(exchange=st.floats(1e-3, 1e4), step=st.floats(1e-3, 1e3))
def test_the_carried_period_keeps_exchanges_within_their_share_and_is_the_shortest_that_does(
    exchange: float, step: float
) -> None:
    steps, _ = carried(exchange, step)
    if steps < MAX_PERIOD:
        assert exchange / (exchange + steps * step) <= EXCHANGE_SHARE * (1 + 1e-9)
    if steps > 1:
        assert exchange / (exchange + (steps - 1) * step) > EXCHANGE_SHARE * (1 - 1e-9)


def test_a_line_that_carries_too_little_for_any_period_is_said() -> None:
    steps, reason = carried(1e6, 0.1)
    assert steps == MAX_PERIOD
    assert "even at 5,000 steps a round, exchanges take 100% of the time" in reason


def test_nothing_to_exchange_bounds_nothing() -> None:
    assert carried(0.0, 1.0) == (1, "nothing has to be exchanged")


def test_a_stretch_counts_its_last_short_round() -> None:
    assert Stretch(7, 3).rounds == 3
    assert periods(Schedule((Stretch(7, 3), Stretch(2, 5)))) == [3, 3, 1, 2]


def test_error_feedback_of_sparse_updates_is_refused_beside_outer_momentum_with_the_way_out() -> None:
    with pytest.raises(codec.MessageError, match="set outer_momentum to 0"):
        training(outer="sparseloco", outer_momentum=0.3)
    assert training(outer="sparseloco", outer_momentum=0.0).outer == "sparseloco"


@pytest.mark.parametrize("outer", ["gradients", "demo", "dgc"])
def test_half_floats_that_overflow_are_refused_where_each_step_is_exchanged(outer: str) -> None:
    with pytest.raises(codec.MessageError, match="set precision to bf16"):
        training(outer=outer, precision="fp16")


@pytest.mark.parametrize("outer", ["gradients", "demo", "dgc"])
def test_rounds_of_fixed_time_are_refused_where_each_step_is_exchanged(outer: str) -> None:
    with pytest.raises(codec.MessageError, match="leave round_seconds out"):
        training(outer=outer, round_seconds=10.0)
    assert training(outer="streaming", round_seconds=10.0).round_seconds == 10.0


@pytest.mark.parametrize("changes", [{"outer": "diloco"}, {"round_seconds": 10.0}, {"inner_steps": 3}])
def test_what_is_sent_before_a_rounds_end_takes_fragments_and_fixed_steps_after_it(changes: dict[str, object]) -> None:
    with pytest.raises(codec.MessageError, match="or set overlap to 0"):
        training(**({"outer": "streaming", "inner_steps": 20, "overlap": 3} | changes))
    assert training(outer="streaming", inner_steps=20, overlap=3).overlap == 3
