"""What a federated job takes: it costs nothing, since nobody can check, and so nobody is paid for, what owners do at home."""

import math

import msgspec

from coordinator.domain import placement, pricing
from coordinator.domain.privacy import MOST_RELEASES, PrivacyBudget, PrivacyBudgetError, least_noise, most_that
from coordinator.services.artifacts.model_files import Model
from coordinator.services.jobs.quotes import OPENING_LAMPORTS, document_problems, impossible
from protocol.job.federated import MAX_SUMMED, FederatedSpec, PrivacySpec
from protocol.job.job import JobSpec
from protocol.job.privacy_sum import keeps_to_budget, loss_error
from protocol.models.model import ModelConfigError, inspect_config
from protocol.rest.api import Quote
from protocol.task import Layers

DIGITS = 10_000


def settled(spec: JobSpec) -> JobSpec:
    """The document as owners are shown it: with the noise that its privacy budget asks for, and the rounds that it allows.

    Raises:
        PrivacyBudgetError: the budget allows no such rounds.
    """
    federated = spec.federated
    if federated is None or federated.privacy is None:
        return spec
    privacy, steps = federated.privacy, spec.training.inner_steps
    budget = PrivacyBudget(privacy.epsilon, privacy.delta)
    noise = privacy.noise_multiplier
    if noise is None:
        sampled = privacy.per_example
        least = _sampled_noise(privacy, budget, federated.rounds, steps) if sampled else budget.noise(federated.rounds)
        noise = math.ceil(least * DIGITS) / DIGITS  # For people; more of it will do, too.
    try:
        privacy = msgspec.structs.replace(privacy, noise_multiplier=noise)
    except ValueError as error:
        raise PrivacyBudgetError(str(error), "federated.privacy") from error
    most = _sampled_rounds(privacy, steps) if privacy.per_example else budget.rounds(noise)
    if most < federated.rounds:
        raise PrivacyBudgetError(
            f"with noise {noise:g}, epsilon {privacy.epsilon:g} at delta {privacy.delta:g} allows {most} rounds, and "
            f"federated.rounds is {federated.rounds}: leave privacy.noise_multiplier out, and it is worked out"
        )
    privacy = msgspec.structs.replace(privacy, most_rounds=most)
    return msgspec.structs.replace(spec, federated=msgspec.structs.replace(federated, privacy=privacy))


def _sampled_noise(privacy: PrivacySpec, budget: PrivacyBudget, rounds: int, steps: int) -> float:
    """The least noise in each step with which owners' nodes find that so many rounds keep to the budget.

    They have no library, so their bound is a little above what the coordinator counts with.
    """

    def fits(noise: float) -> bool:
        return keeps_to_budget(msgspec.structs.replace(privacy, noise_multiplier=noise), rounds, steps)

    if (found := least_noise(fits)) is None:
        raise PrivacyBudgetError(budget.beyond(rounds))
    return found


def _sampled_rounds(privacy: PrivacySpec, steps: int) -> int:
    """So many rounds keep to the budget, by the same sum."""
    return most_that(lambda rounds: keeps_to_budget(privacy, rounds, steps), MOST_RELEASES // steps)


def quote(spec: JobSpec, federated: FederatedSpec, model: Model, here: int) -> Quote:
    """Sizes and problems; ``here``: nodes that are connected, which need not be the owners'."""
    try:
        shape = inspect_config(model.config)
        shape.check_sequence(spec.training.sequence)
        shape.check_targets(spec.training.lora)
        learns, _ = shape.stage_learns(0, shape.layers, True, True, spec.training.lora)
    except ModelConfigError as error:
        return impossible(str(error), here)
    if federated.sum == "secure" and learns > MAX_SUMMED:
        return impossible(
            f"{learns:,} values learn, and a secure sum takes {MAX_SUMMED:,} of each owner: train an adapter (training.lora), or "
            "leave federated.sum out",
            here,
        )
    owners, layers = len(federated.owners), (Layers(0, shape.layers),)
    operations = pricing.operations(shape.parameters, spec.training.tokens, spec.training.forward_passes)
    return Quote(
        operations=float(operations),
        parameters=shape.distinct_parameters,
        tokens=spec.training.tokens,
        stages=1,
        replicas=owners,
        nodes_available=here,
        rounds=federated.rounds,
        hours=0.0,
        price=0,
        price_low=0,
        price_high=0,
        memory_mb_per_stage=(placement.stage_memory(shape, spec.training, layers, 0, False) // placement.MEGABYTE,),
        limit=f"it begins once {federated.least_owners} of {owners} owners have joined with their data",
        problems=tuple(document_problems(spec)),
        fee_lamports=OPENING_LAMPORTS,
        reasons=(
            "nobody is paid: the data stays at its owners, so nobody could check the work; the budget goes back",
            *_exactness(federated),
            *model.warnings,
        ),
    )


def _exactness(federated: FederatedSpec) -> list[str]:
    """How exact the loss is that owners tell: who asks for it may want to ask otherwise."""
    if federated.privacy is None or federated.privacy.most_rounds is None or (error := loss_error(federated)) is None:
        return []
    better = ", which is no use: ask more owners with sum: secure, or set unit to example" if error > 0.5 else ""
    return [f"owners tell a loss before each round; noise puts it off by up to {2 * error:.2g} as a rule{better}"]
