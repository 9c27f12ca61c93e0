"""Updates that leave clipped and noised: norms, noise, codecs, error feedback; nothing that leaves knows the update itself."""

import math
import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from protocol.job.federated import AdaptiveClipping, PrivacySpec
from tests.trainer.outer.test_outer_methods import SIZE, SLOTS, padding, shared, vector
from tests.trainer.small import config_of, training
from trainer.errors import RoundError
from trainer.outer import Layout, Local, OuterMethod, outer_method
from trainer.outer.private import NoiseSource, PrivacyTerms, SystemNoise, protect, update_norm
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.storage import Slot

LAYOUT = Layout(SLOTS, SIZE)


class Silence:
    """No noise, so that what is left can be looked at."""

    def normal(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.float64)


class Known:
    """Noise that a test can draw again."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, count: int) -> Tensor:
        return torch.randn(count, generator=self._generator, dtype=torch.float64)


def sent(update: Tensor, terms: PrivacyTerms, noise: NoiseSource | None = None) -> Tensor:
    """What leaves of an update, before any codec."""
    anchor = torch.zeros(SIZE)
    return anchor - protect(anchor, anchor - update, LAYOUT, terms, noise or Silence()).parameters


# --- clipping ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [1e-4, 0.3, 7.0])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e20])
def test_no_update_is_longer_than_the_clip(clip: float, scale: float) -> None:
    given = vector(3, scale)
    left = sent(given, PrivacyTerms(clip, 1.0))
    assert float(left.double().norm()) <= clip
    if update_norm(given) <= clip:
        assert torch.equal(left, given)
    else:
        assert torch.allclose(left, given * (clip / update_norm(given)), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("clip", "scale"), [(3e-43, 1.0), (1e-9, 1e35), (1e-40, 1e-10)])
def test_the_clip_holds_where_float32_has_rough_numbers_alone(clip: float, scale: float) -> None:
    """A coordinator that lies chooses the clip, and the state that the update begins with."""
    for seed in range(20):
        assert update_norm(sent(vector(seed, scale), PrivacyTerms(clip, 1.0))) <= clip


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_leaves_as_noise_alone(odd: float) -> None:
    given = vector(3)
    given[17] = odd
    terms = PrivacyTerms(0.5, 2.0, 1.0)
    assert torch.equal(sent(given, terms, Known(1)), sent(torch.zeros(SIZE), terms, Known(1)))


def test_whether_an_update_was_clipped_is_told_with_noise_and_only_where_it_is_asked() -> None:
    anchor, short, long = torch.zeros(SIZE), vector(3, 1e-5), vector(3)
    few = Layout((Slot("few", (64,), 0, 64),), 64)
    for update, bit in ((short, 1.0), (long, 0.0)):
        assert protect(anchor, anchor - update, LAYOUT, PrivacyTerms(0.5, 1.0, 3.0), Silence()).unclipped == bit
        assert protect(anchor, anchor - update, LAYOUT, PrivacyTerms(0.5, 1.0), Silence()).unclipped is None
        told = [
            protect(anchor[:64], anchor[:64] - update[:64], few, PrivacyTerms(1e-3, 1.0, 3.0), Known(seed))
            for seed in range(400)
        ]
        values = np.array([one.unclipped for one in told])
        assert values.std() == pytest.approx(3.0, rel=0.15)
        assert values.mean() == pytest.approx(float(update[:64].norm() <= 1e-3), abs=0.5)


def test_a_document_gives_the_terms_and_a_larger_clip_brings_more_noise_with_it() -> None:
    fixed = PrivacySpec(noise_multiplier=2.0, clip=0.5)
    # The document's clip holds, whatever a coordinator says.
    assert PrivacyTerms.of(fixed, 99.0) == PrivacyTerms(0.5, 2.0)
    adaptive = PrivacySpec(noise_multiplier=2.0, clip=0.5, adaptive=AdaptiveClipping(bit_noise=5.0))
    assert PrivacyTerms.of(adaptive, None).clip == 0.5
    told = PrivacyTerms.of(adaptive, 1000.0)
    assert (told.clip, told.noise, told.bit_noise) == (1000.0, adaptive.update_noise, 5.0)
    assert told.noise > 2.0
    spread = [
        float(sent(torch.zeros(SIZE), PrivacyTerms(clip, told.noise), SystemNoise()).std()) for clip in (0.5, 1000.0)
    ]
    assert spread[1] / spread[0] == pytest.approx(2000, rel=0.05)
    with pytest.raises(RoundError, match="not settled"):
        PrivacyTerms.of(PrivacySpec(), None)


# --- noise ------------------------------------------------------------------------------------------------------------------


def test_noise_is_normal() -> None:
    drawn = SystemNoise().normal(600_000).numpy()
    assert abs(drawn.mean()) < 0.006
    assert drawn.std() == pytest.approx(1.0, rel=0.005)
    ordered = np.sort(drawn)
    expected = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in ordered[::600]])
    apart = np.abs(expected - np.arange(0, len(ordered), 600) / len(ordered)).max()
    assert apart < 1.95 / math.sqrt(len(ordered))  # Kolmogorov and Smirnov, one in a thousand.
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.006
    assert 4.2 < np.abs(drawn).max() < 6.5


def test_noise_comes_from_the_operating_system_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: asked.append(count) or real(count))  # type: ignore[func-returns-value]
    torch.manual_seed(7)
    np.random.seed(7)
    first = SystemNoise().normal(100)
    torch.manual_seed(7)
    np.random.seed(7)
    second = SystemNoise().normal(100)
    assert asked == [32, 32]
    assert not torch.isclose(first, second, atol=1e-9).any()


def test_every_value_that_learns_has_noise_and_what_lies_between_has_none() -> None:
    terms = PrivacyTerms(0.25, 3.0)
    left = torch.stack([sent(torch.zeros(SIZE), terms, SystemNoise()) for _ in range(30)])
    assert not left[:, padding()].any()
    spread = left[:, ~padding()].std(0)
    assert spread.min() > 0.3 * 0.75
    assert spread.mean() == pytest.approx(0.75, rel=0.02)


# --- what codecs and error feedback do with it --------------------------------------------------------------------------------

METHODS: dict[str, dict[str, Any]] = {
    "plain": {"pseudo_gradient": "fp32"},
    "blocks": {"pseudo_gradient": "int8"},
    "two bits with feedback": {"pseudo_gradient": "int2", "error_feedback": 0.9},
    "averaging with feedback": {"outer": "averaging", "pseudo_gradient": "int4", "error_feedback": 1.0},
    "sparse with feedback": {"outer": "sparseloco", "outer_momentum": 0.0, "density": 0.1},
}


def leaving(
    method: OuterMethod, updates: list[Tensor], noises: list[NoiseSource], terms: PrivacyTerms
) -> list[bytes | Local]:
    """All that rounds of a method make of private updates: what leaves, and what is carried on."""
    state, local, found = shared(), method.fresh(shared()), list[bytes | Local]()
    state.anchor.mul_(64).round_().div_(64)  # Sums of such numbers are exact in float32.
    for round_index, (update, noise) in enumerate(zip(updates, noises, strict=True)):
        safe = protect(state.anchor, state.anchor - update, LAYOUT, terms, noise)
        made = method.contribution(state.anchor, safe.parameters, local, round_index)
        local = made.local
        found += [made.data, local]
    return found


class Compensating:
    """The noise with which another update would have left as this one did."""

    def __init__(self, inner: NoiseSource, other: Tensor, own: Tensor, scale: float) -> None:
        self._inner, self._shift, self._at = inner, (other.double() - own.double()) / scale, 0

    def normal(self, count: int) -> Tensor:
        drawn = self._inner.normal(count) + self._shift[self._at : self._at + count]
        self._at += count
        return drawn


@pytest.mark.parametrize("name", METHODS)
def test_all_that_leaves_and_is_carried_on_is_made_of_the_noised_update_alone(name: str) -> None:
    """Two owners with different updates whose noised updates are equal: everything after that is equal, round after round.

    A residue of what was not noised, or a codec that saw it, would differ. Noise is made to differ by what the updates do.
    """
    method = outer_method(training(**METHODS[name]), SLOTS, SIZE)
    terms = PrivacyTerms(1024.0, 0.5)
    ours = [(vector(number) * 64).round() / 64 for number in range(4)]
    theirs = [(vector(100 + number) * 64).round() / 64 for number in range(4)]
    scale = terms.noise * terms.clip

    class Coarse(Known):
        def normal(self, count: int) -> Tensor:
            return (
                (super().normal(count) * 8).round() / 8 + 1 / 128
            ) / scale  # Never a sum of zero, which has two signs.

    first = leaving(method, ours, [Coarse(n) for n in range(4)], terms)
    noises = [Compensating(Coarse(n), ours[n], theirs[n], scale) for n in range(4)]
    second = leaving(method, theirs, noises, terms)
    silent = leaving(method, theirs, [Coarse(n) for n in range(4)], terms)
    for one, other in zip(first, second, strict=True):
        if isinstance(one, bytes):
            assert one == other
        else:
            assert isinstance(other, dict)
            assert one.keys() == other.keys()
            assert all(torch.equal(one[key], other[key]) for key in one)
    assert first[0] != silent[0]  # The test would see a difference.


@pytest.mark.parametrize("name", ["two bits with feedback", "sparse with feedback"])
def test_noise_added_after_the_feedback_would_be_seen(name: str) -> None:
    """The other order: a residue of the bare update is carried on, and what leaves later holds it without its noise."""
    method = outer_method(training(**METHODS[name]), SLOTS, SIZE)
    residues = []
    for seed in (1, 2):
        anchor = torch.zeros(SIZE)
        bare = method.contribution(anchor, anchor - vector(seed), method.fresh(shared()), 0)
        residues.append(bare.local)
    assert any(not torch.equal(residues[0][key], residues[1][key]) for key in residues[0])


# --- LoRA -------------------------------------------------------------------------------------------------------------------


def test_with_an_adapter_the_norm_and_the_noise_are_of_the_adapter_alone(tmp_path: Any) -> None:
    from safetensors.torch import save_file

    from protocol.job.job import LoraSpec

    whole = Stage(config_of(), Cut(0, 3, True, True), training())
    save_file(
        {
            slot.name: whole.values()[slot.start : slot.start + slot.count].view(slot.shape).clone()
            for slot in whole.slots
        },
        tmp_path / "weights.safetensors",
    )
    adapted = Stage(
        config_of(), Cut(0, 3, True, True), training(lora=LoraSpec(rank=2)), tmp_path / "weights.safetensors"
    )
    assert adapted.parameter_count < whole.parameter_count / 5
    lengths = []
    for stage in (whole, adapted):
        anchor = stage.values().clone()
        safe = protect(anchor, anchor, Layout(tuple(stage.slots), stage.size), PrivacyTerms(1.0, 1.0), SystemNoise())
        lengths.append(float((anchor - safe.parameters).norm()))
        assert lengths[-1] == pytest.approx(math.sqrt(stage.parameter_count), rel=0.1)
    assert lengths[1] < lengths[0] / 2
