"""Rounds of a member that can still be opened, and the answers to audits of them.

An opening is as large as all that its segment received and several vectors of the stage. Hashing it takes a second or more of a
large stage, for which the pipeline would stand still: a thread of its own does that. No copy is made of it: it leaves piece by
piece from what does not change any more.
"""

import hashlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain

from torch import Tensor

from common.untrusted_text import untrusted
from protocol.audit import KEPT_ROUNDS, MAX_AUDIT_BYTES, segment
from protocol.boundary import Position, crossings
from protocol.codec import encode as encode_message
from protocol.task import LeafShown, OpenOuter, OpenStep, ShowLeaf, StepOpened
from protocol.worker import RecordPart
from trainer.audit.opening_file import SegmentEnd, write_opening
from trainer.audit.replay import ending_of, state_before
from trainer.audit.step_leaves import RoundTrace, made_after
from trainer.data.folder import JobFiles
from trainer.errors import RoundError
from trainer.outer import OuterState, outer_method
from trainer.outer.audit import Shown, write_outer
from trainer.stage.background import Aside
from trainer.stage.stage import Stage, StageState
from trainer.worker.inbox import RoundKey
from trainer.worker.outbox import WorkerOutbox
from trainer.worker.round_record import write_outer_record, write_steps
from trainer.worker.thread_guard import guarded

LOG = logging.getLogger("cottage.worker")


@dataclass(frozen=True)
class _Round:
    trace: RoundTrace
    total_steps: int
    position: Position
    leaving: list[Future[None]] = field(default_factory=list)
    """Openings that show its states: done when they have left."""


@dataclass(frozen=True)
class _Outer:
    before: OuterState
    shown: Shown


class OpeningService:
    """The last ``KEPT_ROUNDS`` rounds and outer steps of one member.

    Attributes:
        records: whether each goes to the agent as well, before it is said to be done: see ``trainer.worker.round_record``.
    """

    def __init__(self, stage: Stage, files: JobFiles, replica: int, outbox: WorkerOutbox) -> None:
        """Of a member that computes on ``stage``; answers go to ``outbox``."""
        self._stage = stage
        self._files = files
        self._replica = replica
        self._outbox = outbox
        self._aside = Aside()
        self._rounds: dict[RoundKey, _Round] = {}
        self._outers: dict[RoundKey, _Outer] = {}
        self.records = False

    def keep(self, key: RoundKey, trace: RoundTrace, total_steps: int, position: Position) -> list[StageState]:
        """Keep a round that was committed to; of those that make room for it, the states that nobody reads any more."""
        self._rounds[key] = _Round(trace, total_steps, position)
        if self.records:
            self._record(RecordPart(*key, "steps"), write_steps(trace, total_steps, position))
        gone = [self._rounds.pop(old) for old in sorted(self._rounds)[:-KEPT_ROUNDS]]
        unread = [old for old in gone if all(opening.done() for opening in old.leaving)]
        return [state for old in unread for state in old.trace.states.values()]

    def keep_outer(self, key: RoundKey, before: OuterState, shown: Shown) -> None:
        """Keep an outer step; ``shown``: what came in, see ``trainer.outer.audit``."""
        self._outers[key] = _Outer(before, shown)
        if self.records:
            self._record(RecordPart(*key, "outer"), write_outer_record(before.digest(), shown))
        for old in sorted(self._outers)[:-KEPT_ROUNDS]:
            del self._outers[old]

    def _record(self, part: RecordPart, pieces: list[memoryview]) -> None:
        """Hand a record over, without a copy of what it is made of."""
        size = sum(map(len, pieces))
        if size > MAX_AUDIT_BYTES:
            LOG.warning("round %d is not recorded: %s bytes are too many", part.round + 1, f"{size:,}")
            return
        self._outbox.put(part, *pieces)

    def open_step(self, command: OpenStep) -> None:
        """Answer an audit's draw."""
        kept = self._rounds.get((command.epoch, command.round))
        if kept is None:
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
        made, micros = made_after(training, len(trace.leaves)), crossings(training)
        method = outer_method(training, self._stage.slots, self._stage.size)
        leaving = self._answer(
            command.audit,
            lambda: write_opening(
                trace, command.step, state, kept.position, micros, method, made, ending, command.anchored
            ),
        )
        kept.leaving.append(leaving)

    def _shown(self, kept: _Round, command: OpenStep) -> tuple[StageState, SegmentEnd | None]:
        """The state before the segment that was drawn, and what the segment came to where that is asked for."""
        trace, stage = kept.trace, self._stage
        first, _ = segment(command.step, trace.segment, len(trace.leaves))
        if first in trace.states and not command.ending:
            return trace.states[first], None
        with stage.away():
            return self._found_again(kept, command, first)

    def _found_again(self, kept: _Round, command: OpenStep, first: int) -> tuple[StageState, SegmentEnd | None]:
        """The same, by running the round again on a stage beside the member's own."""
        trace, stage, files = kept.trace, self._stage, self._files
        scratch = Stage(
            files.config, stage.cut, stage.training, None, str(stage.device), initialise=False, beside=stage
        )
        again = (scratch, kept.position, files.train, self._replica, kept.total_steps)
        state = state_before(trace, first, *again)
        if state.digest() != trace.leaves[first].before:
            raise RoundError(
                f"step {first} of the round comes to another state than it did: it cannot be shown any more"
            )
        if not command.ending:
            return state, None
        if first not in trace.states:  # It is the scratch stage's own, which goes on.
            state = scratch.state()
        return state, ending_of(trace, first, *again)

    def open_outer(self, command: OpenOuter) -> None:
        """Answer an audit's draw of an outer step."""
        kept = self._outers.get((command.epoch, command.round))
        if kept is None:
            reason = f"the outer step of round {command.round} of epoch {command.epoch} is not kept"
            self._outbox.report(StepOpened(command.audit, None, untrusted(reason)))
            return
        self._answer(command.audit, lambda: write_outer(kept.before, kept.shown))

    def anchor(self, digest: str) -> Tensor | None:
        """The anchor of a round that is kept, by its digest."""
        traces = (kept.trace for kept in self._rounds.values())
        found = (trace.anchor for trace in traces if trace.leaves and trace.leaves[0].anchor == digest)
        befores = (kept.before.anchor for kept in self._outers.values() if kept.before.anchor_digest == digest)
        return next(chain(found, befores), None)

    def show_leaf(self, command: ShowLeaf) -> LeafShown:
        """The leaf of a committed step, where it is kept."""
        kept = self._rounds.get((command.epoch, command.round))
        if kept is None or command.step >= len(kept.trace.leaves):
            return LeafShown(command.audit, None)
        leaf = encode_message(kept.trace.leaves[command.step])
        return LeafShown(command.audit, leaf, kept.trace.tree().proof(command.step).path)

    def _answer(self, audit: str, write: Callable[[], list[memoryview]]) -> Future[None]:
        """Hash and send an opening beside computing; done when all of it has left."""
        left: Future[None] = Future()

        def answer() -> None:
            pieces, hasher = write(), hashlib.sha256()
            for piece in pieces:
                hasher.update(piece)
            self._outbox.show(StepOpened(audit, hasher.hexdigest()), pieces, left)

        self._aside.submit(guarded, self._outbox, answer)
        return left
