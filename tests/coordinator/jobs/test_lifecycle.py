"""Every legal and every illegal step of a job's life."""

import itertools

import msgspec
import pytest

from coordinator.domain.job import LIVE, NEXT, Job, JobState, advance
from coordinator.errors import IllegalTransitionError
from protocol.rest.api import Quote
from tests.coordinator.fakes import WALLET, spec

QUOTE = Quote(1.0, 1, 1, 1, 1, 1, 1, 1.0, 1, 1, 1, (), "")
JOB = Job("7" * 32, "name", JobState.CREATED, spec(), WALLET, True, 0.0, 1.0, QUOTE, {}, {})
PAIRS = list(itertools.product(JobState, JobState))

LEGAL = {
    ("created", "funded"),
    ("funded", "planned"),
    ("planned", "running"),
    ("running", "planned"),
    ("running", "verifying"),
    ("verifying", "settled"),
    ("funded", "paused"),
    ("planned", "paused"),
    ("running", "paused"),
    ("paused", "funded"),
    ("paused", "planned"),
    ("paused", "verifying"),
    ("planned", "verifying"),
    *(
        (state, end)
        for state in ("created", "funded", "planned", "running", "paused", "verifying")
        for end in ("failed", "cancelled")
    ),
}


@pytest.mark.parametrize(("before", "after"), [pair for pair in PAIRS if pair in LEGAL])
def test_a_legal_step_is_taken(before: JobState, after: JobState) -> None:
    job = advance(msgspec.structs.replace(JOB, state=before), after, 5.0, "because")
    assert (job.state, job.reason) == (after, "because")
    assert job.ended == (None if after in LIVE else 5.0)


@pytest.mark.parametrize(("before", "after"), [pair for pair in PAIRS if pair not in LEGAL])
def test_an_illegal_step_is_refused_and_names_the_ways_out(before: JobState, after: JobState) -> None:
    with pytest.raises(IllegalTransitionError) as refused:
        advance(msgspec.structs.replace(JOB, state=before), after, 5.0)
    assert JOB.id in refused.value.detail
    assert all(way in refused.value.detail for way in NEXT[before])


def test_a_funded_job_cannot_skip_planning() -> None:
    with pytest.raises(IllegalTransitionError, match="is funded: it cannot become running, only"):
        advance(msgspec.structs.replace(JOB, state=JobState.FUNDED), JobState.RUNNING, 0.0)


def test_every_state_can_be_reached_and_every_life_ends() -> None:
    reached, frontier = set(), {JobState.CREATED}
    while frontier:
        reached |= frontier
        frontier = {after for state in frontier for after in NEXT[state]} - reached
    assert reached == set(JobState)
    assert {state for state in JobState if not NEXT[state]} == {JobState.SETTLED, JobState.FAILED, JobState.CANCELLED}
