"""A federation whose promise is about one example: what is settled, and where its unit is said and held against the ledger."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.client.federation_words import budget_words
from coordinator.domain.job import Job, JobState
from coordinator.domain.privacy import MOST_RELEASES, PrivacyBudgetError, PrivateRelease, epsilon, releases_of
from coordinator.proof.privacy import check_card
from coordinator.services.artifacts.model_cards import card_facts
from coordinator.services.jobs import federated_quotes
from coordinator.services.training.federating import run_settings
from coordinator.services.views import federation_views
from protocol.job.federated import FederatedSpec, PrivacySpec
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec, TrainingSpec
from protocol.job.privacy_sum import keeps_to_budget
from tests.coordinator.fakes import WALLET
from tests.coordinator.many_jobs import QUOTE
from trainer.export.card import model_card

OWNERS = tuple(letter * 40 for letter in "ABC")
STEPS, ROUNDS, SAMPLING = 20, 30, 0.01


def asked(**privacy: Any) -> JobSpec:
    terms = PrivacySpec(**({"unit": "example", "epsilon": 3.0, "sampling": SAMPLING} | privacy))
    federated, training = FederatedSpec(OWNERS, ROUNDS, 2, terms), TrainingSpec(inner_steps=STEPS)
    return JobSpec(
        "wards", ModelSpec("tiny-llama"), 1, tokenizer=TokenizerSpec("bytes"), training=training, federated=federated
    )  # type: ignore[arg-type]


def settled(**privacy: Any) -> PrivacySpec:
    found = federated_quotes.settled(asked(**privacy)).federated
    assert found is not None
    assert found.privacy is not None
    return found.privacy


def job(released: int = ROUNDS, **privacy: Any) -> Job:
    spec = federated_quotes.settled(asked(**privacy))
    made = Job("a" * 32, "wards", JobState.SETTLED, spec, WALLET, True, 1.0, 2.0, QUOTE, {}, {})
    return msgspec.structs.replace(made, released=released)


def test_the_noise_that_is_settled_keeps_all_rounds_to_the_budget_and_owners_nodes_agree() -> None:
    found = settled()
    assert found.noise_multiplier is not None
    assert found.most_rounds is not None
    assert found.most_rounds >= ROUNDS
    assert keeps_to_budget(found, found.most_rounds, STEPS)
    assert not keeps_to_budget(found, found.most_rounds + 1, STEPS)
    spent = epsilon([PrivateRelease(found.noise_multiplier, SAMPLING, found.most_rounds * STEPS)], found.delta)
    assert 0.8 * found.epsilon < spent <= found.epsilon, (
        "the library finds a little less than the bound that nodes know"
    )
    less = msgspec.structs.replace(found, noise_multiplier=found.noise_multiplier * 0.98)
    assert not keeps_to_budget(less, ROUNDS, STEPS), "no more noise than that takes"
    assert run_settings(federated_quotes.settled(asked()).federated, 9)["most"] == found.most_rounds  # type: ignore[arg-type]


def test_it_takes_far_less_noise_than_to_protect_an_owner_in_each_step() -> None:
    often = settled(sampling=0.1).noise_multiplier
    rare = settled().noise_multiplier
    assert often is not None
    assert rare is not None
    assert rare < often / 2


def test_noise_that_is_given_is_kept_and_too_little_is_refused_with_the_way_out() -> None:
    assert settled(noise_multiplier=4.0).noise_multiplier == 4.0
    with pytest.raises(PrivacyBudgetError, match=r"allows \d+ rounds, and federated.rounds is 30: leave privacy"):
        settled(noise_multiplier=0.4)
    assert (settled(noise_multiplier=9_000.0, sampling=1e-6).most_rounds or 0) * STEPS <= MOST_RELEASES


def test_a_round_is_charged_with_all_its_steps() -> None:
    done = job(7)
    noise = settled().noise_multiplier or 0.0
    assert releases_of(done.spec, 7) == [PrivateRelease(noise, SAMPLING, 7 * STEPS)]
    assert releases_of(done.spec, 0) == []
    spent = federation_views.spent(done)
    assert spent is not None
    assert spent.epsilon == epsilon([PrivateRelease(noise, SAMPLING, 7 * STEPS)], 1e-5)
    assert (spent.unit, spent.sampling, spent.per_round, spent.releases) == ("example", SAMPLING, STEPS, 7)
    assert "Poisson-sampled" in spent.accountant
    assert "for each example, a row or line of an owner's data; 7 of" in budget_words(spent)


def test_the_card_says_the_unit_and_another_word_is_found(tmp_path: Path) -> None:
    done, card = job(), tmp_path / "README.md"
    card.write_text(model_card(card_facts(done, []), 1000, {"model_type": "llama"}))
    claim = federation_views.spent(done)
    assert claim is not None
    (found,) = check_card(card, claim)
    assert found.verdict == "pass", found.detail
    text = card.read_text()
    for said in (
        "noise on each step's sum of gradients, in clips",
        "steps of a round | 20",
        "an example, at most | 0.01",
    ):
        assert said in text, said
    card.write_text(
        text.replace("| of | one example, a row or line of an owner's data", "| of | all that one owner has")
    )
    (found,) = check_card(card, claim)
    assert found.verdict == "fail"
    assert "for each owner" in found.detail
    card.write_text(text)
    (found,) = check_card(card, msgspec.structs.replace(claim, unit="owner"))
    assert found.verdict == "fail"
