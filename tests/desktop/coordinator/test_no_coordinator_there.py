"""What a node says where another server answers at its coordinator's address."""

from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from common.clock import SystemClock
from common.http_sessions import open_session
from desktop.agent.coordinator.session import CoordinatorSession, Introduction, Listener


@pytest.mark.parametrize("status", [200, 404])
async def test_a_web_server_is_told_to_take_no_nodes(status: int) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, text="<html>")

    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    unused: Any = None
    session = CoordinatorSession(url, cast(Introduction, unused), cast(Listener, unused), SystemClock())
    try:
        async with open_session() as http:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await http.ws_connect(url)
    finally:
        await runner.cleanup()
    said = session._explained(refused.value)
    assert said == f": what answers there takes no nodes (HTTP {status}): is it a Cottage coordinator?"
