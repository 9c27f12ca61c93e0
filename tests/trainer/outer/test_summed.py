"""Updates for secure sums: in the clip, exact, with the noise that is counted, and nothing that rounding would tell."""

import hashlib
import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from protocol.federated.sum_messages import MODULUS
from protocol.federated.sum_values import beside_of
from protocol.job.federated import MAX_OWNERS, AdaptiveClipping, FederatedSpec, HeldoutLoss, PrivacySpec, fewest_of
from protocol.job.privacy_sum import loss_error, loss_noise
from protocol.secure_sum.grid import SumGrid
from tests.trainer.outer.test_private_updates import Known, Silence
from trainer.errors import RoundError
from trainer.outer.method import Layout
from trainer.outer.private import PrivacyTerms, SystemNoise
from trainer.outer.summed import SummedTerms, mean_of, summand
from trainer.stage.storage import Slot

SLOTS = (Slot("first", (700,), 0, 700), Slot("second", (300,), 704, 300))
LAYOUT = Layout(SLOTS, 1024)
LEARNS = 1000


def owners(count: int) -> tuple[str, ...]:
    return tuple(f"{number:040d}".translate(str.maketrans("0", "A")) for number in range(1, count + 1))


def spec_of(count: int, noise: float = 2.0, least: int = 0, **privacy: object) -> FederatedSpec:
    asked = PrivacySpec(noise_multiplier=noise, **privacy)  # type: ignore[arg-type]
    return FederatedSpec(owners(count), 5, least or fewest_of(count), asked, "secure")


def moved(seed: int, scale: float = 1.0) -> Tensor:
    """An update, and zero where no parameter lies."""
    return LAYOUT.clear(torch.randn(1024, generator=torch.Generator().manual_seed(seed)) * scale)


def steps_of(update: Tensor, terms: SummedTerms, noise: object = None) -> np.ndarray:  # type: ignore[type-arg]
    anchor = torch.zeros(1024)
    steps = summand(anchor, anchor - update, LAYOUT, terms, noise or Silence())  # type: ignore[arg-type]
    assert steps.shape == (LEARNS,)
    assert steps.dtype == np.uint32
    return steps


@pytest.mark.parametrize("clip", [1e-4, 0.5, 30.0])
@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e20])
def test_an_update_in_steps_is_never_longer_than_the_clip(clip: float, scale: float) -> None:
    terms = SummedTerms.of(spec_of(8, clip=clip), None)
    steps = steps_of(moved(3, scale), terms).view(np.int32).astype(np.float64)
    assert np.linalg.norm(steps * terms.grid.step) <= clip


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_noise_alone(odd: float) -> None:
    update, terms = moved(3), SummedTerms.of(spec_of(8, clip=0.5), None)
    update[17] = odd
    assert np.array_equal(steps_of(update, terms, Known(1)), steps_of(torch.zeros(1024), terms, Known(1)))


def test_what_rounding_does_is_a_matter_of_the_noise_alone() -> None:
    """The order that the promise needs: whole steps first, then rounded noise. The other way round it would not hold."""
    terms = SummedTerms.of(spec_of(8, clip=0.5), None)
    nothing = steps_of(torch.zeros(1024), terms, Known(5))
    for seed in range(20):
        update = moved(seed, 0.01)
        assert np.array_equal(steps_of(update, terms, Known(5)) - nothing, steps_of(update, terms))
    deviation = terms.privacy.noise * terms.privacy.clip / terms.grid.step
    bare = Known(5).normal(LEARNS).numpy() * deviation
    part = np.concatenate([moved(1, 0.01)[:700].numpy(), moved(1, 0.01)[704:1004].numpy()]).astype(np.float64)
    other = np.rint(part / terms.grid.step + bare) - np.rint(bare)
    whole = steps_of(moved(1, 0.01), terms).view(np.int32)
    assert np.any(other != whole), "rounded together the fraction of an update would decide"


