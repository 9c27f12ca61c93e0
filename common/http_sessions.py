"""HTTP for every room: one maker of sessions, and one rule for the proxies on the way.

The rule. A request to this machine (``urls.is_loopback``) never takes a proxy. Another one takes that of its scheme
(``HTTP_PROXY``, ``HTTPS_PROXY``), else ``ALL_PROXY``, in capital letters or small ones, unless ``NO_PROXY`` names its host.
Without any such variable the settings of Windows and macOS count. A proxy is asked to tunnel https, WebSockets included, and to
pass plain HTTP on.

Whoever asks and gets no answer is told after ``TELL_S`` whom this waits for, and gives up after ``ANSWER_S``. Only what moves
many bytes, or has much to do before it answers, has another limit.
"""

import asyncio
import ipaddress
import os
import re
import ssl
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import hdrs
from yarl import URL

from common.errors import UrlError
from common.terminal import Waits
from common.urls import authority, ip_of, is_loopback, parse_url, split

ANSWER_S = 15.0  # A server under load answers within seconds; whoever waits longer thinks that the program hangs.
CONNECT_S = 10.0  # Of them: to be connected, through a proxy and with TLS, where there are any.
TELL_S = 2.0
_NAMES = {"http": "HTTP_PROXY", "https": "HTTPS_PROXY", "all": "ALL_PROXY", "no": "NO_PROXY"}
_KEPT_BY_SYSTEM = frozenset({"win32", "darwin"})
NO_ANSWER = "no answer in time"
_LITTLE = 64 << 10  # Bytes; what sends more shows how far it is.


class ProxyError(aiohttp.ClientConnectionError):
    """A proxy cannot be used, does not answer, or refuses; the text names it and the variable that it is from."""


@dataclass(frozen=True)
class Proxy:
    """``source``: the variable that names it. ``login``: what a request says to be let through; empty where it says nothing."""

    url: URL
    source: str
    login: str = ""

    def __str__(self) -> str:
        """For people: without its password."""
        return f"{self.url.origin()} ({self.source})"


