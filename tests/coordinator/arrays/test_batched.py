"""Arrays whose elements share containers: what batches spoil is run alone, and nobody is blamed for what a batch did to it."""

import msgspec
import pytest

from coordinator.domain.arrays.board import ASTRAY
from coordinator.domain.arrays.looks import spoilt_runs
from coordinator.domain.arrays.votes import ElementCourse, ElementTry, VoteRules
from protocol.job.elements import ElementEnd, ElementRun
from tests.coordinator.arrays.arrayed import ArrayWorld, ElementNode, right, truth


async def whole(world: ArrayWorld, job: str, count: int) -> None:
    assert (await world.stored(job)).state == "settled"
    assert await world.results(job) == {index: truth(index) for index in range(count)}


def spoilt(run: ElementRun, node: ElementNode) -> ElementEnd:
    """What a batch makes of it: it hangs on where it ran."""
    return right(run) if run.alone else right(run, truth(10_000 + node.number))


async def test_an_array_with_batches_is_run_as_one_without_and_nothing_is_alone() -> None:
    world = ArrayWorld()
    told: list[ElementRun] = []
    for number in (1, 2, 3):
        await world.come(number, slots=2, answer=lambda run: (told.append(run), right(run))[1])
    job = await world.submit(world.document(60, batch=16))
    await world.until_over(job)
    await whole(world, job, 60)
    assert not any(run.alone for run in told)
    assert len(told) == 120


async def test_what_batches_spoil_is_run_alone_by_the_same_owners_and_both_are_paid() -> None:
    world = ArrayWorld()
    nodes = [await world.come(number) for number in (1, 2)]
    odd = {3, 7}
    for node in nodes:
        node.answer = lambda run, node=node: spoilt(run, node) if run.index in odd else right(run)
    job = await world.submit(world.document(30, batch=8))
    await world.until_over(job)
    await whole(world, job, 30)
    for course in await world.courses(job):
        assert course.alone == (course.index in odd)
        assert sum(one.paid for one in course.tries) == 2
        assert not any(one.paid and one.batched for one in course.tries if course.alone)
    assert not [lease for lease in await world.leases(job) if lease.end in ("rejected", "failed")]


async def test_an_array_whose_elements_spoil_each_other_goes_on_without_batches_and_no_owner_is_let_go() -> None:
    world = ArrayWorld()
    nodes = [await world.come(number) for number in (1, 2)]
    for node in nodes:
        node.answer = lambda run, node=node: spoilt(run, node)
    job = await world.submit(world.document(60, batch=8))
    await world.until_over(job)
    await whole(world, job, 60)
    assert not [lease for lease in await world.leases(job) if lease.end in ("rejected", "failed")]
    assert any("container of its own" in text for text in await world.timeline(job))
    batched = sum(any(one.batched for one in course.tries) for course in await world.courses(job))
    assert ASTRAY <= batched < 60


@pytest.mark.parametrize("lies_alone", [False, True])
async def test_who_lies_in_batches_is_let_go_and_who_lies_alone_too_is_found_wrong(lies_alone: bool) -> None:
    world = ArrayWorld()
    nodes = [await world.come(number) for number in (1, 2, 3, 4)]
    false = truth(77_777)
    nodes[0].answer = lambda run: right(run) if run.alone and not lies_alone else right(run, false)
    job = await world.submit(world.document(200, batch=8))
    await world.until_over(job)
    await whole(world, job, 200)
    ended = {lease.end for lease in await world.leases(job) if lease.node == nodes[0].node}
    assert ("rejected" if lies_alone else "failed") in ended or (await world.earned(job, nodes))[1] == 0
    others = [lease for lease in await world.leases(job) if lease.node != nodes[0].node]
    assert not [lease for lease in others if lease.end in ("rejected", "failed")]


async def test_a_coordinator_that_dies_knows_what_runs_alone() -> None:
    world = ArrayWorld()
    nodes = [await world.come(number) for number in (1, 2)]
    for node in nodes:
        node.answer = lambda run, node=node: spoilt(run, node)
    job = await world.submit(world.document(40, batch=8))
    for _ in range(200):
        await world.turn()
        await world.kill() if _ % 7 == 3 else None
        if (await world.stored(job)).state == "settled":
            break
    await whole(world, job, 40)
    for course in await world.courses(job):
        assert sum(one.paid for one in course.tries) == 2


def test_batches_and_one_owners_word_do_not_go_together() -> None:
    world = ArrayWorld()
    with pytest.raises(ValueError, match="leave batch out"):
        world.document(10, batch=8, verify="spot-checked")
    assert msgspec.structs.replace(world.document(10, batch=8)).array.batch == 8


async def test_what_a_checker_refuses_of_a_batch_is_run_alone_and_its_owner_is_not_blamed() -> None:
    world = ArrayWorld()
    nodes = [await world.come(number) for number in (1, 2, 3, 4)]
    for node in nodes:
        node.answer = lambda run: right(run) if run.alone else right(run, truth(10_000 + run.index))
    job = await world.submit(world.document(60, batch=8, verify="checked"))
    await world.until_over(job)
    await whole(world, job, 60)
    assert not [lease for lease in await world.leases(job) if lease.end in ("rejected", "failed")]


def test_results_of_batches_may_differ_where_a_checker_decides() -> None:
    tries = tuple(
        ElementTry(
            run,
            f"l{run}",
            f"n{run}",
            f"o{run}",
            "",
            run,
            0.0,
            1.0,
            "ended",
            "exited",
            result=str(run) * 64,
            batched=True,
        )
        for run in (1, 2)
    )
    course = ElementCourse("job", 0, tries=tries)
    assert spoilt_runs(course, VoteRules(1, 1, 2, 2, looks=2)) == frozenset()
    assert spoilt_runs(course, VoteRules(2, 2, 2, 2)) == {1, 2}
