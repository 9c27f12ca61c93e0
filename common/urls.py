"""Addresses of servers: read, written and compared here and nowhere else (``tests/test_one_way_to_addresses.py``).

::

    https://cottage.example         a name, with the scheme's own port
    http://[::1]:8470               an address of IPv6 stands in brackets, as RFC 3986 has it
    http://[fe80::1%eth0]:8470      a link-local one names the interface, which means nothing to anybody else and is never sent

Names are kept as they go over the wire: in lower case, in ASCII (``xn--``), without the dot at their end.
"""

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from yarl import URL

from common.errors import UrlError

MAX_URL = 2000
HTTP = frozenset({"http", "https"})
PORTS = {"http": 80, "https": 443}
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ZONE = re.compile(r"[A-Za-z0-9._~-]{1,40}")
_UNBRACKETED = re.compile(r"^[a-z+]+://[^/\[\]@]*:[^/\[\]@]*:", re.IGNORECASE)
_PORT = re.compile(r"^[a-z+]+://[^/\[\]]*:[0-9]+(?:[/?#]|$)", re.IGNORECASE)
_HOSTLESS = re.compile(r"^[a-z+]+://:(?!:)", re.IGNORECASE)
_AUTHORITY_END = re.compile(r"[/?#]")
# A password may have any character, also one that should be written otherwise.
_SECRET = re.compile(r"//.*@", re.DOTALL)

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_url(text: str, schemes: Collection[str] = HTTP, *, users: bool = False, zone_needed: bool = True) -> URL:
    """A server's address, with its path and query.

    Args:
        users: one with a user's name and password is taken.
        zone_needed: as of ``parse_host``; what came with a request names no interface (``authority``).
    Raises:
        UrlError: it is none, has a user name in it, or names a port or scheme that cannot be.
    """
    shown = repr(_SECRET.sub("//…@", text)[:100])
    wanted = " or ".join(f"{scheme}://HOST" for scheme in sorted(schemes))
    try:
        url = URL(text)
        port = url.explicit_port
    except ValueError as error:
        if _HOSTLESS.match(text):
            raise UrlError(f"{shown} names no machine: write it as {wanted}") from error
        six = "[" in text or _UNBRACKETED.match(text)
        way = "an address of IPv6 stands in brackets, as in http://[::1]:8470" if six else f"write it as {wanted}"
        if not six and _PORT.search(text):
            way = "ports are numbers of 1 to 65535"
        raise UrlError(f"{shown} is no address of a server: {way}") from error
    if len(text) > MAX_URL or any(character.isspace() or not character.isprintable() for character in text):
        raise UrlError(
            f"{shown} is no address of a server: it has spaces in it, or is longer than {MAX_URL:,} characters"
        )
    if url.scheme not in schemes or not url.raw_host:
        raise UrlError(f"{shown} is no address of a server: write it as {wanted}")
    if url.raw_host in PORTS and url.explicit_port is None and url.path.startswith("//"):
        raise UrlError(f"{shown} begins twice: write it as {wanted}")
    if not users and (url.user is not None or url.password is not None):
        raise UrlError(f"{shown} has a user name in it: leave out what stands before the @")
    if (digits := _port_in(text)) and not (digits.isascii() and digits.isdecimal()):  # Python reads 1_8470 and ٣, too.
        raise UrlError(f"{shown} is no address of a server: ports are numbers of 1 to 65535")
    if port == 0:
        raise UrlError(f"{shown} names port 0, at which nobody answers: name the server's port")
    try:
        return url.with_host(parse_host(url.raw_host, zone_needed=zone_needed)).with_fragment(None)
    except UrlError as error:
        raise UrlError(f"{shown} is no address of a server: {error}") from error


def parts(text: str) -> SplitResult:
    """The parts of what need not be the address of a server: an invitation, or a page; raises UrlError where it has none."""
    try:
        return urlsplit(text)
    except ValueError as error:
        raise UrlError(f"{text[:100]!r} cannot be taken apart: {error}") from error


def _port_in(text: str) -> str:
    """The port as an address writes it; empty where it names none."""
    place = _AUTHORITY_END.split(text.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]
    return place.rpartition("]")[2].partition(":")[2]


