"""What the agent says of itself on a Unix socket in its home folder, which only its owner can open.

HTTP, so that the desktop windows can ask with what they have: ``GET /v1/status`` and ``GET /v1/earnings``, both JSON.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from desktop.agent.earnings import Summary
from desktop.agent.errors import AgentError
from desktop.agent.unixsocket import listen, short_name
from transport.wire.codec import decode_json, encode_json
from transport.wire.node import NodeProfile

ASK_TIMEOUT_S = 5.0


class TaskView(msgspec.Struct, frozen=True):
    """One lease. ``pid``: its worker, where it is a process of this machine."""

    lease: str
    job: str
    job_name: str
    stage: int | None
    replica: int | None
    state: str
    reason: str
    pid: int | None
    round: int | None
    step: int | None
    loss: float | None
    activations: int
    bulk: int
    wire: int
    naive: int
    artifacts: int
    dropped: dict[str, int]


class LinkView(msgspec.Struct, frozen=True):
    """The link to one peer."""

    peer: str
    state: str
    rtt_ms: float | None
    route: str
    sent: int
    received: int


class Status(msgspec.Struct, frozen=True):
    """The whole agent. ``state``: starting, connecting, online, refused or stopping; ``reason``: why it is not online."""

    node: str
    payout: str
    name: str
    coordinator: str
    state: str
    reason: str
    note: str
    pid: int
    uptime: float
    profile: NodeProfile
    tasks: tuple[TaskView, ...]
    links: tuple[LinkView, ...]
    dropped: dict[str, int]
    verified: int
    paid: int


async def serve(path: Path, status: Callable[[], Status], earnings: Callable[[], Summary]) -> web.AppRunner:
    """Answer on ``path`` until the runner is cleaned up."""

    def answer(make: Callable[[], Any]) -> Callable[[web.Request], Any]:
        async def handle(_: web.Request) -> web.Response:
            return web.Response(body=encode_json(make()), content_type="application/json")

        return handle

    app = web.Application()
    app.router.add_get("/v1/status", answer(status))
    app.router.add_get("/v1/earnings", answer(earnings))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listen(path, 0o600)).start()
    return runner


async def ask(path: Path) -> Status:
    """The status of the agent that answers on ``path``.

    Raises:
        AgentError: none answers.
    """
    try:
        with short_name(path) as name:
            connector = aiohttp.UnixConnector(path=name)
            timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
                async with http.get("http://agent/v1/status") as answer:
                    status: Status = decode_json(await answer.read(), Status)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise AgentError(
            f"no agent answers in {path.parent}: start it with `cottage node run --home {path.parent}`"
        ) from error
    return status
