"""Money that outside wallets bring: noticed, receipted, given back when it comes too late, and never more payees than fit."""

from collections.abc import Sequence

import msgspec
import pytest

from coordinator.domain.job import JobState
from coordinator.domain.lease import Lease
from coordinator.domain.placement import Candidate
from coordinator.domain.rounds.run import Run
from coordinator.errors import FundsError
from coordinator.services.drivers.maintenance import MAX_POLLED
from coordinator.services.jobs import jobs as jobs_module
from coordinator.services.payments.chain import Deposit
from coordinator.services.payments.escrows import ESCROW_MARGIN
from coordinator.services.payments.payees import MAX_PAYEES, ROOM, payable, payees_of
from coordinator.store.records import CommitRecord, EventRecord
from ledger.client import Consent
from ledger.money import Amount
from ledger.states import EscrowState
from protocol.identity import NodeKey
from protocol.node import Goodbye
from protocol.rest.api import NewJob
from protocol.task import Layers
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import BUDGET, WALLET, Account, spec, unavailable

OUTSIDE = NodeKey(b"o" * 32).address


def key(number: int) -> str:
    return NodeKey(number.to_bytes(32, "big")).address


async def outside_job(bench: Bench, stages: int = 1, replicas: int = 1) -> str:
    """A job that waits for the escrow of a wallet of its own."""
    for number in range(1, 5):
        if bench.parts.nodes.session(key(number)) is None:
            await bench.enter(number)
    bench.fake.wallets[OUTSIDE] = BUDGET * 10
    return (await bench.parts.jobs.create(NewJob(spec(stages, replicas), OUTSIDE))).id


async def drain(bench: Bench, times: int = 6) -> None:
    for _ in range(times):
        await bench.parts.lanes.drain()


async def texts(bench: Bench, job: str) -> list[str]:
    return [event.text for event in await bench.parts.jobs.events(job, 0)]


# --- receipts ---------------------------------------------------------------------------------------------------------------


async def test_an_outside_deposit_has_a_receipt() -> None:
    bench = Bench()
    job = await outside_job(bench)
    bench.fake.pay(job, BUDGET, OUTSIDE)
    await bench.fund(job)
    await bench.parts.upkeep.look_for_escrows()
    found = [receipt for receipt in await bench.parts.jobs.receipts(job) if receipt.kind == "fund"]
    assert [(r.signature, r.state, r.amount) for r in found] == [(f"deposit-{job}", "confirmed", BUDGET)]
    assert found[0].detail == f"from wallet {OUTSIDE[:4]}…{OUTSIDE[-4:]}"


async def test_the_test_wallet_has_one_receipt_whoever_sees_its_escrow_first() -> None:
    bench = Bench()
    job = await bench.job()
    async with bench.parts.desk.open(job) as work:
        await bench.parts.funding.queue_funding(work)
    bench.fake.fault = lambda what: unavailable(what) if what == "after" else None
    await drain(bench, 1)
    bench.fake.fault = lambda _what: None
    await bench.parts.upkeep.look_for_escrows()
    await drain(bench)
    assert (await bench.stored(job)).state is JobState.FUNDED
    assert [row.state for row in await bench.rows(job, "fund")] == ["confirmed"]


async def test_a_deposit_that_the_history_does_not_know_is_receipted_without_a_signature() -> None:
    bench = Bench()
    job = await outside_job(bench)
    bench.fake.pay(job, BUDGET, OUTSIDE)

    async def forgetful(_submitter: str, _job: str) -> Sequence[Deposit]:
        return [Deposit("first", 4, 1.0)]

    bench.fake.deposits = forgetful  # type: ignore[method-assign, assignment]
    await bench.fund(job)
    rows = await bench.rows(job, "fund")
    assert [(row.signature, row.amount, row.state) for row in rows] == [
        ("first", 4, "confirmed"),
        ("", BUDGET - 4, "confirmed"),
    ]


# --- too late, too little, too much -----------------------------------------------------------------------------------------


