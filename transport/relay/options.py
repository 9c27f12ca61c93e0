"""What the operator of a relay chose."""

import ipaddress
import re
import ssl
from dataclasses import dataclass, field

from common.errors import UrlError
from common.urls import parse_host
from transport.relay.errors import OptionsError
from transport.relay.peer_policy import Network

STUN_PORT = 3478
NAT_PORT = 3479
TLS_PORT = 5349
MIN_SECRET_CHARS = 16
MAX_SECRET_CHARS = 128  # RelayReport.secret
_REALM = re.compile(r"[A-Za-z0-9.\-]{1,64}")  # It travels in every 401: short, and nothing to escape.


@dataclass(frozen=True)
class Quota:
    """Bounds of one relay; rates in bytes a second, 0 for none."""

    allocations: int = 4096  # One socket and up to some 100 kB each.
    allocations_per_user: int = 128  # A node has up to 64 peers, and each may be made anew while the old one lapses.
    user_rate: float = 0.0
    total_rate: float = 0.0
    streams: int = 4096  # TCP and TLS connections.
    streams_per_address: int = 128
    permissions: int = 256  # Per allocation: every candidate of one peer is far below.
    channels: int = 256
    speed_streams: int = 128  # Connections that measure at once, 0 for no speed tests: eight homes.
    speed_streams_per_user: int = 32  # Those of one direction may still be ending when those of the other begin.
    speed_hour_streams: float = 320.0  # Of one user: ten tests.
    speed_hour_bytes: float = 2e9  # Of one user: four tests of 1 Gbit/s, or forty of 100 Mbit/s.
    speed_rate: float = 250e6  # Of all that measure at once: 2 Gbit/s, some half of a core.
    speed_total_hour_bytes: float = 50e9  # Of all: 110 Mbit/s in the long run.


@dataclass(frozen=True)
class RelayOptions:
    """How a relay serves.

    Attributes:
        listen: IP addresses of this machine; one relay port each.
        port: UDP and TCP; 0 takes a free one.
        nat_port: second UDP port, only for telling NAT kinds (RFC 5780); None for none, 0 for a free one.
        tls_port: TLS over TCP; None for none, 0 for a free one.
        tls: the certificate; needed with ``tls_port``.
        external: public address of each address in ``listen`` that a NAT stands before.
        min_port, max_port: where relayed addresses come from; 0 and 0 take any free port.
        allowed: networks that may be peers beyond the public Internet.
        offload: send and receive in batches where the system can.
    Raises:
        OptionsError: on making one whose parts do not fit.
    """

    secret: str
    listen: tuple[str, ...] = ("127.0.0.1",)
    port: int = STUN_PORT
    nat_port: int | None = NAT_PORT
    tls_port: int | None = None
    tls: ssl.SSLContext | None = None
    external: dict[str, str] = field(default_factory=dict)
    min_port: int = 49152
    max_port: int = 65535
    realm: str = "cottage"
    allowed: tuple[Network, ...] = ()
    quota: Quota = field(default_factory=Quota)
    offload: bool = True

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        if not MIN_SECRET_CHARS <= len(self.secret) <= MAX_SECRET_CHARS:
            raise OptionsError(
                f"the shared secret has {len(self.secret)} characters: use {MIN_SECRET_CHARS} to {MAX_SECRET_CHARS}"
            )
        if _REALM.fullmatch(self.realm) is None:
            raise OptionsError(f"{self.realm!r} is no realm: use up to 64 letters, digits, dots and hyphens")
        if not self.listen or len(set(self.listen)) != len(self.listen):
            raise OptionsError("name each address to listen on once, and at least one")
        for text in (*self.listen, *self.external.values()):
            check_ip(text)
        strangers = set(self.external) - set(self.listen)
        if strangers:
            raise OptionsError(f"{', '.join(sorted(strangers))} has an external address but is not listened on")
        if self.max_port and not 1024 <= self.min_port <= self.max_port <= 65535:
            raise OptionsError(f"ports {self.min_port} to {self.max_port} cannot be relayed: choose within 1024-65535")
        if self.tls_port is not None and self.tls is None:
            raise OptionsError("TLS needs a certificate and its key")

    def public(self, ip: str) -> str:
        """Where the world sees this address of ``listen``."""
        return self.external.get(ip, ip)


def check_ip(text: str) -> str:
    """Return ``text`` if it is one IP address that can be listened on.

    Raises:
        OptionsError: it is not.
    """
    try:
        ip = ipaddress.ip_address(text)
        parse_host(text)  # Knows which addresses need an interface.
    except ValueError:
        raise OptionsError(f"{text!r} is no IP address") from None
    except UrlError as error:
        raise OptionsError(str(error)) from error
    if ip.is_unspecified or ip.is_multicast:
        raise OptionsError(f"{text} stands for many addresses: name one that clients can reach")
    return text
