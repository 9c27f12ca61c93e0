"""Requests to addresses that a stranger named (webhooks, buckets): only to the public Internet, checked at the socket.

A name is no proof: it may resolve to another address a moment later, and a redirect names a new one. So the check sits where a
socket is made for the address that is then connected to, after all resolving, for every hop.
"""

import socket
from collections.abc import Callable, Iterable
from typing import Any, Final

import aiohttp

from common.http_sessions import open_session
from transport.relay.peer_policy import Network, PeerPolicy

_FAMILIES: Final = frozenset({socket.AF_INET, socket.AF_INET6})


class ForbiddenAddressError(PermissionError):
    """The address is not one of the public Internet. aiohttp wraps it in a ``ClientConnectorError``."""


def outside_session(seconds: float = 10.0, allowed: Iterable[Network] = ()) -> aiohttp.ClientSession:
    """A session for requests to URLs of strangers. No cookies, no keep-alive.

    And no proxy: it would connect in this machine's place, where nothing looks at the address, and would reach what only it may.

    Args:
        seconds: for a whole request, connecting and reading included.
        allowed: networks beyond the public Internet that the operator lets it reach.
    """
    return open_session(
        proxies=False,
        connector=aiohttp.TCPConnector(
            socket_factory=outside_sockets(allowed), force_close=True, use_dns_cache=False, limit=32
        ),
        timeout=aiohttp.ClientTimeout(total=seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        requote_redirect_url=False,
    )


def outside_sockets(allowed: Iterable[Network] = ()) -> Callable[[Any], socket.socket]:
    """What makes sockets to addresses of the public Internet, and of the ``allowed`` networks, and no others."""
    policy = PeerPolicy(allowed, ())

    def make(address: Any) -> socket.socket:
        family, kind, protocol, _, where = address
        host = str(where[0]).partition("%")[0]
        if family not in _FAMILIES or not policy.permits(host):
            raise ForbiddenAddressError(
                f"{host} is no address of the public Internet: name a server that everybody can reach"
            )
        return socket.socket(family, kind, protocol)

    return make