async def test_a_deposit_after_the_cancel_goes_back_without_anybody_asking() -> None:
    bench = Bench()
    job = await outside_job(bench)
    await bench.parts.jobs.cancel(job)
    await bench.parts.upkeep.look_for_escrows()
    assert not await bench.rows(job, "refund")
    bench.fake.pay(job, BUDGET, OUTSIDE)
    await bench.parts.upkeep.look_for_escrows()
    await drain(bench)
    account, stored = bench.fake.escrows[job], await bench.stored(job)
    assert (account.refunded, account.ended) == (BUDGET, True)
    assert (stored.state, stored.escrow, stored.refunded) == (JobState.CANCELLED, BUDGET, BUDGET)
    assert {receipt.kind for receipt in await bench.parts.jobs.receipts(job)} == {"fund", "refund"}
    before = await texts(bench, job)
    await bench.parts.upkeep.look_for_escrows()
    assert await texts(bench, job) == before
    assert before[-2:] == ["¤ 10.00 came into escrow, but the job has ended", "¤ 10.00 went back to the submitter"]


async def test_a_deposit_that_was_too_small_goes_back_after_the_cancel() -> None:
    bench = Bench()
    job = await outside_job(bench)
    bench.fake.pay(job, 5, OUTSIDE)
    with pytest.raises(FundsError, match=r"holds ¤ 0\.000005"):
        await bench.fund(job)
    await bench.parts.jobs.cancel(job)
    await bench.parts.upkeep.look_for_escrows()
    await drain(bench)
    assert bench.fake.escrows[job].refunded == 5


@pytest.mark.parametrize("late", [0, 1])
async def test_every_cancelled_job_is_looked_at_in_turn(late: int) -> None:
    bench = Bench()
    jobs = []
    for _ in range(MAX_POLLED + 2):
        bench.clock.t += 1.0
        jobs.append(await outside_job(bench))
        await bench.parts.jobs.cancel(jobs[-1])
    bench.fake.pay(jobs[late], BUDGET, OUTSIDE)  # Of the second turn, once the first has taken one from before it.
    bench.fake.pay(jobs[-1], BUDGET, OUTSIDE)
    for _ in range(2):
        await bench.parts.upkeep.look_for_escrows()
    await drain(bench)
    assert bench.fake.escrows[jobs[late]].ended
    assert bench.fake.escrows[jobs[-1]].ended


async def test_an_ended_job_is_forgotten_once_the_submitter_can_help_himself() -> None:
    bench = Bench()
    job = await outside_job(bench)
    await bench.parts.jobs.cancel(job)
    bench.fake.pay(job, BUDGET, OUTSIDE)
    bench.clock.t = (await bench.stored(job)).deadline + ESCROW_MARGIN + 1
    await bench.parts.upkeep.look_for_escrows()
    assert not await bench.rows(job, "refund")


async def test_a_silent_ledger_only_delays_the_look() -> None:
    bench = Bench()
    job = await outside_job(bench)
    await bench.parts.jobs.cancel(job)
    bench.fake.pay(job, BUDGET, OUTSIDE)
    bench.fake.fault = unavailable
    await bench.parts.upkeep.look_for_escrows()
    bench.fake.fault = lambda _what: None
    await bench.parts.upkeep.look_for_escrows()
    await drain(bench)
    assert bench.fake.escrows[job].refunded == BUDGET


async def test_a_refund_of_nothing_ends_the_escrow_and_nobody_speaks_of_it() -> None:
    bench = Bench()
    job = await bench.verified([{key(9): 350}], escrow=350)
    bench.fake.escrows[job] = Account(WALLET, 350, 2**40)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.settlement.finish(work)
    await drain(bench)
    async with bench.parts.desk.open(job) as work:
        work.run = Run((Layers(0, 4),), 1, total_steps=2, inner_steps=2, evaluate=())
        await bench.parts.runs.advance(work)
    stored, said = await bench.stored(job), await texts(bench, job)
    assert bench.fake.escrows[job].ended
    assert (stored.state, stored.paid, stored.refunded) == (JobState.SETTLED, 350, 0)
    assert not any("back" in text for text in said)
    assert said[-1] == "the job is done: the model is ready, and it cost ¤ 0.00035"
    assert (await bench.rows(job, "refund"))[0].detail == "nothing was left: the escrow is closed to new deposits"


