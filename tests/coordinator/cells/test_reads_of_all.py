"""What one cell does for all of them, and what a cell has to know of the jobs of others."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import aiohttp
import msgspec
import pytest

from coordinator.domain.job import JobState
from coordinator.domain.lease import Lease
from coordinator.errors import NotFoundError, OtherCellError, TooManyError
from coordinator.services.accounts.budgets import MAX_UNPAID_JOBS, Budgets
from coordinator.services.accounts.notification_settings import NoticeService
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.base_models import BaseModels
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.artifacts.inference import InferenceTrials
from coordinator.services.artifacts.output_buckets import OutputBuckets
from coordinator.services.core.notifications import NoticeDelivery
from coordinator.services.drivers.bonded_disputes import BondedDisputes
from coordinator.services.jobs.jobs import JobService
from coordinator.services.jobs.unpaid import Unpaid
from coordinator.services.operation.node_orders import NodeOrders
from coordinator.services.payments.promises import PromiseService
from coordinator.services.payments.withdrawals import Sponsor
from coordinator.services.serving.private import PrivateSessions
from coordinator.services.views.vital_signs import VitalSigns, _counted
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, NoticeRecord, NoticeSettings, OutboxRecord
from ledger.addresses import StepPlace
from ledger.errors import LedgerUnavailableError
from protocol.job.job import ModelSpec
from protocol.rest.api import NewJob, NewOutput, TrialRequest
from protocol.serving import GenerateCommand
from tests.coordinator.audits.test_trust import AUDIT, address
from tests.coordinator.cells.conftest import NODE, CellAtWork, job, name
from tests.coordinator.cells.test_shared_records import share
from tests.coordinator.fakes import WALLET, FakeArtifacts, FakeChain, digest, spec
from tests.support.databases import needs_postgres

pytestmark = needs_postgres
Both = tuple[CellAtWork, CellAtWork]
ACCOUNT = "a" * 32
NOTHING: Any = None


# --- done by the first cell -------------------------------------------------------------------------------------------------


def delivery(cell: CellAtWork) -> NoticeDelivery:
    """Notices of an account whose channel is switched off by now: each has an answer at once."""
    return NoticeDelivery(cell.context, cast(Any, aiohttp.ClientSession), None)


async def noticed(cell: CellAtWork, *jobs: str) -> None:
    """Something of each of these jobs is to be told."""
    async with cell.sql.transaction() as tx:
        for one in jobs:
            await tx.insert(NoticeRecord(ACCOUNT, one, "done", "mail", "a@b", '{"data":{}}', 1.0, 1.0))


async def test_notices_of_all_cells_are_delivered(cells: Both) -> None:
    first, second = cells
    await noticed(second, name(1), name(1, 1))
    await noticed(first, name(0))
    assert await delivery(first).deliver() == 3
    shown = await NoticeService(first.context, mails=True).deliveries(ACCOUNT, 10)
    assert {one.job: one.state for one in shown} == dict.fromkeys((name(1), name(1, 1), name(0)), "failed")


async def test_a_notice_that_is_forgotten_while_it_is_delivered_ends_nothing(
    cells: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cells
    await noticed(second, name(1), name(1, 1))

    async def tried(
        _self: NoticeDelivery, notice: NoticeRecord, _settings: NoticeSettings | None
    ) -> tuple[bool, bool, str]:
        if notice.job == name(1):
            async with second.sql.transaction() as tx:
                await tx.forget(NoticeRecord, col(NoticeRecord.job).equals(name(1)))
        return True, True, "ok"

    monkeypatch.setattr(NoticeDelivery, "_try", tried)
    assert await delivery(first).deliver() == 2
    async with first.sql.transaction() as tx:
        assert [(one.job, one.state) for one in await tx.everywhere.find(NoticeRecord)] == [(name(1, 1), "sent")]


async def test_figures_are_of_all_also_where_a_cell_has_nothing_of_its_own(cells: Both) -> None:
    first, second = cells
    async with second.sql.transaction() as tx:
        await tx.insert(job(1))
        await tx.insert(OutboxRecord("k", name(1), "settle", {}, 40.0, amount=7))
    async with first.context.everywhere.transaction() as tx:
        found = await _counted(tx, 100.0)
    assert found[("jobs", "running")] == found[("outbox_rows", "money", "queued")] == 1.0
    assert found[("outbox_oldest_seconds", "money")] == 60.0


async def test_what_the_database_counts_of_all_cells_is_told_by_the_first_alone(cells: Both) -> None:
    first, second = cells
    async with second.sql.transaction() as tx:
        await tx.insert(job(1))
    for cell, told in ((first, 1.0), (second, None)):
        signs = VitalSigns(cell.context, NOTHING, NOTHING, cast(Sponsor, NoSponsor()), NOTHING)
        await signs.look()
        assert (signs._stored.get(("jobs", "running")), signs._stored[("database_up",)]) == (told, 1.0)


class NoSponsor:
    """Its ledger is away."""

    async def lamports(self) -> int:
        raise LedgerUnavailableError("nobody answers")


# --- limits of accounts -----------------------------------------------------------------------------------------------------


async def test_unpaid_jobs_of_an_account_are_counted_in_all_cells(cells: Both) -> None:
    first, second = cells
    unpaid = Unpaid(first.context, NOTHING, NOTHING, NOTHING, cast(ArtifactStore, FakeArtifacts()), lambda: 10**12)
    async with unpaid.making(ACCOUNT):
        pass
    async with second.sql.transaction() as tx:
        for place in range(MAX_UNPAID_JOBS):
            await tx.insert(job(1, place, account_id=ACCOUNT, state=JobState.CREATED, files={"a": digest("a")}))
    with pytest.raises(TooManyError, match=f"{MAX_UNPAID_JOBS} jobs of yours are not funded"):
        async with unpaid.making(ACCOUNT):
            pass
    async with unpaid.making("b" * 32):
        pass


async def test_who_has_paid_in_another_cell_is_known(cells: Both) -> None:
    first, second = cells
    assert not await Budgets(first.sql, first.context.clock).known(ACCOUNT)
    async with second.sql.transaction() as tx:
        await tx.insert(job(1, account_id=ACCOUNT, paid=1))
    assert await Budgets(first.sql, first.context.clock).known(ACCOUNT)


# --- jobs of others ---------------------------------------------------------------------------------------------------------


async def test_a_job_may_start_from_the_model_of_another_cells(cells: Both) -> None:
    first, second = cells
    async with second.sql.transaction() as tx:
        await tx.insert(job(1, state=JobState.SETTLED, model=digest("model")))
    artifacts = cast(ArtifactStore, FakeArtifacts())
    checkpoints = Checkpoints(first.context, artifacts, NOTHING)
    found = await BaseModels(first.context, artifacts, checkpoints).of(ModelSpec(from_job=name(1)))
    assert found.id == name(1)
    assert await checkpoints.list(name(1)) == []


async def test_whoever_asks_a_model_of_another_cell_is_led_there_before_anything_is_done(cells: Both) -> None:
    first = cells[0]
    trials = InferenceTrials(first.context, NOTHING, NOTHING, NOTHING)
    asked: list[AsyncIterator[Any]] = [
        trials.complete(name(1), None, GenerateCommand("1", "text")),
        trials.generate(name(1, 5), None, TrialRequest("text")),
    ]
    for answers in asked:
        with pytest.raises(OtherCellError) as other:
            await anext(answers)
        assert other.value.cell == 1
    output = NewOutput("s3://bucket", key="key", secret="secret")
    buckets = OutputBuckets(first.context, NOTHING, NOTHING, NOTHING)
    for doing in (
        PrivateSessions(first.context, NOTHING, NOTHING, NOTHING).open(name(1), NOTHING),
        buckets.remove(name(1)),
        buckets.put(name(1), ACCOUNT, output),
    ):
        with pytest.raises(OtherCellError):
            await doing
    assert first.counted.counts["transactions"] == 1, "the store has said so of the last one"


def service(cell: CellAtWork) -> JobService:
    """What reads a cell's jobs, and makes some."""
    others = dict.fromkeys(
        ("nodes", "links", "runs", "funding", "chain", "models", "checkpoints", "traffic_of", "unpaid", "homes"),
        NOTHING,
    )
    return JobService(cell.context, cell.desk, artifacts=NOTHING, coordinator=WALLET, test_wallet=WALLET, **others)


