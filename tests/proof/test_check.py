"""``cottage ledger check``: an honest job holds, and every kind of untruth is found."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from coordinator.proof.case import Case, ProofFinding
from coordinator.proof.checks import across, failed, findings
from coordinator.proof.cli import main
from coordinator.proof.gather import gather
from ledger.client import job_bytes
from ledger.history import LedgerEvent
from ledger.money import Amount
from protocol.evidence import ACROSS, RoundEvidence, leaves_of, root_of
from protocol.job.job import JobSpec, ModelSpec, ServeSpec
from tests.coordinator.fakes import BUDGET, WALLET, spec
from tests.ledger.by_hand import pay
from tests.proof.town import COORDINATOR_SEED, Town, town

pytestmark = pytest.mark.asyncio(loop_scope="module")
RAISED = 100
STRANGER = "4Nd1mBQtrMJVYVfKf2PJy9NZUZdTAsp7D4xWLs4gDB4T"

Forge = Callable[[Case], Case]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("town")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def job(place: Town) -> str:
    return await place.train()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def case(place: Town, job: str) -> Case:
    return await gather(job, place.rpc, None, None, place.url)


def first_failure(case: Case) -> ProofFinding | None:
    return next((finding for finding in findings(case) if finding.verdict == "fail"), None)


# --- an honest job -------------------------------------------------------------------------------------------------------


async def test_everything_holds_for_an_honest_job_and_every_round_was_looked_at(case: Case) -> None:
    found = list(findings(case))
    assert failed(found) == []
    for check in ("commitments root", "commitments proofs", "outcome root", "beacon", "draw", "order", "shares"):
        assert sum(one.check == check for one in found) == 4, check
    assert {"sums", "paid in full", "every payout", "document", "every round", "price", "payouts", "refund"} <= {
        one.check for one in found
    }
    assert all(one.used for one in found), "each check names what it used"


async def test_the_draws_come_from_blocks_made_after_the_commitments_were_on_the_ledger(case: Case) -> None:
    assert case.published is not None
    for one in case.published.rounds:
        memo = next(e for e in case.ledger.roots("commitments") if e.fields["round"] == one.round)
        assert one.draw is not None
        assert memo.slot == one.draw.after < one.draw.slot


async def test_the_command_tells_what_it_used_and_ends_with_status_0(
    place: Town, job: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    assert await asyncio.to_thread(main, [job, "--coordinator", place.url, "--rpc", place.rpc]) == 0
    shown = capsys.readouterr().out
    assert "checks hold" in shown
    assert "FAIL" not in shown
    assert await asyncio.to_thread(main, [job, "--coordinator", place.url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[0]["check"] == "endpoint", "an endpoint that the coordinator names is its word"
    assert {one["verdict"] for one in found} == {"note", "pass"}


async def test_the_ledger_alone_shows_sums_and_payouts(
    place: Town, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asyncio.to_thread(main, [job, "--chain-only", "--rpc", place.rpc, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["check"] for one in found] == ["sums", "paid in full", "refunded in full", "every payout", "published"]


# --- forgeries -----------------------------------------------------------------------------------------------------------


def evidence(change: Callable[[RoundEvidence], RoundEvidence], number: int = 1, resign: bool = False) -> Forge:
    """Another round's evidence; with ``resign`` the coordinator has written the roots of the lie on the ledger."""

    def forge(case: Case) -> Case:
        assert case.published is not None
        rounds = [change(one) if one.round == number else one for one in case.published.rounds]
        events = list(case.ledger.events)
        if resign:
            new = next(one for one in rounds if one.round == number)
            for place, event in enumerate(events):
                if event.kind == "rooted" and event.fields["round"] == number:
                    leaves = leaves_of(new, event.fields["what"])
                    fields = {**event.fields, "root": root_of(leaves), "leaves": len(leaves)}
                    events[place] = replace(event, fields=fields)
        return Case(replace(case.ledger, events=events), replace(case.published, rounds=rounds))

    return forge


def events(keep: Callable[[LedgerEvent], bool]) -> Forge:
    """A ledger that hides events, or a coordinator that never wrote them."""
    return lambda case: Case(
        replace(case.ledger, events=[event for event in case.ledger.events if keep(event)]), case.published
    )


