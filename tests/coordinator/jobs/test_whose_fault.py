"""A job whose own files no node can use ends with that said; nodes that blame them falsely, alone or together, end nothing."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.job import Job, JobState
from coordinator.domain.lease import Lease, LeaseEnd
from coordinator.domain.placement import Candidate
from coordinator.services.accounts.budgets import MAX_FAULTY_JOBS
from coordinator.services.network.nodes import candidate_of
from coordinator.services.training.job_faults import (
    DIVERGED,
    MAX_FAULTS_PER_JOB,
    NOBODY,
    OWN_FAULT,
    blamed_files,
    diverged,
    too_many_at_once,
    too_many_faults,
)
from coordinator.store.ports import col
from coordinator.store.records import CreditRecord
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.conftest import House, nodes, until
from tests.coordinator.fake_task import BLAME
from tests.coordinator.fakes import BUDGET, profile
from tests.coordinator.test_faults import ended, start


async def blames(house: House, job: str) -> list[Lease]:
    async with house.parts.context.store.transaction() as tx:
        return await tx.find(Lease, col(Lease.job).equals(job), col(Lease.end).equals("inputs"))


async def test_owners_that_cannot_use_the_files_end_the_job_where_nobody_else_is_here(house: House) -> None:
    async with nodes(house, 3, lie="blames"):
        job = await start(house, stages=1, replicas=2)
        view = await ended(house, job)
        assert view.state == "failed"
        assert BLAME in view.reason
        assert view.reason.startswith(f"{NOBODY}, as node")
        assert (view.paid, view.refunded) == (0, view.escrow)
        assert len({lease.payout for lease in await blames(house, job)}) >= 2


async def test_the_only_owner_who_is_here_is_enough(house: House) -> None:
    async with nodes(house, 1, lie="blames"):
        job = await start(house, stages=1, replicas=1)
        view = await ended(house, job)
        assert (view.state, BLAME in view.reason) == ("failed", True)
        assert len(await blames(house, job)) == 1


async def test_two_of_many_who_blame_the_files_have_failed_themselves(house: House) -> None:
    async with nodes(house, 2, flops=1e12, lie="blames"), nodes(house, 3, first=3):
        job = await start(house, stages=1, replicas=2, rounds=2)
        view = await ended(house, job)
        assert view.state == "settled"
        assert len({lease.payout for lease in await blames(house, job)}) == 2


async def test_a_blame_that_comes_first_waits_for_the_others_word(house: House) -> None:
    async with nodes(house, 1, lie="blames"):
        async with nodes(house, 1, first=2) as honest:
            job = await start(house, stages=1, replicas=2, rounds=2)
            await until(lambda: any(node.tasks for node in honest))
            view = await ended(house, job)
            assert view.state == "settled"


async def test_who_has_too_little_memory_is_not_asked_again_and_counts_with_less(house: House) -> None:
    async with nodes(house, 2, flops=1e12, lie="small") as small, nodes(house, 3, first=3):
        job = await start(house, stages=1, replicas=2, rounds=2)
        view = await ended(house, job)
        assert view.state == "settled"
        async with house.parts.context.store.transaction() as tx:
            failed = await tx.find(Lease, col(Lease.job).equals(job), col(Lease.end).equals("failed"))
        asked = [lease.node for lease in failed]
        assert sorted(asked) == sorted(set(asked)) != [], "once each"
        for node in small:
            session = house.parts.nodes.session(node.key.address)
            assert session is not None
            assert (session.profile.memory_mb < profile("").memory_mb) == (node.key.address in asked)


LIARS, THIRD, FOURTH, AUDITOR = ("eve", "mallory"), "third", "fourth", "auditor"


def lease(node: str, number: int = 0, end: LeaseEnd | None = "inputs", **fields: object) -> Lease:
    state = "ended" if end else "ready"
    made = Lease(f"{node}-{number}", "", node, node, number, 0, 0, 0.0, state=state, end=end, reason=BLAME, ended=1.0)
    return msgspec.structs.replace(made, **fields)


def here(*owners: str) -> list[Candidate]:
    return [candidate_of(owner, owner, profile(owner)) for owner in owners]


async def blamed(
    by: Sequence[str], able: Sequence[str], credit: Sequence[str] = (), holding: Sequence[str] = (), own: bool = False
) -> tuple[str, str]:
    """What comes of blames by these: as the job's own files, and as failures."""
    bench = Bench()
    job = await bench.job()
    auditors = frozenset({AUDITOR}) if own else frozenset()
    async with bench.store.transaction() as tx:
        for node in credit:
            await tx.insert(CreditRecord(node, LOCAL_ACCOUNT, watched=own, amount=1))
            await tx.insert(CreditRecord(f"{node} elsewhere", "f" * 32, watched=own, amount=1))
    async with bench.parts.desk.open(job) as work:
        work.leases = {node: lease(node, end=None) for node in holding}
        work.ended = [lease(node, number) for number, node in enumerate(by)]
        found = await blamed_files(work, here(*able), auditors), await too_many_faults(work, here(*able), auditors)
        work.leases, work.ended = {}, []
    return found


