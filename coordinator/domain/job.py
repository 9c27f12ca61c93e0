"""A job and its life.

::

    created -> funded -> planned <-> running -> verifying -> settled
       |          |  ^       |  ^       |           |  ^
       |          v  |       v  |       v           |  |
       |          +--+----- paused -----+-----------+--+  (stopped: the model of the newest checkpoint)
       |                       |                    |
       +-----------------------+--------------------+----> cancelled, failed (the rest of the escrow goes back)

What its submitter asks for while a round is in flight is a *wish*: it is granted once the round is complete, its state stored and
its audits concluded, so that what is paused can be paid, and what is kept was verified. An end before its time is one, too: no
round begins any more, and what is done is looked at and paid first.
"""

import enum
from collections.abc import Mapping
from typing import Literal

import msgspec

from common.untrusted_text import Told, Untrusted
from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.errors import ConflictError, IllegalTransitionError
from protocol.evaluation import EvaluationRow
from protocol.ids import Digest, NodeAddress
from protocol.job.job import JobSpec
from protocol.rest.api import Agreement, Quote
from protocol.task import PreferenceScore


class JobState(enum.StrEnum):
    """Where a job stands."""

    CREATED = "created"
    FUNDED = "funded"
    PLANNED = "planned"
    RUNNING = "running"
    PAUSED = "paused"
    VERIFYING = "verifying"
    SETTLED = "settled"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED_EARLY = frozenset({JobState.FAILED, JobState.CANCELLED})

