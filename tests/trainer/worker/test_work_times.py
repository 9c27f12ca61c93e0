"""Reports say how long their commands took, where these are part of a trace."""

import asyncio

from protocol.task import ApplyRound, RoundApplied
from protocol.worker import WorkerCommand, WorkerReport
from trainer.worker.outbox import WorkerOutbox

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
DIGEST = "ab" * 32


async def reported(trace: str, number: int = 3) -> WorkerReport:
    """What is said of a new state, its moments behind it, after the command to apply round 3."""
    outbox, order = WorkerOutbox(asyncio.get_running_loop()), ApplyRound(0, 3, {0: DIGEST})
    outbox.times.told(WorkerCommand(order, trace=trace))
    outbox.times.begins(order)
    outbox.report(RoundApplied(0, number, DIGEST), b"state", b"moments", split=5)
    taken = await outbox.get()
    assert taken is not None
    message, payload = taken
    assert isinstance(message, WorkerReport)
    assert (message.split, tuple(payload)) == (5, (b"state", b"moments"))
    return message


async def test_a_new_state_says_how_long_its_command_took() -> None:
    took = (await reported(TRACE)).took
    assert took is not None
    assert took.trace == TRACE
    assert took.began <= took.ended


async def test_nothing_is_said_without_a_trace_or_of_another_round() -> None:
    assert (await reported("")).took is None
    assert (await reported(TRACE, number=4)).took is None
