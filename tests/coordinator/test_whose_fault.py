"""A job whose own files no node can use ends with that said; a node that blames them alone, or falsely, ends nothing."""

import pytest

from coordinator.domain.lease import Lease
from tests.coordinator.conftest import House, nodes, until
from tests.coordinator.fake_task import BLAME
from tests.coordinator.test_faults import ended, start

pytestmark = pytest.mark.wall_clock


async def blames(house: House, job: str) -> list[Lease]:
    async with house.parts.context.store.transaction() as tx:
        return await tx.find(Lease, ("job", "=", job), ("end", "=", "inputs"))


async def test_two_owners_that_cannot_use_the_files_end_the_job_with_what_is_wrong(house: House) -> None:
    async with nodes(house, 3, lie="blames"):
        job = await start(house, stages=1, replicas=2)
        view = await ended(house, job)
        assert view.state == "failed"
        assert BLAME in view.reason
        assert view.reason.startswith("the job's own files cannot be used, as node")
        assert (view.paid, view.refunded) == (0, view.escrow)
        assert len({lease.payout for lease in await blames(house, job)}) >= 2


async def test_the_only_owner_who_is_here_is_enough(house: House) -> None:
    async with nodes(house, 1, lie="blames"):
        job = await start(house, stages=1, replicas=1)
        view = await ended(house, job)
        assert (view.state, BLAME in view.reason) == ("failed", True)
        assert len(await blames(house, job)) == 1


async def test_one_of_many_who_blames_the_files_has_failed_itself(house: House) -> None:
    async with nodes(house, 1, flops=1e12, lie="blames"), nodes(house, 3, first=2):
        job = await start(house, stages=1, replicas=2)
        view = await ended(house, job)
        assert view.state == "settled"
        assert 1 <= len(await blames(house, job)) <= 2


async def test_a_blame_that_comes_first_waits_for_the_others_word(house: House) -> None:
    async with nodes(house, 1, lie="blames"):
        async with nodes(house, 1, first=2) as honest:
            job = await start(house, stages=1, replicas=2)
            await until(lambda: any(node.tasks for node in honest))
            view = await ended(house, job)
            assert view.state == "settled"