async def test_what_was_added_to_the_escrow_later_goes_back_and_is_accounted_for() -> None:
    bench = Bench()
    job = await bench.verified([{key(9): 350}], escrow=350)
    bench.fake.escrows[job] = Account(WALLET, 350 + 70, 2**40)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.settlement.finish(work)
    await drain(bench)
    stored = await bench.stored(job)
    assert (stored.escrow, stored.paid, stored.refunded) == (420, 350, 70)
    assert [row.amount for row in await bench.rows(job, "refund")] == [70]


# --- payees -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"consent": Consent.ADMIT}, "does not let its coordinator admit payees and return what is left"),
        ({"consent": Consent.END}, "does not let its coordinator admit payees and return what is left"),
        ({"cap": Amount(1)}, "lets at most .* be paid, the price is .*: raise its cap"),
    ],
)
async def test_an_escrow_that_ties_the_coordinators_hands_is_refused(terms: dict[str, object], why: str) -> None:
    bench = Bench()
    job = await outside_job(bench)
    bench.fake.pay(job, BUDGET, OUTSIDE)
    ask = bench.fake.escrow

    async def tied(submitter: str, name: str) -> EscrowState | None:
        state = await ask(submitter, name)
        return None if state is None else EscrowState(**{**vars(state), **terms})

    bench.fake.escrow = tied  # type: ignore[method-assign, assignment]
    with pytest.raises(FundsError, match=why):
        await bench.fund(job)


async def test_an_escrow_with_room_for_too_few_payees_is_refused_and_given_back() -> None:
    bench = Bench()
    job = await outside_job(bench)
    bench.fake.pay(job, BUDGET, OUTSIDE)
    ask = bench.fake.escrow

    async def narrow(submitter: str, name: str) -> EscrowState | None:
        state = await ask(submitter, name)
        return None if state is None else EscrowState(**{**vars(state), "max_payees": 3})

    bench.fake.escrow = narrow  # type: ignore[method-assign, assignment]
    with pytest.raises(FundsError, match=f"room for 3 payees, and {ROOM} are needed: cancel the job"):
        await bench.fund(job)
    assert (await bench.parts.jobs.funding(job)).max_payees == ROOM
    await bench.parts.jobs.cancel(job)
    await bench.parts.upkeep.look_for_escrows()
    await drain(bench)
    assert bench.fake.escrows[job].refunded == BUDGET


async def crowded(bench: Bench, returning: int, *, worked: bool = True) -> str:
    """A job that as many accounts have worked for as its escrow pays, the node ``returning``'s among them; its seat is free.

    Args:
        worked: else they were ready, said so, and left before they had done anything.
    """
    job = await outside_job(bench)
    bench.fake.pay(job, BUDGET, OUTSIDE)
    await bench.fund(job)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
        for number in range(MAX_PAYEES):
            payout = key(500 + returning) if number == 0 else key(5000 + number)
            gone = Lease(f"gone-{number}", job, key(4000 + number), payout, number + 100, 0, 0, 1.0)
            await work.tx.insert(msgspec.structs.replace(gone, state="ended", end="left", ended=2.0, seq=3))
            if worked:
                await work.tx.insert(share(gone, number))
        (held,) = [lease for lease in work.leases.values() if lease.seat]
        work.end(held.id, "left", "the node went away")
        await bench.parts.runs.advance(work)
    return job


def share(lease: Lease, number: int) -> CommitRecord:
    """What its holder did in one round."""
    root = f"{number:064x}"
    place = {"job": lease.job, "epoch": 0, "round": number, "stage": 0, "replica": 0, "lease": lease.id}
    whose = {"node": lease.node, "payout": lease.payout, "root": root, "leaves": 1, "pseudo_gradient": root}
    done = {"tokens": 1, "operations": 1, "drawable": True, "state": "verified", "amount": 0}
    return msgspec.convert(place | whose | done, CommitRecord)


async def test_accounts_that_have_not_worked_keep_nobody_out() -> None:
    """One node that named another account each time, was ready and left, had a job to itself after some hours."""
    bench = Bench()
    job = await crowded(bench, returning=9, worked=False)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
        assert [lease.seat for lease in work.leases.values() if lease.seat] == [(0, 0)]
    assert not [text for text in await texts(bench, job) if "gets no seat" in text]