def coset(offset: float, deviation: float, far: int) -> np.ndarray:  # type: ignore[type-arg]
    """The discrete normal on whole steps from an offset."""
    weights = np.exp(-0.5 * ((np.arange(-far, far + 1) + offset) / deviation) ** 2)
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("honest", [2, 3, 5])
def test_rounded_parts_of_noise_sum_to_what_is_counted_whatever_their_fractions(honest: int) -> None:
    """Given all fractions, the sum of parts is the discrete normal of the whole, within the factor that the module states."""
    drawn, far = np.random.default_rng(honest), 60
    for deviation in (0.6, 0.8, 1.0):
        bound = 5 * honest * math.exp(-(math.pi**2) * deviation**2)
        for _ in range(4):
            offsets = drawn.uniform(-0.5, 0.5, honest)
            found = coset(offsets[0], deviation, far)
            for offset in offsets[1:]:
                found = np.convolve(found, coset(offset, deviation, far))
            middle = len(found) // 2
            due = coset(float(offsets.sum()), deviation * math.sqrt(honest), middle)
            seen = np.abs(np.arange(-middle, middle + 1)) < 5 * deviation * math.sqrt(honest)
            apart = np.abs(np.log(found[seen] / due[seen])).max()
            assert apart <= bound + 1e-9, (deviation, apart, bound)
            if deviation == 0.6:
                assert apart > 1e-6, "with coarse steps there is a difference to be seen"


def test_every_grid_is_so_fine_that_the_difference_is_none_and_no_sum_runs_over() -> None:
    for count, noise in itertools.product((3, 4, 8, 31, 100, MAX_OWNERS), (0.3, 2.0, 60.0)):
        terms = SummedTerms.of(spec_of(count, noise, clip=0.7), None)
        deviation = terms.privacy.noise * 0.7 / terms.grid.step
        assert deviation > 100_000 * 0.9, (count, noise, deviation)
        assert count * terms.grid.most < MODULUS // 2
        assert terms.grid.most * terms.grid.step >= 0.7 * (1 + 15.9 * terms.privacy.noise)


def test_the_noise_of_the_fewest_honest_owners_is_what_the_accountant_counts() -> None:
    """And one owner's alone is less, by the root of their number."""
    for count, least, honest in ((3, 3, 2), (4, 3, 2), (8, 6, 4), (8, 8, 6), (9, 7, 5), (100, 67, 34), (100, 100, 67)):
        spec = spec_of(count, 3.0, least, clip=0.25)
        assert spec.honest == honest
        assert least - honest == max(1, spec.in_league), "an owner alone knows its own noise"
        assert spec.in_league < count / 3 <= spec.in_league + 1
        assert spec.own_noise == pytest.approx(3.0 / math.sqrt(honest))
        terms = SummedTerms.of(spec, None)
        parts = [steps_of(torch.zeros(1024), terms, SystemNoise()).view(np.int32).astype(float) for _ in range(honest)]
        values = np.sum(parts, axis=0) * terms.grid.step
        assert values.std() == pytest.approx(3.0 * 0.25, rel=0.12)
    open_sum = FederatedSpec(owners(8), 5, 2, PrivacySpec(noise_multiplier=3.0))
    assert open_sum.own_noise == 3.0


def test_a_clip_that_follows_brings_its_grid_and_its_noise_with_it() -> None:
    spec = spec_of(8, 2.0, adaptive=AdaptiveClipping(bit_noise=5.0), clip=0.5)
    assert spec.privacy is not None
    first, later = (SummedTerms.of(spec, clip) for clip in (None, 50.0))
    assert later.grid.step == pytest.approx(100 * first.grid.step)
    assert later.privacy == PrivacyTerms(50.0, spec.privacy.update_noise / 2), "the bit is in the sum, not beside it"
    with pytest.raises(RoundError, match="privacy is null"):
        SummedTerms.of(FederatedSpec(owners(3), 5, 3, None), None)


TOLD: dict[str, object] = {"adaptive": AdaptiveClipping(bit_noise=5.0), "heldout": HeldoutLoss(share=0.2)}


def told_of(spec: FederatedSpec, updates: list[Tensor], losses: list[float], noise: object) -> Mapping[str, float]:
    """What a sum of these updates and losses has beside it."""
    terms, anchor = SummedTerms.of(spec, None), torch.zeros(1024)
    parts = [
        summand(anchor, anchor - update, LAYOUT, terms, noise, {"heldout": loss})  # type: ignore[arg-type]
        for update, loss in zip(updates, losses, strict=True)
    ]
    assert {len(part) for part in parts} == {LEARNS + len(spec.beside)}
    total = np.sum(parts, axis=0, dtype=np.uint32).astype("<u4").tobytes()
    mean = mean_of(total, hashlib.sha256(total).hexdigest(), LAYOUT, terms, len(parts))
    assert mean.shape == (1024,)
    assert spec.privacy is not None
    return beside_of(total, spec, spec.privacy.clip, len(parts))


