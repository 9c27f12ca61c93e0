"""What this node does in a round, as spans of the trace that its commands are part of; nothing where no spans are sent.

::

    command ----fetch what it needs----> worker ----works----> report ----store and pass on----> coordinator
            span "agent begin"                span "worker begin"        span "agent commit"

A worker is not trusted: its spans have our names, its times lie within ours, and it can name no trace but the command's.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass

from common import tracing
from protocol.task import (
    ApplyRound,
    BeginRound,
    ReduceRound,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    TaskCommand,
    TaskReport,
)
from protocol.worker import WorkTime

MAX_KEPT = 16  # A round has three commands; the next may come before this one is over.
_ANSWERS: dict[type, str] = {RoundCommit: "begin", RoundHolding: "reduce", RoundApplied: "apply"}
_Key = tuple[str, int, int]


@dataclass
class _Step:
    """A command and its answer: where it stands in the trace, and since when."""

    trace: str
    since: float


class RoundTraces:
    """Of one lease."""

    def __init__(self, job: str, node_stage: int | None) -> None:
        self._facts: dict[str, tracing.Fact] = {"job": job} | ({} if node_stage is None else {"stage": node_stage})
        self._steps: OrderedDict[_Key, _Step] = OrderedDict()

    def told(self, body: TaskCommand, trace: str) -> None:
        """The coordinator has sent a command that is part of ``trace``; empty: of none."""
        key = _key(body)
        if key is not None and trace and tracing.is_on():
            self._steps[key] = _Step(trace, time.time())
            while len(self._steps) > MAX_KEPT:
                self._steps.popitem(last=False)

    def handed(self, body: TaskCommand) -> str:
        """The worker gets the command now; returns what it is part of for the worker, or nothing."""
        key = _key(body)
        step = None if key is None else self._steps.get(key)
        if key is None or step is None:
            return ""
        now = time.time()
        step.trace = self._emit(f"agent {key[0]}", step.trace, step.since, now, key)
        step.since = now
        return step.trace

    def worked(self, body: TaskReport, took: WorkTime | None) -> None:
        """The worker has said how long it took for what it reports."""
        key = _key(body)
        step = None if key is None else self._steps.get(key)
        if key is None or step is None or took is None or took.trace != step.trace:
            return
        now = time.time()
        ended = min(max(took.ended, step.since), now)
        step.trace = self._emit(f"worker {key[0]}", step.trace, min(max(took.began, step.since), ended), ended, key)
        step.since = ended

    def said(self, body: TaskReport) -> str:
        """A report goes to the coordinator now; returns what it is part of, or nothing."""
        key = _key(body)
        step = None if key is None else self._steps.pop(key, None)
        if key is None or step is None:
            return ""
        return self._emit(f"agent {_SAYS[key[0]]}", step.trace, step.since, time.time(), key)

    def _emit(self, name: str, parent: str, began: float, ended: float, key: _Key) -> str:
        return tracing.emit(name, parent, began, ended, **self._facts, epoch=key[1], round=key[2])


_SAYS = {"begin": "commit", "reduce": "holding", "apply": "applied"}


def _key(message: TaskCommand | TaskReport) -> _Key | None:
    match message:
        case BeginRound():
            return "begin", message.plan.epoch, message.round
        case ReduceRound():
            return "reduce", message.epoch, message.round
        case ApplyRound():
            return "apply", message.epoch, message.round
        case RoundCommit() | RoundHolding() | RoundApplied():
            return _ANSWERS[type(message)], message.epoch, message.round
        case _:
            return None
