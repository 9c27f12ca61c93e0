"""Pages about the market: network, machines, lenders, earnings, what a card would earn, how the coordinator does."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from coordinator.errors import InvalidError
from coordinator.services.jobs import ports
from coordinator.web.auth import public
from coordinator.web.pages import atlas, gpus
from coordinator.web.pages.render import Renderer
from protocol.rest.api import NodeView
from protocol.wallets import MAX_TEXT

MAX_TRAFFIC_SHOWN = 20  # Of relayed traffic, the most first; the rest is in the interface.
MAX_NODES_SHOWN = 12  # On the network page; the machines' own page turns through all of them.
MACHINES_PER_PAGE = 100
MAX_LENDERS = 200


@dataclass(frozen=True)
class Lender:
    """Machines that pay to one wallet, as the leaderboard shows them."""

    address: str
    names: tuple[str, ...]
    machines: int
    online: int
    flops: float
    earned: int
    since: float


class MarketPages:
    """Handlers of the pages about the market."""

    def __init__(
        self,
        network: ports.NetworkPort,
        market: ports.MarketPort,
        withdrawals: ports.WithdrawalPort,
        renderer: Renderer,
    ) -> None:
        self._network = network
        self._market = market
        self._withdrawals = withdrawals
        self._renderer = renderer

    def register(self, app: web.Application) -> None:
        """Add the pages to ``app``."""
        for path, handler in (
            ("/network", self.network),
            ("/machines", self.machines),
            ("/lenders", self.lenders),
            ("/earn", self.earn),
            ("/earnings", self.earnings),
            ("/status", self.status),
        ):
            app.router.add_get(path, handler)

    @public
    async def network(self, request: web.Request) -> web.Response:
        """Capacity, prices, demand, the map, the strongest nodes, the relays."""
        view, nodes, relays, market, regions, withdrawals = await asyncio.gather(
            self._network.view(),
            self._network.nodes(),
            self._network.relays(),
            self._market.now(),
            self._market.regions(),
            self._withdrawals.terms(),
        )
        traffic = sorted((entry for relay in relays for entry in relay.traffic), key=lambda entry: -entry.bytes_relayed)
        marks, elsewhere = atlas.marks(regions)
        return self._renderer.page(
            request,
            "network.html",
            network=view,
            market=market,
            withdrawals=withdrawals,
            nodes=_ordered(nodes)[:MAX_NODES_SHOWN],
            known=len(nodes),
            relays=relays,
            traffic=traffic[:MAX_TRAFFIC_SHOWN],
            marks=marks,
            elsewhere=elsewhere,
            regions=regions,
            map_size=(atlas.WIDTH, atlas.HEIGHT),
        )

    @public
    async def machines(self, request: web.Request) -> web.Response:
        """All nodes, or those that pay to one wallet, or only those online."""
        owner = request.query.get("owner", "").strip()[:60]
        online = request.query.get("show") == "online"
        page = _page_number(request)
        nodes = _ordered(await self._network.nodes())
        found = [n for n in nodes if owner in ("", n.payout, n.node) and (n.online or not online)]
        start = page * MACHINES_PER_PAGE
        return self._renderer.page(
            request,
            "machines.html",
            nodes=found[start : start + MACHINES_PER_PAGE],
            found=len(found),
            known=len(nodes),
            owner=owner,
            online=online,
            page=page,
            more=start + MACHINES_PER_PAGE < len(found),
        )

    @public
    async def lenders(self, request: web.Request) -> web.Response:
        """Who has earned most."""
        lenders = ranked(await self._network.nodes())
        return self._renderer.page(request, "lenders.html", lenders=lenders[:MAX_LENDERS], known=len(lenders))

    @public
    async def earn(self, request: web.Request) -> web.Response:
        """What a card would earn."""
        typed = dict(request.query)
        market, nodes = await asyncio.gather(self._market.now(), self._network.nodes())
        asked, error = gpus.GpuQuestion(), None
        if market.worth is not None:
            typed = {"token": f"{market.worth.millionths / 1e6:g}"} | typed
        try:
            asked = gpus.question(typed)
        except InvalidError as refused:
            error = refused
        return self._renderer.page(
            request,
            "earn.html",
            200 if error is None else error.status,
            asked=asked,
            typed=typed,
            error=error,
            found=gpus.estimate(asked, market, nodes),
            market=market,
            cards=gpus.GPUS,
            parts=(gpus.PART_LOW, gpus.PART_HIGH),
        )

    @public
    async def earnings(self, request: web.Request) -> web.Response:
        """What a wallet has earned."""
        address = request.query.get("address", "").strip()[:MAX_TEXT]
        found, error = None, None
        try:
            found = await self._market.earnings(address) if address else None
        except InvalidError as refused:
            address, error = "", refused  # It may be a secret, which no page shows again.
        status = 200 if error is None else error.status
        return self._renderer.page(request, "earnings.html", status, address=address, earnings=found, error=error)

    @public
    async def status(self, request: web.Request) -> web.Response:
        """How the coordinator does."""
        health, relays = await asyncio.gather(self._market.health(), self._network.relays())
        return self._renderer.page(request, "status.html", health=health, relays=relays)


def ranked(nodes: Sequence[NodeView]) -> list[Lender]:
    """Machines by the wallet that they pay to, who earned most first."""
    owners: dict[str, list[NodeView]] = defaultdict(list)
    for node in nodes:
        if not node.banned:
            owners[node.payout].append(node)
    found = [
        Lender(
            address=address,
            names=tuple(node.name for node in owned if node.name)[:3],
            machines=len(owned),
            online=sum(node.online for node in owned),
            flops=sum(node.flops for node in owned if node.online),
            earned=sum(node.earned for node in owned),
            since=min(node.since for node in owned),
        )
        for address, owned in owners.items()
    ]
    return sorted(found, key=lambda lender: (-lender.earned, lender.since, lender.address))


def _ordered(nodes: Sequence[NodeView]) -> list[NodeView]:
    return sorted(nodes, key=lambda node: (not node.online, -node.flops, node.node))


def _page_number(request: web.Request) -> int:
    """Which page a link of ours asks for, from 0; whatever else somebody typed is the first."""
    text = request.query.get("page", "")
    return int(text) - 1 if text.isascii() and text.isdigit() and 0 < len(text) <= 6 and int(text) > 0 else 0
