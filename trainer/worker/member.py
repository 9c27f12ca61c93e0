"""A member of a plan at work: rounds of inner steps, outer steps, commitments and openings. Runs in the computing thread.

::

    BeginRound --> [load state] --> [validate] --> steps --> commit, send pseudo-gradient --> wait
                                       |                                                        |
                AbandonRound, or any newer command: as it was when the round began         ApplyRound
                                       |                                                        |
                                      wait ------------------- ApplyRound ------------> new anchor, checkpoint

In a round of fixed time the first stage decides after how many steps it ends, and the mark goes down the pipeline in front of the
next step: all stages of a replica stop after the same step, and their commitments say after which.
"""

import hashlib
import logging
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import msgspec
from torch import Tensor

from protocol.audit import StepLeaf, state_interval
from protocol.boundary import crossings, position_of
from protocol.job.job import TOGETHER, JobSpec
from protocol.job.sharding import shard_count
from protocol.models.boundary_bytes import longest_payload, recorded_bytes
from protocol.task import (
    AbandonRound,
    ApplyRound,
    BeginRound,
    OuterRecord,
    Plan,
    Progress,
    ReduceRound,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    TaskReport,
    Validation,
)
from protocol.worker import PeerSend, TensorName
from trainer.audit.replay import cut_of
from trainer.audit.step_leaves import RoundTrace, job_digest, made_after
from trainer.codecs import encoded_size
from trainer.codecs.envelope import unwrap, wrap
from trainer.data.data import Windows, heldout_parts
from trainer.data.folder import JobFiles
from trainer.errors import AbandonedError, CodecError, RoundEndedError, RoundError, WeightsError
from trainer.files.tensors import Piece, parts_of
from trainer.malloc_trim import trim
from trainer.outer import Local, OuterState, local_digest, momentum_type, outer_method
from trainer.outer.audit import Shown, contribution_name, outer_step, outer_step_of_results
from trainer.outer.inner_update import update
from trainer.outer.shards import contribution_digest
from trainer.stage.activation_cache import Caches
from trainer.stage.boundary_codec import wrapped_kinds
from trainer.stage.objective import score_of
from trainer.stage.snapshots import SnapshotKeeper
from trainer.stage.stage import Stage, StageState
from trainer.stage.steps import Recorder, accumulate, digests, heldout_loss
from trainer.transfer import fetched
from trainer.worker.checkpoint import checkpoint_pieces, moments_pieces, read_checkpoint, read_moments
from trainer.worker.inbox import PartsHeld, RoundKey, Work, WorkerInbox
from trainer.worker.live_boundary import LiveBoundary
from trainer.worker.opening_service import OpeningService
from trainer.worker.outbox import WorkerOutbox
from trainer.worker.sharding import ShardExchange
from trainer.worker.time_budget import TimeBudget

LOG = logging.getLogger("cottage.worker")

END_MARK = b"\x01"  # A payload holds at least a byte.
LONG_ROUND_S = 2.0  # Memory is given back after it: for shorter ones the page faults would take more than a percent.


@dataclass(frozen=True)
class Made:
    """A round's contribution: the digest that leaves bind, the pieces that go out, and what the replica would carry over."""

    bound: str
    pieces: tuple[bytes, ...]
    local: Local
    unclipped: float | None = None
    heldout: float | None = None
    """As in ``RoundCommit``, both."""


