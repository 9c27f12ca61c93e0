"""The planner's formula for a step against the trainer's own schedule, played event by event on the same machines and lines."""

import statistics

import msgspec
import pytest

from coordinator.domain.placement.cost import Load, estimate, pace
from coordinator.domain.placement.fleet import Fleet
from coordinator.domain.placement.layers import share_layers
from coordinator.domain.placement.search import Chance
from tests.support import homes
from tests.support.pipeline_sim import Simulation


def line(speeds: list[float], up: float = 1e12, rtt: float = 0.0) -> Fleet:
    count = len(speeds)
    return Fleet(
        nodes=tuple(homes.node(i, i) for i in range(count)),
        speed=speeds,
        memory=[1 << 40] * count,
        cards=[False] * count,
        up=[up] * count,
        down=[1e12] * count,
        byte=[[1 / up] * count for _ in range(count)],
        rtt=[[0.0 if a == b else rtt for b in range(count)] for a in range(count)],
        measured=True,
    )


def load(micro_batches: int, **changes: float) -> Load:
    return msgspec.structs.replace(homes.load(ahead=0), micro_batches=micro_batches, **changes)


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 16])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_equal_stages_without_lines_take_the_ideal_of_1f1b(stages: int, micro_batches: int) -> None:
    found = pace(
        line([1.0] * stages), load(micro_batches, forward_bytes=0.0, backward_bytes=0.0), [6] * stages, range(stages)
    )
    assert found.step == pytest.approx((micro_batches + stages - 1) * 6 * homes.LAYER_S)


def test_the_formula_agrees_with_the_schedule_played_event_by_event() -> None:
    ratios, chance = [], Chance(5)
    for number in range(150):
        fleet, stages = homes.peers(16, number), (2, 3, 4, 8)[chance.below(4)]
        size = (0.0, 0.01e6, 0.05e6, 0.125e6)[chance.below(4)]
        asked = load(
            (1, 2, 4, 8, 16, 32, 64)[chance.below(7)],
            forward_bytes=size,
            backward_bytes=size,
            ahead=(0, 0, 1, 3)[chance.below(4)],
        )
        nodes = sorted(range(16), key=lambda _: chance.share())[:stages]
        counts = share_layers(homes.LAYERS, asked.layer_operations, 0.0, [fleet.speed[n] for n in nodes], [24] * stages)
        assert counts is not None
        ratios.append(pace(fleet, asked, counts, nodes).step / Simulation(fleet, asked, counts, nodes).seconds())
    assert statistics.median(ratios) == pytest.approx(1.0, abs=0.01)
    assert sum(0.9 < ratio < 1.1 for ratio in ratios) > 0.9 * len(ratios)
    assert 0.8 < min(ratios) <= max(ratios) < 1.2


def test_a_weak_upload_in_the_middle_carries_both_directions() -> None:
    asked = load(32, ahead=32, forward_bytes=1e6, backward_bytes=1e6)
    found = pace(line([100.0] * 3, up=1e6), asked, [8, 8, 8], [0, 1, 2])
    assert found.beat == pytest.approx(2.0)
    assert found.up == pytest.approx([1.0, 2.0, 1.0])


def test_latency_costs_what_the_schedule_cannot_hide() -> None:
    far = line([1.0, 1.0], rtt=1.0)
    asked = load(32, forward_bytes=0.0, backward_bytes=0.0)
    found = pace(far, asked, [6, 6], [0, 1])
    assert found.beat == pytest.approx((2 * 6 * homes.LAYER_S + 1.0) / 2), "two micro-batches are under way"
    deeper = pace(far, msgspec.structs.replace(asked, ahead=2), [6, 6], [0, 1])
    assert deeper.beat == pytest.approx(6 * homes.LAYER_S)


def test_a_round_of_fixed_time_does_not_wait_for_the_slowest_replica() -> None:
    fleet, asked = line([1.0, 0.5]), load(4, layer_bytes=0.0)
    fixed = msgspec.structs.replace(asked, fixed_time=True)
    waiting, timed = (estimate(fleet, one, [24], [[0], [1]]) for one in (asked, fixed))
    assert waiting.rate == pytest.approx(2 * asked.tokens / (4 * 24 * homes.LAYER_S / 0.5))
    assert timed.rate == pytest.approx(1.5 * asked.tokens / (4 * 24 * homes.LAYER_S))


def test_a_round_that_the_document_times_is_as_long_for_everybody() -> None:
    fleet, asked = line([1.0, 0.25]), load(4, layer_bytes=0.0, fixed_time=True, round_seconds=100.0)
    step = 4 * 24 * homes.LAYER_S
    found = estimate(fleet, asked, [24], [[0], [1]])
    assert found.seconds == pytest.approx(100.0)
    assert found.rate == pytest.approx(asked.tokens * (1 / step + 1 / (4 * step)))
    short = estimate(fleet, msgspec.structs.replace(asked, round_seconds=1.0), [24], [[0], [1]])
    assert short.seconds == pytest.approx(4 * step), "at least one step"
    capped = estimate(fleet, msgspec.structs.replace(asked, period=2), [24], [[0], [0]])
    assert capped.seconds == pytest.approx(2 * step), "at most inner_steps"


def test_an_exchange_behind_the_steps_costs_only_what_the_lines_cannot_carry() -> None:
    fleet = line([1.0, 1.0], up=1e6)
    asked = load(4, layer_bytes=1e6, forward_bytes=0.0, backward_bytes=0.0)
    open_, hidden = (
        estimate(fleet, msgspec.structs.replace(asked, overlap=over), [24], [[0], [1]]) for over in (False, True)
    )
    assert open_.seconds == pytest.approx(open_.stepping + 24.0)
    assert hidden.seconds == pytest.approx(hidden.stepping)
    assert hidden.busy == pytest.approx(1.0)


@pytest.mark.parametrize(("replicas", "sharded", "expected"), [(2, False, 24.0), (5, False, 96.0), (5, True, 38.4)])
def test_all_to_all_grows_with_the_replicas_and_a_sharded_exchange_hardly(
    replicas: int, sharded: bool, expected: float
) -> None:
    asked = load(4, layer_bytes=1e6, sharded=sharded)
    found = estimate(line([1.0] * replicas, up=1e6), asked, [24], [[node] for node in range(replicas)])
    assert found.exchange == pytest.approx(expected)
