"""What a job says of its privacy budget, held against what was committed on the ledger round by round."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

from coordinator.domain.privacy import epsilon, releases_of
from coordinator.proof.case import ProofFinding, Published, Verdict
from protocol.rest.federation import PrivacySpent

_ROUGH = 1e-4  # Relative: a card has five digits.
_CARD = {
    "epsilon": r"^\| epsilon spent \| ([0-9.e+-]+)",
    "releases": r"^\| rounds charged \| (\d+)",
    "sum": r"^\| sum \| (open|secure)",
    "unit": r"^\| of \| (?:all that )?one (owner|example)\b",
}


def check(said: Published) -> Iterator[ProofFinding]:
    """Rounds are counted without a gap, the count is the statement's, and its epsilon follows from it."""
    federated, claim = said.spec.federated, said.privacy
    assert federated is not None
    if federated.privacy is None or claim is None:
        yield _found("privacy", "note", "updates left as they are: nothing limits what they tell", "the job document")
        return
    ordered = sorted(said.rounds, key=lambda one: (one.round, one.epoch))
    counts = [one.terms.releases for one in ordered]
    used = f"terms of {len(ordered)} rounds under their roots on the ledger"
    rising = all(after > before for before, after in zip([0, *counts], counts, strict=False))
    detail = f"rounds were begun {counts[-1] if counts else 0} times until the last complete one"
    yield _found("privacy count", "pass" if rising else "fail", detail, used)
    last = counts[-1] if counts else 0
    own = epsilon(releases_of(said.spec, claim.releases), claim.delta)
    agrees = claim.releases >= last and _same(own, claim.epsilon) and claim.noise == federated.privacy.noise_multiplier
    agrees = agrees and claim.delta == federated.privacy.delta and claim.sum == federated.sum
    agrees = agrees and claim.unit == federated.privacy.unit and claim.sampling == federated.privacy.sampling
    detail = (
        f"epsilon {claim.epsilon:.4f} at delta {claim.delta:g} for each {claim.unit}, of {claim.releases} rounds with noise "
        f"{claim.noise:g}, on {_noised(claim)}, and by our own sum {own:.4f}"
    )
    yield _found("privacy spent", "pass" if agrees else "fail", detail, f"the job document and {claim.accountant}")
    within = own <= federated.privacy.epsilon
    detail = f"{own:.4f} of {federated.privacy.epsilon:g}, which the document allows"
    yield _found("privacy budget", "pass" if within else "fail", detail, "the job document")


def check_card(card: Path, claim: PrivacySpent | None) -> Iterator[ProofFinding]:
    """The statement in a finished model's card is the coordinator's, which the ledger bears out."""
    text = card.read_text("utf-8", errors="replace")
    found = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in _CARD.items()}
    told, counted = found["epsilon"], found["releases"]
    if claim is None or told is None or counted is None:
        same = claim is None and told is None
        detail = "neither the card nor the job has a budget" if same else "only one of card and job states a budget"
        yield _found("privacy card", "pass" if same else "fail", detail, str(card))
        return
    summed = "open" if found["sum"] is None else found["sum"][1]  # Of cards before there were secure sums.
    unit = "no unit" if found["unit"] is None else found["unit"][1]
    same = int(counted[1]) == claim.releases and _same(float(told[1]), claim.epsilon) and summed == claim.sum
    same = same and unit == claim.unit
    detail = (
        f"the card says epsilon {told[1]} for each {unit}, of {counted[1]} rounds with {summed} sums; the job "
        f"{claim.epsilon:.6g} for each {claim.unit}, of {claim.releases} with {claim.sum} ones"
    )
    yield _found("privacy card", "pass" if same else "fail", detail, str(card))


def _noised(claim: PrivacySpent) -> str:
    if claim.unit == "example":
        return f"each of {claim.per_round} steps of a round that takes an example with probability {claim.sampling:g}"
    return "each secure sum" if claim.sum == "secure" else "each update"


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_ROUGH, abs_tol=1e-9)


def _found(check: str, verdict: Verdict, detail: str, used: str) -> ProofFinding:
    return ProofFinding(check, "job", verdict, detail, used)
