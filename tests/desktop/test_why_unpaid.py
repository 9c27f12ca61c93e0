"""Each row of what jobs have brought says why it stands so, whatever became of job, seat, shares and payments."""

import itertools
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.untrusted_text import untrusted
from desktop.agent.earnings import pay_sentences
from desktop.agent.earnings.earnings import EarningsFile, Why, standing_of
from desktop.answers import PayReason
from desktop.answers import PayReason as ShownReason
from desktop.gui.paywords import PayWords
from protocol.node import Due, JobEarned, SeatState, ShareState, Tally, Unpaid
from protocol.rest.api import JobStateName

JOB = "ab" * 16
STATES: tuple[JobStateName, ...] = get_args(JobStateName)
SEATS: tuple[SeatState, ...] = get_args(SeatState)
OVER = ("settled", "failed", "cancelled")
SHARES = [state for part in get_args(ShareState) for state in (get_args(part) or (part,))]
REASONS = sorted({word for part in get_args(Why) for word in (get_args(part) or (part,))} - {""})


def told(state: JobStateName, seat: SeatState, *tallies: Tally) -> JobEarned:
    paid = sum(tally.amount for tally in tallies if tally.state == "paid")
    verified = paid + sum(t.amount for t in tallies if t.state in ("saving", "paying", "promised", "stuck"))
    return JobEarned(JOB, verified, paid, "", state, seat, tallies)


def row(account: JobEarned | None, working: bool = False, trouble: str = "", heard: bool = True):
    sums = (0, 0) if account is None else (account.verified, account.paid)
    return standing_of(*sums, account, working, untrusted(trouble), heard)


@pytest.mark.parametrize(("state", "seat"), list(itertools.product(STATES, SEATS)))
def test_without_a_share_a_row_says_what_became_of_seat_and_job(state: JobStateName, seat: SeatState) -> None:
    standing, reasons = row(told(state, seat))
    assert len(reasons) == 1
    assert pay_sentences.said(reasons[0])
    assert standing == "not paid" if state in OVER else standing in ("pending", "not paid")
    if state == "cancelled" and seat == "stopped":
        assert reasons[0].why == "no round: cancelled"


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("state", STATES)
def test_a_share_says_why_it_is_not_paid(share: ShareState, state: JobStateName) -> None:
    standing, reasons = row(told(state, "stopped", Tally(share, 2, 5)))
    if share == "paid":
        assert (standing, reasons) == ("paid", ())
        return
    assert reasons == (PayReason(share, 2, 5),)
    if share in get_args(Unpaid):
        assert standing == "not paid"
    if share in get_args(Due):
        audited = share not in ("unaudited", "looking")
        assert standing == ("pending" if audited or state not in OVER else "not paid")


@given(
    st.sampled_from(STATES),
    st.sampled_from(SEATS),
    st.dictionaries(st.sampled_from(SHARES), st.integers(1, 9)),
    st.booleans(),
    st.booleans(),
)
def test_no_row_waits_for_nothing_and_none_is_silent(
    state: JobStateName, seat: SeatState, shares: dict[ShareState, int], heard: bool, failed: bool
) -> None:
    account = told(state, seat, *(Tally(share, count, 10 * count) for share, count in shares.items()))
    standing, reasons = row(account, trouble="out of memory" if failed else "", heard=heard)
    if state in OVER:
        moving = {"saving", "paying", "promised"} & shares.keys()
        assert (standing == "pending") == bool(moving), "after its end a job waits for payments alone"
    assert reasons or (standing == "paid" and set(shares) == {"paid"} and not failed)
    for reason in reasons:
        assert len(pay_sentences.said(reason)) > 10
    assert {reason.why for reason in reasons} >= shares.keys() - {"paid"}, "each kind of share is explained"


def test_what_nobody_has_told_and_a_coordinator_that_is_away_are_said() -> None:
    assert row(None) == ("pending", (PayReason("nothing told"),))
    standing, reasons = row(told("running", "left", Tally("unaudited", 1)), heard=False)
    assert (standing, [reason.why for reason in reasons]) == ("pending", ["unaudited", "unheard"])
    assert row(told("running", "held"), working=True) == ("working", ())
    standing, reasons = row(None, trouble="out of memory")
    assert (standing, reasons) == ("not paid", (PayReason("failed", detail=untrusted("out of memory")),))


@pytest.mark.parametrize("why", REASONS)
def test_agent_and_window_have_words_for_every_reason(why: Why, qapp_if_any: None) -> None:
    assert pay_sentences.said(PayReason(why, detail=untrusted("x")))
    said = PayWords().said(ShownReason(why, 2, 5, "x"))
    assert said
    assert "does not know yet" not in said


@pytest.mark.parametrize(("shares", "head"), [(1, "1 share"), (3, "3 shares")])
def test_shares_are_counted_by_a_word_that_fits_rounds_and_periods(shares: int, head: str, qapp_if_any: None) -> None:
    assert pay_sentences.said(PayReason("paid", shares, 5)) == f"{head}, 0.000005: paid"
    assert PayWords().said(ShownReason("paid", shares, 5)).startswith(f"{head}, ")


@pytest.fixture
def qapp_if_any() -> None:
    """``tr`` of a QObject needs no application."""


def test_the_book_keeps_what_was_told_and_asks_for_what_is_open(tmp_path: Path) -> None:
    book = EarningsFile(tmp_path / "earnings.db")
    names = {name: name * 16 for name in ("aa", "bb", "cc", "dd")}
    for number, job in enumerate(names.values()):
        book.record_work("http://c", f"lease{number}", job, "a job", float(number), 60.0, "")
    book.record("http://c", JobEarned(names["aa"], 0, 0, "", "cancelled", "stopped"), 5.0)
    book.record("http://c", JobEarned(names["bb"], 7, 0, "", "cancelled", "stopped", (Tally("paying", 1, 7),)), 5.0)
    book.record("http://c", JobEarned(names["cc"], 0, 0, "", "running", "left"), 5.0)
    assert book.unsettled("http://c") == (names["dd"], names["cc"], names["bb"])
    assert book.unsettled("http://other") == ()
    rows = {job.job: job for job in book.summary(10.0, heard="http://c").jobs}
    assert (rows[names["aa"]].standing, rows[names["aa"]].reasons) == ("not paid", (PayReason("no round: cancelled"),))
    assert (rows[names["bb"]].standing, rows[names["bb"]].reasons) == ("pending", (PayReason("paying", 1, 7),))
    assert rows[names["dd"]].reasons == (PayReason("nothing told"),)
    book.record("http://c", JobEarned(names["bb"], 7, 7, "5ig", "cancelled", "stopped", (Tally("paid", 1, 7),)), 6.0)
    assert book.unsettled("http://c") == (names["dd"], names["cc"])
    book.close()
