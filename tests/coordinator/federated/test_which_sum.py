"""Which sum a federation has used, wherever it is said: the job's view, words, the card, and the check of the card."""

from pathlib import Path

import msgspec
import pytest

from coordinator.client.federation_words import budget_words
from coordinator.domain.job import Job, JobState
from coordinator.domain.privacy import PrivateRelease, epsilon
from coordinator.proof.privacy import check_card
from coordinator.services.artifacts.model_cards import card_facts
from coordinator.services.artifacts.model_files import Model
from coordinator.services.jobs import federated_quotes
from coordinator.services.training.federating import run_settings
from coordinator.services.views import federation_views
from protocol.job.federated import FederatedSpec, PrivacySpec
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec
from protocol.models.model import resolve
from tests.coordinator.fakes import WALLET
from tests.coordinator.many_jobs import QUOTE
from trainer.export.card import model_card

OWNERS = tuple(letter * 40 for letter in "ABCDEFGH")


def document(summed: str, least: int = 6) -> JobSpec:
    federated = FederatedSpec(OWNERS, 10, least, PrivacySpec(epsilon=8.0), summed)  # type: ignore[arg-type]
    return federated_quotes.settled(
        JobSpec("wards", ModelSpec("tiny-llama"), 1, tokenizer=TokenizerSpec("bytes"), federated=federated)  # type: ignore[arg-type]
    )


def job(summed: str) -> Job:
    made = Job("a" * 32, "wards", JobState.SETTLED, document(summed), WALLET, True, 1.0, 2.0, QUOTE, {}, {})
    return msgspec.structs.replace(made, released=10)


def test_epsilon_is_the_same_and_an_owner_adds_half_the_noise_of_eight() -> None:
    """The gain: of the same promise, each of eight owners carries half, for the fewest honest ones of a sum are four."""
    open_sum, secure = (federation_views.spent(job(kind)) for kind in ("open", "secure"))
    assert open_sum is not None
    assert secure is not None
    assert (secure.epsilon, secure.noise, secure.releases) == (open_sum.epsilon, open_sum.noise, open_sum.releases)
    assert secure.epsilon == epsilon([PrivateRelease(secure.noise, count=10)], 1e-5)
    assert (secure.sum, secure.honest) == ("secure", 4)
    assert secure.own_noise == pytest.approx(open_sum.noise / 2)
    assert (open_sum.sum, open_sum.honest, open_sum.own_noise) == ("open", 0, open_sum.noise)
    assert "in a sum, with noise of 4 honest owners at least" in budget_words(secure)
    assert "sum" not in budget_words(open_sum)


@pytest.mark.parametrize("kind", ["open", "secure"])
def test_the_card_says_which_sum_it_was_and_another_word_is_found(kind: str, tmp_path: Path) -> None:
    done, card = job(kind), tmp_path / "README.md"
    card.write_text(model_card(card_facts(done, []), 1000, {"model_type": "llama"}))
    claim = federation_views.spent(done)
    assert claim is not None
    (found,) = check_card(card, claim)
    assert found.verdict == "pass", found.detail
    other = {"open": "secure", "secure": "open"}[kind]
    (found,) = check_card(card, msgspec.structs.replace(claim, sum=other))
    assert found.verdict == "fail"
    assert f"with {kind} sums" in found.detail
    text = card.read_text()
    assert ("noise on the sum, in clips" in text) == (kind == "secure")
    card.write_text("\n".join(line for line in text.splitlines() if not line.startswith("| sum |")))
    (found,) = check_card(card, claim)
    assert found.verdict == ("pass" if kind == "open" else "fail"), "cards of before there were secure sums say nothing"


def test_a_run_of_secure_sums_is_not_cut_into_shards_and_a_huge_model_is_refused_with_the_way_out() -> None:
    spec = document("secure")
    assert spec.federated is not None
    assert run_settings(spec.federated, 5000) | {"summed": 5000, "sharded_from": 0} == run_settings(
        spec.federated, 5000
    )
    assert "summed" not in run_settings(document("open").federated, 5000)  # type: ignore[arg-type]
    small = resolve(spec.model, 259)
    large = small | {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 8}
    said = {}
    for name, config in {"small": small, "large": large}.items():
        said[name] = federated_quotes.quote(spec, spec.federated, Model(config), 8).problems
    assert said["small"] == ()
    assert "a secure sum takes 16,777,216 of each owner: train an adapter" in str(said["large"])
