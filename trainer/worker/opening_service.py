"""Rounds of a member that can still be opened, and the answers to audits of them.

An opening is as large as all that its segment received and several vectors of the stage. Hashing it takes a second or more of a
large stage, for which the pipeline would stand still: a thread of its own does that. No copy is made of it: it leaves piece by
piece from what does not change any more.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from common.untrusted_text import untrusted
from protocol.audit import KEPT_ROUNDS, MAX_KEPT_RECORD, segment
from protocol.boundary import Position, crossings
from protocol.codec import encode as encode_message
from protocol.task import LeafShown, OpenOuter, OpenStep, ReplayAcross, ReplayStep, ShowLeaf, StepOpened
from protocol.worker import RecordKept, RecordPart, RecordRecall
from trainer.audit.opening_file import PackedEnd, SegmentEnd, write_opening
from trainer.audit.replay import ending_of, run_on, run_up_to, state_before
from trainer.audit.shown_state import PackedState
from trainer.audit.step_leaves import RoundTrace, made_after
from trainer.data.folder import JobFiles
from trainer.errors import RoundError
from trainer.files.tensors import Piece, parts_of
from trainer.outer import OuterState, outer_method
from trainer.outer.audit import Shown, write_outer
from trainer.stage.background import BackgroundWork
from trainer.stage.stage import Stage, StageState
from trainer.worker.checkpoint import checkpoint_pieces
from trainer.worker.inbox import Audit, RoundKey
from trainer.worker.outbox import WorkerOutbox
from trainer.worker.round_record import write_outer_record, write_steps
from trainer.worker.thread_guard import guarded

LOG = logging.getLogger("cottage.worker")
SETTLE_S = 0.5  # Between two looks at whether anybody still takes what leaves.
_NOTHING = torch.empty(0)


@dataclass(frozen=True)
class OpenableSteps:
    """The steps of a round; where they were let ``go``, their leaves alone."""

    trace: RoundTrace
    total_steps: int
    position: Position
    leaving: list[Future[None]] = field(default_factory=list)
    """Openings that show its states: done when they have left, or have failed."""
    gone: bool = False
    lent: bool = False
    """It has come back for one audit, which may use its states up."""

    @property
    def come_back_alike(self) -> bool:
        """Whether a record gives all that is kept: more states than the first would have to be made again for each audit."""
        return set(self.trace.states) == {0}

    def let_go(self) -> "OpenableSteps":
        """The leaves alone; openings that are being written still have the rest."""
        left = replace(self.trace, anchor=torch.empty(0), local={}, states={}, payloads=[], hashes={})
        return replace(self, trace=left, leaving=[], gone=True)

    def unread(self) -> list[StageState]:
        """The states, where nobody reads them any more."""
        return list(self.trace.states.values()) if all(opening.done() for opening in self.leaving) else []


@dataclass(frozen=True)
class OpenableOuter:
    """An outer step; ``before`` None: it was let go. ``anchor``: digest of that before it."""

    anchor: str
    before: OuterState | None
    shown: Shown


class OpeningService:
    """The last ``KEPT_ROUNDS`` rounds and outer steps of one member.

    What the agent has on its disk is let go once its round is over, and comes back for an audit (``trainer.worker.recalls``).

    Attributes:
        records: whether each goes to the agent as well, before it is said to be done: see ``trainer.worker.round_record``.
        initial: what the job begins with, where the agent has to be told.
        recalled: waits until what audits have asked back is here, and served.
    """

    def __init__(self, stage: Stage, files: JobFiles, replica: int, outbox: WorkerOutbox) -> None:
        """Of a member that computes on ``stage``; answers go to ``outbox``."""
        self._stage = stage
        self._files = files
        self._replica = replica
        self._outbox = outbox
        self._aside = BackgroundWork()
        self._rounds: dict[RoundKey, OpenableSteps] = {}
        self._outers: dict[RoundKey, OpenableOuter] = {}
        self._on_disk: set[RecordKept] = set()
        self._lent: OuterState | None = None
        self._leaving: set[Future[None]] = set()
        self.records = False
        self.initial: OuterState | None = None
        self.recalled: Callable[[], None] = lambda: None

    def keep(self, key: RoundKey, trace: RoundTrace, total_steps: int, position: Position) -> list[StageState]:
        """Keep a round that was committed to; of those that make room for it, the states that nobody reads any more."""
        kept = self._rounds[key] = OpenableSteps(trace, total_steps, position)
        if self.records:
            self._tell_initial(key)
            self._record(RecordPart(*key, "steps"), write_steps(kept.trace, total_steps, position))
        gone = [self._rounds.pop(old) for old in sorted(self._rounds)[:-KEPT_ROUNDS]]
        return [state for old in gone for state in old.unread()]

    def keep_outer(self, key: RoundKey, before: OuterState, shown: Shown) -> None:
        """Keep an outer step; ``shown``: what came in, see ``trainer.outer.audit``."""
        self._outers[key] = OpenableOuter(before.anchor_digest, before, shown)
        if self.records:
            self._tell_initial(key)
            self._record(RecordPart(*key, "outer"), write_outer_record(before.digest(), shown))
        for old in sorted(self._outers)[:-KEPT_ROUNDS]:
            del self._outers[old]

    def on_disk(self, record: RecordKept) -> None:
        """The agent can give a record back. Called from the socket's loop."""
        self._on_disk.add(record)

    def let_go(self, under_way: RoundKey) -> list[StageState]:
        """Drop what can come back of rounds before the one ``under_way``; the states that nobody reads any more."""
        unread: list[StageState] = []
        for record in sorted(self._on_disk, key=lambda record: (record.epoch, record.round)):
            key = (record.epoch, record.round)
            if key >= under_way:
                continue
            self._on_disk.discard(record)
            steps, outer = self._rounds.get(key), self._outers.get(key)
            if record.kind == "steps" and steps is not None and steps.come_back_alike:
                self._rounds[key] = steps.let_go()
                unread += steps.unread()
            elif record.kind == "outer" and outer is not None:
                self._outers[key] = OpenableOuter(outer.anchor, None, {})
        return unread

    def recall_for(self, audit: Audit) -> RecordRecall | None:
        """What has to come back before an audit can be answered; None: nothing."""
        match audit:
            case OpenStep(epoch=epoch, round=number):
                steps = self._rounds.get((epoch, number))
                return RecordRecall(epoch, number, "steps") if steps is not None and steps.gone else None
            case OpenOuter(epoch=epoch, round=number):
                outer = self._outers.get((epoch, number))
                return RecordRecall(epoch, number, "outer") if outer is not None and outer.before is None else None
            case (ReplayStep() as replay) | ReplayAcross(replay=replay):
                if replay.anchor is None or replay.anchor_in != "auditor" or self.anchor(replay.anchor) is not None:
                    return None
                begun = [(key, kept.trace.leaves[0].anchor) for key, kept in self._rounds.items() if kept.gone]
                begun += [(key, kept.anchor) for key, kept in self._outers.items() if kept.before is None]
                return next((RecordRecall(*key, "state") for key, anchor in begun if anchor == replay.anchor), None)
        return None

    @contextmanager
    def back(
        self, key: RoundKey, steps: OpenableSteps | None, outer: OpenableOuter | None, state: OuterState | None
    ) -> Iterator[None]:
        """Meanwhile a round is here again, or what it began with."""
        rounds, outers = dict(self._rounds), dict(self._outers)
        if steps is not None:
            self._rounds[key] = steps
        if outer is not None:
            self._outers[key] = outer
        self._lent = state
        try:
            yield
        finally:
            self._rounds, self._outers, self._lent = rounds, outers, None

    def refuse(self, audit: Audit, reason: str) -> None:
        """Say of what was let go that it does not come back. Of somebody else's step nothing is said: nobody is to be accused."""
        if isinstance(audit, OpenStep | OpenOuter):
            said = f"round {audit.round} of epoch {audit.epoch} was on the disk, and is no more: {reason}"
            self._outbox.report(StepOpened(audit.audit, None, untrusted(said)))

    def _tell_initial(self, key: RoundKey) -> None:
        """Give the agent what the job begins with, which no peer has."""
        if self.initial is not None:
            pieces = checkpoint_pieces(self.initial, self._stage.slots, key[1])
            self._record(RecordPart(*key, "state"), pieces)
            self.initial = None

    def _record(self, part: RecordPart, pieces: Sequence[Piece]) -> None:
        """Hand a record over, without a copy of what it is made of."""
        size = sum(map(len, pieces))
        if size > MAX_KEPT_RECORD:
            LOG.warning("round %d is not recorded: %s bytes are too many", part.round + 1, f"{size:,}")
            return
        self._outbox.put(part, *pieces)

    def open_step(self, command: OpenStep) -> None:
        """Answer an audit's draw."""
        kept = self._rounds.get((command.epoch, command.round))
        if kept is None or kept.gone:
            reason = f"round {command.round} of epoch {command.epoch} is not kept: only the last {KEPT_ROUNDS} are"
            self._outbox.report(StepOpened(command.audit, None, untrusted(reason)))
            return
        trace, training = kept.trace, self._stage.training
        try:
            trace.check(command.step)
            state, ending = self._shown(kept, command)
        except RoundError as error:
            self._outbox.report(StepOpened(command.audit, None, untrusted(error)))
            return
        trace = replace(trace, states={})  # What is shown of them is ``state``.
        if not command.anchored and self._stage.lean:  # Nor is a read-back anchor needed any more.
            trace = replace(trace, anchor=_NOTHING)
            if isinstance(state, StageState):
                state = state.without_base()
        made, micros = made_after(training, len(trace.leaves)), crossings(training)
        method = outer_method(training, self._stage.slots, self._stage.size)
        leaving = self._answer(
            command.audit,
            lambda: write_opening(
                trace, command.step, state, kept.position, micros, method, made, ending, command.anchored
            ),
        )
        kept.leaving.append(leaving)

    def _shown(
        self, kept: OpenableSteps, command: OpenStep
    ) -> tuple[StageState | PackedState, SegmentEnd | PackedEnd | None]:
        """The state before the segment that was drawn, and what the segment came to where that is asked for."""
        trace, stage = kept.trace, self._stage
        first, _ = segment(command.step, trace.segment, len(trace.leaves))
        if first in trace.states and not command.ending:
            return trace.states[first], None
        with stage.away():
            scratch = Stage(
                self._files.config, stage.cut, stage.training, None, str(stage.device), initialise=False, beside=stage
            )
            if stage.makes_room:
                return self._packed_again(kept, command, first, scratch)
            return self._found_again(kept, command, first, scratch)

    def _found_again(
        self, kept: OpenableSteps, command: OpenStep, first: int, scratch: Stage
    ) -> tuple[StageState, SegmentEnd | None]:
        """The same, by running the round again on a stage beside the member's own."""
        trace = kept.trace
        again = (scratch, kept.position, self._files.train, self._replica, kept.total_steps)
        state = state_before(trace, first, *again)
        _see_the_same(first, state.digest(), trace)
        if not command.ending:
            return state, None
        if first not in trace.states:  # It is the scratch stage's own, which goes on.
            state = scratch.state()
        return state, ending_of(trace, first, *again)

    def _packed_again(
        self, kept: OpenableSteps, command: OpenStep, first: int, scratch: Stage
    ) -> tuple[PackedState, PackedEnd | None]:
        """The same in the place of the member's own stage: what is shown leaves the card packed, a little at a time."""
        trace = kept.trace
        again = (scratch, kept.position, self._files.train, self._replica, kept.total_steps)
        run_up_to(trace, first, *again, last=kept.lent)
        _see_the_same(first, scratch.state_digest(), trace)
        state = PackedState.of(scratch)
        if not command.ending:
            return state, None
        sent = run_on(trace, range(first, segment(first, trace.segment, len(trace.leaves))[1]), *again)
        return state, PackedEnd(PackedState.of(scratch), sent)

    def open_outer(self, command: OpenOuter) -> None:
        """Answer an audit's draw of an outer step."""
        kept = self._outers.get((command.epoch, command.round))
        if kept is None or kept.before is None:
            reason = f"the outer step of round {command.round} of epoch {command.epoch} is not kept"
            self._outbox.report(StepOpened(command.audit, None, untrusted(reason)))
            return
        before, shown = kept.before, kept.shown
        self._answer(command.audit, lambda: write_outer(before, shown))

    def anchor(self, digest: str) -> Tensor | None:
        """The anchor of a round that is kept, by its digest."""
        lent = [] if self._lent is None else [self._lent]
        traces = [kept.trace for kept in self._rounds.values() if not kept.gone]
        found = (trace.anchor for trace in traces if trace.leaves and trace.leaves[0].anchor == digest)
        befores = (kept.before for kept in self._outers.values() if kept.before is not None)
        states = (state.anchor for state in chain(lent, befores) if state.anchor_digest == digest)
        return next(chain(found, states), None)

    def show_leaf(self, command: ShowLeaf) -> LeafShown:
        """The leaf of a committed step, where it is kept."""
        kept = self._rounds.get((command.epoch, command.round))
        if kept is None or command.step >= len(kept.trace.leaves):
            return LeafShown(command.audit, None)
        leaf = encode_message(kept.trace.leaves[command.step])
        return LeafShown(command.audit, leaf, kept.trace.tree().proof(command.step).path)

    def settle(self) -> None:
        """Wait until openings have left, where the stage makes room: main memory is planned for them, or for what comes now."""
        self.recalled()
        while self._stage.makes_room and self._leaving and not self._outbox.closed:
            _, self._leaving = wait(self._leaving, SETTLE_S)

    def _answer(self, audit: str, write: Callable[[], Sequence[Piece]]) -> Future[None]:
        """Hash and send an opening beside computing; done when all of it has left, or none will."""
        left: Future[None] = Future()

        def answer() -> None:
            try:
                pieces, hasher = write(), hashlib.sha256()
                for part in parts_of(pieces):
                    hasher.update(part)
                self._outbox.show(StepOpened(audit, hasher.hexdigest()), pieces, left)
            except BaseException as error:
                left.set_exception(error)  # A cancelled one would be waited for: only an executor tells of those.
                raise

        self._aside.submit(guarded, self._outbox, answer)
        self._leaving = {one for one in self._leaving if not one.done()} | {left}
        return left


def _see_the_same(first: int, digest: str, trace: RoundTrace) -> None:
    """Raise ``RoundError`` where the state before a step is not the one that was committed to."""
    if digest != trace.leaves[first].before:
        raise RoundError(f"step {first} of the round comes to another state than it did: it cannot be shown any more")