def test_a_sum_has_beside_it_how_many_were_within_the_clip_and_the_mean_loss() -> None:
    updates = [moved(1, 1e-5), moved(2, 1e-5), moved(3, 1e-5), moved(4, 10.0)]
    losses = [-1.0, 0.25, 0.5, 1.0]
    told = told_of(spec_of(4, clip=0.5, **TOLD), updates, losses, Silence())
    assert told == pytest.approx({"unclipped": 0.5, "heldout": 0.1875}, abs=1e-6)
    assert told_of(spec_of(4, clip=0.5), updates, losses, Silence()) == {}
    only = told_of(spec_of(4, clip=0.5, heldout=HeldoutLoss()), updates, losses, Silence())
    assert only == pytest.approx({"heldout": 0.1875}, abs=1e-6)


def test_what_is_told_beside_a_sum_has_the_noise_that_is_counted() -> None:
    """That of as many owners as are honest, together; and all of it with the update is one release of the document's noise."""
    spec = spec_of(8, 2.0, 8, clip=0.25, **TOLD)
    privacy = spec.privacy
    assert privacy is not None
    nothing = [torch.zeros(1024)] * 8
    found = [told_of(spec, nothing, [0.0] * 8, SystemNoise())["heldout"] for _ in range(600)]
    due = loss_noise(privacy) / 8 * math.sqrt(8 / spec.honest)
    assert np.std(found) == pytest.approx(due, rel=0.1)
    assert loss_error(spec) == pytest.approx(due * privacy.heldout.most / 2)  # type: ignore[union-attr]
    # By one owner, of update and all beside, in clips.
    changed = math.sqrt(1 + sum(far**2 for far in spec.beside.values()))
    assert privacy.update_noise / changed == pytest.approx(2.0)
    assert privacy.update_noise / spec.beside["unclipped"] == pytest.approx(2 * 5.0)
    assert privacy.update_noise / spec.beside["heldout"] == pytest.approx(loss_noise(privacy))


def test_a_bit_with_less_noise_than_the_update_still_has_room_in_the_grid() -> None:
    spec = spec_of(MAX_OWNERS, 0.31, MAX_OWNERS, adaptive=AdaptiveClipping(bit_noise=0.16))
    terms = SummedTerms.of(spec, None)
    assert terms.beside["unclipped"] > 3
    assert terms.grid.most * terms.grid.step > terms.beside["unclipped"] * terms.privacy.clip


def test_the_mean_is_the_same_bits_for_all_and_that_of_the_updates() -> None:
    terms = SummedTerms.of(spec_of(8, clip=10.0), None)
    updates = [moved(seed, 0.1) for seed in range(6)]
    total = np.sum([steps_of(update, terms) for update in updates], axis=0, dtype=np.uint32).tobytes()
    digest = hashlib.sha256(total).hexdigest()
    mean = mean_of(total, digest, LAYOUT, terms, 6)
    assert torch.equal(mean, mean_of(bytearray(total), digest, LAYOUT, terms, 6))
    assert torch.allclose(mean, torch.stack(updates).mean(0), atol=2 * terms.grid.step)
    assert not mean[1004:].any()
    with pytest.raises(RoundError, match="not the one that was named"):
        mean_of(total, "0" * 64, LAYOUT, terms, 6)
    with pytest.raises(RoundError, match="4,000 bytes are due"):
        mean_of(total[:-4], hashlib.sha256(total[:-4]).hexdigest(), LAYOUT, terms, 6)


def test_noise_beyond_the_grid_is_cut_off_and_does_not_run_over() -> None:
    class Huge:
        def normal(self, count: int) -> Tensor:
            return torch.full((count,), 1e9, dtype=torch.float64)

    terms = SummedTerms.of(spec_of(8, clip=0.5), None)
    steps = steps_of(moved(1), terms, Huge()).view(np.int32)
    assert np.all(steps == terms.grid.most)
    assert SumGrid(1.0, 8).most * 8 < MODULUS // 2
