"""Re-running a committed segment and saying whether it was done as committed: bit for bit, or near enough across classes."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.untrusted_text import untrusted
from protocol.audit import ProvenLeaf, StepLeaf, ends_segment, segment
from protocol.boundary import PayloadKey, Position, crossings, position_of
from protocol.contradiction import contradiction
from protocol.job.job import TrainingSpec
from protocol.job.sharding import shard_count
from protocol.task import AuditReport, Plan, ReplayAcross, ReplayOuter, ReplayStep
from trainer.audit.opening_file import Due, Opening, SegmentEnd, read_opening
from trainer.audit.step_leaves import RoundTrace, job_digest, made_after
from trainer.audit.tolerance import Compared, Distances
from trainer.audit.trivial_work import vain
from trainer.data.data import TokenFile, Windows
from trainer.errors import CodecError, NonFiniteError, OpeningError
from trainer.files.inputs import InputFile, InputFolder
from trainer.outer import OuterMethod, OuterState, local_digest, outer_method
from trainer.outer.audit import judge_outer
from trainer.outer.inner_update import update
from trainer.stage.model import Cut
from trainer.stage.short import ShortValues, narrow
from trainer.stage.stage import Stage, StageState, values_digest
from trainer.stage.steps import Recorded, Recorder, accumulate, digests


def cut_of(plan: Plan, stage: int) -> Cut:
    """The layers of a plan's stage."""
    layers = plan.layers[stage]
    return Cut(layers.first, layers.last, stage == 0, stage == len(plan.layers) - 1)


@dataclass(frozen=True)
class Redone:
    """What a step of the round came to when it was run again; ``payloads``: that it sent, ``sent``: their digests."""

    step: int
    samples: str
    sent: tuple[str, ...]
    loss: float | None
    payloads: Mapping[PayloadKey, bytes]


class Rerun:
    """A segment that is run again on a stage of one's own, step by step."""

    def __init__(self, command: ReplayStep, opened: Opening, stage: Stage, file: InputFile) -> None:
        """Begin with the state that the opening shows."""
        self._command = command
        self._opened = opened
        self._stage = stage
        self._training = stage.training
        self.position = position_of(command.plan, command.stage, command.replica, stage.training)
        self._tokens = TokenFile(file, stage.training.sequence, stage.shape.vocabulary)
        stage.restore(opened.state)

    @property
    def anchor(self) -> Tensor | None:
        """That the round began with, where the opening has it."""
        return self._opened.anchor

    def number(self, step: int) -> int:
        """What step of the job a step of the round is."""
        return self._command.first_step + step

    def windows(self, step: int) -> tuple[Windows, str]:
        """The samples of a step of the round, and their digest."""
        training = self._training
        return self._tokens.sample(
            training.seed, self.number(step), self._command.replica, training.batch, training.sampling, training.shares
        )

    def step(self, step: int) -> Redone:
        """Run the next step, which is ``step`` of the round.

        Raises:
            CodecError: it cannot be done with what it received.
        """
        windows, samples = self.windows(step)
        recorder = Recorder(Recorded(self._opened.payloads[step - self._opened.first]))
        loss = accumulate(self._stage, self.position, windows, recorder)
        update(self._stage, self.position, recorder, self._command.rate_at(step), self._command.total_steps)
        if ends_segment(step, self._training.commit_every, self._command.leaves) and self._opened.anchor is not None:
            self._stage.shorten(self._opened.anchor)
        sent = digests(recorder.sent, self.position.produced(crossings(self._training)))
        return Redone(step, samples, sent, loss, recorder.sent)

    def vain(self, redone: Redone) -> str:
        """How a step that was run again left next to nothing to compute: see ``trainer.audit.trivial_work``."""
        received = self._opened.payloads[redone.step - self._opened.first]
        return vain(self._stage, self.windows(redone.step)[0], received, redone.payloads)


