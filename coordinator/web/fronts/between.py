"""What cells of a network ask each other, at the doors where fronts ask them too: their nodes, who has come, relays' reports; and
what nodes of one want of jobs of another.

A cell that is away, or slow, is left out: what is known of the others then is less, and nothing waits for it. Who joins a
federation waits for its cell, as long as it takes another coordinator to carry that. Payees' claims are kept for theirs.
"""

import asyncio
import hmac
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Final, Literal

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, web

from common.clock import Clock
from common.http_sessions import why as reason_of
from coordinator.domain.cells import Cell, cell_of
from coordinator.errors import CottageError, NotFoundError, UnavailableError
from coordinator.services.core.leases import Leases
from coordinator.services.network.cell_nodes import told as told_nodes
from coordinator.services.network.far_nodes import FarNode
from coordinator.services.network.nodes import Nodes
from coordinator.services.network.relays import Relays
from coordinator.services.payments.settlement import Settlement
from coordinator.services.training.federations import Federations
from coordinator.web.auth import public
from coordinator.web.http import answer, read_body
from protocol import codec
from protocol.codec import MessageError
from protocol.federated.federations import FederationTold, FederationWish
from protocol.ids import NodeAddress
from protocol.network import MAX_RELAYS, RelayEnvelope

BETWEEN: Final = "/fronts/between"
ASKING: Final = "X-Cottage-Between"
"""The header in which a cell proves that it is one. It is not that of fronts: what a front leads here is somebody else's."""
_PURPOSE: Final = b"cottage: a cell of a network asks another one"
MAX_ASKED: Final = 4 << 20  # All nodes of a cell that come in at once, and a relay's report has one megabyte.
FRESH_S: Final = 2.0  # Between two questions for nodes while somebody wants to know.
MANY: Final = 2_000  # Nodes; for each so many of them no less.
SEEN_S: Final = 3.0  # What is older by so much than it should be says nothing of who is free.
WANTED_S: Final = 10.0  # For so long somebody who has asked wants to know.
SLOW_S: Final = 30.0  # Between two questions while nobody does: what nobody waits for must not be wrong altogether.
OLD_S: Final = 60.0
ANSWER_S: Final = 2.0
TURN_S: Final = 0.5
KEPT_S: Final = 10.0  # For so long a cell that does not answer is told again who has come.
CLAIM_KEPT_S: Final = 60.0  # And what payees ask for, who may not do so again for ten minutes.
MAX_CLAIMS_KEPT: Final = 5_000  # For each cell, as many as it takes in ten minutes.
WISH_S: Final = 10.0  # For so long a federation's cell is waited for: another one carries it after three seconds or so.

LOG = logging.getLogger(__name__)


class BetweenSeal:
    """The word by which cells know each other. ``seed``: of the coordinator's key, 32 bytes."""

    def __init__(self, seed: bytes) -> None:
        self._word = hmac.digest(seed, _PURPOSE, "sha256").hex()

    @property
    def headers(self) -> Mapping[str, str]:
        """What a cell adds to its questions."""
        return {ASKING: self._word}

    def is_on(self, headers: Mapping[str, str]) -> bool:
        """Whether a question comes from a cell."""
        return hmac.compare_digest(headers.get(ASKING, "").encode(errors="replace"), self._word.encode())


class BetweenQuestion(msgspec.Struct, frozen=True):
    """What cell number ``cell`` asks, or tells.

    Attributes:
        came: nodes that have come there, and how many seconds ago. ``relay``: what a relay has told.
        wish: of the owner of ``node``, which is connected there and invited. ``payees``: who ask for what they have earned.
    """

    what: Literal["nodes", "came", "relay", "wish", "claims"]
    cell: int
    came: dict[str, float] = {}
    relay: RelayEnvelope | None = None
    node: str = ""
    wish: FederationWish | None = None
    payees: tuple[str, ...] = ()


