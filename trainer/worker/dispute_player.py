"""One side of a dispute: what a worker answers about a segment, from its opening alone (``protocol.audit``).

Prover and challenger run the same code. It runs the segment again for the states, the step that differs once more for the
trace of its operations, and once more up to an operation for that operation's inputs.
"""

import hashlib
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property

from common.untrusted_text import untrusted
from protocol.audit import (
    Ask,
    AskInputs,
    AskOperation,
    AskState,
    AskTrace,
    BisectAnswer,
    BisectQuery,
    InputsAnswer,
    NoAnswer,
    OperationAnswer,
    ReplayStep,
    StateAnswer,
    TraceAnswer,
    segment,
    sent_digest,
    state_chain,
)
from protocol.codec import encode as encode_message
from protocol.merkle import MerkleTree
from trainer.audit.replay import OpeningReplayer, Redone, Rerun
from trainer.errors import CodecError, OperationError, TrainerError
from trainer.operations.inputs import sources_of, write_inputs
from trainer.operations.tracer import Source, TraceEndedError, Tracer
from trainer.stage.stage import Stage

IMPOSSIBLE = hashlib.sha256(b"cottage-impossible").hexdigest()
"""Stands for the state after a step that cannot be done with what it received."""

Answer = StateAnswer | TraceAnswer | OperationAnswer | InputsAnswer


class DisputePlayer:
    """One side of one dispute."""

    def __init__(self, auditor: OpeningReplayer, replay: ReplayStep, opening: bytes | bytearray) -> None:
        """Play from an opening; raises OpeningError where it does not belong to the commitment."""
        self._auditor = auditor
        self._replay = replay
        self._stage = auditor.stage_of(replay)
        self._stage.aside = None  # A trace is of one thread.
        opened, _ = auditor.open(replay, opening, self._stage)
        # A trace reads anchors as float32, whatever they are kept as.
        self._opened = replace(opened, anchor=None if opened.anchor is None else opened.anchor.float())
        self._traces: dict[int, MerkleTree] = {}
        self._leaves: dict[int, list[bytes]] = {}

    def answer(self, query: BisectQuery) -> tuple[BisectAnswer, bytes]:
        """The answer to a question, and the artifact that it names."""
        self._stage.come_back()
        try:
            answer, artifact = self._answer(query.ask)
        except TrainerError as error:
            return BisectAnswer(query.dispute, query.ask, NoAnswer(untrusted(error))), b""
        finally:
            self._stage.leave()
        return BisectAnswer(query.dispute, query.ask, answer), artifact

    def leaves(self, step: int, last: int) -> list[bytes]:
        """The records of a step of the segment, up to ``last``."""
        return self._run(step, Tracer(last=last))

    def _answer(self, ask: Ask) -> tuple[Answer, bytes]:
        first, stop = segment(self._replay.step, self._stage.training.commit_every, self._replay.leaves)
        if not first <= ask.step < stop:
            raise OperationError(f"step {ask.step} is not in the segment of steps {first} to {stop - 1}")
        match ask:
            case AskState(step=step):
                return self._states[step - first], b""
            case AskTrace(step=step):
                tree = self._trace(step)
                return TraceAnswer(tree.root.hex(), len(tree)), b""
            case AskOperation(step=step, index=index):
                return OperationAnswer(self._record(step, index), self._trace(step).proof(index).path), b""
            case AskInputs(step=step, index=index):
                artifact = self._inputs(step, index)
                return InputsAnswer(hashlib.sha256(artifact).hexdigest()), artifact

    @cached_property
    def _states(self) -> list[StateAnswer]:
        """What the segment has come to after each of its steps."""
        rerun, answers = self._rerun(), []
        chain, possible = self._opened.leaves[0].before or "", True
        for offset, (leaf, path) in enumerate(zip(self._opened.leaves, self._opened.paths, strict=True)):
            state, sent, loss = IMPOSSIBLE, sent_digest(()), None
            if possible:
                try:
                    redone = self.step(rerun, self._opened.first + offset)
                    state, sent, loss = self._stage.state_digest(), sent_digest(redone.sent), redone.loss
                except CodecError:
                    possible = False
            chain = state_chain(chain, state, sent, loss)
            answers.append(StateAnswer(chain, state, sent, loss, encode_message(leaf), path))
        return answers

    def _record(self, step: int, index: int) -> bytes:
        self._trace(step)
        leaves = self._leaves[step]
        if not 0 <= index < len(leaves):
            raise OperationError(f"step {step} has {len(leaves)} operations: there is no operation {index}")
        return leaves[index]

    def _trace(self, step: int) -> MerkleTree:
        if step not in self._traces:
            self._leaves = {step: self._run(step, self.tracer())}  # One step is disputed at a time.
            self._traces = {step: MerkleTree(self._leaves[step])}
        return self._traces[step]

    def _inputs(self, step: int, index: int) -> bytes:
        leaf = self._record(step, index)
        tracer = self.tracer(sources_of(leaf), index)
        self._run(step, tracer)
        return write_inputs(leaf, tracer.caught)

    def _run(self, step: int, tracer: Tracer) -> list[bytes]:
        """The leaves of a step, as far as ``tracer`` goes."""
        rerun = self._rerun()
        for earlier in range(self._opened.first, step):
            self.step(rerun, earlier)
        return traced(rerun, self._stage, step, tracer)

    def _rerun(self) -> Rerun:
        return self._auditor.rerun(self._replay, self._opened, self._stage)

    # --- how a step is done again: all that another class of player may do otherwise ------------------------------------

    def step(self, rerun: Rerun, step: int) -> Redone:
        """Run the next step of the segment."""
        return rerun.step(step)

    def tracer(self, catch: Collection[Source] = (), last: int | None = None) -> Tracer:
        """What records a step; see ``Tracer``."""
        return Tracer(catch, last)


def traced(rerun: Rerun, stage: Stage, step: int, tracer: Tracer) -> list[bytes]:
    """Run the next step of a segment under ``tracer``; its leaves, the step's result at the end."""
    named = dict(zip(("parameters", "first_moment", "second_moment"), stage.vectors, strict=True))
    buffers = {f"buffer {name}": buffer for name, buffer in stage.module.named_buffers()}
    try:
        try:
            given = {**named, "gradients": stage.gradients, **buffers}
            with tracer.recording(stage.module, given if rerun.anchor is None else {**given, "anchor": rerun.anchor}):
                redone = rerun.step(step)
        except CodecError:
            tracer.finish_impossible(IMPOSSIBLE, sent_digest(()))
        else:
            tracer.finish(stage.adam_steps, stage.vectors, stage.state_digest(), sent_digest(redone.sent), redone.loss)
    except TraceEndedError:
        pass
    return tracer.leaves


def record_again(
    auditor: OpeningReplayer, replay: ReplayStep, opening: bytes | bytearray, step: int, index: int
) -> bytes:
    """Leaf ``index`` of the trace of a step, for a judge who has to see what belongs there.

    Raises:
        OpeningError: see ``DisputePlayer``. OperationError: the step has no such operation.
    """
    leaves = DisputePlayer(auditor, replay, opening).leaves(step, index)
    if len(leaves) <= index:
        raise OperationError(f"step {step} has {len(leaves)} operations: there is no operation {index}")
    return leaves[index]
