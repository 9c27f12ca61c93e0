"""What only the coordinators at work have in their memory, as a front's pages ask for it.

With several cells each is asked for what is its own, and one answer is made of all (``merging``).
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn, TypeVar

from coordinator.errors import ElsewhereError
from coordinator.web.fronts import merging
from coordinator.web.fronts.answering import LedgerFacts
from coordinator.web.fronts.cell_lines import LinesToWork
from ledger.addresses import check_job, parse_address
from ledger.client import job_bytes
from ledger.program.interface import MarketAddresses
from protocol.network import RelayEnvelope, RelayOrder, RelayQuestion
from protocol.node import IceServers
from protocol.rest import api, market
from protocol.rest.withdrawals import (
    SentWithdrawal,
    SignedWithdrawal,
    WithdrawalAnswer,
    WithdrawalRequest,
    WithdrawalTerms,
)

T = TypeVar("T")


class Away:
    """Stands for a part that fronts do not have: whatever is asked of it is led to the coordinator at work."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ElsewhereError(f"fronts have no {name}")


class AwayPort:
    """As ``Away``, of a port, whose methods are looked up before they are called."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        return elsewhere


def elsewhere(*_given: object, **_named: object) -> NoReturn:
    """Nothing is answered here."""
    raise ElsewhereError("fronts do not answer this")


class FarNetwork:
    """Implements ``ports.NetworkPort``."""

    def __init__(self, lines: LinesToWork) -> None:
        self._lines = lines

    async def view(self) -> api.NetworkView:
        """The network at a glance."""
        return merging.network(_told(await self._lines.ask_all(api.NetworkView, "network")))

    async def nodes(self) -> Sequence[api.NodeView]:
        """Every node."""
        return merging.nodes(_told(await self._lines.ask_all(list[api.NodeView], "nodes")))

    async def relays(self) -> Sequence[api.RelayView]:
        """Relays, and for whom."""
        return await self._lines.ask(list[api.RelayView], "relays")

    async def announce_relay(self, envelope: RelayEnvelope) -> RelayOrder:
        """The one at work believes relays."""
        elsewhere(envelope)

    async def relay_credentials(self, question: RelayQuestion, host: str) -> IceServers:
        """The one at work makes credentials."""
        elsewhere(question, host)


class FarMarket:
    """Implements ``ports.MarketPort``."""

    def __init__(self, lines: LinesToWork) -> None:
        self._lines = lines

    async def regions(self, nodes: Collection[str] | None = None) -> Sequence[market.Region]:
        """Where machines are."""
        return merging.regions(_told(await self._lines.ask_all(list[market.Region], "regions", _named(nodes))))

    async def links(self, nodes: Collection[str]) -> Sequence[market.Link]:
        """Links that live now."""
        return merging.links(_told(await self._lines.ask_all(list[market.Link], "links", _named(nodes))))

    async def now(self) -> market.Market:
        """Price and demand."""
        return merging.market(_told(await self._lines.ask_all(market.Market, "market")))

    async def earnings(self, address: str) -> market.Earnings:
        """What a wallet has earned."""
        return merging.earnings(_told(await self._lines.ask_all(market.Earnings, "earnings", address=address)))

    async def health(self) -> market.Health:
        """How the coordinator at work does."""
        return merging.health(await self._lines.ask_all(market.Health, "health"), len(self._lines))


class FarWithdrawals:
    """Implements ``ports.WithdrawalPort``."""

    def __init__(self, lines: LinesToWork) -> None:
        self._lines = lines

    async def terms(self) -> WithdrawalTerms:
        """What taking earnings out costs."""
        return await self._lines.ask(WithdrawalTerms, "withdrawals")

    async def offer(self, asked: WithdrawalRequest, address: str) -> WithdrawalAnswer:
        """The one at work offers."""
        elsewhere(asked, address)

    async def take(self, signed: SignedWithdrawal, address: str) -> SentWithdrawal:
        """The one at work signs."""
        elsewhere(signed, address)


class FarChain(Away):
    """Addresses on the ledger; nothing that the ledger has to be asked for."""

    def __init__(self, lines: LinesToWork) -> None:
        self._lines = lines

    @property
    def url(self) -> str:
        """Of the ledger."""
        return self._facts.url

    @property
    def program(self) -> str:
        """The market program."""
        return self._facts.program

    @property
    def mint(self) -> str:
        """The token."""
        return self._facts.mint

    def escrow_address(self, submitter: str, job: str) -> str:
        """Where a job's escrow is, or will be."""
        addresses = MarketAddresses(parse_address(self.program), parse_address(self.mint))
        return str(addresses.escrow(parse_address(submitter), check_job(job_bytes(job))))

    @property
    def _facts(self) -> LedgerFacts:
        if (facts := self._lines.facts) is None:
            raise ElsewhereError("what the ledger's addresses are is not known yet")
        return facts


def _told(answers: Sequence[tuple[int, T]]) -> list[T]:
    """What cells have answered, the first one before others."""
    return [told for _, told in answers]


def _named(nodes: Collection[str] | None) -> tuple[str, ...] | None:
    return None if nodes is None else tuple(sorted(nodes))


def absent() -> Any:
    """An ``Away`` for any parameter."""
    return Away()
