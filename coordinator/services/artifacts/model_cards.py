"""What stands beside a finished model's weights: its card's facts, and small files of the folder that it came from."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec

from coordinator.client.text import amount
from coordinator.domain.job import Job
from coordinator.services.views import federation_views
from coordinator.store.records import RoundRecord
from protocol.job.job import JobSpec, without_settings
from protocol.rest.federation import PrivacySpent
from protocol.task import PreferenceScore


def card_facts(job: Job, rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """What the model's card tells about the run."""
    done = accumulate(r.tokens for r in rounds)  # Those after a round: a curve is drawn over them.
    # A round measures what the one before it came to.
    after = None if job.spec.federated is not None else job.validation_loss  # Owners measure before a round alone.
    measured = [(r.validation_loss, r.preference) for r in rounds[1:]] + [(after, job.preference)]
    curve: list[dict[str, Any]] = [
        {"round": r.number, "tokens": tokens, "train_loss": r.train_loss, "validation_loss": loss}
        | ({"time": r.ended} if r.ended is not None else {})
        | _score(score)
        for r, tokens, (loss, score) in zip(rounds, done, measured, strict=False)
    ]
    return {
        "job": job.id,
        "submitter": job.submitter,
        "name": job.name,
        "loss_before": job.first_validation_loss,
        "loss_after": after,
        **_score(job.preference),
        "tokens": job.tokens_done,
        "rounds": curve,
        "audits": job.audits,
        "paid": f"{amount(job.paid)} tokens",
        "escrow": f"{amount(job.escrow)} tokens",
        "spec": msgspec.to_builtins(without_settings(job.spec)),
        **_privacy(job),
    }


def _privacy(job: Job) -> dict[str, Any]:
    """What was spent of a federated job's budget, round by round as the ledger has it."""
    if (spent := federation_views.spent(job)) is None:
        return {}
    stated: dict[str, Any] = {
        "epsilon spent": spent.epsilon,
        "delta": spent.delta,
        "of": _unit_words(spent),
        "epsilon allowed": spent.epsilon_most,
        "rounds charged": spent.releases,
        "sum": _sum_words(spent),
        **_noise_rows(job, spent),
        **({} if job.validation_loss is None else {"held-out loss before the last round, noised": job.validation_loss}),
        "accountant": spent.accountant,
    }
    return {"privacy": stated}


def _unit_words(spent: PrivacySpent) -> str:
    """Begins with words that ``coordinator.proof.privacy`` reads."""
    if spent.unit == "example":
        return "one example, a row or line of an owner's data (its gradients zero, or not)"
    return "all that one owner has (that owner's update zero, or not)"


def _noise_rows(job: Job, spent: PrivacySpent) -> dict[str, Any]:
    if spent.unit == "example":
        return {
            "noise on each step's sum of gradients, in clips": spent.noise,
            "clip of an example's gradient (L2)": spent.clip,
            "how likely a step takes an example, at most": spent.sampling,
            "steps of a round": spent.per_round,
        }
    where = "noise on the sum, in clips" if spent.sum == "secure" else "noise on an update, in clips"
    clip = spent.clip if _clip_follows(job) is None else f"from {spent.clip:g}, follows the updates"
    return {where: spent.noise, "clip (L2)": clip}


def _sum_words(spent: PrivacySpent) -> str:
    """First a word that ``coordinator.proof.privacy`` reads."""
    if spent.sum == "open":
        return "open: other owners saw each update"
    return f"secure: nobody saw an update but in a sum, with noise of {spent.honest} honest owners at least"


def _clip_follows(job: Job) -> object:
    assert job.spec.federated is not None
    return None if job.spec.federated.privacy is None else job.spec.federated.privacy.adaptive


def _score(found: PreferenceScore | None) -> dict[str, float]:
    return {} if found is None else {"accuracy": found.accuracy, "margin": found.margin}


def small_files(spec: JobSpec) -> dict[str, Any]:
    """Small files of the folder that the model came from, by name."""
    files = {"tokenizer_config.json": spec.tokenizer.settings, "generation_config.json": spec.model.generation}
    return {name: content for name, content in files.items() if content is not None}
