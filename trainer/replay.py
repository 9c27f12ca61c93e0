"""Re-running one committed step, bit for bit, and saying whether it was done as committed."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.data import TokenFile
from trainer.errors import CodecError, OpeningError
from trainer.model import Cut
from trainer.opening import Opening, read_opening
from trainer.outer import OuterMethod, OuterState, local_digest, outer_method
from trainer.stage import Stage, StageState, vector_digest
from trainer.steps import Position, Recorded, Recorder, accumulate, digests
from trainer.trace import RoundTrace, made_after
from trainer.update import crossings, update
from transport.wire.job import TOGETHER, TrainingSpec
from transport.wire.task import AuditReport, Plan, ReplayStep


def cut_of(plan: Plan, stage: int) -> Cut:
    """The layers of a plan's stage."""
    layers = plan.layers[stage]
    return Cut(layers.first, layers.last, stage == 0, stage == len(plan.layers) - 1)


def position_of(plan: Plan, stage: int, replica: int, training: TrainingSpec) -> Position:
    """Where a member stands, and with whom it exchanges in every step."""
    peers = tuple(p for p in plan.replicas() if p != replica) if training.outer in TOGETHER else ()
    return replace(Position.of(stage, len(plan.layers), training), replica=replica, peers=peers)


class Auditor:
    """Judges openings of any stage of a job."""

    def __init__(
        self,
        config: Mapping[str, Any],
        training: TrainingSpec,
        train_file: Path,
        weights: Path | None,
        env_class: str,
        device: str,
    ) -> None:
        """Judge openings of a job: everything given here is the job's and this machine's, never the prover's.

        Args:
            weights: what the job begins from; None: from its seed.
        """
        self._config = config
        self._training = training
        self._file = train_file
        self._weights = weights
        self._env_class = env_class
        self._device = device

    def judge(self, command: ReplayStep, opening: bytes) -> AuditReport:
        """Re-run the step and compare; every failure that the prover can cause becomes a verdict."""
        cut = cut_of(command.plan, command.stage)
        stage = Stage(self._config, cut, self._training, self._weights, self._device, initialise=False)
        position = position_of(command.plan, command.stage, command.replica, self._training)
        micros, size = crossings(self._training), stage.parameters.numel()
        method = outer_method(self._training, stage.slots, size)
        carries = tuple(sorted(method.fresh(OuterState(torch.zeros(size), torch.zeros(size)))))
        try:
            opened = read_opening(
                opening, command.root, command.leaves, command.step, position, micros, size, carries,
                made_after(self._training, command.leaves),
            )  # fmt: skip
        except OpeningError as error:
            return AuditReport(command.audit, "malformed", str(error)[:4000])
        unbound = _compare_bindings(command, opened)
        if unbound:
            return AuditReport(command.audit, "mismatch", unbound)
        if opened.leaf.env_class != self._env_class:
            detail = f"the prover names {opened.leaf.env_class}, this auditor is {self._env_class}"
            return AuditReport(command.audit, "incomparable", detail[:4000])
        found = self._compare(command, opened, stage, position, method)
        operations = stage.operations_per_token * self._training.batch * self._training.sequence
        return AuditReport(command.audit, "mismatch" if found else "match", found[:4000], operations)

    def _compare(
        self, command: ReplayStep, opened: Opening, stage: Stage, position: Position, method: OuterMethod
    ) -> str:
        """The first difference in words, empty where there is none."""
        leaf, step = opened.leaf, command.first_step + command.step
        tokens = TokenFile(self._file, self._training.sequence, stage.shape.vocabulary)
        windows, samples = tokens.sample(
            self._training.seed, step, command.replica, self._training.batch, self._training.sampling
        )
        if leaf.step != step or leaf.samples != samples:
            return (
                f"the leaf is of step {leaf.step} with samples {leaf.samples[:16]}, due were {step} and {samples[:16]}"
            )
        if opened.previous is not None and (opened.previous.after, opened.previous.anchor) != (
            leaf.before,
            leaf.anchor,
        ):
            return "the step does not begin where the one before ended"
        if command.first_step == 0 and leaf.anchor != self._initial(stage.cut):
            return "the first round does not begin with the job's initial weights"
        wrong = _compare_start(command, opened, method)
        if wrong:
            return wrong
        stage.restore(opened.state)
        recorder = Recorder(Recorded(opened.payloads))
        try:
            loss = accumulate(stage, position, windows, recorder)
            update(stage, position, recorder, command.rate_index, command.total_steps)
        except CodecError as error:
            return f"the step cannot be done with what it received: {error}"
        sent = digests(recorder.sent, position.produced(crossings(self._training)))
        if sent != leaf.sent:
            return "what was sent to the neighbours is not what the step gives"
        if stage.state_digest() != leaf.after:
            return "the state after the step is not what the step gives"
        if loss != leaf.loss:
            return f"the loss is {loss!r}, committed was {leaf.loss!r}"
        return _compare_contribution(command, opened, stage, method, made_after(self._training, command.leaves))

    def _initial(self, cut: Cut) -> str:
        """Digest of the parameters that the job begins with: the anchor of the first round, which no round before gives."""
        return vector_digest(Stage(self._config, cut, self._training, self._weights, self._device).state().parameters)