async def test_a_request_that_another_cell_has_begun_is_led_there(cells: Both) -> None:
    first, second = cells
    jobs = service(first)
    with pytest.raises(OtherCellError) as other:
        await jobs.create(NewJob(spec()), ACCOUNT, name(1, 7))
    assert other.value.cell == 1
    async with second.sql.transaction() as tx:
        await tx.insert(job(1, account_id=ACCOUNT, shared=True))
        await tx.insert(job(1, 1, account_id="b" * 32))
    await jobs.check_owner(name(1), ACCOUNT)
    assert await jobs.is_shared(name(1))
    with pytest.raises(NotFoundError):
        await jobs.check_owner(name(1, 1), ACCOUNT)
    for doing in (jobs.cancel(name(1)), jobs.share(name(1), shared=False)):
        with pytest.raises(OtherCellError):
            await doing


async def test_a_list_has_the_jobs_of_all_cells(cells: Both) -> None:
    for number, cell in enumerate(cells):
        async with cell.sql.transaction() as tx:
            for place in range(2):
                await tx.insert(job(number, place, account_id=ACCOUNT, state=JobState.CREATED))
    found = await service(cells[1]).list(3, None, ACCOUNT)
    assert [one.id for one in found] == [name(1, 1), name(0, 1), name(1, 0)]


