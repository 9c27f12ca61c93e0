"""Bad pseudo-gradients hardly hurt where they are checked, trimmed or clipped, and honest runs are left as they are."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from protocol.boundary import Position
from protocol.job.job import TrainingSpec
from protocol.job.learning_rate import learning_rate
from tests.trainer.learning import heldout, make_stages
from tests.trainer.small import SEQUENCE, VOCABULARY, job_folder, training
from trainer.data.data import TokenFile
from trainer.errors import CodecError, RoundError
from trainer.outer import OuterState, outer_method
from trainer.outer.checks import Aggregation, Combining, clipped_mean, dot, mean_update, odd_ones, trimmed_mean
from trainer.stage.steps import Recorded, accumulate

SIZE = 5000
STEPS, REPLICAS = 10, 4
Poison = Callable[[Tensor], Tensor]
POISONS: dict[str, Poison] = {
    "sign-flipped": lambda update: -update,
    "scaled": lambda update: update * 50,
    "flipped and scaled": lambda update: update * -5,
    "zero": torch.zeros_like,
}


def similar(count: int, seed: int = 0, alike: float = 0.5) -> dict[int, Tensor]:
    """Updates with a common part."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(SIZE, generator=generator)
    return {i: alike * common + (1 - alike) * torch.randn(SIZE, generator=generator) for i in range(count)}


