"""What the agent says of itself on a Unix socket in its home folder, which only its owner can open.

HTTP, so that the desktop windows can ask with what they have: ``GET /v1/status``, ``GET /v1/earnings``, ``GET /v1/limits``,
``GET /v1/lending``; ``POST /v1/limits`` (a ``LimitsChange``) and ``POST /v1/lending`` (a ``LendingChange``) to change them at
once, ``POST /v1/nettest`` (an ``Order``) to test the line now and ``POST /v1/nettest/peer`` (a ``PeerOrder``) to test a link.
All JSON.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from desktop.agent.earnings import Summary
from desktop.agent.errors import NoAgentError, NotConnectedError, SettingsError
from desktop.agent.lending.keeper import LendingChange, LendingView
from desktop.agent.lending.policy import State
from desktop.agent.limits import LimitsChange, LimitsView
from desktop.agent.unixsocket import listen, short_name
from transport.nettest.errors import NettestError
from transport.nettest.result import NetTest, PeerTest
from transport.wire.codec import MessageError, decode_json, encode_json
from transport.wire.ids import NodeAddress
from transport.wire.node import NodeProfile

ASK_TIMEOUT_S = 5.0
NETTEST_TIMEOUT_S = 30.0  # A test takes under ten seconds; another one may run before it.


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
    """The link to one peer, as ``transport.stats.LinkStats`` counts it.

    ``route``: the kinds of both ends' addresses, such as ``host/srflx``; ``relayed``: a relay carries it. Rates are payload
    bytes a second, ``loss`` a share of packets, ``queue_ms`` how much of ``rtt_ms`` is queues.
    """

    peer: str
    state: str
    rtt_ms: float | None
    route: str
    sent: int
    received: int
    relayed: bool = False
    min_rtt_ms: float | None = None
    queue_ms: float = 0.0
    loss: float = 0.0
    retransmitted: int = 0
    send_rate: float = 0.0
    receive_rate: float = 0.0
    mtu: int = 0
    path_changes: int = 0


class Status(msgspec.Struct, frozen=True):
    """The whole agent. ``state``: starting, connecting, online, away, refused or stopping; ``reason``: why it is not online.

    ``lending``: when it lends, as a sentence; ``paused``: because the owner asked for it.
    """

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
    line: NetTest | None = None
    lending: str = ""
    lending_state: State = State.LENDING
    paused: bool = False


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network test: with the rates or without, which take some seconds of the whole line."""

    speed: bool = True


class PeerOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The same for the link to one peer."""

    peer: NodeAddress
    speed: bool = True


class ClaimOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask the coordinator for what has been earned so far."""


@dataclass(frozen=True)
class Answers:
    """Who answers: each makes its document when it is asked. ``change`` raises SettingsError for what cannot be used.

    ``nettest`` and ``nettest_peer`` raise NettestError where it cannot be tested.
    """

    status: Callable[[], Status]
    earnings: Callable[[], Summary]
    limits: Callable[[], LimitsView]
    change: Callable[[LimitsChange], LimitsView]
    lending: Callable[[], LendingView]
    lend: Callable[[LendingChange], LendingView]
    nettest: Callable[[Order], Awaitable[NetTest]]
    nettest_peer: Callable[[PeerOrder], Awaitable[PeerTest]]
    claim: Callable[[ClaimOrder], Awaitable[Summary]]