class BetweenAnswers:
    """Handler of the route, which nobody but other cells may ask."""

    def __init__(
        self,
        seal: BetweenSeal,
        cell: Cell,
        nodes: Nodes,
        leases: Leases,
        relays: Relays,
        federations: Federations,
        settlement: Settlement,
    ) -> None:
        self._seal, self._cell, self._nodes, self._leases, self._relays = seal, cell, nodes, leases, relays
        self._federations, self._settlement = federations, settlement

    def setup(self, app: web.Application) -> None:
        """Add the route."""
        app.router.add_post(BETWEEN, self.ask)

    @public
    async def ask(self, request: web.Request) -> web.Response:
        """One question."""
        if not self._seal.is_on(request.headers):
            raise NotFoundError("nothing is here")  # As everywhere else where nothing is.
        asked: BetweenQuestion = codec.decode_json(await read_body(request, MAX_ASKED), BetweenQuestion, MAX_ASKED)
        match asked.what:
            case "nodes":
                return answer(told_nodes(self._nodes, self._leases, Cell(asked.cell, self._cell.of).has))
            case "came":
                for node, seconds in asked.came.items():
                    self._nodes.is_elsewhere(node, seconds)
            case "relay" if asked.relay is not None:
                with suppress(CottageError, MessageError):  # It may have been here already.
                    self._relays.announce(asked.relay, first_hand=False)
            case "wish" if (
                asked.wish is not None
            ):  # Answered as the node will be: a document has more than JSON can say.
                told = await self._federations.grant(NodeAddress(asked.node), asked.wish)
                return web.Response(body=codec.encode(told))
            case "claims":
                for payee in asked.payees:
                    await self._settlement.claim_here(payee)
        return answer([])