async def test_two_liars_end_nobodys_job_however_often_they_say_it() -> None:
    assert await blamed(LIARS, [*LIARS, THIRD]) == ("", "")
    assert await blamed(LIARS, LIARS, holding=[THIRD]) == ("", "")
    assert await blamed(LIARS * 50, [*LIARS, THIRD]) == ("", "")
    assert await blamed(LIARS, [*LIARS, THIRD], credit=LIARS) == ("", "")


async def test_a_third_owner_is_believed_with_two_others_where_one_of_them_has_standing() -> None:
    three = (*LIARS, THIRD)
    assert await blamed(three, [*three, FOURTH]) == ("", "")
    assert await blamed(three, [*three, FOURTH], credit=["nobody"]) == ("", "")
    files, _ = await blamed(three, [*three, FOURTH], credit=[THIRD])
    assert files.startswith(f"{OWN_FAULT}, as node eve, node mallory and node third found: {BLAME}")
    assert await blamed(three, [*three, FOURTH], credit=[THIRD], holding=[FOURTH]) == ("", ""), "it is ready with them"


async def test_the_operators_machine_is_believed_at_once() -> None:
    files, _ = await blamed([LIARS[0], AUDITOR], [*LIARS, THIRD], own=True)
    assert files.startswith(f"{OWN_FAULT}, as node auditor and node eve found")
    assert await blamed([AUDITOR], [THIRD], own=False) == ("", ""), "it says so of itself"


async def test_where_nobody_else_can_try_the_job_ends_without_a_mark() -> None:
    files, _ = await blamed(LIARS, LIARS)
    assert files.startswith(f"{NOBODY}, as node eve and node mallory found")
    assert not files.startswith(OWN_FAULT)


async def test_numbers_that_grow_beyond_a_float_on_every_machine_end_the_job_after_two_tries_each() -> None:
    bench = Bench()

    async def said(nodes: Sequence[str], able: Sequence[str]) -> str:
        async with bench.parts.desk.open(await bench.job()) as work:
            work.ended = [lease(node, number, "numbers") for number, node in enumerate(nodes)]
            reason = await diverged(work, here(*able), frozenset())
            work.ended = []
        return reason

    assert await said(LIARS, LIARS) == "", "a machine may fail once"
    reason = await said(LIARS * 2, LIARS)
    assert reason.startswith(f"{DIVERGED}, as node eve and node mallory found: ")
    assert await said(LIARS * 2, [*LIARS, THIRD]) == ""
    assert await said([*LIARS, THIRD] * 2, [*LIARS, THIRD, FOURTH]) == ""
    async with bench.store.transaction() as tx:
        await tx.insert(CreditRecord(THIRD, LOCAL_ACCOUNT, watched=False, amount=1))
    assert (await said([*LIARS, THIRD] * 2, [*LIARS, THIRD, FOURTH])).startswith(DIVERGED)
    assert await said(LIARS * 9, [*LIARS, THIRD]) == ""


