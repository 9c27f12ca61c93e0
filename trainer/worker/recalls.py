"""Rounds that were let go, and come back from the agent's disk for an audit.

::

    audit --> is what it needs here? --yes--> answer
                     | no
               RecordRecall --> agent --> RecordReturned, RestoredPart ... --> answer, and let go again

Audits that need the same wait together. Everything else, steps of the round under way too, goes on meanwhile.
"""

import logging
from collections.abc import Callable

from protocol.worker import RecordRecall, RecordReturned, RestoredPart
from trainer.errors import RoundRecordError
from trainer.outer import OuterState, outer_method
from trainer.stage.stage import Stage
from trainer.worker.inbox import Audit, ReturnedRecord, WorkerInbox
from trainer.worker.opening_service import OpenableOuter, OpenableSteps, OpeningService
from trainer.worker.outbox import WorkerOutbox
from trainer.worker.round_record import RoundBeginning, read_outer_record, read_steps

LOG = logging.getLogger("cottage.worker")

Waiting = tuple[Audit, bytes, bytes]


class RecordReceiver:
    """Puts together what comes back. Called from the socket's loop."""

    def __init__(self, inbox: WorkerInbox) -> None:
        """Whole rounds go to ``inbox``."""
        self._inbox = inbox
        self._due: RecordReturned | None = None
        self._parts: dict[str, bytearray] = {}
        self._filled: dict[str, int] = {}

    def begin(self, message: RecordReturned) -> None:
        """Parts follow, or none do, or those that had begun end here: one comes back at a time."""
        self._due, self._parts, self._filled = message, {}, dict.fromkeys(message.sizes, 0)
        if not message.sizes:
            self._due = None
            self._inbox.returned(ReturnedRecord(message.recall, None))

    def take(self, message: RestoredPart, data: bytes) -> None:
        """Some bytes of a part, in order."""
        due = self._due
        if due is None:
            return  # Of one that was given up.
        whole = self._parts.get(message.kind)
        if whole is None:
            whole = self._parts[message.kind] = bytearray(due.sizes[message.kind])
        begin = self._filled[message.kind]
        whole[begin : begin + len(data)] = data
        self._filled[message.kind] = begin + len(data)
        if self._filled == due.sizes:
            back, self._due, self._parts = ReturnedRecord(due.recall, self._parts), None, {}
            self._inbox.returned(back)


class Recalls:
    """Audits that wait for rounds. Called in the computing thread."""

    def __init__(self, openings: OpeningService, stage: Stage, outbox: WorkerOutbox) -> None:
        """Of a member with this ``stage``."""
        self._openings = openings
        self._stage = stage
        self._outbox = outbox
        self._waiting: dict[RecordRecall, list[Waiting]] = {}

    def holds(self, command: Audit, payload: bytes, anchor: bytes) -> bool:
        """Have an audit wait, where it needs what is not here."""
        recall = self._openings.recall_for(command)
        if recall is None:
            return False
        waiting = self._waiting.setdefault(recall, [])
        if not waiting:
            self._outbox.put(recall)
        waiting.append((command, payload, anchor))
        return True

    def serve(self, back: ReturnedRecord, answer: Callable[[Audit, bytes, bytes], None]) -> None:
        """What audits waited for has come back: they are answered, and it is let go again."""
        recall, waiting = back.recall, self._waiting.pop(back.recall, [])
        try:
            if back.parts is None:
                raise RoundRecordError("the disk has lost it")
            found = read_back(self._stage, recall, back.parts)
        except RoundRecordError as error:
            LOG.warning("round %d cannot be read back: %s", recall.round + 1, error)
            for command, *_ in waiting:
                self._openings.refuse(command, str(error))
            return
        now = 1 if self._stage.makes_room else len(waiting)  # What one has used up is not held for the others.
        with self._openings.back((recall.epoch, recall.round), *found):
            for audit in waiting[:now]:
                answer(*audit)
        del found
        for audit in waiting[now:]:
            self.holds(*audit)


def read_back(
    stage: Stage, recall: RecordRecall, parts: dict[str, bytearray]
) -> tuple[OpenableSteps | None, OpenableOuter | None, OuterState]:
    """The steps of a round, or its outer step, and what it began with; ``parts`` are let go one by one.

    Raises:
        RoundRecordError: they cannot be used.
    """
    number, momentum = recall.round, recall.kind == "outer"
    state, moments = parts.pop("state", bytearray()), parts.pop("moments", bytearray())
    beginning = RoundBeginning.read(stage, state, moments, number, momentum=momentum)
    outer = beginning.outer
    del state, moments
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