class BetweenCells:
    """Asks the other cells. Implements ``far_nodes.NodesBeside``, ``FederationsBeside`` and ``ClaimsBeside``; ``run`` it."""

    def __init__(
        self, cell: Cell, doors: Callable[[], Mapping[int, str]], seal: BetweenSeal, http: ClientSession, clock: Clock
    ) -> None:
        """``doors``: where each cell is served that is."""
        self._cell, self._doors, self._seal, self._http, self._clock = cell, doors, seal, http, clock
        self._known: Mapping[str, FarNode] = {}
        self._free: frozenset[str] = frozenset()
        self._looked = self._wanted = -inf
        self._looking: asyncio.Task[None] | None = None
        self._came: dict[int, dict[str, float]] = {}
        self._claims: dict[int, dict[str, float]] = {}
        self._relays: deque[RelayEnvelope] = deque(maxlen=MAX_RELAYS)
        self._news = asyncio.Event()
        self._silent: set[int] = set()

    def known(self) -> Mapping[str, FarNode]:
        """As the port has it."""
        self._wanted = now = self._clock.now()
        return self._known if now - self._looked < OLD_S else {}

    def free(self) -> frozenset[str]:
        """As the port has it."""
        self._wanted = now = self._clock.now()
        return self._free if now - self._looked < self._pause() + SEEN_S else frozenset()

    async def look(self) -> None:
        """As the port has it; whoever asks meanwhile shares the answer."""
        self._wanted = now = self._clock.now()
        if now - self._looked >= self._pause():
            await self._ask_together()

    def came(self, nodes: Sequence[str]) -> None:
        """As the port has it."""
        now = self._clock.now()
        for number in self._others():
            self._came.setdefault(number, {}).update(dict.fromkeys(nodes, now))
        self._news.set()

    def claim(self, payee: str, cells: Collection[int]) -> None:
        """As the port has it."""
        now = self._clock.now()
        for number in cells:
            if len(waiting := self._claims.setdefault(number, {})) < MAX_CLAIMS_KEPT:
                waiting[payee] = now
        self._news.set()

    async def wish(self, node: NodeAddress, asked: FederationWish) -> FederationTold:
        """As the port has it."""
        number, until = cell_of(asked.job, self._cell.of), self._clock.now() + WISH_S
        question = BetweenQuestion("wish", self._cell.number, node=node, wish=asked)
        while True:
            url = self._doors().get(number)
            if url is not None and (data := await self._ask(number, url, question)) is not None:
                return _told(data)
            if self._clock.now() >= until:
                raise UnavailableError(f"no coordinator carries cell {number + 1} now: come back in a moment")
            await self._clock.sleep(TURN_S)

    def relay(self, envelope: RelayEnvelope) -> None:
        """Pass a relay's report on, once it was found to be good."""
        self._relays.append(envelope)
        self._news.set()

    async def run(self) -> None:
        """For ever: tell what there is to tell, and keep fresh what somebody wants to know."""
        while True:
            self._news.clear()
            await self._tell()
            now = self._clock.now()
            if now - self._looked >= (self._pause() if now - self._wanted < WANTED_S else SLOW_S):
                await self._ask_together()
            with suppress(TimeoutError):
                async with self._clock.timeout(TURN_S):
                    await self._news.wait()

    def _pause(self) -> float:
        return FRESH_S * max(1.0, len(self._known) / MANY)

    def _others(self) -> dict[int, str]:
        return {number: url for number, url in self._doors().items() if number != self._cell.number}

    async def _ask_together(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._ask_for_nodes(), name="ask-other-cells")
        await asyncio.shield(self._looking)

    async def _ask_for_nodes(self) -> None:
        doors, question = self._others(), BetweenQuestion("nodes", self._cell.number)
        answers = await asyncio.gather(*(self._ask(number, url, question) for number, url in doors.items()))
        known: dict[str, FarNode] = {}
        for data in filter(None, answers):
            try:
                known |= {one.candidate.node: one for one in msgspec.json.decode(data, type=list[FarNode])}
            except msgspec.DecodeError as error:
                LOG.warning("another cell tells of its nodes what is not understood here: %s", error)
        self._known, self._looked = known, self._clock.now()
        self._free = frozenset(node for node, one in known.items() if one.free)

    async def _tell(self) -> None:
        doors = self._others()
        reports = [self._relays.popleft() for _ in range(len(self._relays))]
        passed = [BetweenQuestion("relay", self._cell.number, relay=envelope) for envelope in reports]
        telling = [self._ask(number, url, one) for number, url in doors.items() for one in passed]
        telling += [self._tell_who_came(number, url) for number, url in doors.items() if self._came.get(number)]
        telling += [self._tell_claims(number, url) for number, url in doors.items() if self._claims.get(number)]
        await asyncio.gather(*telling)
        self._came = {number: nodes for number, nodes in self._came.items() if number in doors and nodes}
        since = self._clock.now() - CLAIM_KEPT_S
        self._claims = {number: _later(payees, since) for number, payees in self._claims.items()}

    async def _tell_who_came(self, number: int, url: str) -> None:
        now, nodes = self._clock.now(), self._came.pop(number)
        ages = {node: now - at for node, at in nodes.items()}
        if await self._ask(number, url, BetweenQuestion("came", self._cell.number, came=ages)) is None:
            again = {node: at for node, at in nodes.items() if now - at < KEPT_S}
            self._came[number] = again | self._came.get(number, {})

    async def _tell_claims(self, number: int, url: str) -> None:
        payees = self._claims.pop(number)
        question = BetweenQuestion("claims", self._cell.number, payees=tuple(payees))
        if await self._ask(number, url, question) is None:  # Or not in time: who was heard has been noted there.
            self._claims[number] = payees | self._claims.get(number, {})

    async def _ask(self, number: int, url: str, question: BetweenQuestion) -> bytes | None:
        """Its answer; None: there is none in time."""
        timeout = ClientTimeout(total=ANSWER_S, sock_connect=ANSWER_S / 2)
        try:
            body = msgspec.json.encode(question)
            async with self._http.post(url + BETWEEN, data=body, headers=self._seal.headers, timeout=timeout) as said:
                data = await said.read() if said.status == 200 else None
                why = f"answers {said.status}"
        except (ClientError, OSError, TimeoutError) as error:
            data, why = None, f"does not answer ({reason_of(error)})"
        if data is None and number not in self._silent:
            LOG.warning("cell %d at %s %s: its nodes are not counted here until it does", number + 1, url, why)
        (self._silent.discard if data is not None else self._silent.add)(number)
        return data


def _told(data: bytes) -> FederationTold:
    try:
        told: FederationTold = codec.decode(data, FederationTold)
    except MessageError as error:
        raise UnavailableError(f"another cell tells of a federation what is not understood here: {error}") from error
    return told


def _later(times: Mapping[str, float], since: float) -> dict[str, float]:
    return {one: at for one, at in times.items() if at > since}