async def test_a_payee_hears_of_promises_in_all_cells(cells: Both) -> None:
    first, second = cells
    async with second.sql.transaction() as tx:
        await tx.insert(job(1))
        row = OutboxRecord("promise", name(1), "promise", {WALLET: 7}, 1.0, state="confirmed")
        row = await tx.insert(row)
        await tx.insert(share(name(1), 0, state="verified", promised=row.id))

    class Promising(FakeChain):
        def promise(self, cumulative: Any) -> Any:
            proof = cast(Any, type("Proof", (), {"index": 0, "count": 1, "path": ()}))
            return type("Earned", (), {"root": bytes(32), "total": 7, "proofs": {WALLET: proof}})

    promises = PromiseService(first.context, Promising())
    assert [(told.job, told.cumulative) for told in await promises.of_payee(WALLET)] == [(name(1), 7)]
    assert (await promises.view(name(1))).total == 7


async def test_what_a_node_holds_in_another_cell_the_operator_sees(cells: Both) -> None:
    first, second = cells
    async with second.sql.transaction() as tx:
        await tx.insert(job(1))
        await tx.insert(Lease("l" * 32, name(1), NODE, WALLET, 1, 0, 0, 1.0))
        await tx.insert(Lease("m" * 32, name(1), NODE, WALLET, 2, 0, 0, 1.0, state="ended"))
    orders = NodeOrders(first.context, NOTHING, NOTHING)
    async with first.context.everywhere.transaction() as tx:
        assert [one.id for one in await orders._held(tx, {NODE})] == ["l" * 32]


# --- bonds ------------------------------------------------------------------------------------------------------------------


async def test_bonds_over_jobs_of_another_cell_are_that_ones(cells: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = cells
    chain = FakeChain()
    chain.bond(address(1), NODE, "c" * 32)
    over = StepPlace(name(1), 1, 0, 0, 0, 1)
    chain.bond(address(2), NODE, "d" * 32)
    chain.disputes[address(2), "d" * 32] = replace(
        chain.disputes[address(2), "d" * 32], audit=over.bytes, address="over a step"
    )
    async with second.sql.transaction() as tx:
        await tx.insert(job(1))
        await tx.insert(msgspec.structs.replace(AUDIT, id="c" * 32, job=name(1)))
    bonds = [BondedDisputes(cell.context, cell.desk, chain, NOTHING) for cell in cells]
    began: list[StepPlace] = []

    async def begin(_self: BondedDisputes, place: StepPlace, _state: object) -> None:
        began.append(place)

    monkeypatch.setattr(BondedDisputes, "_begin", begin)
    for one in bonds:
        await one.poll()
    assert began == [over], "its own cell looks at the step"
    assert list(bonds[0]._said) == ["dispute"], "it comes last there from now on"
    assert bonds[1]._said == {}
    async with first.sql.transaction() as tx:
        assert await tx.everywhere.find(CommitRecord) == []
