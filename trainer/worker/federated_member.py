"""A member of a federated job: data, and all that is made of it but one noised update a round, stays on its owner's machine.

What leaves, and what it is made of::

    contribution     the noised update (``trainer.outer.private``) and what everybody knows
    commitment       the digest of that contribution, and nothing of the steps: their leaves name samples, losses and states
    unclipped        a noised bit, where the clip follows the updates
    heldout          the noised loss of data that is held back, where the job asks for it (``trainer.outer.owners_loss``)
    new state        the contributions of all owners

With secure sums (``federated.sum``) the agent gets the noised update in place of the other owners, and masks it; the commitment
is to the update behind 32 bytes that nobody else knows, so it tells nothing. The new state is made of the sum of all. Bit and
loss are parts of the sum.

Where the promise is about one example (``privacy.unit``) the noise is in each step (``trainer.outer.private_steps``), and what
comes of a round's steps leaves as it is.

Losses, the optimizer's moments and openings stay where they are: each is a function of the data without noise on it. A job whose
``federated.privacy`` is null leaves updates and losses as they are, and still opens nothing.
"""

import hashlib
import logging
import os
from dataclasses import replace

from common.untrusted_text import untrusted
from protocol.audit import (
    AuditReport,
    BisectAnswer,
    BisectQuery,
    LeafShown,
    NoAnswer,
    OpenStep,
    OuterRecord,
    ReplayAcross,
    ReplayStep,
    ShowLeaf,
    StepOpened,
)
from protocol.boundary import Position
from protocol.job.federated import FederatedSpec
from protocol.task import ApplyRound, BeginRound, TaskReport
from protocol.worker import SumVector
from trainer.audit.step_leaves import RoundTrace
from trainer.data.data import Windows
from trainer.data.examples import OwnExamples
from trainer.errors import RoundError
from trainer.files.tensors import Piece
from trainer.outer import OuterState
from trainer.outer.audit import Shown
from trainer.outer.inner_update import update
from trainer.outer.method import Layout
from trainer.outer.owners_loss import OwnersLoss, owners_loss
from trainer.outer.private import NoiseSource, PrivacyTerms, SystemNoise, protect
from trainer.outer.private_steps import StepPrivacy, private_gradients
from trainer.outer.summed import SummedTerms, mean_of, summand
from trainer.stage.stage import StageState
from trainer.stage.steps import Recorder
from trainer.worker.inbox import Audit, RoundKey, Work
from trainer.worker.member import Made, StageMember
from trainer.worker.opening_service import OpeningService

LOG = logging.getLogger("cottage.worker")
SALT = 32  # Bytes in front of an update that a commitment is to, and that stay here.
_CLOSED = "the data of a federated job stays at its owner: nothing that is made of it is shown or run again"


class NoOpenings(OpeningService):
    """Keeps the outer steps, which are made of what everybody has; of inner steps nothing."""

    def keep(self, key: RoundKey, trace: RoundTrace, total_steps: int, position: Position) -> list[StageState]:
        """Nothing is kept: the states are free at once."""
        return list(trace.states.values())