async def test_failures_of_few_owners_end_a_job_only_where_nobody_else_is_here() -> None:
    often = LIARS * MAX_FAULTS_PER_JOB
    for able, ends in ((LIARS, True), ((*LIARS, THIRD), False)):
        bench = Bench()
        async with bench.parts.desk.open(await bench.job()) as work:
            work.ended = [lease(node, number, "failed") for number, node in enumerate(often)]
            reason = await too_many_faults(work, here(*able), frozenset())
            work.ended = [lease(f"node {number}", number, "failed") for number in range(MAX_FAULTS_PER_JOB // 2)] * 2
            assert await too_many_faults(work, here(THIRD), frozenset()) == "", "one lease counts once"
            many = [lease(f"node {number // 2}", number, "failed") for number in range(MAX_FAULTS_PER_JOB)]
            work.ended = many
            assert await too_many_faults(work, here(THIRD), frozenset())
            work.ended = []
        assert bool(reason) == ends


async def test_the_operators_machine_comes_when_a_node_blames_the_files() -> None:
    bench = Bench(replace(CONFIG, auditors=frozenset({await _address(9)})))
    own = await bench.enter(9, auditor=True)
    job = await bench.job()
    await bench.fund(job)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
        liar = next(iter(work.leases.values()))
        work.end(liar.id, "inputs", BLAME)
        await bench.parts.runs.advance(work)
        assert [lease.stage for lease in work.leases.values() if lease.node == own.node] == [None]
        work.end(next(x.id for x in work.leases.values() if x.node == own.node), "inputs", BLAME)
        await bench.parts.runs.advance(work)
        assert work.job.state is JobState.FAILED
        assert work.job.reason.startswith(OWN_FAULT)


async def _address(number: int) -> str:
    return (await Bench().enter(number)).node


ADA = "a" * 32


async def of_ada(bench: Bench, **fields: object) -> str:
    job = await bench.job()
    async with bench.store.transaction() as tx:
        await tx.update(msgspec.structs.replace(await tx.get(Job, job), account_id=ADA, **fields))
    return job


@pytest.mark.parametrize("failed", range(MAX_FAULTY_JOBS + 1))
async def test_jobs_that_were_made_before_any_failed_are_tried_a_few_at_a_time(failed: int) -> None:
    bench = Bench()

    async def waits(job: str) -> str:
        async with bench.parts.desk.open(job) as work:
            return await too_many_at_once(work)

    faulty = {"state": JobState.FAILED, "reason": f"{OWN_FAULT}: a tensor", "ended": bench.clock.time()}
    for _ in range(failed):
        await of_ada(bench, **faulty)
    made = await of_ada(bench, state=JobState.FUNDED)
    for _ in range(MAX_FAULTY_JOBS - failed):
        assert await waits(made) == ""
        begun = await of_ada(bench, state=JobState.PLANNED)
    assert f"and {failed} failed within a day" in await waits(made)
    if failed < MAX_FAULTY_JOBS:
        async with bench.store.transaction() as tx:
            await tx.update(msgspec.structs.replace(await tx.get(Job, begun), state=JobState.RUNNING, tokens_done=1))
        assert await waits(made) == ""
    await of_ada(bench, state=JobState.PLANNED)
    await of_ada(bench, state=JobState.SETTLED, paid=1)
    assert bool(await waits(made)) == bool(failed), "whoever is known has no bound until a job of theirs failed so"


async def test_a_job_that_has_to_wait_for_others_of_its_account_says_so_once_and_goes_on() -> None:
    bench = Bench()
    before = [await of_ada(bench, state=JobState.PLANNED) for _ in range(MAX_FAULTY_JOBS)]
    job = await of_ada(bench, state=JobState.FUNDED, escrow=BUDGET)
    for _ in range(2):
        async with bench.parts.desk.open(job) as work:
            await bench.parts.runs.advance(work)
            assert work.job.state is JobState.FUNDED
    said = [event.text for event in await bench.parts.jobs.events(job, 0) if "the job waits" in event.text]
    assert len(said) == 1
    assert "have not completed a round yet" in said[0]
    async with bench.store.transaction() as tx:
        await tx.update(msgspec.structs.replace(await tx.get(Job, before[0]), tokens_done=1))
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
        assert work.job.state is JobState.PLANNED