def why(error: BaseException) -> str:
    """Why nobody was reached, in the system's words where it has some; the library's name address and options once more."""
    below = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    if isinstance(below, TimeoutError) and below.errno is None:
        return NO_ANSWER
    if isinstance(below, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {below.verify_message}"
    if isinstance(below, ssl.SSLError):
        return f"no TLS: {getattr(below, 'reason', '') or below}"
    if isinstance(below, OSError) and below.errno is not None:
        # A resolver's numbers are negative.
        return os.strerror(below.errno) if below.errno > 0 else str(below.strerror)
    return str(below) or type(below).__name__


def proxy_for(url: URL) -> Proxy | None:
    """The proxy that a request to ``url`` takes.

    Raises:
        ProxyError: one is named that cannot be used.
    """
    if is_loopback(url.raw_host or ""):
        return None
    named = {key: value for key, value in urllib.request.getproxies_environment().items() if key in _NAMES}
    from_system = not named and sys.platform in _KEPT_BY_SYSTEM
    if from_system:
        named = urllib.request.getproxies()
    key = next((key for key in (url.scheme, "all") if named.get(key)), None)
    if key is None or _excepted(url, named.get("no", ""), from_system):
        return None
    source = "the system's settings" if from_system else _NAMES[key]
    return _checked(named[key], source)


def _checked(text: str, source: str) -> Proxy:
    whole = text if "://" in text else "http://" + text
    _, *behind = re.split(r"[/?#]", whole.partition("://")[2], maxsplit=1)
    if "@" in "".join(behind):
        raise ProxyError(f"{source}: in a proxy's user name and password / is written %2F, # is %23, and ? is %3F")
    try:
        url = parse_url(whole, users=True).with_path("/")
    except UrlError as error:
        raise ProxyError(f"{source}: {error}; no other kind of proxy is used") from error
    if url.user is None and url.password is None:
        return Proxy(url, source)
    try:
        login = aiohttp.encode_basic_auth(url.user or "", url.password or "")  # In UTF-8, as RFC 7617 has it.
    except ValueError as error:
        raise ProxyError(f"{source}: a user's name has a colon in it, which no proxy can be told") from error
    return Proxy(url.with_user(None), source, login)


def _excepted(url: URL, without: str, from_system: bool) -> bool:
    """Whether NO_PROXY names the host: ``*``, a name or the end of one, an address, or a network; perhaps with a port."""
    host = url.raw_host or ""
    if from_system and urllib.request.proxy_bypass(host):  # type: ignore[attr-defined,unused-ignore]
        return True
    return any(_names(entry, host, url.port) for entry in re.split(r"[,\s]+", without) if entry)


def _names(entry: str, host: str, port: int | None) -> bool:
    if entry == "*":
        return True
    ip = ip_of(host)
    if ip is not None and "/" in entry:
        try:
            network = ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
        return ip.version == network.version and ip in network
    try:
        name, wanted = split(entry.removeprefix("*").removeprefix("."), 0, zone_needed=False)
    except UrlError:
        return False
    if wanted not in (0, port):
        return False
    if ip is not None:
        return ip_of(name) == ip
    return host == name or host.endswith(f".{name}")


@contextmanager
def told_of_waiting(url: URL) -> Iterator[None]:
    """Say on a terminal, once this has taken ``TELL_S``, that ``url`` is waited for."""
    told = None
    if Waits.spoken_of and sys.stderr is not None and sys.stderr.isatty():
        told = asyncio.get_running_loop().call_later(TELL_S, Waits.tell, str(url.origin()))
    try:
        yield
    finally:
        if told is not None:
            told.cancel()


def through(url: URL) -> str:
    """`` through the proxy X`` for the end of a sentence on what went wrong at ``url``; empty where there is none on the way."""
    try:
        proxy = proxy_for(url)
    except ProxyError:
        return ""
    return "" if proxy is None else f" through the proxy {proxy}"


async def _waited_for(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    if (getattr(request.body, "size", None) or 0) > _LITTLE:
        return await handler(request)
    with told_of_waiting(request.url):
        return await handler(request)


async def _on_its_way(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    if "%" in (request.url.raw_host or ""):
        request.headers[hdrs.HOST] = authority(request.url)  # An interface is the dialler's own affair (RFC 6874).
    # The settings of a system are asked for over its own services, and that may take a while.
    system = sys.platform in _KEPT_BY_SYSTEM and not is_loopback(request.url.raw_host or "")
    proxy = await asyncio.to_thread(proxy_for, request.url) if system else proxy_for(request.url)
    if proxy is None:
        return await handler(request)
    request.update_proxy(proxy.url, None, {hdrs.AUTHORIZATION: proxy.login} if proxy.login else None)
    try:
        answer = await handler(request)
    except aiohttp.ClientProxyConnectionError as error:
        reason = os.strerror(error.errno) if error.errno else error.strerror
        raise ProxyError(f"the proxy {proxy} cannot be reached: {reason}") from error
    except aiohttp.ClientHttpProxyError as error:
        raise ProxyError(f"the proxy {proxy} refuses: {error.status} {error.message}") from error
    if answer.status == 407:
        answer.close()
        raise ProxyError(f"the proxy {proxy} refuses: 407 {answer.reason}; it may want a name and a password")
    return answer


def open_session(
    *,
    timeout: aiohttp.ClientTimeout | None = None,
    connector: aiohttp.BaseConnector | None = None,
    headers: Mapping[str, str] | None = None,
    proxies: bool = True,
    **options: Any,
) -> aiohttp.ClientSession:
    """A session for HTTP and WebSockets.

    Args:
        timeout: None: that of a question.
        proxies: follow the rule for proxies; False: go straight, whatever is set.
        options: further ones of ``aiohttp.ClientSession``.
    """
    return aiohttp.ClientSession(
        connector=connector,
        headers=headers,
        trust_env=False,
        middlewares=(_waited_for, _on_its_way) if proxies else (),
        timeout=timeout or aiohttp.ClientTimeout(total=ANSWER_S, connect=CONNECT_S),
        **options,
    )