class OpeningReplayer:
    """Judges openings of any stage of a job."""

    def __init__(
        self,
        config: Mapping[str, Any],
        training: TrainingSpec,
        train_file: InputFile,
        weights: Path | InputFolder | None,
        env_class: str,
        device: str,
        anchors: Callable[[str], Tensor | None] = lambda _: None,
    ) -> None:
        """Judge openings of a job: everything given here is the job's and this machine's, never the prover's.

        Args:
            weights: what the job begins from; None: from its seed.
            anchors: by digest, of rounds that this machine took part in.
        """
        self._config = config
        self._training = training
        self._file = train_file
        self._weights = weights
        self._env_class = env_class
        self._device = device
        self._anchors = anchors
        self._offered: dict[str, Tensor] = {}
        self._job = job_digest(training)

    def offer_anchor(self, data: bytes) -> None:
        """An anchor that the next openings may be said from, float32 bytes; the one before is forgotten."""
        usable = data[: len(data) // 4 * 4]
        values = torch.frombuffer(bytearray(usable), dtype=torch.float32)
        self._offered = {hashlib.sha256(data).hexdigest(): narrow(values)}

    def anchor(self, command: ReplayStep) -> Tensor | None:
        """The anchor of a round, where it is here, and the opening need not show it."""
        if command.anchor is None or command.anchor_in == "opening":
            return None
        found = self._offered.get(command.anchor)
        return self._anchors(command.anchor) if found is None else found

    def stage_of(self, command: ReplayStep) -> Stage:
        """A stage for what ``command`` speaks of, without its state."""
        cut = cut_of(command.plan, command.stage)
        return Stage(self._config, cut, self._training, self._weights, self._device, initialise=False)

    def open(
        self, command: ReplayStep, opening: bytes | bytearray, stage: Stage, ending: bool = False
    ) -> tuple[Opening, OuterMethod]:
        """The segment of an opening, shown to belong to the commitment; ``ending``: with what it came to.

        Raises:
            OpeningError: see ``read_opening``.
        """
        method = outer_method(self._training, stage.slots, stage.size)
        due = Due(
            root=command.root,
            leaves=command.leaves,
            round_index=command.round,
            step=command.step,
            position=position_of(command.plan, command.stage, command.replica, self._training),
            micros=crossings(self._training),
            layout=stage.layout,
            method=method,
            made=made_after(self._training, command.leaves),
            every=self._training.commit_every,
            ending=ending,
            anchor=self.anchor(command),
        )
        return read_opening(opening, due), method

    def rerun(self, command: ReplayStep, opened: Opening, stage: Stage) -> Rerun:
        """Begin to run a segment again."""
        return Rerun(command, opened, stage, self._file)

    def judge(self, command: ReplayStep, opening: bytes | bytearray) -> AuditReport:
        """Run the segment of the step again and compare; every failure that the prover can cause becomes a verdict."""
        examined = self._examine(command, opening, self._env_class, "this auditor is")
        if isinstance(examined, AuditReport):
            return examined
        opened, stage, method = examined
        found, idle = self._compare(command, opened, stage, method)
        operations = self._operations(opened, stage)
        if found:
            return AuditReport(command.audit, "mismatch", untrusted(found), operations)
        return AuditReport(command.audit, "match", untrusted(idle), operations, bool(idle))

    def judge_across(self, across: ReplayAcross, opening: bytes | bytearray) -> AuditReport:
        """Run the segment of a step of another class again and say whether it came near enough.

        All that is digests is compared bit for bit, as in ``judge``; so is the contribution, which is made again from the state
        that the prover shows. That state and what was sent must lie within the tolerances of ``trainer.audit.tolerance``.
        """
        command = across.replay
        examined = self._examine(command, opening, across.env_class, "and had said to be", ending=True)
        if isinstance(examined, AuditReport):
            return examined
        opened, stage, method = examined
        found = self._compare_beginning(command, opened, stage, method) or _compare_shown(
            command, opened, stage, method
        )
        if not found:
            compared = self.measure(command, opened, stage)
            found = compared.words
            if compared.near:
                idle, operations = compared.vain, self._operations(opened, stage)
                return AuditReport(command.audit, "match", untrusted(idle or found), operations, bool(idle))
        return AuditReport(command.audit, "mismatch", untrusted(found), self._operations(opened, stage))

    def _examine(
        self, command: ReplayStep, opening: bytes | bytearray, env_class: str, otherwise: str, *, ending: bool = False
    ) -> tuple[Opening, Stage, OuterMethod] | AuditReport:
        """What was opened, or the verdict where it cannot be run again; ``otherwise``: whose class ``env_class`` is, in words."""
        stage = self.stage_of(command)
        try:
            opened, method = self.open(command, opening, stage, ending=ending)
        except OpeningError as error:
            return AuditReport(command.audit, "malformed", untrusted(error))
        binding = _leaves_that_bind(command, opened)
        unbound = contradiction(binding, command)
        if unbound:
            return AuditReport(command.audit, "mismatch", untrusted(unbound), proof=binding)
        other = _other_class(opened, env_class)
        if other is not None:
            detail = f"the prover names {other}, {otherwise} {env_class}"
            return AuditReport(command.audit, "incomparable", untrusted(detail))
        return opened, stage, method

    def measure(self, command: ReplayStep, opened: Opening, stage: Stage) -> Compared:
        """Run a segment again that was opened with its ending, and say how far apart the two are."""
        assert opened.ending is not None
        distances, idle = Distances(stage), ""
        rerun = self.rerun(command, opened, stage)
        for offset, (leaf, sent) in enumerate(zip(opened.leaves, opened.ending.sent, strict=True)):
            step = opened.first + offset
            try:
                redone = rerun.step(step)
            except (CodecError, NonFiniteError) as error:
                return Compared(False, f"the step cannot be done with what it received: {error}", {})
            distances.add_step(rerun.windows(step)[0], sent, redone.payloads, leaf.loss, redone.loss)
            idle = idle or rerun.vain(redone)
        distances.add_state(opened.state, opened.ending.state, stage.own_state())
        return replace(distances.compared(), vain=idle)

    def _operations(self, opened: Opening, stage: Stage) -> int:
        return stage.operations_per_token * self._training.batch * self._training.sequence * len(opened.leaves)

    def judge_outer(self, command: ReplayOuter, opening: bytes | bytearray) -> AuditReport:
        """Run an outer step again and compare, which takes nothing of a frozen model."""
        cut = cut_of(command.plan, command.stage)
        # Of a lean stage all that is asked is where parameters lie.
        device = "meta" if self._training.memory == "lean" else "cpu"
        stage = Stage(self._config, cut, self._training, self._weights, device, initialise=False, runs=False)
        return judge_outer(outer_method(self._training, stage.slots, stage.size), stage, command, opening)

    def _compare(self, command: ReplayStep, opened: Opening, stage: Stage, method: OuterMethod) -> tuple[str, str]:
        """The first difference in words, empty where there is none, and how it was in vain."""
        found, idle = self._compare_beginning(command, opened, stage, method), ""
        if found:
            return found, idle
        rerun = self.rerun(command, opened, stage)
        opened.begun()
        for offset, leaf in enumerate(opened.leaves):
            try:
                redone = rerun.step(opened.first + offset)
            except CodecError as error:
                return f"the step cannot be done with what it received: {error}", idle
            idle = idle or rerun.vain(redone)
            found = self._compare_step(leaf, redone) or _compare_contribution(
                command, opened, redone.step, stage, stage.said, method
            )
            if found:
                return found, idle
        if stage.state_digest() != opened.leaves[-1].after:
            return "the state after the step is not what the step gives", idle
        return "", idle

    def _compare_beginning(self, command: ReplayStep, opened: Opening, stage: Stage, method: OuterMethod) -> str:
        """Hold what the segment begins with against what it was due to begin with, which takes no running."""
        first, anchor = opened.leaves[0], opened.leaves[0].anchor
        if opened.previous is not None and (opened.previous.after, opened.previous.anchor) != (first.before, anchor):
            return "the step does not begin where the one before ended"
        if command.round == 0 and anchor != self._initial(stage.cut):
            return "the first round does not begin with the job's initial weights"
        return self._compare_due(opened, self.rerun(command, opened, stage)) or _compare_start(command, opened, method)

    def _compare_due(self, opened: Opening, rerun: Rerun) -> str:
        """Hold the leaves against what the coordinator decided, which takes no running."""
        for offset, leaf in enumerate(opened.leaves):
            number, samples = rerun.number(opened.first + offset), rerun.windows(opened.first + offset)[1]
            if leaf.step != number or leaf.samples != samples:
                return f"the leaf is of step {leaf.step} with samples {leaf.samples[:16]}, due were {number} and {samples[:16]}"
            if leaf.job != self._job:
                return f"the leaf is of the job {leaf.job}, due was {self._job}"
            if (leaf.anchor, leaf.local) != (opened.last.anchor, opened.last.local):
                return "the leaves of the round name different beginnings of it"
        return ""

    @staticmethod
    def _compare_step(leaf: StepLeaf, redone: Redone) -> str:
        if redone.sent != leaf.sent:
            return "what was sent to the neighbours is not what the step gives"
        if redone.loss != leaf.loss:
            return f"the loss is {redone.loss!r}, committed was {leaf.loss!r}"
        return ""

    def _initial(self, cut: Cut) -> str:
        """Digest of the parameters that the job begins with: the anchor of the first round, which no round before gives."""
        return values_digest(Stage(self._config, cut, self._training, self._weights).values())


def _compare_start(command: ReplayStep, opened: Opening, method: OuterMethod) -> str:
    """Hold the parameters that the round began with against its anchor and what the replica carried over."""
    if opened.anchor is not None:
        if values_digest(opened.anchor) != opened.leaves[0].anchor:
            return "the anchor is not the one that the leaf names"
        shared = OuterState(opened.anchor, opened.anchor)
        if command.local is None and opened.last.local != local_digest(method.fresh(shared)):
            return "the replica began afresh, and shows that it carried something over"
    if opened.first > 0:
        return ""
    begun = opened.leaves[0].anchor
    if opened.local and opened.anchor is not None:
        begun = values_digest(method.start(OuterState(opened.anchor, opened.anchor), opened.local, command.round))
    if opened.state.values_digest() != begun:
        return "the round's first step does not begin with its anchor"
    return ""


def _compare_contribution(
    command: ReplayStep,
    opened: Opening,
    step: int,
    stage: Stage,
    values: Callable[[], Tensor | ShortValues],
    method: OuterMethod,
) -> str:
    """Make the contribution again after the step ``made``, and what is carried over after the last one.

    Args:
        values: of the parameters after ``step``, flat ``[n]``.
    """
    leaf, last = opened.leaves[step - opened.first], command.leaves - 1
    made = made_after(stage.training, command.leaves)
    if step not in (made, last):
        return "" if leaf.pseudo_gradient is None else "a pseudo-gradient in the middle of the round"
    if leaf.pseudo_gradient != opened.last.pseudo_gradient:
        return "the leaf of the step that made the pseudo-gradient binds another one than the last leaf"
    if opened.anchor is None:  # The method carries nothing, and the contribution was made in another segment.
        return "" if leaf.carried is None else "something is carried into the next round where nothing can be"
    count = shard_count(stage.training, len(command.plan.replicas()))
    given = method.contribution(opened.anchor, values(), opened.local, command.round, count)
    if step == made and given.digest != leaf.pseudo_gradient:
        return "the pseudo-gradient is not what the round gives"
    if step == last and local_digest(given.local) != leaf.carried:
        return "what is carried into the next round is not what this one gives"
    return ""


def _compare_shown(command: ReplayStep, opened: Opening, stage: Stage, method: OuterMethod) -> str:
    """Make the contribution again from the state that the prover shows, where the round ends with the segment."""
    assert opened.ending is not None
    last = opened.first + len(opened.leaves) - 1
    if last != command.leaves - 1:
        return ""
    return _compare_contribution(command, opened, last, stage, opened.ending.state.values, method)


def _other_class(opened: Opening, env_class: str) -> str | None:
    """What else than ``env_class`` a leaf names."""
    return next((leaf.env_class for leaf in opened.leaves if leaf.env_class != env_class), None)


def _leaves_that_bind(command: ReplayStep, opened: Opening) -> tuple[ProvenLeaf, ...]:
    """The segment's first leaf and the round's last, which bind all that was committed to beside them."""
    last = ProvenLeaf(command.leaves - 1, opened.last, opened.last_path)
    return (
        (last,) if opened.first == last.place else (ProvenLeaf(opened.first, opened.leaves[0], opened.paths[0]), last)
    )


def state_before(
    trace: RoundTrace, step: int, scratch: Stage, position: Position, tokens: TokenFile, replica: int, total_steps: int
) -> StageState:
    """The state before ``step`` of a kept round, re-run from the nearest kept state where it was not kept itself.

    Then it is ``scratch``'s own, and changes with it.
    """
    at, state = trace.nearest_state(step)
    if at == step:
        return state
    run_up_to(trace, step, scratch, position, tokens, replica, total_steps)
    return scratch.own_state()


def run_up_to(
    trace: RoundTrace,
    step: int,
    scratch: Stage,
    position: Position,
    tokens: TokenFile,
    replica: int,
    total_steps: int,
    *,
    last: bool = False,
) -> None:
    """Leave ``scratch`` in the state before ``step`` of a kept round. ``last``: the states of ``trace`` are let go."""
    at, state = trace.nearest_state(step)
    scratch.restore(state)
    del state
    if last:
        trace.states.clear()
    run_on(trace, range(at, step), scratch, position, tokens, replica, total_steps)


def run_on(
    trace: RoundTrace,
    steps: range,
    scratch: Stage,
    position: Position,
    tokens: TokenFile,
    replica: int,
    total_steps: int,
) -> tuple[dict[PayloadKey, bytes], ...]:
    """Run steps of a kept round again, from where ``scratch`` is; what each has sent."""
    training, sent = scratch.training, []
    for index in steps:
        windows, _ = tokens.sample(
            training.seed, trace.first_step + index, replica, training.batch, training.sampling, training.shares
        )
        recorder = Recorder(Recorded(trace.payloads[index]))
        accumulate(scratch, position, windows, recorder)
        update(scratch, position, recorder, trace.rate_index(index), total_steps)
        if trace.ends_segment(index):
            scratch.shorten(trace.anchor)
        sent.append(recorder.sent)
    return tuple(sent)


def ending_of(
    trace: RoundTrace, first: int, scratch: Stage, position: Position, tokens: TokenFile, replica: int, total_steps: int
) -> SegmentEnd:
    """What the segment of a kept round that begins with ``first`` came to, run again on ``scratch``.

    ``scratch`` is left with the state after it.
    """
    run_up_to(trace, first, scratch, position, tokens, replica, total_steps)
    due = range(first, segment(first, trace.segment, len(trace.leaves))[1])
    sent = run_on(trace, due, scratch, position, tokens, replica, total_steps)
    return SegmentEnd(scratch.state(), sent)