def _draw(**fields: Any) -> Callable[[RoundEvidence], RoundEvidence]:
    def change(one: RoundEvidence) -> RoundEvidence:
        assert one.draw is not None
        return msgspec.structs.replace(one, draw=msgspec.structs.replace(one.draw, **fields))

    return change


def _another_step(one: RoundEvidence) -> RoundEvidence:
    """Somebody was to be spared: the other step of the same member was audited."""
    assert one.draw is not None
    drawn, *rest = one.draw.steps
    step = 1 - drawn.step
    audits = tuple(
        msgspec.structs.replace(a, step=step)
        if (a.stage, a.replica, a.step) == (drawn.stage, drawn.replica, drawn.step)
        else a
        for a in one.audits
    )
    draw = msgspec.structs.replace(one.draw, steps=(msgspec.structs.replace(drawn, step=step), *rest))
    return msgspec.structs.replace(one, draw=draw, audits=audits)


def _no_audit(one: RoundEvidence) -> RoundEvidence:
    assert one.draw is not None
    return msgspec.structs.replace(one, draw=msgspec.structs.replace(one.draw, steps=()), audits=())


def _rates(one: RoundEvidence) -> RoundEvidence:
    """Rates that were changed once the block was known."""
    changed = tuple(msgspec.structs.replace(c, rate=1_000_000) for c in one.commitments)
    return msgspec.structs.replace(one, commitments=changed)


def _root(one: RoundEvidence) -> RoundEvidence:
    first, *rest = one.commitments
    return msgspec.structs.replace(one, commitments=(msgspec.structs.replace(first, root="ab" * 32), *rest))


def _share(by: int, payout: str | None = None) -> Callable[[RoundEvidence], RoundEvidence]:
    def change(one: RoundEvidence) -> RoundEvidence:
        first, *rest = one.shares
        more = msgspec.structs.replace(first, amount=first.amount + by, payout=payout or first.payout)
        return msgspec.structs.replace(one, shares=(more, *rest))

    return change


async def test_an_audit_across_classes_is_said_to_prove_nothing(case: Case) -> None:
    assert case.published is not None
    one = next(found for found in case.published.rounds if any(audit.verdicts for audit in found.audits))
    assert list(across(one)) == [], "here everybody is of one class"
    audit = next(audit for audit in one.audits if audit.verdicts)
    far = msgspec.structs.replace(audit.verdicts[0], verdict=f"mismatch{ACROSS}")
    both = (*audit.verdicts, far)
    mixed = msgspec.structs.replace(one, audits=(msgspec.structs.replace(audit, verdicts=both),))
    assert list(across(mixed)) == [], "somebody of the class has looked, too"
    alone = msgspec.structs.replace(audit, verdicts=(far,), state="void", blame="distant")
    (said,) = across(msgspec.structs.replace(one, audits=(alone,)))
    assert (said.verdict, said.check) == ("note", "audit")
    assert "mismatch across classes" in said.detail
    assert "proves nothing" in said.detail


def _spared(one: RoundEvidence) -> RoundEvidence:
    """An audit failed and nothing followed."""
    first, *rest = one.audits
    return msgspec.structs.replace(one, audits=(msgspec.structs.replace(first, state="failed", blame="wrong"), *rest))


def _pot(one: RoundEvidence) -> RoundEvidence:
    """A round that is paid a millionth more than its tokens are worth, split as it should be."""
    first, *rest = one.shares
    terms = msgspec.structs.replace(one.terms, pot=one.terms.pot + 4)
    more = tuple(msgspec.structs.replace(share, amount=share.amount + 1) for share in (first, *rest))
    return msgspec.structs.replace(one, terms=terms, shares=more)


def _hidden(case: Case) -> Case:
    assert case.published is not None
    rounds = [one for one in case.published.rounds if one.round != 2]
    return replace(case, published=replace(case.published, rounds=rounds))


def _two_roots(case: Case) -> Case:
    """Two histories: the coordinator wrote a second root of the same commitments."""
    memo = next(case.ledger.roots("commitments"))
    second = replace(memo, fields={**memo.fields, "root": "cd" * 32})
    return Case(replace(case.ledger, events=[second, *case.ledger.events]), case.published)


