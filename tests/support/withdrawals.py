"""The routes for withdrawals alone, in front of whatever answers them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from coordinator.services.accounts.budgets import Bodies
from coordinator.services.jobs.ports import WithdrawalPort
from coordinator.web.http import BODIES
from coordinator.web.withdrawals import WithdrawalRoutes


def add_withdrawals(app: web.Application, withdrawals: WithdrawalPort) -> None:
    """Add the routes to an application that has not started."""
    app[BODIES] = Bodies()
    for route in WithdrawalRoutes(withdrawals).routes():
        app.router.add_route(route.method, route.path, route.handler)


@asynccontextmanager
async def serving_withdrawals(withdrawals: WithdrawalPort) -> AsyncIterator[str]:
    """A coordinator's address, while it answers this and nothing else."""
    app = web.Application()
    add_withdrawals(app, withdrawals)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
