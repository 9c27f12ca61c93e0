"""While a prover is away the time of its audit stands still: so long in sum, and no longer, however often it comes and goes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.domain.audits import returning
from coordinator.domain.audits.returning import NOTED_S
from coordinator.domain.audits.trust import Audit
from tests.coordinator.audits.test_trust import AUDIT

MOST = 600.0
START = msgspec.structs.replace(AUDIT, asked=1_000.0, deadline=1_120.0)


def look(audit: Audit, now: float, here: bool) -> Audit:
    return returning.seen(audit, here=here, now=now, most=MOST)


def left(audit: Audit, now: float) -> float:
    """What is left of the time to answer."""
    return returning.due(audit, now, MOST) - now


@pytest.mark.parametrize(
    ("looks", "away", "absent", "deadline", "over"),
    [
        ([(1_010.0, True)], None, 0.0, 1_120.0, False),
        ([(1_010.0, False)], 1_010.0, 0.0, 1_120.0, False),
        ([(1_010.0, False), (1_019.0, False)], 1_010.0, 0.0, 1_120.0, False),
        ([(1_010.0, False), (1_050.0, False)], 1_050.0, 40.0, 1_160.0, False),
        ([(1_010.0, False), (1_050.0, True)], None, 40.0, 1_160.0, False),
        ([(1_010.0, False), (1_609.0, False)], 1_609.0, 599.0, 1_719.0, False),
        ([(1_010.0, False), (1_610.0, False)], 1_610.0, 600.0, 1_720.0, True),
        ([(1_010.0, False), (1_410.0, True), (1_420.0, False), (1_620.0, False)], 1_620.0, 600.0, 1_720.0, True),
        ([(1_010.0, False), (9_999.0, True)], None, 8_989.0, 1_720.0, False),
    ],
)
def test_comings_and_goings(
    looks: list[tuple[float, bool]], away: float | None, absent: float, deadline: float, over: bool
) -> None:
    audit = START
    for now, here in looks:
        audit = look(audit, now, here)
    assert (audit.away, audit.absent, audit.deadline) == (away, absent, deadline)
    assert audit.deadline - audit.asked == 120.0, "the phase it is in is as much later as its end"
    assert returning.over(audit, looks[-1][0], MOST) is over


def test_a_coordinator_that_was_away_itself_counts_nobodys_absence() -> None:
    audit = returning.again(look(START, 1_010.0, here=False), 5_000.0, 5_120.0)
    assert (audit.away, audit.absent, audit.asked, audit.deadline) == (5_000.0, 0.0, 5_000.0, 5_120.0)
    assert not returning.over(audit, 5_599.0, MOST)
    assert returning.again(START, 5_000.0, 5_120.0).away is None


def test_a_coordinator_that_begins_anew_again_and_again_forgets_no_absence() -> None:
    audit, now = look(START, 1_010.0, here=False), 1_010.0
    for _ in range(100):
        now += NOTED_S
        audit = returning.again(look(audit, now, here=False), now + 1.0, now + 121.0)
        now += 1.0
        if returning.over(audit, now, MOST):
            break
    assert now == pytest.approx(1_010.0 + MOST * (NOTED_S + 1.0) / NOTED_S)


@given(st.lists(st.tuples(st.floats(0, 400), st.booleans()), max_size=20))
def test_time_runs_while_the_prover_is_here_and_stands_still_for_so_long_in_sum(
    turns: list[tuple[float, bool]],
) -> None:
    audit, now, was_here, away = START, START.asked, True, 0.0
    for wait, here in turns:
        before, stood = left(audit, now), min(MOST, away)
        now += wait
        away += 0.0 if was_here else wait
        ran = wait - (min(MOST, away) - stood)
        assert left(audit, now) == pytest.approx(before - ran), "nothing is granted that was not stood still"
        after = look(audit, now, here)
        assert left(after, now) == pytest.approx(left(audit, now)), "a look changes nothing but what is known"
        assert returning.absence(after, now) == pytest.approx(away)
        assert look(after, now, here) == after
        audit, was_here = after, here
    assert returning.due(audit, now, MOST) <= START.deadline + MOST + 1e-6