def parse_host(text: str, *, zone_needed: bool = True) -> str:
    """A name or an address of a machine, with brackets or without, as it is kept.

    Args:
        zone_needed: a link-local address must name its interface, without which nobody can be reached there.
    Raises:
        UrlError: it is none.
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    literal, percent, zone = bare.partition("%")
    if ":" in literal:
        return _ipv6(literal, zone.removeprefix("25") if percent else None, zone_needed)
    try:
        name = (bare if bare.isascii() else str(URL.build(scheme="http", host=bare).raw_host)).lower().removesuffix(".")
    except ValueError as error:
        raise UrlError(f"{bare[:100]!r} is no name of a machine: {error}") from error
    labels = name.split(".")
    # The system's resolver takes 127.1 and 0x7f000001 for loopback; nobody means that.
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError as error:
            raise UrlError(f"{bare[:100]!r} is a number: write all four of an IPv4 address, or a name") from error
    if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise UrlError(f"{bare[:100]!r} is no name of a machine")
    return name


def _ipv6(literal: str, zone: str | None, zone_needed: bool) -> str:
    try:
        ip = ipaddress.IPv6Address(literal)
    except ValueError as error:
        raise UrlError(f"{literal[:100]!r} is no address of IPv6") from error
    if zone is None and ip.is_link_local and zone_needed:
        raise UrlError(f"{literal} is on every interface: name the one that is meant, as in {ip}%eth0")
    if zone is None:
        return str(ip)
    if not ip.is_link_local or not _ZONE.fullmatch(zone):
        raise UrlError(
            f"{literal}%{zone[:40]}: only link-local addresses (fe80::) name an interface, as in fe80::1%eth0"
        )
    return f"{ip}%{zone}"


def split(text: str, port: int | None = None, *, zone_needed: bool = True) -> tuple[str, int]:
    """``HOST:PORT`` taken apart; ``port``: where the text names none; ``zone_needed``: as of ``parse_host``.

    Raises:
        UrlError: no such pair, or no port though one is needed.
    """
    host, given = _halves(text)
    if given is None:
        if port is None:
            raise UrlError(f"{text[:100]!r} names no port: write HOST:PORT, with brackets around IPv6 as in [::1]:8470")
        return parse_host(host, zone_needed=zone_needed), port
    if not given.isdecimal() or not given.isascii() or not 0 <= int(given) < 65_536:
        raise UrlError(f"{text[:100]!r} names no port: one is a number up to 65535")
    return parse_host(host, zone_needed=zone_needed), int(given)


def _halves(text: str) -> tuple[str, str | None]:
    """Host and port as they stand there; an address of IPv6 without brackets has no port."""
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        return host + bracket, (rest[1:] if rest.startswith(":") else "no port") if rest else None
    if text.count(":") > 1:
        return text, None
    host, colon, given = text.partition(":")
    return host, given if colon else None


def bracketed(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def join(host: str, port: int) -> str:
    """``HOST:PORT``."""
    return f"{bracketed(host)}:{port}"


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """The address of a server that listens on ``host``; where that is every address, one at which this machine reaches it."""
    return f"{scheme}://{join({'0.0.0.0': '127.0.0.1', '::': '::1'}.get(host, host), port)}"  # noqa: S104


def at(url: URL, reference: str) -> URL:
    """What ``reference``, a path or a whole address, means at ``url``; raises UrlError where it means nothing."""
    try:
        return url.join(URL(reference))
    except ValueError as error:
        raise UrlError(f"{reference[:100]!r} leads nowhere from {url}") from error


def moved(asked: URL, to: str) -> URL:
    """The same path and query, as they were written, at the server ``to``."""
    there = URL(to)
    return URL.build(
        scheme=there.scheme,
        host=there.raw_host or "",
        port=there.port,
        path=asked.raw_path,
        query_string=asked.raw_query_string,
        encoded=True,
    )


def authority(url: URL) -> str:
    """What a request to ``url`` says in its ``Host`` header: without an interface, and without the scheme's own port."""
    host = bracketed((url.raw_host or "").partition("%")[0])
    return host if url.port == PORTS.get(url.scheme) else f"{host}:{url.port}"


def names(said: str, url: URL) -> bool:
    """Whether a ``Host`` header is that of ``url``, however it is spelt; a proxy in front may have left the port out."""
    assert url.port is not None
    try:
        said_by, meant = (split(pair, url.port, zone_needed=False) for pair in (said, authority(url)))
    except UrlError:
        return False
    return said_by == meant


def ip_of(host: str) -> Ip | None:
    """The address that ``host`` is, that of IPv4 where it is one within IPv6; None for a name."""
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip


def is_loopback(text: str) -> bool:
    """Whether a host, or a ``Host`` header, means this machine whatever a name server says."""
    try:
        host, _ = split(text, 0, zone_needed=False)
    except UrlError:
        return False
    ip = ip_of(host)
    return host == "localhost" or host.endswith(".localhost") if ip is None else ip.is_loopback
