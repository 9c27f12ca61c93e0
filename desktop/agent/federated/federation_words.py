"""What a federation asks of an owner, in plain words: the agent says them, to the command and to the window alike."""

from collections.abc import Sequence

from protocol.federated.federations import FederationTold, OwnDataReport
from protocol.job.federated import FederatedSpec, PrivacySpec
from protocol.job.job import JobSpec

PRIVATE = "Of your data nothing leaves this computer but, once a round, {what}."
PLAIN_UPDATE = (
    "how the model has changed, as it is, and the loss: there is NO LIMIT to what that may tell about the data. Join only people "
    "whom you would show it"
)
SUMMED = (
    "how the model has changed, cut to a length and with {noise:.3g} times that length of noise on it, masked so that nobody can "
    "read it: only the sum of {least} owners or more can be read"
)
LEAGUE = (
    "That holds as long as fewer than a third of all owners ({most} of {all} at most) are in league with the coordinator. More "
    "could read single updates, whose own noise is {noise:.3g} and not {whole:.3g} times the length."
)
ALONE = (
    "No text, no token of it, no loss and no count leaves this computer, and nobody may look at the work to check it."
)


def asked(told: FederationTold) -> list[str]:
    """What is asked, a sentence each; first what matters most."""
    spec = told.spec
    assert spec is not None
    assert spec.federated is not None
    federated = spec.federated
    lines = [
        PRIVATE.format(what=_leaves(federated)),
        _budget(federated.privacy),
        _league(federated),
        *([ALONE] if federated.privacy is not None else []),
        f"{_model(spec, told.parameters)} learns in {federated.rounds} rounds of {spec.training.inner_steps} steps, each owner's "
        "computer with the whole model.",
        f"{told.owners} of {len(federated.owners)} owners have joined; a round takes {federated.least_owners} at least.",
        "All owners, the coordinator and whoever asked for the job get the model. Nobody is paid.",
    ]
    return [line for line in lines if line]


def _leaves(federated: FederatedSpec) -> str:
    if federated.privacy is None:
        return PLAIN_UPDATE
    if federated.sum == "secure":
        return SUMMED.format(noise=federated.own_noise, least=federated.least_owners)
    noise = federated.privacy.noise_multiplier or 0.0
    return f"how the model has changed, cut to a length and with {noise:.3g} times that length of noise on it"


def _league(federated: FederatedSpec) -> str:
    if federated.sum == "open" or federated.privacy is None:
        return ""
    noise, whole = federated.own_noise, federated.privacy.update_noise
    return LEAGUE.format(most=federated.in_league, all=len(federated.owners), noise=noise, whole=whole)


def _budget(privacy: PrivacySpec | None) -> str:
    if privacy is None:
        return ""
    return (
        f"All rounds together tell of your data, taken as one, at most epsilon {privacy.epsilon:g} at delta {privacy.delta:g}; "
        f"after {privacy.most_rounds} rounds this computer itself sends no more."
    )


def _model(spec: JobSpec, parameters: int) -> str:
    size = f"{parameters / 1e6:,.1f} million parameters"
    if spec.training.lora is not None:
        return f"An adapter of rank {spec.training.lora.rank} for a model with {size}"
    return f"A model with {size}"


def found(report: OwnDataReport) -> Sequence[str]:
    """What the check of an owner's data has found, for that owner alone."""
    files = "1 file" if report.files == 1 else f"{report.files:,} files"
    lines = [
        f"Your data: {files}, {report.usable:,} of {report.rows:,} rows can be learnt from, {report.characters:,} characters."
    ]
    lines += [f"{finding.severity}: {finding.text} ({finding.rows:,} rows)" for finding in report.findings]
    return lines
