"""Who falls in a job of one cell is not paid for what waits in another cell, and was drawn with the standing that is gone."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from coordinator.domain.audits.trust import Audit, Verdict
from coordinator.services.audits import credit
from coordinator.services.audits.conclusions import Conclusion
from coordinator.services.audits.falls_elsewhere import FallsElsewhere
from coordinator.services.core.domain_events import SharesMayBeDue
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.training.job_faults import too_many_at_once
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, EventRecord, NodeRecord, RoundRecord
from protocol.plan import Layers, Plan
from tests.coordinator.audits.test_trust import AUDIT, address
from tests.coordinator.cells.conftest import NODE, CellAtWork, job, name, node
from tests.coordinator.cells.test_shared_records import share
from tests.support.databases import needs_postgres

pytestmark = needs_postgres
Both = tuple[CellAtWork, CellAtWork]
PLAN = Plan(1, (Layers(0, 1),), ())
ENDED = 1_000.0  # When the round here was over.
ACCOUNT = "a" * 32


def audit(**fields: Any) -> Audit:
    """One of the node, in the job of the first cell; drawn before the round here was over."""
    looked = {"job": name(0), "node": NODE, "state": "replaying", "watched": True, "look": True, "began": ENDED - 5}
    return msgspec.structs.replace(AUDIT, **{**looked, **fields})


async def begun(cells: Both, *shares: CommitRecord, other: str = ACCOUNT) -> FallsElsewhere:
    """A job in each cell, of one account unless ``other``; in the second one shares wait."""
    for number, (cell, account) in enumerate(zip(cells, (other, ACCOUNT), strict=True)):
        async with cell.sql.transaction() as tx:
            await tx.insert(job(number, account_id=account))
    async with cells[1].sql.transaction() as tx:
        record = RoundRecord(name(1), 1, 0, "complete", PLAN, 0, 1, 1, 0.0, ended=ENDED)
        for number in range(2):
            await tx.insert(msgspec.structs.replace(record, number=number))
        for one in shares or (share(name(1), 0, look=5),):
            await tx.insert(one)
    return FallsElsewhere(cells[1].context)


async def kept(cell: CellAtWork, record: Audit) -> Audit:
    """Store an audit, or how it stands now."""
    async with cell.sql.transaction() as tx:
        found = await tx.find(Audit, col(Audit.id).equals(record.id))
        if not found:
            return await tx.insert(record)
        return await tx.update(msgspec.structs.replace(record, version=found[0].version))


async def follow(
    cells: Both, falls: FallsElsewhere, then: Callable[[UnitOfWork], Awaitable[None]] | None = None
) -> bool:
    """Look at what waits in the second cell, as its job is brought further."""
    async with cells[1].desk.open(name(1)) as work:
        of_job = col(CommitRecord.job).equals(name(1))
        pending = await work.tx.find(CommitRecord, of_job, col(CommitRecord.state).equals("pending"))
        again = await falls.follow(work, await work.tx.find(RoundRecord), pending)
        if then is not None:
            await then(work)
        return again


async def states(cells: Both) -> list[tuple[str, str, int]]:
    """Of the shares there."""
    async with cells[1].sql.transaction() as tx:
        return [(one.state, one.why, one.amount) for one in await tx.find(CommitRecord)]


WAITS, GONE = [("pending", "", 7)], [("rejected", "unlooked", 0)]


async def test_what_waits_while_an_audit_elsewhere_is_open_goes_with_it(cells: Both) -> None:
    falls = await begun(cells)
    await kept(cells[0], audit())
    assert await follow(cells, falls), "it is to be looked at again"
    async with cells[1].desk.open(name(1)) as work:
        assert await credit.looked_at_elsewhere(work, {NODE}) == {NODE}, "nothing of it is payable meanwhile"
    await kept(cells[0], audit(state="failed", blame="wrong", look=False))
    assert not await follow(cells, falls)
    assert await states(cells) == GONE
    async with cells[1].sql.transaction() as tx:
        told = [event.text for event in await tx.find(EventRecord) if event.kind == "rejected"]
    assert told == [
        f"node {NODE}: a share, of work that nobody has looked at, will not be paid: its standing was lost in another job"
    ]
    assert not await follow(cells, falls)


async def test_what_passes_costs_nothing(cells: Both) -> None:
    falls = await begun(cells)
    await kept(cells[0], audit())
    assert await follow(cells, falls)
    await kept(cells[0], audit(state="passed", look=False))
    assert not await follow(cells, falls)
    assert await states(cells) == WAITS


@pytest.mark.parametrize(
    ("fields", "costs"),
    [
        ({"began": ENDED + 1}, True),
        ({"began": ENDED - 1}, False),  # The share was drawn without that standing already.
        ({"began": ENDED + 1, "state": "void", "blame": "unlooked"}, True),
        ({"began": ENDED + 1, "state": "void", "blame": ""}, False),
        ({"began": ENDED + 1, "canary": True}, False),
        ({"began": ENDED + 1, "node": address(5)}, False),
    ],
)
async def test_of_what_was_over_before_anybody_looked_its_beginning_tells(
    cells: Both, fields: dict[str, Any], costs: bool
) -> None:
    falls = await begun(cells)
    await kept(cells[0], audit(**{"state": "failed", "blame": "wrong", **fields}))
    assert not await follow(cells, falls)
    assert await states(cells) == (GONE if costs else WAITS)


async def test_a_fall_in_a_job_of_another_account_costs_nothing_here(cells: Both) -> None:
    falls = await begun(cells, other="b" * 32)
    await kept(cells[0], audit())
    assert not await follow(cells, falls)
    await kept(cells[0], audit(state="failed", blame="wrong", began=ENDED + 1))
    assert not await follow(cells, falls)
    assert await states(cells) == WAITS


async def test_a_share_that_was_looked_at_stays_and_so_does_what_no_look_was_due_of(cells: Both) -> None:
    of = name(1)
    looked, unlooked = share(of, 0, look=5), share(of, 1, look=5, lease="another")
    falls = await begun(cells, looked, unlooked, share(of, 1, look=0, replica=1))
    found = Verdict(address(9), "match", own=True)
    await kept(
        cells[1], audit(id="c" * 32, job=of, round=0, lease="lease", state="passed", verdicts=(found,), look=False)
    )
    await kept(cells[0], audit(state="failed", blame="distant", began=ENDED + 1))
    assert not await follow(cells, falls)
    assert sorted(await states(cells)) == sorted([("pending", "", 7), *GONE, ("pending", "", 7)])
    async with cells[1].sql.transaction() as tx:
        assert (await tx.find(CommitRecord, col(CommitRecord.lease).equals("another")))[0].state == "rejected"


async def test_what_could_not_be_stored_is_done_again(cells: Both) -> None:
    falls = await begun(cells)
    await kept(cells[0], audit())
    assert await follow(cells, falls)
    await kept(cells[0], audit(state="failed", blame="wrong"))

    async def fails(_work: UnitOfWork) -> None:
        raise ValueError

    with pytest.raises(ValueError):
        await follow(cells, falls, fails)
    assert await states(cells) == WAITS
    await follow(cells, falls)
    assert await states(cells) == GONE
    await follow(cells, falls)
    assert not falls._open.get(name(1)), "it is remembered no longer than needed"


async def test_two_falls_take_a_share_once(cells: Both) -> None:
    falls = await begun(cells)
    for one in "de":
        await kept(cells[0], audit(id=one * 32, state="failed", blame="wrong", began=ENDED + 1))
    assert not await follow(cells, falls)
    assert await states(cells) == GONE


async def test_limits_of_an_account_count_its_jobs_in_all_cells(cells: Both) -> None:
    """Three of an account may try machines before one of them has completed a round."""
    for number, cell in enumerate(cells):
        async with cell.sql.transaction() as tx:
            for place in range(2 - number):
                await tx.insert(job(number, place, account_id=ACCOUNT))
    async with cells[1].desk.open(name(1)) as work:
        assert "3 jobs of its account have not completed a round yet" in await too_many_at_once(work)
    async with cells[0].sql.transaction() as tx:
        await tx.update(msgspec.structs.replace(job(0, 1, account_id=ACCOUNT), paid=5))
    async with cells[1].desk.open(name(1)) as work:
        assert await too_many_at_once(work) == ""


async def test_a_share_becomes_payable_once_the_audit_elsewhere_has_passed(cells: Both) -> None:
    await begun(cells)
    conclusion = Conclusion(cells[1].context)
    async with cells[0].sql.transaction() as tx:
        await tx.insert(node())

    async def concluded(*events: SharesMayBeDue) -> int:
        async with cells[1].desk.open(name(1)) as work:
            for event in events:
                work.record(event)
            await conclusion.advance(work)
            return work.job.verified

    await kept(cells[0], audit())
    assert await concluded(SharesMayBeDue()) == 0
    assert await concluded() == 0, "looked at again with each turn"
    await kept(cells[0], audit(state="passed", look=False))
    assert await concluded() == 7
    assert await states(cells) == [("verified", "", 7)]
    async with cells[0].sql.transaction() as tx:
        assert (await tx.get(NodeRecord, NODE)).rounds == 1


async def test_a_share_of_who_has_fallen_elsewhere_meanwhile_is_never_payable(cells: Both) -> None:
    await begun(cells)
    conclusion = Conclusion(cells[1].context)
    await kept(cells[0], audit())
    for state in ("replaying", "failed"):
        await kept(cells[0], audit(state=state, blame="" if state == "replaying" else "wrong"))
        async with cells[1].desk.open(name(1)) as work:
            work.record(SharesMayBeDue())
            await conclusion.advance(work)
            assert work.job.verified == 0
    assert await states(cells) == GONE
    async with cells[1].sql.transaction() as tx:
        assert {record.concluded for record in await tx.find(RoundRecord)} == {True}
