"""What the agent says of itself to its owner alone, on a socket in its home folder or a pipe
(``desktop.agent.app.owner_socket``).

HTTP and JSON, so that the desktop windows can ask with what they have; ``desktop.agent.app.owner_api`` answers. ``GET
/v1/``: status, earnings, limits, lending, settings, activity, selftest, support, federations, publishers. ``POST /v1/``:
limits, lending, settings, selftest, nettest, nettest/peer, cards, update, leave, claim, withdraw, backup, restore, words,
publishers/accept, publishers/remove; each question's type stands here or where its subject is.
"""

import contextlib
import inspect
import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import aiohttp
import msgspec
from aiohttp import web
from msgspec import Meta

from common.http_sessions import open_session
from common.untrusted_text import View
from desktop.agent.app import owner_socket
from desktop.agent.base.config import MAX_CARDS, Home, Settings
from desktop.agent.base.gpu import GpuId
from desktop.agent.errors import AgentError, NoAgentError, SettingsError
from desktop.agent.jobs.line_limits import LimitsChange, LimitsView
from desktop.agent.lending.keeper import LendingChange, LendingView
from desktop.agent.lending.policy import State
from desktop.agent.updates.keeper import UpdateOrder
from desktop.answers import CardView, CommonStatus, EarningsSummary, Task, UpdateView
from protocol.codec import MessageError, decode_json, encode_json
from protocol.ids import Count, NodeAddress
from protocol.node import NodeProfile
from protocol.rest.withdrawals import WithdrawalReason
from protocol.wallets import MAX_TEXT
from transport.nettest.errors import NettestError
from transport.nettest.result import NetTest, PeerTest

ASK_TIMEOUT_S = 5.0
# A test of the line takes under ten seconds, and one may run before it; the ledger confirms in sixty.
LONG_TIMEOUT_S = 90.0


DOWNLOAD_TIMEOUT_S = 3600.0  # Of 70 MB over a slow line; what came is kept.


class TaskView(Task, frozen=True, kw_only=True):
    """The same for programs. ``pid``: its worker, where it is a process of this machine; bytes by what they were for.
    ``elements``: of an array job, how many have ended here."""

    lease: str
    pid: int | None
    elements: int | None = None
    activations: int
    bulk: int
    wire: int
    naive: int
    artifacts: int
    dropped: dict[str, int]


class LinkView(View, frozen=True):
    """The link to one peer, as ``transport.ice.stats.LinkStats`` counts it.

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


class AgentStatus(CommonStatus, frozen=True, kw_only=True):
    """The whole agent with its process, its links and the last test of its line. ``dropped``: what peers sent in vain.

    ``state``: off, starting, connecting, online, away, refused or stopping.
    """

    state: str
    lending_state: State = State.LENDING
    pid: int
    uptime: float
    profile: NodeProfile
    tasks: tuple[TaskView, ...]
    links: tuple[LinkView, ...]
    dropped: dict[str, int]
    line: NetTest | None = None


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network test: with the rates or without, which take some seconds of the whole line."""

    speed: bool = True


class PeerOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The same for the link to one peer."""

    peer: NodeAddress
    speed: bool = True


class ClaimOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask the coordinator for what has been earned so far."""


class WithdrawOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Send ``amount`` tokens (decimals; "" for all) from the node's wallet to ``target``; ``send`` off: say what it costs.

    Attributes:
        fee: what the owner has seen that it costs; with ``send``, nothing is sent at another one.
        own_sol: the wallet's own SOL pays, without the coordinator.
    """

    target: Annotated[str, Meta(max_length=MAX_TEXT)]
    amount: Annotated[str, Meta(max_length=40)] = ""
    send: bool = False
    fee: Count = 0
    own_sol: bool = False


DenialReason = (
    WithdrawalReason
    | Literal["no address", "secret", "no amount", "nothing", "no coordinator", "no answer", "own sol", "undecided"]
)
"""Why nothing was withdrawn: what the coordinator says, or what the agent has found itself.

``own sol``: the wallet has less than ``amount`` lamports; ``undecided``: it may have been sent all the same.
"""


class BackupOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Write key, settings and rules into a new file."""

    file: Annotated[str, Meta(min_length=1, max_length=4000)]
    passphrase: Annotated[str, Meta(max_length=1000)]


class RestoreOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Become the node of the backup ``file``, or of ``words`` where those are given."""

    file: Annotated[str, Meta(max_length=4000)] = ""
    passphrase: Annotated[str, Meta(max_length=1000)] = ""
    words: Annotated[str, Meta(max_length=2000)] = ""


class WordsOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Show the words."""


class TestOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Begin a self-test; one that runs goes on."""


class CardOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lend one of several cards, or switch it off. ``card``: its identity, or its number among those that are lent, from 1."""

    card: GpuId | Annotated[int, Meta(ge=1, le=MAX_CARDS + 1)]
    on: bool

    def apply(self, settings: Settings) -> Settings:
        """The settings after that.

        Raises:
            SettingsError: no such card is lent, or it is the last one that is on.
        """
        lent = settings.lent if settings.cards else ()
        if isinstance(self.card, int):
            card = lent[self.card - 1] if self.card <= len(lent) else None
        else:
            card = self.card if self.card in lent else None
        if not isinstance(card, str):
            what = f"card {self.card} is not lent" if lent else "one card is lent by itself"
            raise SettingsError(
                f"{what}: `cottage node settings --gpu all` lends all, `cottage node cards` shows which are"
            )
        resting = set(settings.resting) - {card} if self.on else {*settings.resting, card}
        if len(resting) == len(lent):
            raise SettingsError("it is the last card that is on: `cottage node off`, or the switch, ends lending")
        return msgspec.structs.replace(settings, resting=tuple(one for one in map(str, lent) if one in resting))


