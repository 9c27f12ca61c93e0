"""How long this worker takes for what is part of a trace: the agent makes spans of it, since a sandbox reaches nobody else."""

import time
from collections import OrderedDict

from protocol.task import ApplyRound, BeginRound, ReduceRound, RoundApplied, RoundCommit, RoundHolding, TaskReport
from protocol.worker import WorkerCommand, WorkTime

MAX_TOLD = 16  # A round has three commands, and the next may come before this one is over.
_ANSWERS = {RoundCommit: BeginRound, RoundHolding: ReduceRound, RoundApplied: ApplyRound}
_Key = tuple[type, int, int]


class WorkTimes:
    """Commands of rounds and when each was begun. Told on the loop, asked in the computing thread."""

    def __init__(self) -> None:
        self._told: OrderedDict[_Key, str] = OrderedDict()
        self._begun: dict[_Key, WorkTime] = {}

    def told(self, message: object) -> None:
        """Something has come from the agent; only commands that are part of a trace are remembered."""
        if not isinstance(message, WorkerCommand) or not message.trace:
            return
        key = _key(message.body)
        if key is not None:
            self._told[key] = message.trace
            while len(self._told) > MAX_TOLD:
                self._told.popitem(last=False)

    def begins(self, order: object) -> None:
        """The computing thread turns to a command."""
        key = _key(order)
        trace = "" if key is None else self._told.pop(key, "")
        if key is not None and trace:
            now = time.time()
            self._begun = {known: one for known, one in self._begun.items() if known[1:] == key[1:]}
            self._begun[key] = WorkTime(trace, now, now)

    def of(self, body: TaskReport) -> WorkTime | None:
        """What a report's command took until now, where that is part of a trace."""
        asked = _ANSWERS.get(type(body))
        if asked is None or not self._begun:
            return None
        assert isinstance(body, RoundCommit | RoundHolding | RoundApplied)
        begun = self._begun.get((asked, body.epoch, body.round))
        return None if begun is None else WorkTime(begun.trace, begun.began, max(begun.began, time.time()))


def _key(command: object) -> _Key | None:
    match command:
        case BeginRound():
            return BeginRound, command.plan.epoch, command.round
        case ReduceRound() | ApplyRound():
            return type(command), command.epoch, command.round
        case _:
            return None