async def serve(path: Path, answers: Answers) -> web.AppRunner:
    """Answer on ``path`` until the runner is cleaned up."""

    def answer(make: Callable[[], Any]) -> Callable[[web.Request], Any]:
        async def handle(_: web.Request) -> web.Response:
            return web.Response(body=encode_json(make()), content_type="application/json")

        return handle

    def change(kind: type[Any], make: Callable[[Any], Any]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            try:
                view = make(decode_json(await request.read(), kind))
            except (MessageError, SettingsError) as error:
                return web.json_response({"detail": str(error)}, status=422)
            return web.Response(body=encode_json(view), content_type="application/json")

        return handle

    def test(kind: type[Any], make: Callable[[Any], Awaitable[Any]]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            try:
                found = await make(decode_json(await request.read(), kind))
            except (MessageError, NettestError, NotConnectedError) as error:
                return web.json_response({"detail": str(error)}, status=422)
            return web.Response(body=encode_json(found), content_type="application/json")

        return handle

    app = web.Application()
    app.router.add_get("/v1/status", answer(answers.status))
    app.router.add_get("/v1/earnings", answer(answers.earnings))
    app.router.add_get("/v1/limits", answer(answers.limits))
    app.router.add_get("/v1/lending", answer(answers.lending))
    app.router.add_post("/v1/limits", change(LimitsChange, answers.change))
    app.router.add_post("/v1/lending", change(LendingChange, answers.lend))
    app.router.add_post("/v1/nettest", test(Order, answers.nettest))
    app.router.add_post("/v1/nettest/peer", test(PeerOrder, answers.nettest_peer))
    app.router.add_post("/v1/claim", test(ClaimOrder, answers.claim))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listen(path, 0o600)).start()
    return runner


async def ask(path: Path) -> Status:
    """The status of the agent that answers on ``path``.

    Raises:
        NoAgentError: none answers.
    """
    status: Status = decode_json(await _request(path, "GET", "/v1/status"), Status)
    return status


async def ask_limits(path: Path, change: LimitsChange | None = None) -> LimitsView:
    """The limits of the agent that answers on ``path``, after ``change`` where one is given.

    Raises:
        NoAgentError: none answers.
        SettingsError: the change cannot be made; the text says why.
    """
    body = None if change is None else encode_json(change)
    answer = await _request(path, "GET" if body is None else "POST", "/v1/limits", body)
    view: LimitsView = decode_json(answer, LimitsView)
    return view


async def ask_lending(path: Path, change: LendingChange | None = None) -> LendingView:
    """When the agent that answers on ``path`` lends, after ``change``; raises as ``ask_limits`` does."""
    body = None if change is None else encode_json(change)
    answer = await _request(path, "GET" if body is None else "POST", "/v1/lending", body)
    view: LendingView = decode_json(answer, LendingView)
    return view


async def ask_nettest(path: Path, order: Order) -> NetTest:
    """Let the agent test its line now.

    Raises:
        NoAgentError: none answers.
        SettingsError: it cannot test; the text says why.
    """
    answer = await _request(path, "POST", "/v1/nettest", encode_json(order), NETTEST_TIMEOUT_S)
    test: NetTest = decode_json(answer, NetTest)
    return test


async def ask_peer_test(path: Path, order: PeerOrder) -> PeerTest:
    """Let the agent test the link to a peer now; raises as ``ask_nettest`` does."""
    answer = await _request(path, "POST", "/v1/nettest/peer", encode_json(order), NETTEST_TIMEOUT_S)
    test: PeerTest = decode_json(answer, PeerTest)
    return test


async def ask_claim(path: Path) -> Summary:
    """Let the agent ask for what it has earned; returns what that is.

    Raises:
        NoAgentError: none answers.
        SettingsError: it has no connection to its coordinator now.
    """
    summary: Summary = decode_json(await _request(path, "POST", "/v1/claim", encode_json(ClaimOrder())), Summary)
    return summary


async def _request(
    path: Path, method: str, resource: str, body: bytes | None = None, seconds: float = ASK_TIMEOUT_S
) -> bytes:
    try:
        with short_name(path) as name:
            connector = aiohttp.UnixConnector(path=name)
            timeout = aiohttp.ClientTimeout(total=seconds)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
                async with http.request(method, f"http://agent{resource}", data=body) as answer:
                    if answer.status == 422:
                        raise SettingsError(str((await answer.json())["detail"]))
                    return await answer.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise NoAgentError(
            f"no agent answers in {path.parent}: start it with `cottage node run --home {path.parent}`"
        ) from error