def _late(case: Case) -> Case:
    """Commitments that came onto the ledger only after the block that decided the draw."""
    moved = [replace(e, slot=e.slot + 50) if e.kind == "rooted" else e for e in case.ledger.events]
    return Case(replace(case.ledger, events=moved), case.published)


def _chosen(case: Case) -> Case:
    """A draw from the first block after some slot later than the memo's: the coordinator waited for a block that it liked."""
    moved = [replace(e, slot=e.slot - 1) if e.fields.get("what") == "commitments" else e for e in case.ledger.events]
    return Case(replace(case.ledger, events=moved), case.published)


def _document(case: Case) -> Case:
    assert case.published is not None
    other = msgspec.structs.replace(case.published.spec, name="another job")
    return replace(case, published=replace(case.published, spec=other))


def _lowered(case: Case) -> Case:
    """A budget below the one that the ledger has: budgets are only raised."""
    assert case.published is not None
    lower = msgspec.structs.replace(case.published.spec, budget=case.published.spec.budget - 1)
    return replace(case, published=replace(case.published, spec=lower))


def _raised_and_changed(case: Case) -> Case:
    """Under a raised budget something else was changed, too."""
    assert case.published is not None
    said = case.published.spec
    other = msgspec.structs.replace(said, budget=said.budget + 1, deadline_hours=said.deadline_hours + 1)
    return replace(case, published=replace(case.published, spec=other))


def _lost_payout() -> Forge:
    seen: list[str] = []

    def keep(event: LedgerEvent) -> bool:
        if event.kind == "paid" and not seen:
            seen.append(event.signature)
            return False
        return True

    return events(keep)


@pytest.mark.parametrize(
    ("what", "forge", "check"),
    [
        ("a seed of the coordinator's own", evidence(_draw(seed="11" * 32), resign=True), "draw"),
        ("a block that the ledger has not", evidence(_draw(block=STRANGER), resign=True), "beacon"),
        ("a later block, which draws better", evidence(_draw(slot=9_999_999), resign=True), "beacon"),
        ("another step than was drawn", evidence(_another_step, resign=True), "draw"),
        ("no audit at all", evidence(_no_audit, resign=True), "draw"),
        ("rates changed once the block was known", evidence(_rates), "commitments root"),
        ("a commitment that was exchanged", evidence(_root), "commitments root"),
        ("a share above its part", evidence(_share(1), resign=True), "shares"),
        ("a share below its part", evidence(_share(-1), resign=True), "shares"),
        ("a share to somebody else", evidence(_share(0, STRANGER), resign=True), "shares"),
        ("a share that is not under the root", evidence(_share(1)), "outcome root"),
        ("a failed audit that cost nothing", evidence(_spared, resign=True), "shares"),
        ("a pot above the price", evidence(_pot, resign=True), "price"),
        ("a round that is hidden", _hidden, "every round"),
        ("two different roots of one round", _two_roots, "commitments root"),
        ("commitments written after the draw", _late, "order"),
        ("a block that was chosen by waiting", _chosen, "order"),
        ("another job document", _document, "document"),
        ("a budget that was lowered", _lowered, "document"),
        ("another document under a raised budget", _raised_and_changed, "document"),
        ("a payout whose event is missing", _lost_payout(), "sums"),
        ("a deposit whose event is missing", events(lambda e: e.kind != "deposited"), "sums"),
        ("no memo of an outcome", events(lambda e: e.fields.get("what") != "outcome"), "outcome root"),
        ("no memo of commitments", events(lambda e: e.fields.get("what") != "commitments"), "every round"),
    ],
)
async def test_each_kind_of_untruth_is_found(case: Case, what: str, forge: Forge, check: str) -> None:
    forged = forge(case)
    found = first_failure(forged)
    assert found is not None, what
    assert found.check == check, f"{what}: {found}"


async def test_memos_that_the_submitter_signed_are_no_roots(case: Case) -> None:
    own = [replace(e, author=WALLET) if e.kind == "rooted" else e for e in case.ledger.events]
    found = first_failure(Case(replace(case.ledger, events=own), case.published))
    assert found is not None
    assert found.check == "every round"


