"""What this computer could earn: the network's price and demand now, its own measured speed, less what power costs."""

import math
import socket
from typing import TypeVar

import aiohttp
import msgspec

from common.clock import Clock
from common.errors import UrlError
from common.http_sessions import ProxyError, open_session, through, why
from common.system_words import reason
from common.token_worth import TokenWorth
from common.urls import at, parse_url
from desktop.agent.base.config import Settings
from desktop.agent.errors import NotConnectedError
from protocol.codec import MessageError, decode_json

ASK_S = 5.0
NETWORK, MARKET = "/api/v1/network", "/api/v1/market"
PROCESSOR_WATTS = 65.0  # What desktop processors are built for; a processor does not tell what it draws.
MAX_BUSY = 0.95  # Of the time: rounds wait for peers and begin with a download.
DAY_S = 86_400
PETAFLOP = 1e15
WORTH_S = 3600.0
_T = TypeVar("_T", bound=msgspec.Struct)


class NetworkPrices(msgspec.Struct, frozen=True):
    """What a coordinator says of its network; it says more, which is of no interest here."""

    nodes_online: int
    nodes_busy: int
    price_per_petaflop: int
    coordinator: str = ""


class MarketPrices(msgspec.Struct, frozen=True):
    """What a coordinator says of its market: see ``protocol.rest.market.Market``, of which this is a part."""

    rate: int
    pay_low: int | None = None
    pay_high: int | None = None
    worth: TokenWorth | None = None


class Prediction(msgspec.Struct, frozen=True):
    """What a day of 24 hours of lending brings, in millionths of the token, after electricity.

    Attributes:
        low, high: nine of ten weeks of other machines brought between them, a day; where too few are known yet, as if this
            machine were as busy as the others are now, and always.
        learned: they are from other machines' weeks.
        power: what electricity takes of a day at work, by ``watts`` (``guessed`` where the device does not tell them); None: its
            price is in a currency in which nobody says what a token is worth, so nothing is taken off.
        price: of 10^15 operations now. ``worth``: of a token, in the owner's currency.
    """

    low: int
    high: int
    power: int | None
    watts: float
    guessed: bool
    price: int
    nodes_online: int
    nodes_busy: int
    learned: bool = False
    worth: TokenWorth | None = None


async def ask_market(coordinator: str) -> MarketPrices | None:
    """The market as it is; None where the coordinator is too old to tell.

    Raises:
        NotConnectedError: as ``ask_network``.
    """
    return await _ask(coordinator, MARKET, MarketPrices, missing=True)


async def ask_network(coordinator: str) -> NetworkPrices:
    """The network as it is.

    Raises:
        NotConnectedError: the coordinator does not answer, or not as one does; ``detail`` has ``why`` in a word.
    """
    network = await _ask(coordinator, NETWORK, NetworkPrices)
    assert network is not None, "only a market may be missing"
    return network


async def _ask(coordinator: str, path: str, of: type[_T], *, missing: bool = False) -> _T | None:
    try:
        url = parse_url(coordinator)
    except UrlError as error:
        raise NotConnectedError(str(error)) from error
    try:
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        async with open_session(timeout=timeout) as http, http.get(at(url, path)) as answer:
            if missing and answer.status == 404:
                return None
            answer.raise_for_status()
            body = await answer.content.read(1 << 20)
        found: _T = decode_json(body, of)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, MessageError) as error:
        kind, words = _why(error)
        raise NotConnectedError(f"{coordinator} does not answer{through(url)}: {words}", why=kind) from error
    return found


def _why(error: Exception) -> tuple[str, str]:
    """In a word, for programs that have others, and in English."""
    below = getattr(error, "os_error", None) or error
    if isinstance(error, ProxyError):
        return "proxy", str(error)
    if isinstance(below, socket.gaierror):
        return "name", "no machine of that name is known"
    if isinstance(error, TimeoutError):
        return "late", f"not within {ASK_S:g} seconds"
    if isinstance(error, aiohttp.ClientSSLError):
        return "certificate", why(error)
    if isinstance(error, aiohttp.ClientResponseError):
        kind = "away" if error.status >= 500 else "other"
        return kind, f"{error.status} {error.message}: is it a Cottage coordinator?"
    if isinstance(error, ValueError):
        return "other", "what answers there is no Cottage coordinator"
    refused = isinstance(below, ConnectionRefusedError)
    return ("refused" if refused else "unreached"), reason(below) if isinstance(below, OSError) else why(error)


class WorthWatch:
    """What the coordinator says that a token is worth, asked now and then."""

    def __init__(self, coordinator: str, clock: Clock) -> None:
        self._coordinator, self._clock = coordinator, clock
        self.said: TokenWorth | None = None

    async def run(self) -> None:
        """Ask for ever; where nobody answers, what was said last stays."""
        while True:
            try:
                market = await ask_market(self._coordinator)
                self.said = market.worth if market is not None else None
            except NotConnectedError:
                pass
            await self._clock.sleep(WORTH_S)


def spelt(units: int, worth: TokenWorth | None) -> str:
    """An amount of tokens, with what it is worth where that is known."""
    tokens = f"{units / 1e6:.4f} tokens"
    return tokens if worth is None else f"{tokens} ({worth.in_currency(units) / 1e6:.2f} {worth.currency})"


def predict(
    flops: float, network: NetworkPrices, market: MarketPrices | None, watts: float | None, settings: Settings
) -> Prediction:
    """Args:
    flops: operations a second, as measured here.
    market: None where the coordinator does not tell.
    watts: what the device may draw; None where it does not tell.
    settings: what a kWh costs, and in which currency.
    """
    price = network.price_per_petaflop if market is None else market.rate
    learned = False
    if market is not None and market.pay_low is not None and market.pay_high is not None:
        pay, learned = (float(market.pay_low), float(market.pay_high)), True
    else:
        share = network.nodes_busy / network.nodes_online if network.nodes_online else 0.0
        pay = price * min(share, MAX_BUSY), price * MAX_BUSY
    worth = settings.worth_of(market.worth if market is not None else None)
    drawn = PROCESSOR_WATTS if watts is None else watts
    power = _power(drawn, settings, worth)
    low, high = (
        flops * DAY_S / PETAFLOP * each - (power or 0) * min(1.0, each / price if price else 0.0) for each in pay
    )
    online, busy = network.nodes_online, network.nodes_busy
    return Prediction(
        math.floor(low), math.floor(high), power, drawn, watts is None, price, online, busy, learned, worth
    )


def _power(watts: float, settings: Settings, worth: TokenWorth | None) -> int | None:
    """Tokens for a day's electricity; a machine that waits for work draws next to nothing, which is not counted."""
    cost = math.ceil(watts * 24 / 1000 * settings.electricity)
    if not settings.currency or not cost:
        return cost
    return None if worth is None else worth.in_tokens(cost)
