"""Asking a coordinator for its relays and for credentials there, as the node that one is."""

import struct

import aiohttp
import msgspec
from yarl import URL

from common.clock import Clock
from common.errors import IceConfigError, UrlError
from common.http_sessions import open_session, through, why
from common.urls import at, authority, parse_url
from protocol.codec import MessageError, decode_json, encode_json
from protocol.identity import NodeKey
from protocol.network import RelayQuestion
from protocol.node import IceServers
from transport.nettest.errors import CoordinatorError
from transport.nettest.target import Target, targets

CONTEXT = "cottage-relays"
PATH = "/api/v1/relays/credentials"
ASK_S = 5.0
MAX_ANSWER = 256 * 1024
MAX_COMPLAINT = 300  # Characters of a refusal that are shown.


class _Complaint(msgspec.Struct, frozen=True):
    detail: str


def question(key: NodeKey, host: str, now: float) -> RelayQuestion:
    """The signed question of a node to the coordinator at ``host``; ``now`` in unix seconds."""
    return RelayQuestion(key.address, now, key.sign(CONTEXT, host.encode(), struct.pack("!d", now)))


async def ask_relays(coordinator: str, key: NodeKey, clock: Clock) -> list[Target]:
    """Every relay of a coordinator's network.

    Raises:
        CoordinatorError: it cannot be reached, or refuses.
        NoRelayError: it has none.
    """
    url = _parse(coordinator)
    try:
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        async with open_session(timeout=timeout) as http:
            body = encode_json(question(key, authority(url), clock.time()))
            async with http.post(at(url, PATH), data=body, headers={"Host": authority(url)}) as answer:
                text = await answer.content.read(MAX_ANSWER)
                if answer.status != 200:
                    raise CoordinatorError(f"the coordinator {url} answers {answer.status}: {_complaint(text)}")
        offered: IceServers = decode_json(text, IceServers, MAX_ANSWER)
        return targets([(server.urls, server.username, server.credential) for server in offered.servers])
    except (MessageError, IceConfigError) as error:
        raise CoordinatorError(f"the coordinator {url} names no usable relays: {error}") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        way = through(url)
        raise CoordinatorError(f"the coordinator {url} cannot be asked{way}: {why(error)}") from error


def _complaint(text: bytes) -> str:
    """What a refusal says, in its own words where it has some."""
    try:
        return str(decode_json(text, _Complaint, MAX_ANSWER).detail[:MAX_COMPLAINT])
    except MessageError:
        return text[:MAX_COMPLAINT].decode(errors="replace")


def _parse(text: str) -> URL:
    try:
        return parse_url(text)
    except UrlError as error:
        raise CoordinatorError(f"no coordinator can be asked: {error}") from error
