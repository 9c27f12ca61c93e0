"""What a federation asks of an owner, in plain words: the agent says them, to the command and to the window alike."""

from collections.abc import Sequence

from protocol.federated.federations import FederationTold, OwnDataReport
from protocol.job.federated import LEAST_HELD, FederatedSpec, PrivacySpec
from protocol.job.job import JobSpec

PRIVATE = "Of your data nothing leaves this computer but, once a round, {what}."
PLAIN_UPDATE = (
    "how the model has changed, as it is, and the loss: there is NO LIMIT to what that may tell about the data. Join only people "
    "whom you would show it"
)
STEPPED = (
    "how the model has changed. In each step every example (a row of a table, or a line of a text) counts with a gradient that "
    "is cut to a length, and there is {noise:.3g} times that length of noise on their sum"
)
ONE_EXAMPLE = (
    "The promise is about ONE EXAMPLE. Who stands in {many} of them has up to {many} times this epsilon, and how many you have "
    "is not hidden."
)
SUMMED = (
    "how the model has changed, cut to a length and with {noise:.3g} times that length of noise on it, masked so that nobody can "
    "read it: only the sum of {least} owners or more can be read"
)
LEAGUE = (
    "That holds as long as fewer than a third of all owners ({most} of {all} at most) are in league with the coordinator. More "
    "could read single updates, whose own noise is {noise:.3g} and not {whole:.3g} times the length."
)
ALONE = "No text, no token of it, no {loss}loss and no count leaves this computer, and nobody may look at the work to check it."
HELD = (
    "One in {one_in} {parts} of your data is held back from learning. Once a round this computer tells how well the model "
    "foretells them: one number, with noise on it, {counted}."
)
FEW = "About {held:,} of these rows are held back. This computer tells a loss of {least} or more, so it may tell none."
BYTES_A_TOKEN = 4  # As most tokenizers make them of most languages.
BY_BYTES = "They were counted as {tokens:,} bytes. This job's tokenizer likely makes about {likely:,} tokens of them."
LIKELY_SHORT = (
    "WARNING: {part} is then likely shorter than the {sequence:,} tokens of one sequence, and this computer's rounds would fail. "
    "Bring more text, and join once more."
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
        ONE_EXAMPLE.format(many=10) if federated.per_example else "",
        _league(federated),
        _held(federated),
        ALONE.format(loss="other " if _held(federated) else "") if federated.privacy is not None else "",
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
    if federated.per_example:
        return STEPPED.format(noise=noise)
    return f"how the model has changed, cut to a length and with {noise:.3g} times that length of noise on it"


def _held(federated: FederatedSpec) -> str:
    privacy = federated.privacy
    if privacy is None or privacy.heldout is None:
        return ""
    parts, counted = "pieces", f"which takes {privacy.loss_share:.0%} of the budget"
    if privacy.per_example:
        parts, counted = "examples", "within the same epsilon for each of them"
    if federated.sum == "secure":
        counted += " and can be read only as a part of that sum"
    return HELD.format(one_in=privacy.heldout.one_in, parts=parts, counted=counted)


def _league(federated: FederatedSpec) -> str:
    if federated.sum == "open" or federated.privacy is None:
        return ""
    noise, whole = federated.own_noise, federated.privacy.update_noise
    return LEAGUE.format(most=federated.in_league, all=len(federated.owners), noise=noise, whole=whole)


def _budget(privacy: PrivacySpec | None) -> str:
    if privacy is None:
        return ""
    whom = "any one example of your data" if privacy.per_example else "your data, taken as one,"
    return (
        f"All rounds together tell of {whom} at most epsilon {privacy.epsilon:g} at delta {privacy.delta:g}; "
        f"after {privacy.most_rounds} rounds this computer itself sends no more."
    )


def _model(spec: JobSpec, parameters: int) -> str:
    size = f"{parameters / 1e6:,.1f} million parameters"
    if spec.training.lora is not None:
        return f"An adapter of rank {spec.training.lora.rank} for a model with {size}"
    return f"A model with {size}"


def found(report: OwnDataReport, told: FederationTold) -> Sequence[str]:
    """What the check of an owner's data has found, for that owner alone, and whether it is enough for what is ``told``."""
    files = "1 file" if report.files == 1 else f"{report.files:,} files"
    lines = [
        f"Your data: {files}, {report.usable:,} of {report.rows:,} rows can be learnt from, {report.characters:,} characters."
    ]
    privacy = None if told.spec is None or told.spec.federated is None else told.spec.federated.privacy
    counted = any(finding.kind == "heldout" for finding in report.findings)
    if privacy is not None and privacy.per_example and privacy.heldout is not None and not counted:
        held = report.usable // privacy.heldout.one_in
        lines += [FEW.format(held=held, least=LEAST_HELD)] if held < LEAST_HELD else []
    lines += _by_bytes(report, told.spec)
    lines += [f"{finding.severity}: {finding.text} ({finding.rows:,} rows)" for finding in report.findings]
    return lines


def _by_bytes(report: OwnDataReport, spec: JobSpec | None) -> list[str]:
    """What a count of bytes says where the job's tokenizer is a file, which the check of the data does not have."""
    if spec is None or spec.tokenizer.kind != "file" or not report.tokens:
        return []
    privacy = None if spec.federated is None else spec.federated.privacy
    likely, sequence = report.tokens // BYTES_A_TOKEN, spec.training.sequence
    pieces = None if privacy is None or privacy.per_example or privacy.heldout is None else privacy.heldout
    part, length = ("your data", likely) if pieces is None else ("what is held back", likely // pieces.one_in)
    lines = [BY_BYTES.format(tokens=report.tokens, likely=likely)]
    return lines if length > sequence else [*lines, LIKELY_SHORT.format(part=part, sequence=sequence)]
