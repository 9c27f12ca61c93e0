"""What may pass the coordinator's doors for a lease: the artifacts that its holder was told of, and those it was asked for.

Nothing is read because its digest is known, and nothing is stored because it was offered: each follows from a command.
"""

from typing import Literal, assert_never

import msgspec

from coordinator.domain.job import Job
from protocol.artifacts import inputs_answer, state_answer, summand_answer
from protocol.audit import AskInputs
from protocol.federated.sums import BoxesOfAll
from protocol.ids import Digest
from protocol.models.weights import WEIGHT_INDEX
from protocol.serving import DRAFT_ARCHIVE, MODEL_ARCHIVE, SMALL_ARCHIVE
from protocol.task import (
    AbandonRound,
    ApplyRound,
    AskModel,
    AwaitStages,
    BeginRound,
    BisectQuery,
    DropElements,
    ExpectPeers,
    JoinStages,
    OpenOuter,
    OpenStep,
    ReduceRound,
    ReplayAcross,
    ReplayOuter,
    ReplayStep,
    RunElements,
    ShowLeaf,
    StopTask,
    SumStep,
    TaskCommand,
)

Kind = Literal["an opening", "an anchor", "a state", "an operation's inputs", "a result", "a masked update"]


class Wanted(msgspec.Struct, frozen=True):
    """An artifact that is awaited of a lease's holder.

    Attributes:
        answers: names the question (``protocol.artifacts``); its first answer is its only one.
        kind: what it is, in words.
        most: bytes, more than it can have.
        artifact: its digest, where the holder has bound itself to one; None: not yet.
    """

    answers: str
    kind: Kind
    most: int
    artifact: Digest | None = None


def inputs_of(job: Job) -> frozenset[Digest]:
    """What everybody who holds a lease in the job may read, whatever it does: files of its folder, weights to start from.

    Ranges of a model's archive are read by nodes that are not given it whole.
    """
    shared = () if job.spec.array is None else job.spec.array.inputs.values()
    return frozenset((*job.files.values(), *job.spec.model.weight_files, *shared))


def folder_of(job: Job, stages: int, stage: int | None = None) -> dict[str, Digest]:
    """The files that a node is given, by name.

    Where a deployment is cut into ``stages``, the index of weights is there in place of the whole model: each node fetches those
    of its own layers. A draft model is for who holds the first of several.
    """
    of_stages = job.files.keys() & {WEIGHT_INDEX, SMALL_ARCHIVE}
    left_out: set[str] = set() if stages > 1 and stage == 0 else {DRAFT_ARCHIVE}
    if MODEL_ARCHIVE in job.files and of_stages:
        left_out |= {MODEL_ARCHIVE} if stages > 1 else of_stages
    return {name: digest for name, digest in job.files.items() if name not in left_out}


def named_by(command: TaskCommand) -> tuple[Digest, ...]:
    """The artifacts that a command names for whoever is told it to read."""
    match command:
        case BeginRound(state=state):
            return () if state is None else (state,)
        case ReplayOuter(opening=opening):
            return (opening,)
        case (ReplayStep() as replay) | ReplayAcross(replay=replay) | BisectQuery(replay=replay):
            stored = replay.anchor_in == "artifact" and replay.anchor is not None
            return (replay.opening, replay.anchor) if stored and replay.anchor is not None else (replay.opening,)
        case ApplyRound(total=total):
            return () if total is None else (total,)
        case ReduceRound() | SumStep() | AbandonRound() | OpenStep() | OpenOuter() | ShowLeaf():
            return ()
        case RunElements(runs=runs):
            return tuple(digest for one in runs for digest in one.element.inputs.values())
        case ExpectPeers() | AskModel() | JoinStages() | AwaitStages() | DropElements() | StopTask():
            return ()
        case _:
            assert_never(command)


def asked_by(command: TaskCommand) -> tuple[str, Kind] | None:
    """Which artifact a command asks its hearer to store: the question's name and the kind; None: none, or one of an audit.

    An audit waits for its opening longer than it asks for it: those follow from the audit itself.
    """
    match command:
        case ApplyRound(epoch=epoch, round=number, checkpoint=True):
            return state_answer(epoch, number), "a state"
        case BisectQuery(dispute=dispute, ask=AskInputs()):
            return inputs_answer(dispute), "an operation's inputs"
        case SumStep(epoch=epoch, round=number, body=BoxesOfAll()):
            return summand_answer(epoch, number), "a masked update"
        case _:
            return None