class Runs:
    """Held-out losses after rounds of four replicas, the last of which may contribute something else than it learnt."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[tuple[TrainingSpec, str], float] = {}

    def loss(self, spec: TrainingSpec, poison: str = "") -> float:
        if (key := (spec, poison)) not in self._found:
            self._found[key] = poisoned_loss(self._folder, spec, POISONS.get(poison))
        return self._found[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(job_folder(tmp_path_factory.mktemp("runs")))


def poisoned_loss(folder: Path, spec: TrainingSpec, poison: Poison | None) -> float:
    tokens = TokenFile(folder / "train.bin", SEQUENCE, VOCABULARY)
    stages = make_stages(spec, REPLICAS)
    anchor = stages[0].state().parameters
    method = outer_method(spec, stages[0].slots, anchor.numel())
    outer = OuterState(anchor, torch.zeros_like(anchor))
    for index, first in enumerate(range(0, STEPS, spec.inner_steps)):
        given = {}
        for replica, stage in enumerate(stages):
            stage.parameters.copy_(outer.anchor)
            for step in range(first, first + spec.inner_steps):
                windows, _ = tokens.sample(spec.seed, step, replica, spec.batch)
                accumulate(stage, Position(0, 1), windows, Recorded({}))
                stage.adam_step(learning_rate(spec, step, STEPS))
            given[replica] = method.contribution(outer.anchor, stage.parameters, {}, index).data
        if poison is not None:
            liar = REPLICAS - 1
            given[liar] = method.encode_update(poison(method.decode_update(given[liar], index)), index)
        outer = method.apply(outer, given, index)
        assert outer.left_out == ((REPLICAS - 1,) if poison is not None and spec.check_updates else ())
    stages[0].parameters.copy_(outer.anchor)
    return heldout(stages[0], folder)


def rounds(aggregation: Aggregation = "mean", check_updates: bool = False) -> TrainingSpec:
    return training(
        learning_rate=1e-2, inner_steps=5, outer_momentum=0.3, aggregation=aggregation, check_updates=check_updates
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("poison", ["sign-flipped", "scaled"])
def test_a_poisoner_of_four_is_left_out_of_every_round(poison: str, runs: Runs) -> None:
    clean, bare, checked = (
        runs.loss(rounds()),
        runs.loss(rounds(), poison),
        runs.loss(rounds(check_updates=True), poison),
    )
    assert bare > clean + 0.05
    assert checked < clean + 0.05


@pytest.mark.one_in(2)
@pytest.mark.parametrize("aggregation", ["trimmed", "clipped"])
def test_a_robust_mean_withstands_a_scaled_update_and_costs_an_honest_run_little(
    aggregation: Aggregation, runs: Runs
) -> None:
    clean, bare = runs.loss(rounds()), runs.loss(rounds(), "scaled")
    assert runs.loss(rounds(aggregation), "scaled") < (clean + bare) / 2
    assert runs.loss(rounds(aggregation)) < clean * 1.03


def test_checks_change_nothing_of_an_honest_run(runs: Runs) -> None:
    assert runs.loss(rounds(check_updates=True)) == runs.loss(rounds())


# --- who is left out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POISONS)
@pytest.mark.parametrize("count", [3, 4, 8])
def test_the_odd_one_is_left_out_and_nobody_else(name: str, count: int) -> None:
    updates = similar(count)
    assert odd_ones(updates) == ()
    updates[1] = POISONS[name](updates[1])
    assert odd_ones(updates) == (1,)


def test_of_two_nobody_is_odd() -> None:
    updates = similar(2)
    updates[1] = -updates[1]
    assert odd_ones(updates) == ()


def test_updates_that_have_nothing_in_common_are_all_honest() -> None:
    for seed in range(20):
        assert odd_ones(similar(5, seed, alike=0.0)) == ()


def test_never_half_of_all_are_left_out() -> None:
    for count in range(3, 9):
        updates = {i: u * 10**i for i, u in similar(count).items()}
        assert len(odd_ones(updates)) <= (count - 1) // 2


def test_a_quick_replica_is_as_far_as_its_steps_take_it() -> None:
    updates, steps = similar(4), {0: 5, 1: 5, 2: 5, 3: 40}
    updates[3] = updates[3] * 8
    assert odd_ones(updates) == (3,)
    assert odd_ones(updates, steps) == ()
    updates[3] = updates[3] * 3
    assert odd_ones(updates, steps) == (3,), "24 times as far, and eight times the steps"
    assert odd_ones(similar(4) | {0: updates[3]}, steps) == (0,)


def test_zeros_everywhere_are_a_mean_of_zero() -> None:
    nothing = {i: torch.zeros(SIZE) for i in range(4)}
    for aggregation in ("mean", "trimmed", "clipped"):
        mean, _ = Combining(aggregation, checked=True).combine(nothing)
        assert torch.equal(mean, torch.zeros(SIZE))


def test_the_order_of_arrival_does_not_matter() -> None:
    updates = similar(5)
    updates[3] = updates[3] * -40
    backwards = dict(reversed(updates.items()))
    for aggregation in ("mean", "trimmed", "clipped"):
        combining = Combining(aggregation, checked=True)
        first, second = combining.combine(updates), combining.combine(backwards)
        assert torch.equal(first[0], second[0])
        assert first[1] == second[1] == (3,)


# --- weights ----------------------------------------------------------------------------------------------------------


def test_an_update_weighs_by_the_steps_of_its_replica() -> None:
    updates, steps = similar(4), {0: 5, 1: 5, 2: 10, 3: 20}
    mean, left_out = Combining(checked=True).combine(updates, steps)
    exact = sum(update.double() * steps[replica] for replica, update in updates.items()) / 40
    assert left_out == ()
    assert torch.allclose(mean.double(), torch.as_tensor(exact), rtol=1e-5, atol=1e-6)
    assert not torch.equal(mean, Combining().combine(updates)[0])
    updates[1] = updates[1] * -40
    without = {replica: update for replica, update in updates.items() if replica != 1}
    assert Combining(checked=True).combine(updates, steps)[1] == (1,)
    assert torch.equal(Combining(checked=True).combine(updates, steps)[0], Combining().combine(without, steps)[0]), (
        "what is left out has no weight"
    )


def test_only_how_the_steps_compare_counts() -> None:
    updates = similar(3)
    plain = Combining().combine(updates)[0]
    assert torch.equal(Combining().combine(updates, {0: 7, 1: 7, 2: 7})[0], plain), "the bits of equal rounds"
    twice = [Combining().combine(updates, {0: a, 1: b, 2: c})[0] for a, b, c in ((3, 6, 9), (1, 2, 3))]
    assert torch.equal(*twice)
    seven = (updates[0] + updates[1] * 2 + updates[2] * 7) / 10
    assert torch.equal(Combining().combine(updates, {0: 1, 1: 2, 2: 7})[0], seven)


def test_means_that_few_cannot_move_weigh_nobody_more() -> None:
    updates = similar(4)
    for aggregation in ("trimmed", "clipped"):
        combining = Combining(aggregation)
        assert torch.equal(combining.combine(updates)[0], combining.combine(updates, {0: 1, 1: 1, 2: 1, 3: 40})[0])


def test_a_replica_without_a_weight_is_refused() -> None:
    with pytest.raises(RoundError, match=r"weights of replicas \[0, 1\] for updates of \[0, 1, 2\]"):
        Combining().combine(similar(3), {0: 1, 1: 2})


# --- means ------------------------------------------------------------------------------------------------------------


def test_a_trimmed_mean_is_between_honest_values_in_every_coordinate() -> None:
    honest = list(similar(4).values())
    lowest, highest = torch.stack(honest).amin(0), torch.stack(honest).amax(0)
    trimmed = trimmed_mean([*honest, torch.full((SIZE,), 1e30)])
    assert bool((trimmed >= lowest).all())
    assert bool((trimmed <= highest).all())


def test_clipping_bounds_how_far_one_can_pull() -> None:
    honest = list(similar(4).values())
    centre = mean_update(honest)
    spread = max(float((update - centre).norm()) for update in honest)
    assert float((clipped_mean([*honest, torch.full((SIZE,), 1e6)]) - centre).norm()) < spread


def test_sums_are_those_of_exact_arithmetic_in_any_number_of_threads() -> None:
    values = similar(1)[0]
    before = torch.get_num_threads()
    try:
        sums = set()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            sums.add(dot(values, values))
        assert len(sums) == 1
    finally:
        torch.set_num_threads(before)
    assert math.isclose(sums.pop(), math.fsum(float(v) ** 2 for v in values.double()), rel_tol=1e-12)
    assert dot(torch.zeros(0), torch.zeros(0)) == 0.0


def test_nothing_and_updates_of_different_lengths_are_refused() -> None:
    with pytest.raises(RoundError):
        Combining().combine({})
    with pytest.raises(CodecError):
        Combining(checked=True).combine({0: torch.zeros(3), 1: torch.zeros(4), 2: torch.zeros(3)})
