"""ICE: which servers help two homes to find each other, and which addresses of a peer this node is willing to knock at."""

import base64
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from common.errors import IceConfigError, UrlError
from common.urls import join, split

MAX_CANDIDATES = 64  # A machine has a few interfaces and two families, each direct, reflexive and relayed.
MAX_CREDENTIAL_CHARS = 512
TURN_LIFETIME_S = 6 * 3600  # A relay allocation must outlive a long outer round; a leaked one dies the same day.

_URL = re.compile(r"(?P<scheme>stun|turns?):(?P<place>[A-Za-z0-9.\-\[\]:]{1,260})(\?transport=(?P<transport>udp|tcp))?")
_USER = re.compile(r"[A-Za-z0-9_\-]{1,64}")
_CANDIDATE = re.compile(
    r"candidate:(?P<foundation>[A-Za-z0-9+/]{1,32}) (?P<component>1) (?P<protocol>udp) (?P<priority>[0-9]{1,10}) "
    r"(?P<ip>[0-9A-Fa-f.:]{2,45}) (?P<port>[0-9]{1,5}) typ (?P<type>host|srflx|relay)"
    r"( raddr (?P<raddr>[0-9A-Fa-f.:]{2,45}) rport (?P<rport>[0-9]{1,5}))?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class IceServer:
    """A STUN server, or a TURN relay with its credentials.

    Attributes:
        url: ``stun:host:port`` or ``turn[s]:host:port?transport=udp|tcp``; an IPv6 address stands in brackets.
        ca_file: PEM file of the authority that signed the relay's certificate; empty for the system's authorities.
    """

    url: str
    username: str = ""
    credential: str = ""
    ca_file: str = ""

    def __post_init__(self) -> None:
        """Check the parts.

        Raises:
            IceConfigError: a part is malformed, or a relay lacks credentials.
        """
        scheme, _, _, transport = parse_ice(self.url)
        if scheme == "stun" and transport:
            raise IceConfigError(f"{self.url!r}: a STUN address has no transport")
        if scheme == "turns" and transport == "udp":
            raise IceConfigError(f"{self.url!r}: turns means TLS over TCP; aioice speaks no DTLS to relays")
        if scheme != "stun" and not (self.username and self.credential):
            raise IceConfigError(f"{self.url!r} is a relay: it needs a user name and a credential")
        if max(len(self.username), len(self.credential)) > MAX_CREDENTIAL_CHARS:
            raise IceConfigError(f"{self.url!r}: credentials are longer than {MAX_CREDENTIAL_CHARS} characters")

    @property
    def is_relay(self) -> bool:
        """Whether it relays (TURN) or only tells addresses (STUN)."""
        return self.url.startswith("turn")

    @property
    def secure(self) -> bool:
        """Whether the relay is reached through TLS."""
        return self.url.startswith("turns:")

    @property
    def host(self) -> str:
        """Name or address, without brackets."""
        return parse_ice(self.url).host

    @property
    def port(self) -> int:
        """The given port, or the scheme's own (RFC 7064, RFC 7065)."""
        return parse_ice(self.url).port

    @property
    def transport(self) -> str:
        """``udp``, ``tcp``, or empty where the address leaves it open."""
        return parse_ice(self.url).transport


class IcePlace(NamedTuple):
    """What the address of a STUN or TURN server names."""

    scheme: str
    host: str
    port: int
    transport: str

    @property
    def udp(self) -> bool:
        """Whether it is asked over UDP."""
        return self.transport != "tcp" and self.scheme != "turns"

    @property
    def stun(self) -> str:
        """The address under which the same server answers STUN."""
        return f"stun:{join(self.host, self.port)}"


def parse_ice(url: str) -> IcePlace:
    """Take an address apart.

    Raises:
        IceConfigError: it is none.
    Source: RFC 7065 (turn) and RFC 7064 (stun): port 3478, and 5349 over TLS.
    """
    match = _URL.fullmatch(url)
    try:
        if match is None:
            raise UrlError("another form")
        host, port = split(match["place"], 5349 if match["scheme"] == "turns" else 3478)
        if port == 0:
            raise UrlError("port 0")
    except UrlError as error:
        raise IceConfigError(
            f"{url!r} is no ICE server: expected stun:host:port or turn:host:port?transport=udp"
        ) from error
    return IcePlace(match["scheme"], host, port, match["transport"] or "")


def turn_credentials(secret: str, user: str, now: float, lifetime_s: int = TURN_LIFETIME_S) -> tuple[str, str]:
    """Make time-limited credentials for a relay that shares ``secret`` (coturn's ``use-auth-secret``).

    Args:
        secret: the relay's shared secret, never shown to nodes.
        user: who they are for; letters, digits, ``_`` and ``-``.
        now: unix seconds.
        lifetime_s: seconds of validity.
    Returns:
        user name ``expiry:user`` and password, base64 of HMAC-SHA1 over the user name.
    Raises:
        IceConfigError: an empty secret or an unusable user.
    Source: draft-uberti-behave-turn-rest-00, section 2.2.
    """
    if not secret:
        raise IceConfigError("the relay's shared secret is empty: set it, or anyone can relay")
    if _USER.fullmatch(user) is None:
        raise IceConfigError(f"{user!r} cannot be a relay user: 1 to 64 letters, digits, _ or -")
    username = f"{int(now) + lifetime_s}:{user}"
    digest = hmac.new(secret.encode(), username.encode(), hashlib.sha1).digest()
    return username, base64.b64encode(digest).decode()


def candidate_allowed(candidate: str, *, loopback: bool) -> bool:
    """Whether a ``candidate:`` attribute names an address that may be knocked at.

    Multicast, broadcast, unspecified, link-local and reserved addresses and host names are never allowed; loopback addresses
    only where the configuration says so. Private ranges are: peers may share a home.
    """
    match = _CANDIDATE.match(candidate)
    if match is None or not 0 < int(match["port"]) < 65536:
        return False
    try:
        ip = ipaddress.ip_address(match["ip"])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_loopback:
        return loopback
    forbidden = ip.is_multicast or ip.is_unspecified or ip.is_link_local or ip.is_reserved
    return not forbidden and not (ip.version == 4 and int(ip) >> 24 == 0)


def filter_candidates(candidates: Iterable[str], *, loopback: bool) -> list[str]:
    """Keep the allowed ones of a peer's candidates, in order."""
    return [candidate for candidate in candidates if candidate_allowed(candidate, loopback=loopback)]
