"""What this computer could earn: the network's price and demand now, its own measured speed, less what power costs."""

import math
import socket

import aiohttp
import msgspec

from common.errors import UrlError
from common.http_sessions import ProxyError, open_session, through, why
from common.system_words import reason
from common.urls import at, parse_url
from desktop.agent.errors import NotConnectedError
from protocol.codec import MessageError, decode_json

ASK_S = 5.0
PATH = "/api/v1/network"
PROCESSOR_WATTS = 65.0  # What desktop processors are built for; a processor does not tell what it draws.
MAX_BUSY = 0.95  # Of the time: rounds wait for peers and begin with a download.


class NetworkPrices(msgspec.Struct, frozen=True):
    """What a coordinator says of its network; it says more, which is of no interest here."""

    nodes_online: int
    nodes_busy: int
    price_per_petaflop: int
    coordinator: str = ""


class Prediction(msgspec.Struct, frozen=True):
    """Millionths of the token an hour, before power: ``low`` where this node is as busy as the others now, ``high`` when always.

    ``power``: what an hour of lending costs in electricity, by ``watts`` (``guessed`` where the device does not tell them).
    """

    low: int
    high: int
    power: int
    watts: float
    guessed: bool
    price: int
    nodes_online: int
    nodes_busy: int


async def ask_network(coordinator: str) -> NetworkPrices:
    """The network as it is.

    Raises:
        NotConnectedError: the coordinator does not answer, or not as one does; ``detail`` has ``why`` in a word.
    """
    try:
        url = parse_url(coordinator)
    except UrlError as error:
        raise NotConnectedError(str(error)) from error
    try:
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        async with open_session(timeout=timeout) as http, http.get(at(url, PATH)) as answer:
            answer.raise_for_status()
            body = await answer.content.read(1 << 20)
        network: NetworkPrices = decode_json(body, NetworkPrices)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, MessageError) as error:
        kind, words = _why(error)
        raise NotConnectedError(f"{coordinator} does not answer{through(url)}: {words}", why=kind) from error
    return network


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


def predict(flops: float, network: NetworkPrices, watts: float | None, electricity: int) -> Prediction:
    """Args:
    flops: operations a second, as measured here.
    watts: what the device may draw; None where it does not tell.
    electricity: millionths of the token for a kWh.
    """
    full = flops * 3600 / 1e15 * network.price_per_petaflop
    share = network.nodes_busy / network.nodes_online if network.nodes_online else 0.0
    drawn = PROCESSOR_WATTS if watts is None else watts
    return Prediction(
        math.floor(full * min(share, MAX_BUSY)),
        math.floor(full * MAX_BUSY),
        math.ceil(drawn / 1000 * electricity),
        drawn,
        watts is None,
        network.price_per_petaflop,
        network.nodes_online,
        network.nodes_busy,
    )
