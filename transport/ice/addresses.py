"""This machine's own addresses: which ones to offer to a peer, which one the system would use, and when that changes."""

import asyncio
import contextlib
import ipaddress
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ifaddr

MAX_HOST_ADDRESSES = 8  # Each costs a socket and a check with every address of the peer; homes have two or three.
SETTLE_S = 0.05  # A change comes as a burst of messages: address, route, neighbours.
POLL_S = 1.0  # Where the system does not tell: half of what a lost path takes to be noticed otherwise.
ROUTE_PORT = 9  # Discard; nothing is sent, the system is only asked for the way.

PUBLIC_V4 = "192.0.2.1"  # RFC 5737: belongs to nobody, so its route is the default one.
PUBLIC_V6 = "2001:db8::1"  # RFC 3849.

_IF_INET6 = Path("/proc/net/if_inet6")
_TEMPORARY = 0x01
_UNUSABLE = 0x08 | 0x20 | 0x40  # DAD failed, deprecated, tentative: linux/if_addr.h
_BRIDGES = re.compile(r"docker\d+|br-[0-9a-f]{12}|virbr\d+|lxcbr\d+")
_ROUTE_GROUPS = 0x1 | 0x10 | 0x40 | 0x100 | 0x400  # Links, and addresses and routes of both families: linux/rtnetlink.h


@dataclass(frozen=True)
class HostAddress:
    """An address of this machine.

    Attributes:
        text: without a scope.
        temporary: made up by the system for privacy (RFC 8981).
        usable: neither deprecated nor still being checked for duplicates.
    """

    text: str
    interface: str
    temporary: bool = False
    usable: bool = True


def local_addresses() -> list[HostAddress]:
    """Every address of this machine but loopback and link-local ones."""
    flags = _linux_flags()
    found = []
    for adapter in ifaddr.get_adapters():
        for entry in adapter.ips:
            text = entry.ip if isinstance(entry.ip, str) else entry.ip[0]
            ip = ipaddress.ip_address(text)
            if not (ip.is_loopback or ip.is_link_local or ip.is_unspecified):
                bits = flags.get(text, 0)
                found.append(HostAddress(text, adapter.nice_name, bool(bits & _TEMPORARY), not bits & _UNUSABLE))
    return found


def _linux_flags() -> dict[str, int]:
    """Flags of the IPv6 addresses; empty where the system is another."""
    try:
        lines = [line.split() for line in _IF_INET6.read_text().splitlines()]
    except OSError:
        return {}
    return {str(ipaddress.IPv6Address(int(line[0], 16))): int(line[4], 16) for line in lines if len(line) >= 5}


def worth_offering(addresses: Iterable[HostAddress], preferred: Iterable[str]) -> list[str]:
    """Choose the addresses that a peer may reach.

    Bridges of container and virtual machine software lead nowhere. Of the IPv6 addresses of one network one is enough: the one
    that the system prefers, else a temporary one (RFC 8445, section 5.1.1.1).

    Args:
        addresses: in any order.
        preferred: what the system would use for the Internet; these come first.
    """
    first = list(preferred)
    usable = [one for one in addresses if one.usable and not _BRIDGES.fullmatch(one.interface)]
    usable.sort(key=lambda one: (one.text not in first, not one.temporary))
    chosen: dict[object, str] = {}
    for one in usable:
        ip = ipaddress.ip_address(one.text)
        network = (one.interface, int(ip) >> 64) if ip.version == 6 else one.text
        chosen.setdefault(network, one.text)
    return list(chosen.values())[:MAX_HOST_ADDRESSES]


def host_addresses() -> list[str]:
    """The addresses of this machine that a peer may reach, the best ones first."""
    return worth_offering(local_addresses(), (source_for(PUBLIC_V4), source_for(PUBLIC_V6)))


def source_for(remote: str) -> str:
    """The address from which the system would send to ``remote`` now; empty where it knows no way."""
    family = socket.AF_INET6 if ":" in remote else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as end:
            end.connect((remote, ROUTE_PORT))
            return str(end.getsockname()[0])
    except OSError:
        return ""


class AddressWatch:
    """Tells whoever waits that addresses or routes of this machine may have changed.

    Linux tells by itself (rtnetlink); elsewhere the addresses are compared every ``POLL_S``. It costs nothing while nobody waits.
    """

    def __init__(self, *, poll: bool = False) -> None:
        """``poll`` compares even where the system would tell."""
        self._poll = poll
        self._events: set[asyncio.Event] = set()
        self._stop: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def subscribe(self) -> Iterator[asyncio.Event]:
        """An event that is set at every change; who waits clears it."""
        event = asyncio.Event()
        if not self._events:
            self._stop = None if self._poll else self._listen()
            if self._stop is None:
                self._compare(self._snapshot())
        self._events.add(event)
        try:
            yield event
        finally:
            self._events.discard(event)
            if not self._events:
                self._close()

    def _close(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer = None
        for event in self._events:
            event.set()

    def _listen(self) -> Callable[[], None] | None:
        """Have the kernel tell; None where it cannot, or where the event loop watches no sockets."""
        family = getattr(socket, "AF_NETLINK", None)
        if sys.platform != "linux" or family is None:
            return None
        loop = asyncio.get_running_loop()
        end = None
        try:
            end = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
            end.bind((0, _ROUTE_GROUPS))
            loop.add_reader(end, self._told, end)
        except (OSError, NotImplementedError):
            if end is not None:
                end.close()
            return None
        kernel = end

        def stop() -> None:
            loop.remove_reader(kernel)
            kernel.close()

        return stop

    def _told(self, end: socket.socket) -> None:
        with contextlib.suppress(OSError):  # Nothing left to read, or more than the socket could hold: a change anyway.
            while end.recv(65536):
                pass
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._tell)

    def _snapshot(self) -> tuple[object, ...]:
        return frozenset(local_addresses()), source_for(PUBLIC_V4), source_for(PUBLIC_V6)

    def _compare(self, before: tuple[object, ...]) -> None:
        now = self._snapshot()
        if now != before:
            self._tell()
        self._timer = asyncio.get_running_loop().call_later(POLL_S, self._compare, now)
