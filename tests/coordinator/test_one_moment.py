"""Services that are asked one after the other for one page share a transaction, and nobody else does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from coordinator.config import Config
from coordinator.domain.job import Job
from coordinator.errors import NotFoundError
from coordinator.store.memory import MemoryStore
from coordinator.store.noticing import NoticingStore
from coordinator.store.ports import Transaction
from coordinator.store.together import at_one_moment
from coordinator.web.signal import PATH
from protocol.rest.api import NewJob
from tests.coordinator.conftest import nodes, opened
from tests.coordinator.fakes import FakeChain, spec


class Counted(MemoryStore):
    opened = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self.opened += 1
        async with super().transaction() as tx:
            yield tx


async def test_what_is_read_within_is_read_in_one_transaction_and_faults_in_it_end_nothing() -> None:
    inner = Counted()
    store = NoticingStore(inner)
    async with at_one_moment(store):
        for _ in range(3):
            async with store.transaction() as tx:
                assert await tx.find(Job) == []
            with pytest.raises(NotFoundError):
                async with store.transaction() as tx:
                    await tx.get(Job, "none")
        assert inner.opened == 1
    async with store.transaction():
        assert inner.opened == 2


async def test_another_store_and_another_task_have_transactions_of_their_own() -> None:
    inner, other = Counted(), Counted()
    store, beside = NoticingStore(inner), NoticingStore(other)

    async def read() -> None:
        async with store.transaction() as tx:
            await tx.find(Job)

    async with at_one_moment(store):
        async with beside.transaction():
            assert (inner.opened, other.opened) == (1, 1)
        waiting = asyncio.create_task(read())
        await asyncio.sleep(0)
        assert (inner.opened, waiting.done()) == (2, False), "one at a time, as ever"
    await waiting


async def test_a_jobs_page_is_read_in_one_transaction(config: Config) -> None:
    async with (
        opened(replace(config, open=True), FakeChain(), rest=True) as house,
        nodes(house, 4),
        aiohttp.ClientSession() as http,
    ):
        job = (await house.parts.jobs.create(NewJob(spec()))).id
        store, begun = house.parts.context.store, 0
        assert isinstance(store, NoticingStore)
        transaction = store._inner.transaction

        @asynccontextmanager
        async def counted() -> AsyncIterator[Transaction]:
            nonlocal begun
            task = asyncio.current_task()
            begun += task not in others and "RequestHandler" in str(task)
            async with transaction() as tx:
                yield tx

        others = asyncio.all_tasks()  # Of nodes and loops.
        store._inner.transaction = counted  # type: ignore[method-assign]
        async with http.get(f"{house.url.removesuffix(PATH)}/jobs/{job}") as answer:
            assert (answer.status, job in await answer.text()) == (200, True)
        assert 0 < begun <= 5, "some for whose it is, and one for all that the page shows: there had been 19"
