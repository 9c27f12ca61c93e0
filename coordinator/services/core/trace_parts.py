"""Of which trace a message to or from a node is a part: each round of a job is one, whoever takes part in it."""

from common import tracing
from protocol.node import Report
from protocol.task import (
    AbandonRound,
    ApplyRound,
    BeginRound,
    ReduceRound,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    TaskCommand,
)


def trace_of(job: str, command: TaskCommand) -> str:
    """What a command of a round is part of: what goes on here, within that round's trace; nothing for other commands."""
    match command:
        case BeginRound():
            whole = tracing.round_of(job, command.plan.epoch, command.round)
        case ReduceRound() | ApplyRound() | AbandonRound():
            whole = tracing.round_of(job, command.epoch, command.round)
        case _:
            return ""
    return tracing.within(tracing.here(), whole)


def parent_of(job: str, report: Report) -> str:
    """What a report goes on from: a node's word counts within the trace of the round that it reports on, and nowhere else."""
    body = report.body
    if not isinstance(body, RoundCommit | RoundHolding | RoundApplied):
        return ""
    return tracing.within(report.trace, tracing.round_of(job, body.epoch, body.round))
