"""The kind of NAT before this machine: how it maps, and whom it lets in (RFC 5780 section 4, words after RFC 4787).

Several sockets are asked at once, each of which has only ever written where its part of the question allows.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.network import NatKind
from transport.nettest.binding import CHANGE_IP, CHANGE_PORT, Answer, binder
from transport.nettest.target import is_ipv6
from transport.relay.message import Address

MAPPING_S = 1.2  # Five tries; whoever answers later than a second is no use as a relay.
FILTER_S = 1.0  # Four tries. What is filtered never comes, so all of it is always waited for.


@dataclass(frozen=True)
class Mapping:
    """How one socket was seen.

    Attributes:
        local: its own address.
        seen: by server address, as which it saw the socket.
    """

    local: Address
    seen: dict[Address, Address]


@dataclass(frozen=True)
class Filtering:
    """Whether answers came in from elsewhere than the socket had written to; None: no relay could send any."""

    other_address: bool | None = None
    other_port: bool | None = None


@dataclass(frozen=True)
class Nat:
    """The kind, and whether all of RFC 5780's questions were answered; otherwise the strictest kind that fits is named."""

    kind: NatKind
    certain: bool


def classify(mapping: Mapping | None, filtering: Filtering, *, stream: bool) -> Nat:
    """Tell the kind.

    Args:
        mapping: None where nothing came back over UDP.
        filtering: as found with a socket of its own.
        stream: whether TCP or TLS reaches a relay.
    """
    if mapping is None:
        return Nat("no udp", True) if stream else Nat("unknown", False)
    seen = set(mapping.seen.values())
    if mapping.local in seen:
        return Nat("none", True)
    if len(seen) > 1:
        return Nat("symmetric", True)
    if len(mapping.seen) < 2:
        return Nat("unknown", False)  # One mapping alone looks the same behind every NAT.
    return _cone(filtering, addresses=len({server[0] for server in mapping.seen}))


def _cone(filtering: Filtering, *, addresses: int) -> Nat:
    """A mapping that is the same for all servers asked."""
    if filtering.other_address:
        return Nat("full cone", addresses > 1)
    if filtering.other_port:
        return Nat("address cone", addresses > 1 and filtering.other_address is not None)
    return Nat("port cone", addresses > 1 and filtering.other_port is not None)


async def find_mapping(servers: Sequence[Address]) -> Mapping | None:
    """How one socket is seen by these servers and by their other addresses; None where none answers.

    Args:
        servers: IPv4 addresses and ports.
    """
    async with binder(ipv6=False) as own:
        answers = await asyncio.gather(*(own.ask(server, MAPPING_S / 2) for server in servers))
        seen = {
            server: answer.mapped for server, answer in zip(servers, answers, strict=True) if answer and answer.mapped
        }
        others = {other for server, answer in zip(servers, answers, strict=True) if (other := _usable(server, answer))}
        further = [other for other in sorted(others) if other not in seen]
        answers = await asyncio.gather(*(own.ask(server, MAPPING_S / 2) for server in further))
        seen |= {
            server: answer.mapped for server, answer in zip(further, answers, strict=True) if answer and answer.mapped
        }
        if not seen:
            return None
        return Mapping((_local_ip(next(iter(seen))), own.address[1]), seen)


async def find_filtering(servers: Sequence[Address]) -> Filtering:
    """Whether answers from elsewhere come in; the first server that can send from there decides."""
    found = await asyncio.gather(*(_from_elsewhere(server) for server in servers))
    return Filtering(
        next((one.other_address for one in found if one.other_address is not None), None),
        next((one.other_port for one in found if one.other_port is not None), None),
    )


async def _from_elsewhere(server: Address) -> Filtering:
    async with binder(ipv6=False) as own:
        plain, address, port = await asyncio.gather(
            own.ask(server, FILTER_S),
            own.ask(server, FILTER_S, CHANGE_IP | CHANGE_PORT),
            own.ask(server, FILTER_S, CHANGE_PORT),
        )
    other = _usable(server, plain)
    if plain is None or other is None:
        return Filtering()
    return Filtering(_came(address) if other[0] != server[0] else None, _came(port))


def _came(answer: Answer | None) -> bool | None:
    """None: the server refuses to answer from there."""
    return None if answer is not None and answer.mapped is None else answer is not None


def _usable(server: Address, answer: Answer | None) -> Address | None:
    """The server's other address, if it is one to write to: what a relay says must not lead packets anywhere."""
    other = answer.other if answer is not None else None
    if other is None or not other[1] or is_ipv6(other):
        return None
    ip, known = ipaddress.ip_address(other[0]), ipaddress.ip_address(server[0])
    fits = (ip.is_loopback, ip.is_private) == (known.is_loopback, known.is_private)
    return other if fits and not (ip.is_multicast or ip.is_unspecified or ip.is_reserved) else None


def _local_ip(towards: Address) -> str:
    """This machine's address on the way there; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(towards)
        return str(probe.getsockname()[0])