class CardsView(View, frozen=True):
    """Each card, where several are lent."""

    cards: tuple[CardView, ...]


class LeaveOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hand over what runs, and end."""


Gets = Mapping[str, Callable[[], Any]]
Posts = Mapping[str, tuple[type[Any], Callable[[Any], Any]]]


async def serve(path: Path, gets: Gets, posts: Posts) -> web.AppRunner:
    """Answer on ``path`` until the runner is cleaned up.

    Args:
        gets: resource -> who makes its document.
        posts: resource -> type of the question, and who answers it, at once or later; an AgentError or NettestError is told
            with status 422.
    """

    def get(make: Callable[[], Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(_: web.Request) -> web.Response:
            return web.Response(body=encode_json(make()), content_type="application/json")

        return handle

    def post(kind: type[Any], make: Callable[[Any], Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            try:
                found = make(decode_json(await request.read(), kind))
                if inspect.isawaitable(found):
                    found = await found
            except (MessageError, AgentError, NettestError) as error:
                return web.json_response({"detail": str(error)}, status=422)
            return web.Response(body=encode_json(found), content_type="application/json")

        return handle

    app = web.Application()
    for resource, make in gets.items():
        app.router.add_get(f"/v1/{resource}", get(make))
    for resource, (kind, answer) in posts.items():
        app.router.add_post(f"/v1/{resource}", post(kind, answer))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await owner_socket.site(runner, path).start()
    return runner


_T = TypeVar("_T")


async def ask_for(path: Path, resource: str, kind: type[_T], order: Any = None, seconds: float = ASK_TIMEOUT_S) -> _T:
    """``GET`` a document, or ``POST`` an order for one.

    Raises:
        NoAgentError: none answers.
        SettingsError: it cannot do that; the text says why.
    """
    body = None if order is None else encode_json(order)
    said = await _request(path, "GET" if order is None else "POST", f"/v1/{resource}", body, seconds)
    try:
        answer: _T = decode_json(said, kind)
    except MessageError as error:
        raise AgentError(f"what answers on {path} cannot be understood ({error}): is it another version?") from error
    return answer


async def ask(path: Path) -> AgentStatus:
    """The status of the agent that answers on ``path``; this and the following raise as ``ask_for``."""
    return await ask_for(path, "status", AgentStatus)


async def ask_limits(path: Path, change: LimitsChange | None = None) -> LimitsView:
    """The limits of the agent that answers on ``path``, after ``change`` where one is given."""
    return await ask_for(path, "limits", LimitsView, change)


async def ask_lending(path: Path, change: LendingChange | None = None) -> LendingView:
    """When the agent that answers on ``path`` lends, after ``change``."""
    return await ask_for(path, "lending", LendingView, change)


async def ask_nettest(path: Path, order: Order) -> NetTest:
    """Let the agent test its line now."""
    return await ask_for(path, "nettest", NetTest, order, LONG_TIMEOUT_S)


async def ask_peer_test(path: Path, order: PeerOrder) -> PeerTest:
    """Let the agent test the link to a peer now."""
    return await ask_for(path, "nettest/peer", PeerTest, order, LONG_TIMEOUT_S)


async def ask_claim(path: Path) -> EarningsSummary:
    """Let the agent ask for what it has earned; returns what that is."""
    return await ask_for(path, "claim", EarningsSummary, ClaimOrder())


async def ask_update(path: Path, order: UpdateOrder) -> UpdateView:
    """Let the agent look for a new version, or restart into it."""
    return await ask_for(path, "update", UpdateView, order, DOWNLOAD_TIMEOUT_S)


async def ask_leave(path: Path) -> AgentStatus:
    """Have the agent hand over what runs and end; the answer comes before that."""
    return await ask_for(path, "leave", AgentStatus, LeaveOrder())


async def _request(
    path: Path, method: str, resource: str, body: bytes | None = None, seconds: float = ASK_TIMEOUT_S
) -> bytes:
    try:
        with owner_socket.connector(path) as connector:
            timeout = aiohttp.ClientTimeout(total=seconds)
            async with open_session(connector=connector, timeout=timeout, proxies=False) as http:
                async with http.request(method, f"http://agent{resource}", data=body) as answer:
                    if answer.status == 422:
                        raise SettingsError(str((await answer.json())["detail"]))
                    return await answer.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise NoAgentError(f"no agent answers in {path.parent}: {_way_to_start(Home(path.parent))}") from error


def _way_to_start(home: Home) -> str:
    """What its owner types; an agent that was never told of a coordinator needs that, too."""
    words = "cottage node run" if home.is_usual else f"cottage node run --home {shlex.quote(str(home.path))}"
    with contextlib.suppress(SettingsError):  # Then the command itself says what is wrong with the settings.
        if not home.settings().coordinator:
            words += " --coordinator URL"
    return f"start it with `{words}`"
