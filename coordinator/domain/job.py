"""A job and its life.

::

    created -> funded -> planned <-> running -> verifying -> settled
       |          |          |          |           |
       +----------+----------+----------+-----------+----> cancelled, failed (the rest of the escrow goes back)
"""

import enum
from collections.abc import Mapping

import msgspec

from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.errors import IllegalTransitionError
from transport.wire.api import Quote
from transport.wire.ids import Digest, NodeAddress
from transport.wire.job import JobSpec


class JobState(enum.StrEnum):
    """Where a job stands."""

    CREATED = "created"
    FUNDED = "funded"
    PLANNED = "planned"
    RUNNING = "running"
    VERIFYING = "verifying"
    SETTLED = "settled"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDS = frozenset({JobState.FAILED, JobState.CANCELLED})

NEXT: Mapping[JobState, frozenset[JobState]] = {
    JobState.CREATED: _ENDS | {JobState.FUNDED},
    JobState.FUNDED: _ENDS | {JobState.PLANNED},
    JobState.PLANNED: _ENDS | {JobState.RUNNING},
    JobState.RUNNING: _ENDS | {JobState.PLANNED, JobState.VERIFYING},  # Planned again: no replica is whole.
    JobState.VERIFYING: _ENDS | {JobState.SETTLED},
    JobState.SETTLED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

LIVE = frozenset(state for state, following in NEXT.items() if following)
"""States in which something may still happen to a job."""


class Job(msgspec.Struct, frozen=True):
    """A job as it is stored. Amounts in millionths of the token, times in Unix seconds.

    Attributes:
        account_id: of the account that it belongs to: nobody else sees it.
        config: the model's config.json, its vocabulary filled in from the tokenizer.
        files: what every worker's folder holds, name -> artifact.
        verified: what verified work has earned so far, of the escrow.
    """

    id: str
    name: str
    state: JobState
    spec: JobSpec
    submitter: NodeAddress
    test_wallet: bool
    created: float
    deadline: float
    quote: Quote
    config: dict[str, object]
    files: dict[str, Digest]
    reason: str = ""
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
