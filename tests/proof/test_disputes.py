"""Disputes: bonded and decided on the real ledger, shown question by question, and played again by whoever doubts the end."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from coordinator.proof import disputes
from coordinator.proof.case import Case
from coordinator.proof.checks import failed, findings
from coordinator.proof.disputes import played
from coordinator.proof.gather import gather
from coordinator.proof.restores import GRACE_S, unchecked
from ledger.addresses import audit_bytes, audit_of
from ledger.money import Amount
from ledger.program.layout import Ruling
from protocol.disputes import DisputeEvidence, DisputeView, digest_of
from protocol.rest.ledger import RestoreView
from protocol.task import StepChallenge
from tests.proof.town import MAX_TURNS, OVER, Town, town
from tests.sim.world import SimNode
from tests.support.dispute_history import dispute_history

pytestmark = pytest.mark.asyncio(loop_scope="module")
BOND, LIAR = 10_000_000, 2
SPARE = 1  # The slowest.


async def disputed(place: Town, asks: SimNode | None = None) -> tuple[str, DisputeView]:
    """A job in which a dispute was bonded by its challenger, decided, and all of it carried to the ledger.

    ``asks``: a node of the job that doubts the first step of its first member, once.
    """
    job, bonded = await place.submit(), set[str]()
    seeds = {node.key.address: node.key.seed for node in place.nodes}
    for _ in range(MAX_TURNS):
        await place.turn()
        if asks is not None and asks.tasks and (await place.parts.jobs.get(job)).rounds_done:
            asks.say(next(iter(asks.tasks)), [StepChallenge(0, 0, 0, 0)])
            asks = None
        for one in await place.parts.books.disputes(job, 0, 10):
            if not one.over and one.audit not in bonded:
                bonded.add(one.audit)
                await place.ledger.faucet(one.challenger, Amount(BOND))
                opening = await place.ledger.prepare_dispute(
                    seeds[one.challenger], one.prover, audit_bytes(one.audit), Amount(BOND)
                )
                await place.ledger.confirm(opening)
        await place.parts.bonds.poll()
        view, receipts = await place.parts.jobs.get(job), await place.parts.jobs.receipts(job)
        # Who is sent away leaves its other disputes undecided.
        shown = await place.parts.books.disputes(job, 0, 10)
        found = [one for one in shown if one.audit in bonded and one.winner is not None]
        if view.state in OVER and all(receipt.state not in ("queued", "sent") for receipt in receipts):
            assert found, "nothing was disputed"
            return job, found[0]
    raise AssertionError(f"job {job} is {view.state}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("town"), {LIAR: {"lie": "skips"}}, audits=4) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lied(place: Town) -> tuple[str, DisputeView]:
    return await disputed(place)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def case(place: Town, lied: tuple[str, DisputeView]) -> Case:
    return await gather(lied[0], place.rpc, None, None, place.url)


async def test_a_proven_lie_returns_the_bond_and_takes_the_stake_in_one_transaction(
    place: Town, lied: tuple[str, DisputeView]
) -> None:
    job, one = lied
    assert (one.prover, one.winner) == (place.nodes[LIAR - 1].key.address, "challenger"), one.detail
    state = await place.ledger.dispute(one.challenger, audit_bytes(one.audit))
    assert state is not None
    assert (state.ruling, state.balance) == (Ruling.UPHELD, 0)
    assert state.evidence is not None
    assert state.evidence.hex() == one.digest, "the verdict names the evidence that is published"
    slashes = [e for e in await place.ledger.stake_history(one.prover) if e.kind == "stake_slashed"]
    # Two who dispute the same node's work may be right at the same time: the stake goes with the verdict for one of them.
    right = [
        d for d in await place.parts.books.disputes(job, 0, 10) if (d.prover, d.winner) == (one.prover, "challenger")
    ]
    told = [await dispute_history(place.ledger, d.challenger, audit_bytes(d.audit)) for d in right]
    verdicts = [e.signature for events in told for e in events if e.kind == "dispute_decided"]
    assert [e.signature in verdicts for e in slashes] == [True]
    stake = await place.ledger.stake(one.prover)
    assert stake is not None
    assert slashes[0].fields["amount"] == stake.slashed > 0
    assert audit_of(state.audit) == one.audit


async def test_everything_holds_and_the_dispute_is_played_again(case: Case) -> None:
    found = list(findings(case))
    assert failed(found) == []
    assert any(one.check == "dispute" and one.verdict == "pass" for one in found)
    assert case.published is not None
    for evidence in case.published.disputes:
        again = played(evidence)
        assert (again.winner, again.step, again.index) == (evidence.winner, evidence.step, evidence.index)


Change = Callable[[DisputeEvidence], DisputeEvidence]


def forged(case: Case, change: Change | None, sign: bool) -> Case:
    """Another dispute than there was; with ``sign`` the coordinator has told the ledger of the lie. None: it is hidden."""
    assert case.published is not None
    first, *rest = sorted(case.published.disputes, key=lambda one: one.winner is None)
    told = [] if change is None else [change(first)]
    events = list(case.ledger.events)
    if sign and told:
        for place, event in enumerate(events):
            if event.kind == "ruled" and event.fields["audit"] == first.audit:
                fields = {"winner": told[0].winner or "nobody", "evidence": digest_of(told[0])}
                events[place] = replace(event, fields={**event.fields, **fields})
    return Case(replace(case.ledger, events=events), replace(case.published, disputes=[*told, *rest]))


async def test_a_dispute_whose_record_was_lost_before_a_restore_is_a_remark(case: Case) -> None:
    assert case.published is not None
    audits = {f"audit {one.audit}" for one in case.published.disputes}
    last = max(event.time for event in case.ledger.events)
    for time, excused in ((last, True), (min(event.time for event in case.ledger.events) - GRACE_S - 1, False)):
        restored = replace(case.published, disputes=(), restores=(RestoreView(time, ()),))
        found = list(findings(Case(case.ledger, restored)))
        assert [one.check for one in failed(found) if one.check == "dispute"] == ([] if excused else ["dispute"])
        assert {one.subject for one in unchecked(found)} == (audits if excused else set())


def _fields(**fields: Any) -> Change:
    return lambda one: msgspec.structs.replace(one, **fields)


def _without(number: int) -> Change:
    return lambda one: msgspec.structs.replace(one, said=(*one.said[:number], *one.said[number + 1 :]))


def _swapped(one: DisputeEvidence) -> DisputeEvidence:
    """The challenger's first answer in the prover's mouth."""
    first, second = one.said[0], one.said[1]
    swapped = (
        msgspec.structs.replace(first, side=second.side),
        msgspec.structs.replace(second, side=first.side),
    )
    return msgspec.structs.replace(one, said=(*swapped, *one.said[2:]))


@pytest.mark.parametrize(
    ("what", "change", "sign"),
    [
        ("a dispute that is hidden", None, False),
        ("another winner", _fields(winner="prover"), False),
        ("a winner that the answers do not make", _fields(winner="prover", why="agreement"), True),
        (
            "another reason than there was",
            lambda one: msgspec.structs.replace(one, why="agreement" if one.why == "silence" else "silence"),
            True,
        ),
        ("another operation", _fields(index=4_000), True),
        ("another step", _fields(step=77), True),
        ("more questions", lambda one: msgspec.structs.replace(one, questions=one.questions + 1), True),
        ("an answer that is left out", _without(0), True),
        ("answers that are exchanged", _swapped, True),
        ("another accused", _fields(prover="4Nd1mBQtrMJVYVfKf2PJy9NZUZdTAsp7D4xWLs4gDB4T"), True),
    ],
)
async def test_each_kind_of_untruth_about_a_dispute_is_found(
    case: Case, what: str, change: Change | None, sign: bool
) -> None:
    lie = forged(case, change, sign)
    assert lie.published is not None
    found = failed(list(disputes.check(lie.ledger, lie.published)))
    assert found, what
    assert found[0].check == "dispute"


async def test_a_dispute_that_the_ledger_was_never_told_of_is_found(case: Case) -> None:
    assert case.published is not None
    silent = replace(case.ledger, events=[event for event in case.ledger.events if event.kind != "ruled"])
    (found,) = failed(list(disputes.check(silent, case.published)))
    assert found.detail == "the ledger was told of no such dispute"


async def test_the_pages_show_each_question_and_the_operation_that_was_left(
    place: Town, lied: tuple[str, DisputeView]
) -> None:
    _, one = lied
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{place.url}/ledger/disputes") as answer:
            assert answer.status == 200
            assert f"/ledger/disputes/{one.audit}" in await answer.text()
        async with http.get(f"{place.url}/ledger/disputes/{one.audit}") as answer:
            page = await answer.text()
        assert answer.status == 200
        assert "The node was wrong" in page
        assert str(one.digest) in page
        assert page.count("state after step") + page.count("operations of step") >= 2
        assert "differs" in page
        async with http.get(f"{place.url}/ledger/disputes/{'0' * 32}") as answer:
            assert answer.status == 404
        async with http.get(f"{place.url}/api/v1/disputes/nonsense") as answer:
            assert answer.status == 404


async def test_a_false_accusation_loses_its_bond_to_whom_it_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.services.audits.sampling.rates.rate", lambda *_: 0)
    async with town(tmp_path, {SPARE: {"accuse": True}}, audits=0) as place:
        _, one = await disputed(place, asks=place.nodes[SPARE - 1])
        assert one.winner == "prover"
        assert one.challenger == place.nodes[SPARE - 1].key.address
        state = await place.ledger.dispute(one.challenger, audit_bytes(one.audit))
        assert state is not None
        assert (state.ruling, state.balance) == (Ruling.REJECTED, 0)
        decided = [e for e in await dispute_history(place.ledger, one.challenger, audit_bytes(one.audit)) if e.fields]
        assert decided[-1].fields["ruling"] == "rejected"
        assert await place.ledger.balance(one.prover) >= BOND, "the bond is the accused's"
        stake = await place.ledger.stake(one.challenger)
        assert stake is not None
        assert stake.slashed > 0, "and the accuser's own stake is slashed as before"
