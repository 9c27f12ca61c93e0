"""What the ledger's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from ledger.client import Ledger, LedgerConfig
from ledger.local.rpc import Rpc
from ledger.local.server import build_app
from tests.ledger.surfpool import Deployment, SurfpoolWorld, deployed, serving
from tests.ledger.world import World

ON_BOTH = ("test_claims_program.py", "test_escrow_program.py")
"""Of the program's tests those that run on an independent ledger each time: money comes in, and goes out."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What is marked ``clusters`` runs on the embedded ledger and on an independent one, which takes longer."""
    if "world" not in metafunc.fixturenames or not metafunc.definition.get_closest_marker("clusters"):
        return
    is_long = metafunc.definition.path.parent.name == "program" and metafunc.definition.path.name not in ON_BOTH
    other = pytest.param("surfpool", marks=pytest.mark.long) if is_long else "surfpool"
    metafunc.parametrize("world", ["embedded", other], indirect=True)


@pytest.fixture(scope="session")
def market_on_surfpool() -> Iterator[Deployment]:
    """One Surfpool with the market program, for all tests of a process."""
    with serving() as server:
        deployment = deployed(server)
        yield deployment
        deployment.chain.close()


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    """A fresh ledger with four people who hold tokens; on Surfpool, fresh people on the one ledger."""
    if getattr(request, "param", "embedded") == "surfpool":
        return SurfpoolWorld(request.getfixturevalue("market_on_surfpool"))
    return World()


@pytest.fixture
async def url(world: World) -> AsyncIterator[str]:
    """The world behind HTTP, as the embedded ledger serves it."""
    async with serving_world(world) as url:
        yield url


@asynccontextmanager
async def serving_world(world: World) -> AsyncIterator[str]:
    """Its address while it is served."""
    runner = web.AppRunner(build_app(Rpc(world.chain, world.genesis), lambda: None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


@pytest.fixture
async def ledger(url: str) -> AsyncIterator[Ledger]:
    """A client of the world."""
    async with await Ledger.connect(LedgerConfig(url)) as client:
        yield client
