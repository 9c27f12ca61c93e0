"""Rounds that were let go, and come back from the agent's disk for an audit.

::

    audit --> is what it needs here? --yes--> answer
                     | no
               RecordRecall --> agent --> RecordReturned, RestoredPart ... --> answer, and let go again

Audits that need the same wait together. Everything else, steps of the round under way too, goes on meanwhile.
"""

import logging
from collections.abc import Callable

from safetensors import SafetensorError

from protocol.worker import RecordRecall, RecordReturned, RestoredPart
from trainer.errors import RoundRecordError, WeightsError
from trainer.outer import OuterState, outer_method
from trainer.stage.stage import Stage
from trainer.worker.arriving_state import ArrivingState
from trainer.worker.inbox import Audit, ReturnedRecord, WorkerInbox
from trainer.worker.opening_service import OpenableOuter, OpenableSteps, OpeningService
from trainer.worker.outbox import WorkerOutbox
from trainer.worker.round_record import RoundBeginning, read_outer_record, read_steps

LOG = logging.getLogger("cottage.worker")

Waiting = tuple[Audit, bytes | bytearray, bytes]


class RecordReceiver:
    """Puts together what comes back. Called from the socket's loop."""

    def __init__(self, inbox: WorkerInbox, stage: Stage | None) -> None:
        """Whole rounds of ``stage`` go to ``inbox``."""
        self._inbox, self._stage = inbox, stage
        self._state: ArrivingState | None = None
        self._due: RecordReturned | None = None
        self._parts: dict[str, bytearray] = {}
        self._filled: dict[str, int] = {}

    def begin(self, message: RecordReturned) -> None:
        """Parts follow, or none do, or those that had begun end here: one comes back at a time."""
        self._due, self._parts, self._filled = message, {}, dict.fromkeys(message.sizes, 0)
        self._state = None
        if not message.sizes or self._stage is None:
            self._due = None
            self._inbox.returned(ReturnedRecord(message.recall, None))
        elif "state" in message.sizes:
            self._state = ArrivingState(self._stage, momentum=message.recall.kind == "outer")

    def take(self, message: RestoredPart, data: bytes) -> None:
        """Some bytes of a part, in order."""
        due = self._due
        if due is None:
            return  # Of one that was given up.
        begin = self._filled[message.kind]
        self._filled[message.kind] = begin + len(data)
        if message.kind == "state" and self._state is not None:
            try:
                self._state.take(data)
            except (WeightsError, SafetensorError) as error:
                LOG.warning("the state of round %d cannot be read back: %s", due.recall.round + 1, error)
                self.begin(RecordReturned(due.recall, {}))
                return
        else:
            if message.kind not in self._parts:
                self._parts[message.kind] = bytearray(due.sizes[message.kind])
            self._parts[message.kind][begin : begin + len(data)] = data
        if self._filled == due.sizes:
            back = ReturnedRecord(due.recall, self._parts, self._state)
            self._due, self._parts, self._state = None, {}, None
            self._inbox.returned(back)


class Recalls:
    """Audits that wait for rounds. Called in the computing thread."""

    def __init__(self, openings: OpeningService, stage: Stage, outbox: WorkerOutbox, inbox: WorkerInbox) -> None:
        """Of a member with this ``stage``."""
        self._openings = openings
        self._inbox = inbox
        self._stage = stage
        self._outbox = outbox
        self._waiting: dict[RecordRecall, list[Waiting]] = {}
        self._asked: set[RecordRecall] = set()

    def holds(self, command: Audit, payload: bytes | bytearray, anchor: bytes) -> bool:
        """Have an audit wait, where it needs what is not here."""
        recall = self._openings.recall_for(command)
        if recall is None:
            return False
        self._waiting.setdefault(recall, []).append((command, payload, anchor))
        self._ask()
        return True

    def _ask(self) -> None:
        """Ask for what audits wait for; beside a card for one round at a time."""
        for recall in self._waiting:
            if recall not in self._asked and not (self._asked and self._stage.makes_room):
                self._asked.add(recall)
                self._outbox.put(recall)

    def settle(self) -> None:
        """Where the stage makes room: have all that was asked for here, and served, before main memory is wanted otherwise."""
        while self._stage.makes_room and self._waiting and self._inbox.serve_returned():
            pass

    def serve(self, back: ReturnedRecord, answer: Callable[[Audit, bytes | bytearray, bytes], None]) -> None:
        """What audits waited for has come back: they are answered, and it is let go again."""
        recall, waiting = back.recall, self._waiting.pop(back.recall, [])
        self._asked.discard(recall)
        try:
            if back.parts is None:
                raise RoundRecordError("the disk has lost it")
            found = read_back(self._stage, recall, back.parts, back.state)
        except RoundRecordError as error:
            LOG.warning("round %d cannot be read back: %s", recall.round + 1, error)
            for command, *_ in waiting:
                self._openings.refuse(command, str(error))
            self._ask()
            return
        now = 1 if self._stage.makes_room else len(waiting)  # What one has used up is not held for the others.
        with self._openings.back((recall.epoch, recall.round), *found):
            for audit in waiting[:now]:
                answer(*audit)
        del found
        for audit in waiting[now:]:
            if not self.holds(*audit):
                answer(*audit)
        self._ask()


def read_back(
    stage: Stage, recall: RecordRecall, parts: dict[str, bytearray], state: ArrivingState | None
) -> tuple[OpenableSteps | None, OpenableOuter | None, OuterState]:
    """The steps of a round, or its outer step, and what it began with; ``parts`` are let go one by one.

    Raises:
        RoundRecordError: they cannot be used.
    """
    number = recall.round
    try:
        outer, of = (None, number) if state is None else state.whole()
    except WeightsError as error:
        raise RoundRecordError(f"the state that round {number} began with cannot be read: {error}") from error
    if outer is None or of != number:
        raise RoundRecordError(f"the state is {'not here' if outer is None else f'that of round {of}'}")
    beginning = RoundBeginning(outer, parts.pop("moments", bytearray()), stage)
    match recall.kind:
        case "steps":
            method = outer_method(stage.training, stage.slots, stage.size)
            steps = read_steps(parts.pop("steps"), beginning, method, number)
            return OpenableSteps(*steps, lent=stage.makes_room), None, outer
        case "outer":
            shown = read_outer_record(parts.pop("outer"), beginning)
            return None, OpenableOuter(outer.anchor_digest, outer, shown), outer
        case _:
            return None, None, outer
