"""What a worker that reads its owner's data may say, and be told: the agent is its only door, and lets nothing else through.

::

    from the coordinator   BeginRound (counted, of no more steps than agreed, without a held-out loss), AbandonRound,
                           ReduceRound, SumStep (for the agent), ApplyRound
    to the coordinator     TaskReady, Progress without a loss, RoundCommit without a loss (but the noised one that was agreed
                           to), RoundHolding, RoundApplied with the new state that all owners share, TaskFailed without a
                           reason; all else stays here, in federations.log
    to other owners        contributions and what they were reduced to; with secure sums nothing: the agent masks the update
                           (``summing``), and stores that with the coordinator

The worker keeps to the same by itself (``trainer.worker.federated_member``). That two programs do is on purpose.
"""

from pathlib import Path

import msgspec

from common.untrusted_text import untrusted
from desktop.agent.base.log import LOG, printable
from desktop.agent.errors import SettingsError, WorkerError, WorkerProtocolError
from desktop.agent.federated.memberships import Memberships
from desktop.agent.federated.summing import OwnersSums, Say, Store
from desktop.agent.sandbox.base import Sandbox
from protocol.artifacts import STATE, SUMMAND
from protocol.job.federated import FederatedSpec
from protocol.node import Assign
from protocol.task import (
    AbandonRound,
    ApplyRound,
    BeginRound,
    Progress,
    ReduceRound,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    SumSaid,
    SumStep,
    TaskCommand,
    TaskFailed,
    TaskReady,
    TaskReport,
    Traffic,
    WorkerLog,
)
from protocol.worker import OwnData, PeerSend

BETWEEN_OWNERS = frozenset({"pseudo_gradient", "shard", "result"})
SAYS_NO_MORE = "the work with its owner's data failed here; federations.log in the folder of that owner's node says why"
LONGER = "a round has more steps than this computer's owner has agreed to, each of which would tell more of an example"
USED_UP = "the privacy budget that this computer's owner agreed to has no room for another round"


class FederatedGate:
    """The door of one worker of a federated job: a lease that is granted anew has another, and so has an agent that begins anew.

    Attributes:
        refused: why its owner's node goes on no further; empty: it does.
    """

    def __init__(self, assign: Assign, federations: Memberships | None) -> None:
        """``federations``: what the owner has joined; None: nothing."""
        assert assign.spec.federated is not None
        self._assign = assign
        self._federations = federations
        self._private = assign.spec.federated.privacy is not None
        self._per_example = assign.spec.federated.per_example
        self._summed = assign.spec.federated.sum == "secure"
        self._untold = _untold(assign.spec.federated)
        self.refused = ""
        self._begun = (-1, -1)

    def check_joined(self) -> None:
        """Raises WorkerError where the owner has not agreed to just this job."""
        why = "this node joins no federations"
        if self._federations is not None:
            why = self._federations.refusal(self._assign.job, self._assign.spec)
        if why:
            raise WorkerError(why)

    def sums(self, store: Store, say: Say) -> OwnersSums | None:
        """This node's part in the job's secure sums; None: it has none, or the node has joined nothing."""
        key = None if self._federations is None else self._federations.key
        return OwnersSums(self._assign, key, store, say) if self._summed and key is not None else None

    @property
    def data(self) -> Path | None:
        """What the worker may read of its owner's."""
        joined = None if self._federations is None else self._federations.joined.get(self._assign.job)
        return None if joined is None else Path(joined.data)

    def own_data(self, sandbox: Sandbox) -> OwnData | None:
        """The same as the worker is told of it."""
        joined = None if self._federations is None else self._federations.joined.get(self._assign.job)
        return None if joined is None else OwnData(sandbox.data_inside(Path(joined.data)), joined.dataset)

    def passed(self, command: TaskCommand) -> TaskCommand | None:
        """What of a command reaches the worker; a round is counted before. None: nothing does."""
        match command:
            case BeginRound():
                if self._per_example and command.steps > self._assign.spec.training.inner_steps:
                    self.refused = self.refused or LONGER
                if self.refused or not self._may_begin(command):
                    self.refused = self.refused or USED_UP
                    return None
                return msgspec.structs.replace(command, validate=False, moments=None)
            case AbandonRound() | ReduceRound() | ApplyRound() | SumStep():
                return command
            case _:
                LOG.warning(
                    "a %s does not reach a federation's worker: it shows its owner's data to nobody",
                    type(command).__name__,
                )
                return None

    def _may_begin(self, begin: BeginRound) -> bool:
        """Count a round, but once for this worker, which makes one update of it; the next one would make another."""
        if self._federations is None:
            return False
        key = (begin.plan.epoch, begin.round)
        if key == self._begun:
            return True  # The command came again.
        try:
            if not self._federations.may_begin(self._assign.job):
                return False
        except SettingsError as error:  # What cannot be counted is not begun.
            self.refused = str(error)
            return False
        self._begun = key
        return True

    def said(self, body: TaskReport) -> TaskReport | None:
        """What of a report leaves this computer; None: nothing does."""
        match body:
            case WorkerLog(lines=lines):
                self.keep(*(line.text for line in lines))
                return None
            case Progress() if self._private:
                return msgspec.structs.replace(body, loss=None)
            case RoundCommit() if self._private:  # How often gradients overflowed is of the data, too.
                return msgspec.structs.replace(body, loss=None, left_out=0, **self._untold)
            case TaskFailed(reason=reason, tampered=tampered):
                self.keep(f"failed: {reason}")
                return TaskFailed(untrusted(SAYS_NO_MORE), tampered)
            case TaskReady() | Progress() | RoundCommit() | RoundHolding() | RoundApplied() | Traffic() | SumSaid():
                return body
            case _:
                LOG.warning("a federation's worker said a %s, which stays here", type(body).__name__)
                return None

    def keep(self, *texts: str) -> str:
        """Put what may quote the data where its owner alone finds it; returns what others are told instead."""
        if self._federations is not None:
            self._federations.tell(*map(printable, texts))
        return SAYS_NO_MORE

    def check_send(self, message: PeerSend) -> None:
        """Refuse what no owner's worker has to send to others; raises WorkerProtocolError."""
        if self._summed or message.name.kind not in BETWEEN_OWNERS:
            kind = message.name.kind
            raise WorkerProtocolError(f"a federation's worker wants to send {kind} to others: that stays here")

    def check_upload(self, answers: str) -> None:
        """Refuse to store anything but the state that all owners share, and what the agent has masked.

        Raises:
            WorkerProtocolError: it is something else.
        """
        if not answers.startswith(STATE) and not (self._summed and answers.startswith(SUMMAND)):
            raise WorkerProtocolError(
                "a federation's worker wants to store what is made of its owner's data: that stays here"
            )


def _untold(federated: FederatedSpec) -> dict[str, None]:
    """What a commitment has no word for: with secure sums, or where the job's document does not ask for it."""
    privacy, summed = federated.privacy, federated.sum == "secure"
    asked = {"unclipped": privacy and privacy.adaptive, "heldout": privacy and privacy.heldout}
    return {name: None for name, how in asked.items() if summed or how is None}