NEXT: Mapping[JobState, frozenset[JobState]] = {
    JobState.CREATED: ENDED_EARLY | {JobState.FUNDED},
    JobState.FUNDED: ENDED_EARLY | {JobState.PLANNED, JobState.PAUSED},
    JobState.PLANNED: ENDED_EARLY | {JobState.RUNNING, JobState.PAUSED, JobState.VERIFYING},
    # Planned again: no replica is whole.
    JobState.RUNNING: ENDED_EARLY | {JobState.PLANNED, JobState.PAUSED, JobState.VERIFYING},
    JobState.PAUSED: ENDED_EARLY | {JobState.FUNDED, JobState.PLANNED, JobState.VERIFYING},
    JobState.VERIFYING: ENDED_EARLY | {JobState.SETTLED},
    JobState.SETTLED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

LIVE = frozenset(state for state, following in NEXT.items() if following)
"""States in which something may still happen to a job."""


RESTING = frozenset({JobState.CREATED, JobState.PAUSED})
"""Live states in which nothing happens by itself."""


class Wish(enum.StrEnum):
    """What is to happen once all that is done was looked at: pause, stop and keep the model as it is, or end without one."""

    NONE = ""
    PAUSE = "pause"
    STOP = "stop"
    CANCEL = "cancel"
    FAIL = "fail"


ENDINGS: Mapping[Wish, JobState] = {Wish.CANCEL: JobState.CANCELLED, Wish.FAIL: JobState.FAILED}
"""Wishes that nothing takes back, and what the job is then."""


class JobAction(enum.StrEnum):
    """What a submitter may ask of a job that is paid for."""

    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"


_AT_WORK = frozenset({JobState.FUNDED, JobState.PLANNED, JobState.RUNNING})

ASKED: Mapping[JobAction, frozenset[JobState]] = {
    JobAction.PAUSE: _AT_WORK | {JobState.PAUSED},
    JobAction.RESUME: _AT_WORK | {JobState.PAUSED},
    JobAction.STOP: frozenset({JobState.PLANNED, JobState.RUNNING, JobState.PAUSED}),
}
"""In which states an action has a meaning; asking for what is so already changes nothing. A deployment can be stopped as soon as
it is paid for."""


class JobPace(msgspec.Struct, frozen=True):
    """How quickly a job comes on.

    Attributes:
        at: when the last round was completed, or the job began or resumed.
        fraction: of the training that was done then, 0 to 1.
        seconds: that the last rounds took, each as if the whole training were like it; oldest first.
    """

    at: float = 0.0
    fraction: float = 0.0
    seconds: tuple[float, ...] = ()


class Evaluated(Told, frozen=True):
    """What a job's tasks came to so far, and why there is no more."""

    rows: tuple[EvaluationRow, ...] = ()
    note: Untrusted = Untrusted("")


class JoinedOwner(msgspec.Struct, frozen=True):
    """An owner who takes part in a federated job. ``at``: since when. ``rows``: of the data, where its owner says so."""

    node: NodeAddress
    at: float
    rows: int | None = None


class Job(Told, frozen=True):
    """A job as it is stored. Amounts in millionths of the token, times in Unix seconds.

    Attributes:
        account_id: of the account that it belongs to: nobody else sees it.
        wish: what waits for the round in flight. ``halt``: who asked for it, the submitter or the budget.
        shared: everybody may look at it.
        agreement: whose word ``validation_loss`` is. ``preference``: beside it, where pairs of answers are compared.
        evaluating: how far trying its model with tasks is; empty where none are asked for. ``evaluated``: what came of it.
        warned: four fifths of its budget are spent, and its submitter was told.
        config: the model's config.json, its vocabulary filled in from the tokenizer.
        files: what every worker's folder holds, name -> artifact.
        verified: what verified work has earned so far, of the escrow.
        owners: who has joined a federated job with data of their own. ``released``: rounds of it that were begun, which is what
            its privacy budget is charged with.
    """

    id: str
    name: Untrusted
    state: JobState
    spec: JobSpec
    submitter: NodeAddress
    test_wallet: bool
    created: float
    deadline: float
    quote: Quote
    config: dict[str, object]
    files: dict[str, Digest]
    reason: Untrusted = Untrusted("")
    ended: float | None = None
    escrow: int = 0
    verified: int = 0
    paid: int = 0
    refunded: int = 0
    rounds_done: int = 0
    tokens_done: int = 0
    tokens_per_second: float = 0.0
    train_loss: float | None = None
    validation_loss: float | None = None
    first_validation_loss: float | None = None
    audits: int = 0
    model: Digest | None = None
    account_id: str = LOCAL_ACCOUNT
    wish: Wish = Wish.NONE
    halt: Literal["", "asked", "budget", "deadline"] = ""
    shared: bool = False
    warned: bool = False
    pace: JobPace = JobPace()
    agreement: Agreement | None = None
    preference: PreferenceScore | None = None
    evaluating: Literal["", "waiting", "running", "done", "failed"] = ""
    evaluated: Evaluated | None = None
    owners: tuple[JoinedOwner, ...] = ()
    released: int = 0
    version: int = 0


def advance(job: Job, to: JobState, now: float, reason: str = "") -> Job:
    """Return ``job`` in the state ``to``; an end is stamped with ``now``.

    Raises:
        IllegalTransitionError: the table has no such step.
    """
    if to not in NEXT[job.state]:
        ways = ", ".join(sorted(NEXT[job.state])) or "nothing: its life is over"
        raise IllegalTransitionError(f"job {job.id} is {job.state}: it cannot become {to}, only {ways}", field="state")
    ended = now if not NEXT[to] else None
    return msgspec.structs.replace(job, state=to, reason=reason, ended=ended)


def asked(job: Job, action: JobAction, *, checkpoint: bool) -> Job:
    """Return ``job`` with what its submitter asks for as its wish; unchanged where it is so already.

    Args:
        checkpoint: some state of the model is stored.
    Raises:
        ConflictError: the job is in no state for that, or a stop was asked for, or nothing is there to keep.
    """
    states = ASKED[action] if job.spec.trains else _AT_WORK | {JobState.PAUSED}
    if job.state not in states:
        words = _INSTEAD if job.spec.trains else _INSTEAD_OF_SERVING if job.spec.array is None else _INSTEAD_OF_ARRAYS
        instead = words.get(job.state, "its life is over")
        raise ConflictError(f"job {job.id} is {job.state}: {instead}", field="state")
    if job.wish in ENDINGS:
        raise ConflictError(f"job {job.id} ends: {job.reason}", field="state")
    if job.wish is Wish.STOP and action is not JobAction.STOP:
        after = "its model will be there to download" if job.spec.trains else "what it did is checked and paid"
        raise ConflictError(f"job {job.id} is being stopped: {after}", field="state")
    match action:
        case JobAction.PAUSE if job.state is not JobState.PAUSED and job.wish is Wish.NONE:
            return msgspec.structs.replace(job, wish=Wish.PAUSE, halt="asked")
        case JobAction.RESUME if job.wish is Wish.PAUSE or job.state is JobState.PAUSED:
            return msgspec.structs.replace(job, wish=Wish.NONE, halt="")
        case JobAction.STOP if not checkpoint:
            raise ConflictError(
                f"job {job.id} has no checkpoint to keep yet: wait for one, or cancel it, which refunds what is left",
                field="state",
            )
        case JobAction.STOP:
            return msgspec.structs.replace(job, wish=Wish.STOP, halt=job.halt or "asked")
        case _:
            return job


_INSTEAD: Mapping[JobState, str] = {
    JobState.CREATED: "nobody has paid for it yet: fund or cancel it",
    JobState.FUNDED: "nothing is trained yet: cancel it, which refunds everything",
    JobState.VERIFYING: "all is trained: the model is being put together",
}
_INSTEAD_OF_SERVING: Mapping[JobState, str] = {
    JobState.CREATED: _INSTEAD[JobState.CREATED],
    JobState.VERIFYING: "it answers no more: its last answers are checked and paid",
}

_INSTEAD_OF_ARRAYS: Mapping[JobState, str] = {
    JobState.CREATED: _INSTEAD[JobState.CREATED],
    JobState.VERIFYING: "all that will run has run: the last payments are made",
}


def raised(job: Job, amount: int) -> int:
    """The budget with ``amount`` more.

    Raises:
        ConflictError: nothing can be added in this state, or the price is covered already, or would be more than covered.
    """
    if job.state not in _AT_WORK | {JobState.PAUSED} or job.wish in ENDINGS:
        raise ConflictError(f"job {job.id} is {job.state}: nothing can be added to its budget", field="state")
    if not job.spec.trains:
        return job.spec.budget + amount
    missing = job.quote.price - job.spec.budget
    if amount > missing:
        most = f"add {missing} millionths at most" if missing > 0 else "nothing more can be spent"
        raise ConflictError(
            f"the price of job {job.id} is {job.quote.price} millionths and fixed: {most}", field="amount"
        )
    return job.spec.budget + amount
