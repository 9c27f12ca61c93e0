"""What is shown of a federated job."""

from coordinator.domain.job import Job
from coordinator.domain.privacy import epsilon, releases_of
from coordinator.domain.rounds.run import Run
from protocol.job.privacy_sum import loss_error
from protocol.rest.federation import FederationOwner, FederationState, PrivacySpent

ACCOUNTANT = "dp-accounting 0.6, Gaussian mechanism without sampling (arXiv 1805.06530)"
SAMPLED = "dp-accounting 0.6, Poisson-sampled Gaussian mechanism, privacy loss distributions (arXiv 2207.04380)"


def state_of(job: Job, run: Run | None) -> FederationState:
    """Everything about its owners and its budget; the sum takes a moment the first time."""
    federated = job.spec.federated
    assert federated is not None
    joined = {owner.node: owner for owner in job.owners}
    owners = tuple(
        FederationOwner(node, joined[node].at, joined[node].rows) if node in joined else FederationOwner(node)
        for node in federated.owners
    )
    return FederationState(owners, federated.least_owners, spent(job, run))


def spent(job: Job, run: Run | None = None) -> PrivacySpent | None:
    """What a job's budget was charged with; None where it has none."""
    federated = job.spec.federated
    privacy = None if federated is None else federated.privacy
    if federated is None or privacy is None or privacy.noise_multiplier is None:
        return None
    secure = federated.sum == "secure"
    return PrivacySpent(
        privacy.unit,
        epsilon(releases_of(job.spec, job.released), privacy.delta),
        privacy.epsilon,
        privacy.delta,
        job.released,
        privacy.most_rounds or 0,
        privacy.noise_multiplier,
        privacy.clip if run is None or run.clip is None else run.clip,
        SAMPLED if privacy.per_example else ACCOUNTANT,
        federated.sum,
        federated.own_noise if secure else privacy.noise_multiplier,
        federated.honest if secure else 0,
        privacy.sampling,
        privacy.releases(job.spec.training.inner_steps),
        loss_error(federated),
    )
