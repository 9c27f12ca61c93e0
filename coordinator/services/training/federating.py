"""What is otherwise in a federated job: who may take a seat, and what its run and its rounds are held to.

Each seat is one owner's node, and only nodes that were invited and have joined with data of their own get one. Nothing of
their work can be opened, so nothing of it is audited, counts for anybody's standing, or is paid.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from coordinator.domain.job import Job
from coordinator.domain.placement import Candidate
from coordinator.domain.rounds import run as runs
from coordinator.domain.rounds.round import Round
from coordinator.domain.rounds.run import Run
from coordinator.services.audits.evidence import seal_commitments, seal_outcome
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.store.records import CommitRecord, MetricRecord, RoundRecord
from protocol.job.federated import FederatedSpec
from protocol.job.job import JobSpec
from protocol.models.model import ModelShape


def owners_of(job: Job, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those of nodes that have joined a federated job, in the order of its document."""
    assert job.spec.federated is not None
    here = {candidate.node: candidate for candidate in candidates}
    joined = {owner.node for owner in job.owners}
    return [here[node] for node in job.spec.federated.owners if node in here and node in joined]


def replicas_tried(spec: JobSpec, quoted: int, *, patient: bool) -> Sequence[int]:
    """Numbers of replicas that a job may begin with, the best first; ``patient``: it waits a little for all."""
    least = spec.federated.least_owners if spec.federated is not None else 1
    return [quoted] if patient else range(quoted, least - 1, -1)


def run_settings(spec: FederatedSpec, learns: int) -> dict[str, Any]:
    """Fields of a federated job's ``Run``: every round is stored, since what was sent once is spent for good.

    Args:
        learns: scalars that learn, which a secure sum is of.
    """
    held = {"evaluate": (), "unjudged": True, "least": spec.least_owners, "store_every": 1, "most": spec.rounds_allowed}
    if spec.sum == "secure":
        held |= {"summed": learns + len(spec.beside), "sharded_from": 0}
    adaptive = None if spec.privacy is None else spec.privacy.adaptive
    if spec.privacy is None or adaptive is None:
        return held
    return held | {"clip": spec.privacy.clip, "clipping": adaptive}


def resized(run: Run, spec: JobSpec, shape: ModelShape) -> Run:
    """With secure sums of the length that the document has: a run that was stored long ago may count less beside updates."""
    assert spec.federated is not None
    learns, _ = shape.stage_learns(0, shape.layers, True, True, spec.training.lora)
    return msgspec.structs.replace(run, summed=learns + len(spec.federated.beside))


def owners_loss(job: Job, over: Round) -> float | None:
    """The mean of what contributors have told, with noise, of the loss before a round; None: nothing was told."""
    federated = job.spec.federated
    heldout = None if federated is None or federated.privacy is None else federated.privacy.heldout
    if heldout is None:
        return None
    if over.sum is not None:
        mean = over.sum.beside.get("heldout")
    else:
        told = [commit.heldout for commit in runs.counted(over) if commit.heldout is not None]
        mean = 2 * math.fsum(told) / len(told) / heldout.most - 1 if told else None
    return None if mean is None else heldout.nats(mean)


def tell_loss(work: UnitOfWork, over: Round) -> float | None:
    """Put ``owners_loss`` on the job and its curve, where it belongs: before the round's steps."""
    loss, job = owners_loss(work.job, over), work.job
    if loss is not None:
        first = job.first_validation_loss
        work.change(validation_loss=loss, first_validation_loss=loss if first is None else first)
        work.measure(MetricRecord(job.id, over.number, over.first_step, job.tokens_done, "validation", loss, work.now))
    return loss


async def conclude(work: UnitOfWork, record: RoundRecord, commits: Sequence[CommitRecord]) -> None:
    """Store a complete round, of which nothing is drawn, and tell the ledger what its members committed to."""
    seal_commitments(work, record, commits)
    await seal_outcome(work, await work.tx.update(msgspec.structs.replace(record, concluded=True)))


def why_waiting(job: Job, here: Sequence[Candidate]) -> str:
    """What a federated job that cannot begin waits for; empty where enough owners are here."""
    spec = job.spec.federated
    assert spec is not None
    if len(here) >= spec.least_owners:
        return ""
    joined = len(job.owners)
    if joined < spec.least_owners:
        return f"{joined} of {len(spec.owners)} owners have joined, and a round takes {spec.least_owners} at least"
    return (
        f"{len(here)} of the {joined} owners who have joined are here, and a round takes {spec.least_owners} at least"
    )


def why_ended(run: Run) -> str:
    """Why a run that trained nothing has ended; empty where there is a model."""
    if run.finished and run.unjudged and not run.checkpoints:
        return f"its privacy budget is spent by {run.released} rounds, of which none was completed: there is no model"
    return ""
