"""What a submitter is told: a sentence in every state, a time that is never negative, a cost that is never above the cap."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.domain.audits.auditors import MOST_LOOKS
from coordinator.domain.job import ASKED, Job, JobAction, JobPace, JobState, Wish, asked, raised
from coordinator.domain.lease import Lease
from coordinator.errors import ConflictError
from coordinator.services.views import job_summary
from protocol.rest.api import Quote
from tests.coordinator.fakes import WALLET, spec

QUOTE = Quote(1.0, 1, 1, 2, 2, 4, 20, 1.0, 1_000_000, 500_000, 1_000_000, (), "")
JOB = Job("7" * 32, "name", JobState.RUNNING, spec(), WALLET, True, 0.0, 1.0, QUOTE, {}, {}, rounds_done=4)
SECONDS = st.lists(st.floats(0, 1e7), max_size=16).map(tuple)
PACES = st.builds(JobPace, at=st.floats(0, 1e9), fraction=st.floats(0, 1), seconds=SECONDS)


def job(**fields: object) -> Job:
    return msgspec.structs.replace(JOB, **fields)


@given(pace=PACES, later=st.floats(0, 1e8))
def test_the_time_is_never_before_now_and_its_interval_is_in_order(pace: JobPace, later: float) -> None:
    now = pace.at + later
    found = job_summary.ready(job(pace=pace), now)
    if len(pace.seconds) < job_summary.MIN_ROUNDS:
        assert found is None, "unknown says so"
        return
    assert found is not None
    assert now <= found.low <= found.high
    assert now <= found.likely


def test_equal_rounds_give_a_certain_time_and_unequal_ones_an_interval_around_it() -> None:
    even = job_summary.ready(job(pace=JobPace(100.0, 0.5, (80.0,) * 5)), 100.0)
    assert even == job_summary.Ready(140.0, 140.0, 140.0)
    uneven = job_summary.ready(job(pace=JobPace(100.0, 0.5, (60.0, 80.0, 100.0, 80.0))), 100.0)
    assert uneven is not None
    assert 130.0 <= uneven.low < uneven.likely == 140.0 < uneven.high <= 150.0


@pytest.mark.parametrize("state", [state for state in JobState if state is not JobState.RUNNING])
def test_nobody_names_a_time_for_a_job_that_is_not_running(state: JobState) -> None:
    assert job_summary.ready(job(state=state, pace=JobPace(0.0, 0.5, (80.0,) * 5)), 1.0) is None


@given(pace=PACES, cost=st.integers(0, 1_000_000))
def test_what_is_projected_lies_between_the_cost_so_far_and_the_price(pace: JobPace, cost: int) -> None:
    assert cost <= job_summary.projected(job(pace=pace), cost) <= QUOTE.price


def lease(state: str = "ready") -> Lease:
    return Lease("l", JOB.id, "n", "p", 1, 0, 0, 0.0, state=state)  # type: ignore[arg-type]


SENTENCES = {
    JobState.CREATED: "Waiting for ¤ 1.00 in escrow: until then nothing runs and nothing is spent.",
    JobState.FUNDED: "Waiting for enough free nodes: 3rd in the queue.",
    JobState.PLANNED: "Waiting for nodes: 1 of 2 nodes are ready for round 5 of 20.",
    JobState.RUNNING: "Training round 5 of 20 on 1 node.",
    JobState.PAUSED: "Paused: a reason. Nothing runs and nothing is spent.",
    JobState.VERIFYING: "A reason.",
    JobState.SETTLED: "Done: the model is ready, and it cost ¤ 0.00.",
    JobState.FAILED: "Failed: a reason. Verified work is paid, the rest goes back.",
    JobState.CANCELLED: "Cancelled: a reason. Verified work is paid, the rest goes back.",
}


@pytest.mark.parametrize("state", JobState)
def test_every_state_has_its_one_sentence(state: JobState) -> None:
    leases = [lease(), lease("starting"), lease("ended")]
    assert job_summary.sentence(job(state=state), leases, 3, "a reason") == SENTENCES[state]


def test_a_wish_that_waits_is_said() -> None:
    pausing = job_summary.sentence(job(wish=Wish.PAUSE, halt="budget"), [lease()], None, "")
    assert pausing == "Pausing, as the budget is used up: round 5 of 20 is finished, stored and audited first."
    assert job_summary.sentence(job(wish=Wish.STOP), [lease()], None, "").startswith("Stopping: ")


def test_a_job_whose_end_waits_for_the_operators_machine_says_so() -> None:
    waiting = "3 steps wait for a look by the operator's machine."
    trained = job(rounds_done=20)
    assert job_summary.sentence(trained, [lease()], None, "", looks=3) == f"All rounds are trained: {waiting}"
    verifying = job(state=JobState.VERIFYING)
    assert job_summary.sentence(verifying, [], None, "a reason", looks=3) == f"All rounds are trained: {waiting}"
    assert job_summary.sentence(job(wish=Wish.STOP), [lease()], None, "", looks=3) == f"Stopping: {waiting}"
    one = job_summary.sentence(job(wish=Wish.PAUSE, halt="asked"), [lease()], None, "", looks=1)
    assert one == "Pausing: 1 step waits for a look by the operator's machine."
    many = job_summary.sentence(job(), [lease()], None, "", looks=MOST_LOOKS)
    assert many == f"Round 5 of 20 has to wait: {MOST_LOOKS} steps wait for a look by the operator's machine."
    assert job_summary.sentence(job(), [lease()], None, "", looks=3) == SENTENCES[JobState.RUNNING], (
        "rounds do not wait"
    )


def test_places_in_a_queue_read_as_people_say_them() -> None:
    places = [job_summary.ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)]
    assert places == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"]


@pytest.mark.parametrize(("action", "state"), list(itertools.product(JobAction, JobState)))
def test_an_action_is_taken_in_just_the_states_that_the_table_names(action: JobAction, state: JobState) -> None:
    before = job(state=state)
    if state not in ASKED[action]:
        with pytest.raises(ConflictError, match=f"is {state}: "):
            asked(before, action, checkpoint=True)
        return
    after = asked(before, action, checkpoint=True)
    assert asked(after, action, checkpoint=True) == after, "asking twice is asking once"
    assert after.state is state, "a wish moves nothing by itself"
    wanted = {JobAction.PAUSE: Wish.PAUSE, JobAction.RESUME: Wish.NONE, JobAction.STOP: Wish.STOP}[action]
    assert after.wish is (Wish.NONE if (action, state) == (JobAction.PAUSE, JobState.PAUSED) else wanted)


@given(st.lists(st.sampled_from(JobAction), max_size=12))
def test_after_a_stop_nothing_else_is_taken(actions: list[JobAction]) -> None:
    now, stopped = JOB, False
    for action in actions:
        if stopped and action is not JobAction.STOP:
            with pytest.raises(ConflictError, match="is being stopped"):
                asked(now, action, checkpoint=True)
            continue
        now = asked(now, action, checkpoint=True)
        stopped = stopped or action is JobAction.STOP
    assert (now.wish is Wish.STOP) == stopped


def test_no_more_can_be_added_to_a_budget_than_the_price() -> None:
    short = job(spec=msgspec.structs.replace(spec(), budget=400_000))
    assert raised(short, 600_000) == QUOTE.price
    with pytest.raises(ConflictError, match="add 600000 millionths at most"):
        raised(short, 600_001)
    with pytest.raises(ConflictError, match="nothing can be added"):
        raised(msgspec.structs.replace(short, state=JobState.SETTLED), 1)
