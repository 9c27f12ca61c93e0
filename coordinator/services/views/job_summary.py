"""What a submitter may expect of a job: one true sentence, when it will be ready, what it will have cost. Pure.

The page, the command line and the interface all show the sentence that is made here.
"""

from collections.abc import Sequence
from statistics import mean, quantiles

import msgspec

from coordinator.client.text import money
from coordinator.domain.audits.auditors import MOST_LOOKS
from coordinator.domain.job import ENDINGS, LIVE, Job, JobPace, JobState, Wish
from coordinator.domain.lease import Lease

MIN_ROUNDS = 2  # Measured, before a time is named: the first one includes what everybody loads.
TENTHS = 10  # The interval leaves out the quickest and the slowest tenth of the rounds.


class Ready(msgspec.Struct, frozen=True):
    """When a job will be ready, in Unix seconds: likely, and where the quicker and the slower rounds would put it."""

    likely: float
    low: float
    high: float


def ready(job: Job, now: float) -> Ready | None:
    """From the measured rounds; None where it cannot be known: too few rounds, or nothing is running. Never before ``now``."""
    pace = job.pace
    if job.state is not JobState.RUNNING or job.wish is not Wish.NONE or len(pace.seconds) < MIN_ROUNDS:
        return None
    left = max(0.0, 1.0 - pace.fraction)
    low, high = _interval(pace)
    likely = pace.at + left * mean(pace.seconds)
    return Ready(max(now, likely), max(now, pace.at + left * low), max(now, pace.at + left * high))


def projected(job: Job, cost: int) -> int:
    """What the job will have cost in all if every replica takes part in what is left: at most its price."""
    if job.state in (JobState.SETTLED, JobState.FAILED, JobState.CANCELLED):
        return cost
    left = max(0.0, 1.0 - job.pace.fraction)
    return max(cost, min(job.quote.price, cost + round(job.quote.price * left)))


def sentence(job: Job, leases: Sequence[Lease], position: int | None, reason: str, looks: int = 0) -> str:
    """Where the job stands, in one sentence that is true.

    Args:
        leases: all of the job's.
        position: among those that wait for nodes, from 1.
        reason: of its state, as people read it.
        looks: steps that wait for one of the operator's auditors.
    """
    if job.wish in ENDINGS and job.state in LIVE:
        waits = _looks(looks) if looks else "what was done is looked at and paid, then the rest goes back"
        return f"Ending, since {reason or 'it was asked for'}: {waits}."
    match job.state:
        case JobState.CREATED:
            due = money(min(job.quote.price, job.spec.budget))
            return f"Waiting for {due} in escrow: until then nothing runs and nothing is spent."
        case JobState.FUNDED:
            place = "" if position is None else f": {ordinal(position)} in the queue"
            return f"Waiting for enough free nodes{place}."
        case JobState.PLANNED | JobState.RUNNING:
            return _at_work(job, leases, looks)
        case JobState.PAUSED:
            return f"Paused: {reason}. Nothing runs and nothing is spent."
        case JobState.VERIFYING:
            if looks:
                return f"All rounds are trained: {_looks(looks)}."
            return f"{_first_upper(reason)}." if reason else "The last audits and the model folder are under way."
        case JobState.SETTLED:
            return f"Done: the model is ready, and it cost {money(job.paid)}."
        case JobState.FAILED | JobState.CANCELLED:
            word = "Failed" if job.state is JobState.FAILED else "Cancelled"
            return f"{word}: {reason or 'no reason was given'}. Verified work is paid, the rest goes back."


def ordinal(number: int) -> str:
    """A place in a row: ``1st``, ``12th``, ``23rd``."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _looks(number: int) -> str:
    """What the end of a job waits for."""
    waiting = "1 step waits" if number == 1 else f"{number} steps wait"
    return f"{waiting} for a look by the operator's machine"


def _at_work(job: Job, leases: Sequence[Lease], looks: int) -> str:
    held = [lease for lease in leases if lease.state != "ended" and lease.seat]
    there = sum(lease.state == "ready" for lease in held)
    number, of = min(job.rounds_done + 1, max(1, job.quote.rounds)), job.quote.rounds
    if looks and (job.wish is not Wish.NONE or job.rounds_done >= of):
        what = {Wish.STOP: "Stopping", Wish.PAUSE: "Pausing", Wish.NONE: "All rounds are trained"}[job.wish]
        return f"{what}: {_looks(looks)}."
    if job.wish is Wish.STOP:
        return "Stopping: the last audits end, then the model is made from the newest verified checkpoint."
    if job.wish is Wish.PAUSE:
        why = "the budget is used up" if job.halt == "budget" else "the submitter asked for it"
        return f"Pausing, as {why}: round {number} of {of} is finished, stored and audited first."
    if looks >= MOST_LOOKS:
        return f"Round {number} of {of} has to wait: {_looks(looks)}."
    if job.state is JobState.RUNNING:
        what = "Checking the model" if job.rounds_done >= of else f"Training round {number} of {of}"
        return f"{what} on {_nodes(there)}."
    if not held:
        return f"Waiting for nodes: none is left that could go on with round {number} of {of}."
    if job.rounds_done == 0:
        return f"Getting ready: {there} of {_nodes(len(held))} have loaded their part."
    return f"Waiting for nodes: {there} of {_nodes(len(held))} are ready for round {number} of {of}."


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _interval(pace: JobPace) -> tuple[float, float]:
    cuts = quantiles(pace.seconds, n=TENTHS, method="inclusive")
    return cuts[0], cuts[-1]


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]
