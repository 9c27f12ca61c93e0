"""Databases for fronts that read nothing of them but whether they fit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from coordinator.config import Config
from coordinator.store.sql import SqlStore
from tests.coordinator.fronts.carriers import Carrier
from tests.support.databases import Postgres

CELLS = 3


@pytest.fixture(scope="session")
def stored(postgres: Postgres) -> str:
    """The address of a database whose schema is this version's."""

    async def made() -> str:
        url = postgres.migrated_url()
        await (await SqlStore.open(url)).close()
        return url

    return asyncio.run(made())


@pytest.fixture
def shared_config(config: Config, stored: str) -> Config:
    """Of fronts and carriers that store nothing there, or nothing that other tests look for."""
    return replace(config, database_url=stored)


@pytest.fixture
async def carriers() -> AsyncIterator[list[Carrier]]:
    """One for each of three cells, all of them open."""
    made = [Carrier(number) for number in range(CELLS)]
    async with AsyncExitStack() as stack:
        for one in made:
            await stack.enter_async_context(one.serves())
        yield made