async def test_no_seat_goes_to_an_account_that_the_escrow_could_not_pay() -> None:
    bench = Bench()
    job = await crowded(bench, returning=9)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
        assert [lease.seat for lease in work.leases.values() if lease.seat] == []
    said = [text for text in await texts(bench, job) if "gets no seat" in text]
    assert len(said) == 1
    assert f"the escrow can pay {MAX_PAYEES} accounts" in said[0]


async def test_a_node_of_an_account_that_has_worked_for_the_job_takes_the_seat() -> None:
    bench = Bench()
    job = await crowded(bench, returning=9)
    await bench.enter(9)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
        assert [lease.node for lease in work.leases.values() if lease.seat] == [key(9)]


def test_the_accounts_of_the_quickest_nodes_are_admitted_first() -> None:
    nodes = [Candidate(f"n{number}", f"o{number}", 1, float(number), "cpu") for number in range(MAX_PAYEES + 3)]
    nodes.append(Candidate("twin", "o66", 1, 0.0, "cpu"))
    admitted = {candidate.node for candidate in payable(nodes, frozenset())}
    assert admitted == {f"n{number}" for number in range(3, MAX_PAYEES + 3)} | {"twin"}
    full = frozenset({"o0", *(f"x{number}" for number in range(MAX_PAYEES - 1))})
    assert [candidate.node for candidate in payable(nodes, full)] == ["n0"]


def test_payees_are_those_who_may_have_earned() -> None:
    lease = Lease("l", "j", "n", "p", 1, 0, 0, 0.0)
    spare = msgspec.structs.replace(lease, stage=None, replica=None, payout="spare", seq=5)
    never = msgspec.structs.replace(lease, state="ended", payout="never")
    ready = msgspec.structs.replace(lease, id="r", state="ended", payout="ready and gone", seq=1)
    once = msgspec.structs.replace(lease, id="w", state="ended", payout="once", seq=2)
    assert payees_of([lease, spare, never, ready, once], {"w"}) == {"p", "once"}


# --- nodes that go away -----------------------------------------------------------------------------------------------------


async def test_the_timeline_says_why_a_node_is_gone() -> None:
    bench = Bench()
    job = await outside_job(bench)
    bench.fake.pay(job, BUDGET, OUTSIDE)
    await bench.fund(job)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
        seated = next(lease.node for lease in work.leases.values() if lease.seat)
    session = bench.parts.nodes.session(seated)
    assert session is not None
    await bench.parts.conversation.receive(session, Goodbye("its owner needs the machine"))
    name = f"{session.profile.name} ({seated[:4]}…{seated[-4:]})"
    assert f"{name} has left: its owner needs the machine" in await texts(bench, job)


async def test_a_worker_that_never_gets_ready_is_given_up_with_a_line_in_the_timeline() -> None:
    bench = Bench()
    job = await outside_job(bench)
    bench.fake.pay(job, BUDGET, OUTSIDE)
    await bench.fund(job)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
    bench.clock.t += bench.parts.context.config.start_seconds + 1
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
    assert any("was not ready after 300 s and is given up" in text for text in await texts(bench, job))


# --- long jobs --------------------------------------------------------------------------------------------------------------


async def test_the_newest_rows_are_returned_in_the_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    job = await bench.verified([{key(9): number + 1} for number in range(5)])
    bench.fake.escrows[job] = Account(WALLET, BUDGET, 2**40)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.settlement.finish(work)
        for number in range(5):
            await work.tx.insert(EventRecord(job, 0.0, "round", f"line {number}"))
    monkeypatch.setattr(jobs_module, "MAX_ROWS", 2)
    assert [commit.round for commit in await bench.parts.jobs.commits(job)] == [3, 4]
    assert [r.round for r in await bench.parts.jobs.rounds(job)] == [3, 4]
    assert [receipt.kind for receipt in await bench.parts.jobs.receipts(job)] == ["settle", "refund"]
    first = await bench.parts.jobs.events(job, 0, 2)
    second = await bench.parts.jobs.events(job, first[-1].id, 2)
    assert (first[0].kind, second[0].id) == ("created", first[-1].id + 1), (
        "the timeline is read in parts, from its start"
    )
