"""What a worker commits to: one Merkle leaf for each inner step, and what it keeps to open any of them.

A leaf names the step, the samples, every payload that crossed the stage's boundaries, the state before and after, and the loss.
The last leaf of a round also binds the pseudo-gradient to the anchor that the round began with; where it was made before the
round's end, the leaf of that step binds it too. Leaves form a chain (each begins with the state that the one before ended with),
so an opening shows the leaf before as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta
from torch import Tensor

from trainer.errors import RoundError
from trainer.outer.method import Local, local_digest
from trainer.stage import StageState
from trainer.steps import PayloadKey
from transport.merkle import MerkleTree
from transport.wire.codec import encode as encode_message
from transport.wire.ids import Digest, FiniteLoss, ShortText, StepIndex
from transport.wire.job import TrainingSpec

KEPT_ROUNDS = 2  # An audit is drawn when its round is complete, while the next one is already running.
MAX_AUDIT_BYTES = 256 << 20  # States and payloads of the kept rounds; beyond it, fewer states and more re-running.


class StepLeaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One committed step. ``step`` is the job's global index; ``received`` and ``sent`` are in ``Position`` order.

    ``anchor``: digest of the anchor that the round began with; ``local``: of what the replica carried into it beside (``None``:
    the method carries nothing). On the round's last leaf: ``pseudo_gradient``, and ``carried``, which is ``local`` of the next
    round if this one's contribution counts. On the leaf after which the pseudo-gradient was made: ``pseudo_gradient``.
    """

    step: StepIndex
    env_class: ShortText
    samples: Digest
    received: Annotated[tuple[Digest, ...], Meta(max_length=1280)]
    sent: Annotated[tuple[Digest, ...], Meta(max_length=512)]
    before: Digest
    after: Digest
    anchor: Digest
    loss: FiniteLoss | None = None
    pseudo_gradient: Digest | None = None
    local: Digest | None = None
    carried: Digest | None = None


@dataclass
class RoundTrace:
    """Leaves of one round of one member, and what opening them takes.

    Attributes:
        anchor: anchor that the round began with, flat.
        rate_step: where the learning rate's schedule stands at ``first_step``; None: there too.
        every: a state is kept before each ``every``-th step.
        local: what the replica carried into the round.
    """

    first_step: int
    anchor: Tensor
    every: int
    local: Local = field(default_factory=dict)
    rate_step: int | None = None
    leaves: list[StepLeaf] = field(default_factory=list)
    states: dict[int, StageState] = field(default_factory=dict)
    payloads: list[dict[PayloadKey, bytes]] = field(default_factory=list)

    def rate_index(self, step: int) -> int:
        """Where the learning rate's schedule stands at ``step``, counted within the round."""
        return (self.first_step if self.rate_step is None else self.rate_step) + step

    def wants_state(self) -> bool:
        """Whether the state before the next step is to be kept."""
        return len(self.leaves) % self.every == 0

    def add(self, leaf: StepLeaf, received: Mapping[PayloadKey, bytes]) -> None:
        """Commit to one more step."""
        self.leaves.append(leaf)
        self.payloads.append(dict(received))

    @cached_property
    def local_digest(self) -> str | None:
        """Digest of ``local``."""
        return local_digest(self.local)

    def bind(self, pseudo_gradient: str, carried: str | None = None, made: int = -1) -> None:
        """Put the digests of the pseudo-gradient and of what is carried over into the last leaf: the round is over.

        Args:
            made: the step, within the round, after which the pseudo-gradient was made; its leaf gets the digest too.
        """
        self.leaves[made] = msgspec.structs.replace(self.leaves[made], pseudo_gradient=pseudo_gradient)
        self.leaves[-1] = msgspec.structs.replace(self.leaves[-1], pseudo_gradient=pseudo_gradient, carried=carried)

    def tree(self) -> MerkleTree:
        """The Merkle tree over the leaves."""
        return MerkleTree([encode_message(leaf) for leaf in self.leaves])

    def nearest_state(self, step: int) -> tuple[int, StageState]:
        """The kept state nearest before ``step`` (counted within the round).

        Raises:
            RoundError: the round has no such step.
        """
        if not 0 <= step < len(self.leaves):
            raise RoundError(f"the round has {len(self.leaves)} steps: there is no step {step} to open")
        at = max(kept for kept in self.states if kept <= step)
        return at, self.states[at]


def made_after(training: TrainingSpec, steps: int) -> int:
    """The step, within a round of so many, after which its pseudo-gradient is made: the last, or ``overlap`` before it."""
    return max(0, steps - 1 - training.overlap)


def state_interval(steps: int, state_bytes: int, payload_bytes: int) -> int:
    """Steps between two kept states such that ``KEPT_ROUNDS`` rounds stay within ``MAX_AUDIT_BYTES``, where one state fits."""
    room = MAX_AUDIT_BYTES // KEPT_ROUNDS - steps * payload_bytes
    states = max(1, room // max(1, state_bytes))
    return max(1, -(-steps // states))