async def test_money_that_went_to_a_stranger_is_found_on_the_ledger_itself(place: Town) -> None:
    job = await place.submit("robbed")
    while (await place.parts.jobs.get(job)).rounds_done < 2:
        await place.turn()
    key = job_bytes(job)
    await pay(place.ledger, COORDINATOR_SEED, WALLET, key, {STRANGER: Amount(1234)})
    found = first_failure(await gather(job, place.rpc, None, None, place.url))
    assert found is not None
    assert (found.check, "0.001234" in found.detail) == ("payouts", True)
    await place.parts.jobs.cancel(job)


async def test_a_job_that_was_cancelled_holds_once_what_was_done_is_paid(place: Town) -> None:
    job = await place.submit("given up")
    while (await place.parts.jobs.get(job)).rounds_done < 1:
        await place.turn()
    await place.parts.jobs.cancel(job)
    await place.end(job)
    assert (await place.parts.jobs.get(job)).state == "cancelled"
    found = list(findings(await gather(job, place.rpc, None, None, place.url)))
    assert failed(found) == []
    assert any(one.check == "refund" for one in found)


@pytest.mark.parametrize("kind", ["training", "deployment"])
async def test_a_job_whose_budget_was_raised_still_holds(place: Town, job: str, kind: str) -> None:
    document = msgspec.structs.replace(spec(), over_budget="pause")
    if kind == "deployment":
        document = JobSpec("", ModelSpec(from_job=job), BUDGET, deadline_hours=8.0, serve=ServeSpec())
    price = (await place.parts.jobs.quote(document)).price
    document = msgspec.structs.replace(document, budget=price - RAISED * 2)
    made = await place.submit("raised", document)
    for _ in range(2):
        await place.parts.jobs.add_budget(made, RAISED)
    if kind == "deployment":
        await place.parts.jobs.cancel(made)
    await place.end(made)
    case = await gather(made, place.rpc, None, None, place.url)
    assert case.published is not None
    assert case.published.spec.budget == price
    found = list(findings(case))
    assert failed(found) == []
    (said,) = [one for one in found if one.check == "document"]
    assert "with its first budget of" in said.detail


async def test_a_node_that_lied_is_out_and_the_job_still_holds(tmp_path: Path) -> None:
    async with town(tmp_path, {2: {"lie": "root"}}, audits=4) as place:
        job = await place.train()
        case = await gather(job, place.rpc, None, None, place.url)
        assert failed(list(findings(case))) == []
        assert case.published is not None
        assert any(audit.state == "failed" for one in case.published.rounds for audit in one.audits)
        slashed = list(await place.parts.books.entries(("slash",), None, None, 10))
        assert [entry.payload["node"] for entry in slashed] == [place.nodes[1].key.address]
        account = await place.parts.books.node(place.nodes[1].key.address)
        assert account.stake is not None
        assert account.stake.slashed == slashed[0].amount > 0


async def test_a_coordinator_that_lies_to_the_command_makes_it_end_with_status_1(
    place: Town, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(request: web.Request) -> web.Response:
        async with aiohttp.ClientSession() as http, http.get(place.url + request.path_qs) as real:
            body = await real.read()
        if request.path.endswith("/rounds/1/evidence"):
            document = json.loads(body)
            document[0]["shares"][0]["amount"] += 1
            body = json.dumps(document).encode()
        return web.Response(body=body, status=real.status, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{rest:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        liar = "http://{}:{}".format(*runner.addresses[0][:2])
        assert await asyncio.to_thread(main, [job, "--coordinator", liar, "--rpc", place.rpc]) == 1
    finally:
        await runner.cleanup()
    assert "Not true: outcome root of round 2" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["7Kq"], 2, "no job id"),
        (["f" * 32], 3, "no job"),
        (["0" * 32, "--chain-only"], 3, "name the ledger"),
        (["0" * 32, "--coordinator", "http://127.0.0.1:9"], 3, "127.0.0.1:9"),
    ],
)
async def test_what_cannot_be_checked_is_explained(
    place: Town,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    status: int,
    says: str,
) -> None:
    full = words if "--coordinator" in words or "--chain-only" in words else [*words, "--coordinator", place.url]
    assert await asyncio.to_thread(main, full) == status
    assert says in capsys.readouterr().err