class StageMember:
    """Stage ``stage`` of replica ``replica``."""

    exchange: ClassVar[type[ShardExchange]] = ShardExchange
    """Its part in an exchange by shards."""
    opener: ClassVar[type[OpeningService]] = OpeningService
    """What it shows of its rounds."""

    def __init__(
        self,
        spec: JobSpec,
        plan: Plan,
        stage: int,
        replica: int,
        files: JobFiles,
        env_class: str,
        device: str,
        inbox: WorkerInbox,
        outbox: WorkerOutbox,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Build the stage with its initial weights. ``clock``: seconds, for rounds of fixed time.

        Raises:
            ModelConfigError, WeightsError: see ``Stage``.
        """
        self._training, self._federated = spec.training, spec.federated
        self._files = files
        self._env_class = env_class
        self._inbox = inbox
        self._outbox = outbox
        self._clock = clock
        self._replica = replica
        self._position = position_of(plan, stage, replica, spec.training)
        self._caches = Caches.empty()
        self._layers = plan.layers
        self.stage = Stage(files.config, cut_of(plan, stage), spec.training, files.weights, device)
        size = self.stage.size
        self._outer = OuterState.first(fetched(self.stage.values()), spec.training)
        self._method = outer_method(spec.training, self.stage.slots, size)
        self._shards = self.exchange(self._method, inbox, outbox, stage, replica)
        self._count = 1
        self._local = self._method.fresh(self._outer)
        self._load(self._method.start(self._outer, self._local, 0))
        self._pending: Local | None = None
        self._anchor_round = 0
        self._start: StageState | None = None
        self._said: dict[type[TaskReport], TaskReport] = {}  # Of this round, for when the command comes again.
        self._holding = threading.Lock()
        self.openings = self.opener(self.stage, files, replica, outbox)
        self._outer_record: OuterRecord | None = None
        self._busy = 0.0
        self._left_out = 0
        self._keeper = SnapshotKeeper()
        self._job = job_digest(spec.training)

    def record(self) -> None:
        """From now on the agent gets a record of each round, and what the first one begins with."""
        self.openings.records, self.openings.initial = True, self._outer

    # --- called from the socket's loop --------------------------------------------------------------------------------

    def take_contribution(self, name: TensorName, stage: int, replica: int, data: bytes) -> None:
        """What another replica of the same stage contributes or reduced; anything else is dropped, and so not held."""
        if stage != self._position.stage or replica == self._replica:
            return
        if name.kind != "pseudo_gradient":
            if self._shards.take(name, replica, data) and (name.epoch, name.round) == self._inbox.current:
                self._report_holding()
            return
        try:
            data = unwrap(data, self._method.limit(name.round))
            self._method.check_update(data, name.round)
        except CodecError:
            return  # Not held: the coordinator learns from our RoundHolding that this replica cannot contribute.
        key = (name.epoch, name.round)
        if self._inbox.contribution(key, replica, data) and key == self._inbox.current:
            self._report_holding()

    def take_payload(self, name: TensorName, stage: int, replica: int, data: bytes) -> None:
        """An activation or gradient of a pipeline neighbour, or another replica's part of an exchange; all else is dropped."""
        if name.kind == "exchange":
            self._take_exchange(name, stage, replica, data)
            return
        neighbour = self._position.stage + (-1 if name.kind in ("activation", "validation", "end") else 1)
        if stage == neighbour and replica == self._replica:
            self._inbox.payload(name, data)

    def _take_exchange(self, name: TensorName, stage: int, replica: int, data: bytes) -> None:
        if stage != self._position.stage or replica == self._replica or name.micro != replica:
            return
        try:  # No method sends more than the values themselves.
            self._inbox.payload(name, unwrap(data, encoded_size((self.stage.size,), "fp32")))
        except CodecError:
            return

    # --- what comes of the work: all that another class of member may do otherwise -------------------------------------

    def compute(self, windows: Windows, recorder: Recorder, rate_index: int, total_steps: int) -> float | None:
        """One inner step; returns the loss on the last stage."""
        loss = accumulate(self.stage, self._position, windows, recorder)
        self._left_out += not update(self.stage, self._position, recorder, rate_index, total_steps)
        return loss

    def made(self, command: BeginRound, trace: RoundTrace) -> Made:
        """The contribution of the steps in ``trace``."""
        self.openings.settle()
        given = self._method.contribution(trace.anchor, self.stage.said(), trace.local, command.round, self._count)
        return Made(given.digest, given.pieces, given.local)

    def told(self, loss: float | None) -> float | None:
        """A loss as others may know it."""
        return loss

    def root(self, trace: RoundTrace, made: Made) -> str:
        """What a round is committed to by, in hexadecimal."""
        carried = local_digest(made.local)
        trace.bind(made.bound, carried, made_after(self._training, len(trace.leaves)))
        return trace.tree().root.hex()

    def own_pieces(self) -> list[Piece]:
        """What the agent keeps of this seat beside the state that all replicas share."""
        return moments_pieces(self.stage, self._anchor_round)

    def say(self, report: TaskReport) -> None:
        """Report what came of this round, and again when the command comes again."""
        self._outbox.report(self._remember(report))

    # --- commands -----------------------------------------------------------------------------------------------------

    def obey(self, order: Work, payload: bytearray, split: int = 0) -> None:
        """Do what a command says, as far as it is not done or stale, or what has become possible since.

        Args:
            payload: the state that comes with it, and from byte ``split`` on the moments; it is emptied once that is read.

        Raises:
            RoundError: the command does not fit what this worker holds.
            TrainerError: training failed; the worker cannot go on.
        """
        try:
            match order:
                case BeginRound():
                    self._begin(order, payload, split)
                case ReduceRound():
                    self._reduce(order)
                case PartsHeld(shard):
                    self._shards.reduce(shard)
                    self._report_holding()
                case ApplyRound():
                    self._apply(order)
                case AbandonRound():
                    if (order.epoch, order.round) == self._inbox.current and RoundApplied not in self._said:
                        self._back_to_start()
        except AbandonedError:
            self._back_to_start()

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _begin(self, command: BeginRound, payload: bytearray, split: int) -> None:
        key = (command.plan.epoch, command.round)
        if key == self._inbox.current:
            for report in list(self._said.values()):
                self._outbox.report(report)
            return
        if key < self._inbox.current:
            return
        if command.plan.layers != self._layers:
            raise RoundError("the layers of this stage changed: the new cut needs a new worker")
        if command.replaces_state:
            self._take_state(payload, split)
            with suppress(BufferError):  # Something may still look into what could not be used.
                payload.clear()  # Training goes on for a round, and needs the room.
        self._back_to_start()
        if self._anchor_round != command.round:
            raise RoundError(
                f"this worker holds the parameters of round {self._anchor_round}: round {command.round} needs a state"
            )
        self._said = {}
        self._position = position_of(command.plan, self._position.stage, self._replica, self._training)
        self._count = shard_count(self._training, len(command.plan.replicas()))
        self._shards.begin(key, command.plan, command.residue)
        self._inbox.begin(key)
        if self._inbox.held():
            self._report_holding()
        if command.validate:
            self._validate(command, key)
        if command.steps:
            self._train(command, key)

    def _take_state(self, payload: bytearray, split: int) -> None:
        """Begin anew from a state, and the moments from byte ``split`` on."""
        with memoryview(payload) as view, view[: split or len(view)] as state, view[len(state) :] as own:
            kept = self.stage.slots, self.stage.size, momentum_type(self._training)
            self._outer, self._anchor_round = read_checkpoint(state, *kept, lean=self.stage.lean)
            self.openings.initial = None  # The agent has it.
            self._local = self._method.fresh(self._outer)
            begun = self._method.start(self._outer, self._local, self._anchor_round)
            self._load(begun)
            self.stage.reset_moments()
            self._start = self._moments(own, begun) if own else None

    def _moments(self, data: memoryview, begun: Tensor) -> StageState | None:
        """Those of who held this seat before; they begin at zero where that left something unusable."""
        try:
            return read_moments(data, self.stage, begun, self._anchor_round)
        except WeightsError as error:
            LOG.warning("the optimizer's moments begin at zero: %s", error)
            return None

    def _validate(self, command: BeginRound, key: RoundKey) -> None:
        boundary = LiveBoundary(
            self._inbox, self._outbox, key, command.first_step, self._position.stage, self._replica, validation=True
        )
        parts = heldout_parts(self._files.heldout, self._training)
        # Between the exchanges of its parts a replica is not at the anchor.
        own = self._method.start(self._outer, self._local, command.round)
        sums: list[float] = []
        rewarded: list[float] = []
        began = time.perf_counter()
        self._load(self._outer.anchor)
        try:
            loss = heldout_loss(self.stage, parts, boundary, sums, rewarded)
        finally:  # A round may be given up while it waits for a neighbour.
            self._load(own)
        if loss is not None:
            tokens = sum(part.shape[0] * (part.shape[1] - 1) for part in parts)
            LOG.info(
                "round %d: held-out loss of %d tokens in %.2f s", command.round + 1, tokens, time.perf_counter() - began
            )
            exact = hashlib.sha256(struct.pack(f"<{len(sums)}d", *sums)).hexdigest()
            self.say(Validation(*key, loss, tokens, self._outer.anchor_digest, exact, score_of(rewarded)))

    def _train(self, command: BeginRound, key: RoundKey) -> None:
        anchor = self._outer.anchor
        kept_every, every = self._state_interval(command.steps), self._training.commit_every
        trace = RoundTrace(command.first_step, anchor, kept_every, self._local, command.rate_step, every)
        self._start = None
        self._let_go(key)
        self._start = trace.states[0] = self._keeper.keep(self.stage)
        losses: list[float] = []
        self._left_out = 0
        made: Made | None = None
        waited, began = self._inbox.waited, time.perf_counter()
        pace = TimeBudget(command.seconds, self._clock)
        for index in range(command.steps):
            self._let_go(key)
            # A card's stage that makes room for another is smallest at the end of a segment.
            self._inbox.between_steps(audits=not self.stage.makes_room or index % every == 0)
            step = command.first_step + index
            try:
                if self._position.stage == 0 and not pace.has_time(index):
                    raise RoundEndedError(f"there is no time for step {step}")
                loss = self.told(self._step(command, key, step, trace))
            except RoundEndedError:
                self._pass_end(key, step)
                break
            tokens = (index + 1) * self._training.batch * self._training.sequence
            if loss is not None:
                losses.append(loss)
            self._outbox.report(Progress(*key, step, tokens, loss))
            if self._training.overlap and index == made_after(self._training, command.steps):
                made = self._contribute(command, key, trace)
        took, waited = time.perf_counter() - began, self._inbox.waited - waited
        if took >= LONG_ROUND_S:
            trim()
        LOG.info(
            "round %d: %d steps in %.2f s, of which %.2f s waiting for neighbours",
            command.round + 1,
            len(trace.leaves),
            took,
            waited,
        )
        self._busy = max(0.0, took - waited)
        self._commit(command, key, trace, sum(losses) / len(losses) if losses else None, made)

    def _pass_end(self, key: RoundKey, step: int) -> None:
        """Tell the next stage that the round ends before ``step``."""
        if self._position.stage < self._position.stages - 1:
            end = TensorName("end", *key, step, 0)
            self._outbox.put(PeerSend(self._position.stage + 1, self._replica, end), END_MARK)

    def _step(self, command: BeginRound, key: RoundKey, step: int, trace: RoundTrace) -> float | None:
        """One inner step and its leaf; returns the loss on the last stage."""
        trace.before_step(self.stage, self._keeper)
        windows, samples = self._files.train.sample(
            self._training.seed,
            step,
            self._replica,
            self._training.batch,
            self._training.sampling,
            self._training.shares,
        )
        live = LiveBoundary(
            self._inbox,
            self._outbox,
            key,
            step,
            self._position.stage,
            self._replica,
            peers=self._position.peers,
            may_end=command.seconds is not None and bool(trace.leaves),
            wrapped=wrapped_kinds(self._training),
            limit=longest_payload(self.stage.shape, self._training),
        )
        recorder = Recorder(live, self._caches)
        loss = self.compute(windows, recorder, command.rate_index(step - command.first_step), command.total_steps)
        micros = crossings(self._training)
        trace.add(
            StepLeaf(
                step=step,
                env_class=self._env_class,
                samples=samples,
                received=digests(recorder.received, self._position.expected(micros)),
                sent=digests(recorder.sent, self._position.produced(micros)),
                before=None,
                after=None,
                anchor=self._outer.anchor_digest,
                loss=loss,
                local=trace.local_digest,
                job=self._job,
            ),
            recorder.received,
        )
        if len(trace.leaves) % trace.segment == 0:
            self.stage.shorten(trace.anchor)
        return loss

    def _commit(
        self, command: BeginRound, key: RoundKey, trace: RoundTrace, loss: float | None, early: Made | None
    ) -> None:
        if len(trace.leaves) % trace.segment:
            self.stage.shorten(trace.anchor)
        self.openings.settle()  # Before the stage is hashed: for what comes back it may have to make room.
        trace.after_steps(self.stage, self._keeper)
        made = early or self.made(command, trace)
        if (
            early is not None
        ):  # The steps since then are no part of what was sent, but of what the replica goes on with.
            made = replace(made, local=self.made(command, trace).local)
        local = made.local
        carried, root = local_digest(local), self.root(trace, made)
        digest = contribution_digest(made.pieces)
        self._take_back(self.openings.keep(key, trace, command.total_steps, self._position))
        tokens = len(trace.leaves) * self._training.batch * self._training.sequence
        operations = self.stage.operations_per_token * tokens
        self._pending, steps = local, len(trace.leaves)
        if loss is not None:
            LOG.info("round %d: training loss %.4f", command.round + 1, loss)
        done = RoundCommit(*key, root, steps, digest, tokens, operations, loss, carried, self._busy, self._left_out)
        self.say(msgspec.structs.replace(done, unclipped=made.unclipped, heldout=made.heldout))
        if early is None:
            self._send_contribution(command, key, made, len(trace.leaves))
        if self.stage.makes_room:  # The next round begins elsewhere; of this one the moments alone are wanted.
            self._load(trace.anchor)
        self._report_holding()

    def _contribute(self, command: BeginRound, key: RoundKey, trace: RoundTrace) -> Made:
        """Make and send the round's contribution before its last steps; the commitment to it follows with the others."""
        made = replace(self.made(command, trace), local={})  # The steps that follow change what is carried.
        self._send_contribution(command, key, made, command.steps)
        return made

    def _send_contribution(self, command: BeginRound, key: RoundKey, made: Made, steps: int) -> None:
        naive = 4 * self.stage.parameter_count * steps
        if self._training.outer in TOGETHER:
            naive = 0  # Counted at every step already.
        if self._count > 1:
            self._shards.contribute(made.pieces, naive)
            return
        (encoded,) = made.pieces
        self._inbox.contribution(key, self._replica, encoded)
        name, wrapped = TensorName("pseudo_gradient", *key, command.first_step, 0), wrap(encoded)
        for member in command.plan.members:
            if member.stage == self._position.stage and member.replica != self._replica:
                self._outbox.put(PeerSend(member.stage, member.replica, name, naive), wrapped)

    def _reduce(self, command: ReduceRound) -> None:
        if (command.epoch, command.round) != self._inbox.current or RoundApplied in self._said or self._count == 1:
            return
        if RoundCommit not in self._said:
            self._back_to_start()  # The contributors were chosen without this replica.
        self._shards.order(command)
        self._report_holding()

    def _apply(self, command: ApplyRound) -> None:
        key = (command.epoch, command.round)
        if key != self._inbox.current:
            return
        if RoundApplied in self._said:
            self._report_applied(command)
            return
        if RoundCommit not in self._said:
            self._back_to_start()  # The replica was given up and we were still stepping.
        before = self._outer
        self._outer, self._outer_record, shown = self._step_together(command)
        if self._outer.left_out:
            LOG.info("round %d: left out the pseudo-gradients of replicas %s", command.round + 1, self._outer.left_out)
        self.openings.keep_outer(key, before, shown)
        del before, shown
        self._anchor_round, self._start = command.round + 1, None
        if self._pending is not None and self._replica in command.contributors:
            self._local = self._pending
        self._pending = None
        self._load(self._method.start(self._outer, self._local, self._anchor_round))
        self._report_applied(command)

    def _step_together(self, command: ApplyRound) -> tuple[OuterState, OuterRecord, Shown]:
        """The outer step, what says so, and what it was made from, once that is here; raises ``AbandonedError``."""
        number = command.round
        self.openings.settle()
        if not command.results:
            given = self._inbox.contributions(command.contributors)
            self._go_on(command)
            after, record = outer_step(self._method, self.stage, self._outer, given, number, command.weights)
            return after, record, {contribution_name(replica): data for replica, data in given.items()}
        agreed = self._shards.agreed(command)
        self._go_on(command)
        count = len(command.contributors)
        after, record = outer_step_of_results(self._method, self.stage, self._outer, agreed.results, number, count)
        return after, msgspec.structs.replace(record, reduced=agreed.reduced), agreed.shown

    def _report_applied(self, command: ApplyRound) -> None:
        """Hand the new state over: the agent keeps it for peers, and stores it where that is asked for."""
        state = checkpoint_pieces(self._outer, self.stage.slots, self._anchor_round)
        stored = None
        if command.checkpoint:
            hasher = hashlib.sha256()
            for part in parts_of(state):
                hasher.update(part)
            stored = hasher.hexdigest()
        report = RoundApplied(command.epoch, command.round, self._outer.anchor_digest, stored, outer=self._outer_record)
        self._outbox.report(self._remember(report), *state, *self.own_pieces(), split=sum(map(len, state)))

    # --- small helpers ------------------------------------------------------------------------------------------------

    def _report_holding(self) -> None:
        with self._holding:  # Two threads report; the later report must not be the one that knows less.
            if self._count == 1:
                self._outbox.report(self._remember(RoundHolding(*self._inbox.current, self._inbox.holding())))
            elif self._shards.key == self._inbox.current and (news := self._shards.news()) is not None:
                self._outbox.report(news)
                self._remember(self._shards.told or news)

    def _remember(self, report: TaskReport) -> TaskReport:
        self._said[type(report)] = report
        return report

    def _back_to_start(self) -> None:
        """Be as when the round began: steps that were given up leave no trace, so doing them again gives the same bits."""
        self._pending = None
        if self._start is not None:
            self.stage.restore(self._start)

    def _go_on(self, command: ApplyRound) -> None:
        """All is here that the outer step takes: no way leads back into the round. Beside a card its memory is for that step."""
        if self.stage.makes_room:
            self._start = None
            self._let_go((command.epoch, command.round + 1))

    def make_way(self) -> None:
        """Before an audit: beside a card drop what the agent has, as soon as nobody needs it here."""
        epoch, number = self._inbox.current
        if self.stage.makes_room:
            self._let_go((epoch, number + 1 if RoundApplied in self._said else number))

    def _let_go(self, under_way: RoundKey) -> None:
        """Drop what the agent gives back when it is asked for; its memory is for the states of the round under way."""
        self._take_back(self.openings.let_go(under_way))

    def _take_back(self, unread: list[StageState]) -> None:
        """Use memory of states again; beside a card it is let go until the next round begins."""
        if not self.stage.makes_room:
            self._keeper.give_back(unread)

    def _load(self, parameters: Tensor) -> None:
        self.stage.load(parameters)

    def _state_interval(self, steps: int) -> int:
        state_bytes = self.stage.layout.bytes
        tokens = self._training.batch * self._training.sequence
        payload_bytes = recorded_bytes(self.stage.shape, self._training, tokens)
        return state_interval(steps, state_bytes, payload_bytes, self._training.commit_every)
