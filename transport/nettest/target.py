"""A relay as a network test sees it: its name, its addresses, the ways to it, and the password."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.network import MAX_RELAYS
from transport.ice.ice import IceServer
from transport.nettest.errors import NoRelayError
from transport.relay.message import Address


@dataclass(frozen=True)
class Target:
    """One relay.

    Attributes:
        name: the first of its URLs, as in ``RelayMeasure``.
        servers: an entry for each of its URLs, the first one first.
    """

    name: str
    servers: tuple[IceServer, ...]

    @property
    def datagram(self) -> IceServer | None:
        """The entry for UDP."""
        return next((one for one in self.servers if not one.secure and one.transport != "tcp"), None)

    @property
    def streams(self) -> tuple[IceServer, ...]:
        """The entries for TCP, then those for TLS; a URL without a transport stands for UDP and TCP."""
        plain = [one for one in self.servers if not one.secure and one.transport != "udp"]
        return (*plain, *(one for one in self.servers if one.secure))


def targets(offered: Sequence[tuple[Sequence[str], str, str]]) -> list[Target]:
    """Relays from groups of (URLs, user name, credential); STUN servers and what comes after ``MAX_RELAYS`` are left out.

    A single UDP URL stands for TCP to the same port as well, which every relay offers (RFC 8656 section 2.1).

    Raises:
        IceConfigError: a URL cannot be used.
        NoRelayError: there is no relay among them.
    """
    found = []
    for urls, username, credential in offered:
        entries = [IceServer(url, username, credential) for url in urls if not url.startswith("stun:")]
        if len(entries) == 1 and entries[0].transport == "udp":
            entries.append(IceServer(urls[0].replace("transport=udp", "transport=tcp"), username, credential))
        if entries:
            found.append(Target(urls[0], tuple(entries)))
    if not found:
        raise NoRelayError("no relay is named, so there is nothing to measure against")
    return found[:MAX_RELAYS]


async def resolve(server: IceServer, kind: socket.SocketKind) -> list[Address]:
    """Addresses of a server, IPv4 first; empty where its name stands for none."""
    try:
        ipaddress.ip_address(server.host)
        return [(server.host, server.port)]
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(server.host, server.port, type=kind)
    except (OSError, UnicodeError):  # The latter for a name that is none.
        return []
    ordered = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return list(dict.fromkeys((str(entry[4][0]), int(entry[4][1])) for entry in ordered))


def is_ipv6(address: Address) -> bool:
    """Whether it is one of IPv6."""
    return ":" in address[0]