def _compare_start(command: ReplayStep, opened: Opening, method: OuterMethod) -> str:
    """Hold the parameters that the round began with against its anchor and what the replica carried over."""
    if opened.anchor is not None:
        if vector_digest(opened.anchor) != opened.leaf.anchor:
            return "the anchor is not the one that the leaf names"
        shared = OuterState(opened.anchor, torch.zeros_like(opened.anchor))
        if command.local is None and opened.leaf.local != local_digest(method.fresh(shared)):
            return "the replica began afresh, and shows that it carried something over"
    if command.step > 0:
        return ""
    begun = opened.leaf.anchor
    if opened.local:
        assert opened.anchor is not None
        begun = vector_digest(method.start(OuterState(opened.anchor, opened.anchor), opened.local, command.round))
    if vector_digest(opened.state.parameters) != begun:
        return "the round's first step does not begin with its anchor"
    return ""


def _compare_contribution(command: ReplayStep, opened: Opening, stage: Stage, method: OuterMethod, made: int) -> str:
    """Make the contribution again after the step ``made``, and what is carried over after the last one."""
    last = command.leaves - 1
    if command.step not in (made, last):
        return "" if opened.leaf.pseudo_gradient is None else "a pseudo-gradient in the middle of the round"
    assert opened.anchor is not None
    given = method.contribution(opened.anchor, stage.parameters, opened.local, command.round)
    if opened.leaf.pseudo_gradient != opened.last.pseudo_gradient:
        return "the leaf of the step that made the pseudo-gradient binds another one than the last leaf"
    if command.step == made and hashlib.sha256(given.data).hexdigest() != opened.leaf.pseudo_gradient:
        return "the pseudo-gradient is not what the round gives"
    if command.step == last and local_digest(given.local) != opened.leaf.carried:
        return "what is carried into the next round is not what this one gives"
    return ""


def _compare_bindings(command: ReplayStep, opened: Opening) -> str:
    """Hold leaves against what else was committed to and agreed on; that takes no re-running, and no environment class."""
    bound = opened.last.pseudo_gradient
    if bound != command.pseudo_gradient:
        name = "none" if bound is None else bound[:16]
        return f"the member committed to the pseudo-gradient {command.pseudo_gradient[:16]}, its last leaf binds {name}"
    if opened.last.carried != command.carried:
        return "what the member committed to carry into the next round is not what its last leaf binds"
    if opened.last.local != opened.leaf.local or (command.local is not None and opened.leaf.local != command.local):
        return "what the leaf names as carried into the round is not what the round before committed to"
    if opened.last.anchor != opened.leaf.anchor:
        return f"the leaf names the anchor {opened.leaf.anchor[:16]}, the last one {opened.last.anchor[:16]}"
    if command.anchor is not None and opened.leaf.anchor != command.anchor:
        return f"the leaf names the anchor {opened.leaf.anchor[:16]}, agreed on was {command.anchor[:16]}"
    return ""


def state_before(
    trace: RoundTrace, step: int, scratch: Stage, position: Position, tokens: TokenFile, replica: int, total_steps: int
) -> StageState:
    """The state before ``step`` of a kept round, re-run from the nearest kept state where it was not kept itself."""
    at, state = trace.nearest_state(step)
    if at == step:
        return state
    scratch.restore(state)
    training = scratch.training
    for index in range(at, step):
        global_step = trace.first_step + index
        windows, _ = tokens.sample(training.seed, global_step, replica, training.batch, training.sampling)
        recorded = Recorded(trace.payloads[index])
        accumulate(scratch, position, windows, recorded)
        update(scratch, position, recorded, trace.rate_index(index), total_steps)
    return scratch.state()