class FederatedMember(StageMember):
    """The whole model on its owner's machine.

    Attributes:
        noise: where noise comes from.
    """

    opener = NoOpenings
    noise: NoiseSource = SystemNoise()
    _begun = 0
    _clip: float | None = None
    _total: bytes | bytearray = b""
    _loss: OwnersLoss | None = None

    @property
    def agreed(self) -> FederatedSpec:
        """What its owner agreed to."""
        assert self._federated is not None
        return self._federated

    def record(self) -> None:
        """Nothing of a round goes to the agent's disk: nothing could be opened from it."""

    def obey(self, order: Work, payload: bytearray, split: int = 0) -> None:
        """As ``StageMember.obey``; raises ``RoundError`` where a round would be beyond what the owner agreed to."""
        if isinstance(order, BeginRound):
            self._check(order)
            self._clip = order.clip
        if isinstance(order, ApplyRound):
            self._total = payload
        super().obey(order, payload, split)

    def _check(self, order: BeginRound) -> None:
        federated = self.agreed
        if federated.privacy is None:
            return
        if order.validate:
            raise RoundError("a loss of this owner's data was asked for, which its updates' privacy does not cover")
        if federated.per_example and order.steps > self._training.inner_steps:
            raise RoundError(
                f"a round of {order.steps} steps was asked for, and its owner agreed to {self._training.inner_steps}: each tells "
                "a little more of an example"
            )
        if federated.rounds_allowed is not None and self._begun >= federated.rounds_allowed and order.steps:
            raise RoundError(
                f"{self._begun} updates have left this machine, and the privacy budget that its owner agreed to has no room for "
                "another"
            )

    def _train(self, command: BeginRound, key: RoundKey) -> None:
        self._loss = self._measured(command.round)
        super()._train(command, key)

    def _measured(self, number: int) -> OwnersLoss | None:
        """The loss of what is held back at the parameters that all owners have; None where it is not told."""
        privacy, held = self.agreed.privacy, self._files.heldout
        if privacy is None or privacy.heldout is None or held is self._files.train:
            return None
        own = self._method.start(self._outer, self._local, number)
        self._load(self._outer.anchor)
        try:
            found = owners_loss(self.stage, held.heldout(), privacy.heldout.most)
        finally:
            self._load(own)
        LOG.info("round %d: the loss of %d windows was measured", number + 1, found.windows)
        return found

    def compute(self, windows: Windows, recorder: Recorder, rate_index: int, total_steps: int) -> float | None:
        """As ``StageMember.compute``; where the promise is about one example, a step of noised gradients, without a loss."""
        privacy = self.agreed.privacy
        if privacy is None or not privacy.per_example:
            return super().compute(windows, recorder, rate_index, total_steps)
        if not isinstance(self._files.train, OwnExamples):
            raise RoundError(
                "this worker's data has no examples that are drawn one by one, and their privacy is promised"
            )
        private_gradients(self.stage, windows, StepPrivacy.of(privacy), self.noise)
        self._left_out += not update(self.stage, self._position, recorder, rate_index, total_steps)
        return None

    def made(self, command: BeginRound, trace: RoundTrace) -> Made:
        """The contribution of the noised update, or of the update of noised steps, once a round."""
        privacy = self.agreed.privacy
        if privacy is None:
            return super().made(command, trace)
        self._begun += 1
        layout = Layout(tuple(self.stage.slots), self.stage.size)
        if self.sums:
            return self._summand(command, trace, layout)
        loss = None if self._loss is None else self._loss.told(privacy, self.noise)
        if privacy.per_example:
            LOG.info("round %d: each step has noise of %s clips", command.round + 1, privacy.noise_multiplier)
            return replace(super().made(command, trace), heldout=loss)
        terms = PrivacyTerms.of(privacy, command.clip)
        safe = protect(trace.anchor, self.stage.said(), layout, terms, self.noise)
        given = self._method.contribution(trace.anchor, safe.parameters, trace.local, command.round, self._count)
        LOG.info("round %d: clipped to %.3g, with noise of %.3g such norms", command.round + 1, terms.clip, terms.noise)
        return Made(given.digest, given.pieces, given.local, safe.unclipped, loss)

    @property
    def sums(self) -> bool:
        """Whether nobody sees more of a round's updates than their sum."""
        return self.agreed.sum == "secure"

    def _summand(self, command: BeginRound, trace: RoundTrace, layout: Layout) -> Made:
        """The update as steps of the sum's grid; what it is committed to by would tell it to nobody who guessed."""
        terms = SummedTerms.of(self.agreed, command.clip)
        told = {} if self._loss is None else {"heldout": self._loss.mean}
        steps = summand(trace.anchor, self.stage.said(), layout, terms, self.noise, told)
        piece = os.urandom(SALT) + steps.tobytes()
        LOG.info(
            "round %d: clipped to %.3g, with noise of %.3g such norms, for a secure sum",
            command.round + 1,
            terms.privacy.clip,
            terms.privacy.noise,
        )
        return Made(hashlib.sha256(piece).hexdigest(), (piece,), {})

    def _send_contribution(self, command: BeginRound, key: RoundKey, made: Made, steps: int) -> None:
        if not self.sums:
            super()._send_contribution(command, key, made, steps)
            return
        (piece,) = made.pieces
        self._outbox.put(SumVector(*key), memoryview(piece)[SALT:])

    def _report_holding(self) -> None:
        if not self.sums:  # Else nobody sends anything that could be held.
            super()._report_holding()

    def _step_together(self, command: ApplyRound) -> tuple[OuterState, OuterRecord, Shown]:
        if not self.sums:
            return super()._step_together(command)
        if command.total is None:
            raise RoundError("a round of this job ends with the sum of its updates, and none is named")
        layout, terms = Layout(tuple(self.stage.slots), self.stage.size), SummedTerms.of(self.agreed, self._clip)
        mean = mean_of(self._total, command.total, layout, terms, len(command.contributors))
        before, self._total = self._outer, b""
        after = self._method.step(before, mean, (), command.round)
        self.stage.constrain(after.anchor)
        return after, OuterRecord(before.digest(), after.digest(), after.left_out, {0: command.total}), {}

    def told(self, loss: float | None) -> float | None:
        """None where updates are private: a loss is of the data, and has no noise on it."""
        return loss if self.agreed.privacy is None else None

    def root(self, trace: RoundTrace, made: Made) -> str:
        """That of the contribution alone."""
        return made.bound

    def own_pieces(self) -> list[Piece]:
        """Nothing: the optimizer's moments are of the data. Whoever comes back begins with moments of zero."""
        return []


def closed(audit: Audit) -> TaskReport | None:
    """The answer to an audit that would show or run what is made of an owner's data; None: it is of what everybody has.

    A re-run answers with a loss, or with whether two states are one: whoever wrote the opening could ask about the data so.
    """
    match audit:
        case ReplayStep(audit=name) | ReplayAcross(replay=ReplayStep(audit=name)):
            return AuditReport(name, "incomparable", untrusted(_CLOSED))
        case OpenStep():
            return StepOpened(audit.audit, None, untrusted(_CLOSED))
        case ShowLeaf():
            return LeafShown(audit.audit, None)
        case BisectQuery():
            return BisectAnswer(audit.dispute, audit.ask, NoAnswer(untrusted(_CLOSED)))
        case _:
            return None
