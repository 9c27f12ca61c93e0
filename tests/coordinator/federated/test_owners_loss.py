"""A federation whose owners tell a loss: what is settled for it, how exact it will be, and that nothing else is counted."""

import msgspec
import pytest

from coordinator.domain.job import Job, JobState
from coordinator.domain.rounds.round import Round
from coordinator.domain.rounds.seat import Commitment, Seat
from coordinator.domain.rounds.summing import RoundSum
from coordinator.services.artifacts.model_files import Model
from coordinator.services.jobs import federated_quotes
from coordinator.services.training.federating import owners_loss, run_settings
from coordinator.services.views import federation_views
from protocol.job.federated import AdaptiveClipping, FederatedSpec, HeldoutLoss, PrivacySpec
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec
from protocol.models.model import resolve
from protocol.plan import Layers
from tests.coordinator.fakes import WALLET
from tests.coordinator.many_jobs import QUOTE

OWNERS = tuple(letter * 40 for letter in "ABCD")
LOSS = HeldoutLoss(most=5.0, share=0.2)


def job(privacy: PrivacySpec, summed: str = "open") -> Job:
    federated = FederatedSpec(OWNERS, 20, 3, privacy, summed)  # type: ignore[arg-type]
    spec = JobSpec("wards", ModelSpec("tiny-llama"), 1, tokenizer=TokenizerSpec("bytes"), federated=federated)
    return Job(
        "a" * 32, "wards", JobState.RUNNING, federated_quotes.settled(spec), WALLET, True, 1.0, 2.0, QUOTE, {}, {}
    )


def privacy_of(found: Job) -> PrivacySpec:
    assert found.spec.federated is not None
    assert found.spec.federated.privacy is not None
    return found.spec.federated.privacy


def test_a_loss_changes_neither_the_noise_that_is_counted_nor_the_rounds() -> None:
    plain, told = privacy_of(job(PrivacySpec())), privacy_of(job(PrivacySpec(heldout=LOSS)))
    assert (told.noise_multiplier, told.most_rounds) == (plain.noise_multiplier, plain.most_rounds)
    assert told.update_noise == pytest.approx(plain.update_noise / 0.8**0.5)
    spent, other = (federation_views.spent(job(PrivacySpec(heldout=one))) for one in (LOSS, None))
    assert spent is not None
    assert spent.loss_error is not None
    assert msgspec.structs.replace(spent, loss_error=None) == other


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        (PrivacySpec(heldout=LOSS), "which is no use"),
        (PrivacySpec("example", sampling=0.01, heldout=HeldoutLoss()), "off by up to 0.29 as a rule"),
        (PrivacySpec(), ""),
    ],
)
def test_the_quote_says_how_exact_the_loss_will_be(privacy: PrivacySpec, said: str) -> None:
    spec = job(privacy).spec
    assert spec.federated is not None
    quoted = federated_quotes.quote(spec, spec.federated, Model(resolve(spec.model, 259)), 3)
    told = [reason for reason in quoted.reasons if "a loss before each round" in reason]
    assert len(told) == bool(said)
    assert said in " ".join(told)


def over(told: list[float | None], counts: int, beside: dict[str, float] | None = None) -> Round:
    """A round of so many seats, of which the first ``counts`` have contributed."""
    seats = tuple(
        Seat(f"lease{at}", OWNERS[at], 0, at, commit=Commitment("", 5, "", None, heldout=one))
        for at, one in enumerate(told)
    )
    made = None if beside is None else RoundSum(10, 3, "added", beside=beside)
    return Round(1, 0, 0, 5, 15, False, (Layers(0, 2),), seats, 0.0, contributors=tuple(range(counts)), sum=made)


def test_the_loss_is_the_mean_of_contributors_who_told_one_and_never_beyond_what_there_is() -> None:
    found = job(PrivacySpec(heldout=LOSS))
    assert owners_loss(found, over([2.0, None, 3.0, 900.0], 3)) == pytest.approx(2.5)
    assert owners_loss(found, over([-90.0, 3.0, 4.0], 3)) == 0.0
    assert owners_loss(found, over([90.0, 3.0, 4.0], 3)) == 5.0
    assert owners_loss(found, over([None, None, None], 3)) is None
    assert owners_loss(job(PrivacySpec()), over([2.0, 2.0, 3.0], 3)) is None, "nobody has asked for it"


def test_of_a_secure_sum_it_is_what_stands_beside_the_update() -> None:
    found = job(PrivacySpec(heldout=LOSS, adaptive=AdaptiveClipping()), "secure")
    assert owners_loss(found, over([9.0] * 3, 3, {"heldout": 0.2, "unclipped": 1.0})) == pytest.approx(3.0)
    assert found.spec.federated is not None
    assert run_settings(found.spec.federated, 100)["summed"] == 102
