"""What a worker commits to: one Merkle leaf for each inner step, and what it keeps to open any of them.

A leaf (``protocol.audit.StepLeaf``) names the step, the samples, every payload that crossed the stage's boundaries and the
loss; every few steps, which make a *segment*, the state before and after too. The last leaf of a round also binds the
pseudo-gradient to the anchor that the round began with; where it was made before the round's end, the leaf of that step binds
it too. Segments form a chain (each begins with the state that the one before ended with), so an opening shows the leaf before
as well.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
from torch import Tensor

from protocol.audit import StepLeaf, ends_segment
from protocol.boundary import PayloadKey
from protocol.codec import encode as encode_message
from protocol.codec import encode_json
from protocol.job.job import TrainingSpec
from protocol.merkle import MerkleTree
from trainer.errors import RoundError
from trainer.outer.method import Local, local_digest
from trainer.stage.snapshots import SnapshotKeeper
from trainer.stage.stage import Stage, StageState


@dataclass
class RoundTrace:
    """Leaves of one round of one member, and what opening them takes.

    Attributes:
        anchor: anchor that the round began with, flat.
        rate_step: where the learning rate's schedule stands at ``first_step``; None: there too.
        every: a state is kept before each ``every``-th step; a multiple of ``segment``.
        segment: steps between two hashes of the state.
        local: what the replica carried into the round.
    """

    first_step: int
    anchor: Tensor
    every: int
    local: Local = field(default_factory=dict)
    rate_step: int | None = None
    segment: int = 1
    leaves: list[StepLeaf] = field(default_factory=list)
    states: dict[int, StageState] = field(default_factory=dict)
    payloads: list[dict[PayloadKey, bytes]] = field(default_factory=list)
    hashes: dict[int, Future[str]] = field(default_factory=dict)
    """Of the state before a step, at the ends of segments."""

    def rate_index(self, step: int) -> int:
        """Where the learning rate's schedule stands at ``step``, counted within the round."""
        return (self.first_step if self.rate_step is None else self.rate_step) + step

    def ends_segment(self, step: int) -> bool:
        """Whether a step of the finished round is the last of its segment."""
        return ends_segment(step, self.segment, len(self.leaves))

    def before_step(self, stage: Stage, keeper: SnapshotKeeper) -> None:
        """Keep and hash the state where the next step begins a segment."""
        step = len(self.leaves)
        if step % self.every == 0 and step not in self.states:
            self.states[step] = keeper.keep(stage)
        if step % self.segment == 0:
            kept = self.states.get(step)
            self.hashes[step] = Future() if kept is None else keeper.digest(kept)
            if kept is None:  # It changes at once.
                self.hashes[step].set_result(stage.state_digest())

    def after_steps(self, stage: Stage, keeper: SnapshotKeeper) -> None:
        """Hash the state at the round's end, which must not change until ``bind`` has returned."""
        self.hashes.setdefault(len(self.leaves), keeper.digest_now(stage))

    def add(self, leaf: StepLeaf, received: Mapping[PayloadKey, bytes]) -> None:
        """Commit to one more step."""
        self.leaves.append(leaf)
        self.payloads.append(dict(received))

    @cached_property
    def local_digest(self) -> str | None:
        """Digest of ``local``."""
        return local_digest(self.local)

    def bind(self, pseudo_gradient: str, carried: str | None = None, made: int = -1) -> None:
        """The round is over: put the digests of states, of the pseudo-gradient and of what is carried over into the leaves.

        Args:
            made: the step, within the round, after which the pseudo-gradient was made; its leaf gets the digest too.
        """
        for step, state in self.hashes.items():
            if step < len(self.leaves):
                self.leaves[step] = msgspec.structs.replace(self.leaves[step], before=state.result())
            if step > 0:
                self.leaves[step - 1] = msgspec.structs.replace(self.leaves[step - 1], after=state.result())
        self.leaves[made] = msgspec.structs.replace(self.leaves[made], pseudo_gradient=pseudo_gradient)
        self.leaves[-1] = msgspec.structs.replace(self.leaves[-1], pseudo_gradient=pseudo_gradient, carried=carried)

    def tree(self) -> MerkleTree:
        """The Merkle tree over the leaves."""
        return MerkleTree([encode_message(leaf) for leaf in self.leaves])

    def check(self, step: int) -> None:
        """Raise ``RoundError`` where the round has no such step."""
        if not 0 <= step < len(self.leaves):
            raise RoundError(f"the round has {len(self.leaves)} steps: there is no step {step} to open")

    def nearest_state(self, step: int) -> tuple[int, StageState]:
        """The kept state nearest before ``step`` (counted within the round).

        Raises:
            RoundError: the round has no such step.
        """
        self.check(step)
        at = max(kept for kept in self.states if kept <= step)
        return at, self.states[at]


def made_after(training: TrainingSpec, steps: int) -> int:
    """The step, within a round of so many, after which its pseudo-gradient is made: the last, or ``overlap`` before it."""
    return max(0, steps - 1 - training.overlap)


def job_digest(training: TrainingSpec) -> str:
    """What stands in every leaf for all that the coordinator decides: hyper-parameters, order of samples, seed."""
    return hashlib.sha256(encode_json(training)).hexdigest()
