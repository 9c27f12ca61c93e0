"""What the ledger's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from ledger.client import Ledger, LedgerConfig
from ledger.local.rpc import Rpc
from ledger.local.server import build_app
from tests.ledger.world import World


@pytest.fixture
def world() -> World:
    """A fresh ledger with four people who hold tokens."""
    return World()


@pytest.fixture
async def url(world: World) -> AsyncIterator[str]:
    """The world behind HTTP, as the embedded ledger serves it."""
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
