"""The market as a whole: where its machines are, what work costs, who earns, and how the coordinator does. Reads only."""

import platform
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from common.errors import WalletAddressError
from coordinator.config import Config
from coordinator.domain.job import Job
from coordinator.errors import InvalidError
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.network.link_telemetry import Links, kind_of
from coordinator.services.network.machine_days import MachineDays, week
from coordinator.services.network.market_price import QUEUED, Rates, left
from coordinator.services.network.nodes import Nodes
from coordinator.services.network.relays import Relays
from coordinator.services.payments.chain import ChainPort
from coordinator.services.views import resources
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord, EventRecord, NodeRecord, OutboxRecord
from coordinator.version import release
from ledger.errors import LedgerError
from protocol.node import PROTOCOL
from protocol.rest import api, market
from protocol.wallets import any_address

DAY = 86_400
EARNING_DAYS = 30
INCIDENT_DAYS = 14
MAX_PRICES = 200  # Of the price's history: those of the newest jobs.
MAX_PAYOUTS = 100
MAX_IDS = 500  # Named in one query: databases limit its parameters.
INCIDENTS = ("lost", "fault", "void", "rejected", "slashed", "ledger", "failed")
"""Kinds of events that something went wrong with; each stands in a job's own timeline too."""


class MarketService:
    """Implements ``ports.MarketPort``."""

    def __init__(
        self,
        context: Context,
        nodes: Nodes,
        leases: Leases,
        links: Links,
        relays: Relays,
        chain: ChainPort,
        coordinator: str,
        days: MachineDays,
    ) -> None:
        self._context = context
        self._nodes = nodes
        self._leases = leases
        self._links = links
        self._relays = relays
        self._chain = chain
        self._coordinator = coordinator
        self._days = days
        self._rates = Rates(context, nodes)
        self._started = context.clock.time()

    async def regions(self, nodes: Collection[str] | None = None) -> Sequence[market.Region]:
        """Machines that are here now by region, the strongest region first. ``nodes``: only these, and regions that have any."""
        named = {url: relay.region for relay in self._relays.views() for url in relay.urls}
        up = [relay for relay in self._relays.views() if relay.state in ("up", "full")]
        busy = self._leases.busy()
        counts: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0])
        for node in self._nodes.everybody():
            if nodes is not None and node.node not in nodes:
                continue
            figures = counts[named.get(self._links.map.nearest(node.node) or "", "")]
            figures[0] += 1
            figures[1] += node.node in busy
            figures[2] += node.flops
        found = [
            market.Region(name, sum(relay.region == name for relay in up), int(here), int(at_work), flops)
            for name in {*counts, *(relay.region for relay in up if relay.region and nodes is None)}
            for here, at_work, flops in [counts.get(name, [0, 0, 0.0])]
        ]
        return sorted(found, key=lambda region: (-region.flops, region.name))

    async def links(self, nodes: Collection[str]) -> Sequence[market.Link]:
        """Links that live now between these nodes."""
        found: dict[frozenset[str], market.Link] = {}
        for node, told in self._links.map.links(self._context.clock.now()):
            if node in nodes and told.peer in nodes and told.rtt_s > 0:
                pair = frozenset((node, told.peer))
                link = market.Link(min(pair), max(pair), told.rtt_s * 1000, told.loss, kind_of(told))
                known = found.get(pair)
                found[pair] = link if known is None or link.rtt_ms > known.rtt_ms else known
        return list(found.values())

    async def now(self) -> market.Market:
        """Price and demand now, and how they were."""
        now = self._context.clock.time()
        await self._nodes.elsewhere.look()
        async with self._context.everywhere.transaction() as tx:
            rate = await self._rates.within(tx)
            queued = await tx.find(Job, col(Job.state).in_(QUEUED))
            quoted = await tx.find(Job, newest=True, limit=MAX_PRICES)
            paid, offered = await week(tx, now)
        here, pay = self._nodes.everybody(), self._days.pay
        return market.Market(
            rate=rate.per_petaflop,
            least=self._context.config.price_per_petaflop,
            reason=rate.reason,
            offered=sum(node.flops for node in here),
            willing=sum(node.flops for node in here if node.floor <= rate.per_petaflop),
            queued=sum(map(left, queued)),
            queued_jobs=len(queued),
            history=tuple(market.PricePoint(job.created, job.quote.rate) for job in reversed(quoted) if job.quote.rate),
            paid_week=paid,
            capacity_week=offered + self._days.waiting(),
            worth=self._context.config.token_worth,
            pay_low=None if pay is None else round(pay.low),
            pay_high=None if pay is None else round(pay.high),
        )

    async def earnings(self, address: str) -> market.Earnings:
        """What was earned for a wallet, or by a node's own key.

        Raises:
            InvalidError: this is no address.
        """
        try:
            address = any_address(address)
        except WalletAddressError as error:
            raise InvalidError(str(error), "address") from error
        now = self._context.clock.time()
        async with self._context.everywhere.transaction() as tx:
            groups = await tx.sums(
                CommitRecord,
                col(CommitRecord.amount),
                (col(CommitRecord.settlement), col(CommitRecord.state), col(CommitRecord.job)),
                col(CommitRecord.payout).equals(address),
            )
            ids = sorted({int(key[0]) for key in groups if key[0] is not None}, reverse=True)
            rows: dict[int, OutboxRecord] = {}
            for start in range(0, len(ids), MAX_IDS):
                found = await tx.find(OutboxRecord, col(OutboxRecord.id).in_(tuple(ids[start : start + MAX_IDS])))
                rows |= {row.id: row for row in found}
            records = {
                record.address: record for record in await tx.find(NodeRecord, col(NodeRecord.payout).equals(address))
            }
            records |= {
                record.address: record for record in await tx.find(NodeRecord, col(NodeRecord.address).equals(address))
            }
        sums: defaultdict[str, int] = defaultdict(int)
        parts: defaultdict[int, int] = defaultdict(int)
        for (settlement, state, _), (_, amount) in groups.items():
            row = rows.get(int(settlement)) if settlement is not None else None
            sums["paid" if row and row.state == "confirmed" and state == "verified" else str(state)] += amount
            if row is not None and state == "verified":
                parts[row.id] += amount
        payouts = [
            market.Payout(rows[id_].job, rows[id_].created, amount, rows[id_].state, rows[id_].signature)
            for id_, amount in sorted(parts.items(), reverse=True)
        ]
        return market.Earnings(
            address=address,
            machines=self._machines(records.values()),
            paid=sums["paid"],
            waiting=sums["verified"],
            unverified=sums["pending"],
            rejected=sums["rejected"],
            days=_by_day(payouts, now),
            payouts=tuple(payouts[:MAX_PAYOUTS]),
        )

    async def health(self) -> market.Health:
        """How the coordinator does, and what went wrong lately."""
        now = self._context.clock.time()
        today = int(now) // DAY * DAY
        days = []
        async with self._context.everywhere.transaction() as tx:
            for day in range(today, today - INCIDENT_DAYS * DAY, -DAY):
                within: tuple[Condition, ...] = (
                    col(EventRecord.time) > day - 1e-6,
                    col(EventRecord.time) < day + DAY,
                    col(EventRecord.kind).in_(INCIDENTS),
                )
                counted = await tx.sums(EventRecord, col(EventRecord.id), (col(EventRecord.kind),), *within)
                days.append(market.Day(day, {str(kind): count for (kind,), (count, _) in sorted(counted.items())}))
            rows = await tx.sums(
                OutboxRecord,
                col(OutboxRecord.amount),
                (col(OutboxRecord.state),),
                col(OutboxRecord.state).in_(("queued", "sent", "failed")),
            )
        return market.Health(
            started=self._started,
            checks=(
                market.HealthCheck("Coordinator and database", "good", "answer"),
                await self._ledger(),
                self._nodes_check(),
                self._auditors_check(),
                self._relays_check(),
                _payments(
                    rows.get(("queued",), (0, 0))[0] + rows.get(("sent",), (0, 0))[0], rows.get(("failed",), (0, 0))[0]
                ),
            ),
            versions={"Cottage": release(), "protocol of nodes": str(PROTOCOL), "Python": platform.python_version()},
            days=tuple(days),
        )

    def _machines(self, records: Iterable[NodeRecord]) -> tuple[api.NodeView, ...]:
        busy = self._leases.busy()
        return tuple(
            resources.node_view(record, self._nodes.session(record.address) is not None, record.address in busy)
            for record in records
        )

    async def _ledger(self) -> market.HealthCheck:
        try:
            await self._chain.balance(self._coordinator)
        except LedgerError as error:
            return market.HealthCheck("Ledger", "bad", f"does not answer: {error}. Training goes on, payouts wait.")
        return market.HealthCheck("Ledger", "good", "answers")

    def _nodes_check(self) -> market.HealthCheck:
        here = len(self._nodes.everybody())
        text = f"{here} online" if here else "none is online: jobs wait until some are"
        return market.HealthCheck("Nodes", "good" if here else "warn", text)

    def _auditors_check(self) -> market.HealthCheck:
        config, here = self._context.config, len(self._nodes.auditors())
        if not config.auditors:
            return market.HealthCheck("Auditors", "warn", nobody_looks(config))
        if not here:
            return market.HealthCheck(
                "Auditors", "bad", f"none of {len(config.auditors)} is here: what strangers do is not paid until one is"
            )
        return market.HealthCheck(
            "Auditors", "good", f"{here} of {len(config.auditors)} are here and look at strangers' work"
        )

    def _relays_check(self) -> market.HealthCheck:
        relays = self._relays.views()
        up = sum(relay.state in ("up", "full") for relay in relays)
        if not relays:
            return market.HealthCheck(
                "Relays", "warn", "none is known: only homes that reach each other directly can work together"
            )
        state = "good" if up == len(relays) else "warn" if up else "bad"
        return market.HealthCheck("Relays", state, f"{up} of {len(relays)} are up")  # type: ignore[arg-type]


def nobody_looks(config: Config) -> str:
    """That no machine of the operator looks at strangers' work, why, and what to do about it."""
    return (
        "nobody looks at strangers' work, so lenders have to trust each other. The coordinator's own auditor does not run: "
        f"{config.no_auditor or 'it is switched off'}. Or run `cottage auditor` elsewhere and name it with --auditor ADDRESS"
    )


def _payments(waiting: int, failed: int) -> market.HealthCheck:
    text = f"{waiting} transactions are under way" if waiting else "nothing waits"
    if failed:
        return market.HealthCheck(
            "Payments", "warn", f"{text}; {failed} were given up, and the operator has to look at them"
        )
    return market.HealthCheck("Payments", "good", text)


def _by_day(payouts: Sequence[market.Payout], now: float) -> tuple[market.Earned, ...]:
    today = int(now) // DAY
    sums: defaultdict[int, int] = defaultdict(int)
    for payout in payouts:
        if payout.state == "confirmed":
            sums[int(payout.time) // DAY] += payout.amount
    return tuple(market.Earned(day * DAY, sums[day]) for day in range(today - EARNING_DAYS + 1, today + 1))
