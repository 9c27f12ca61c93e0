"""The emulator where there is no C compiler: the same sites, commands and answers as ``netemu``, good for some 50 Mbit/s.

    python shaper.py SEED NAME,NAMESPACE,DEVICE,MTU,PREFIX4,PREFIX6...

It imports nothing of the project, so it starts quickly; ``netemu/`` says what it does. Super-packets are refused, so the kernel
cuts them before they get here.
"""

import contextlib
import ctypes
import fcntl
import heapq
import ipaddress
import itertools
import json
import os
import random
import select
import struct
import sys
import time
from dataclasses import dataclass, field, fields
from typing import Any

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
BATCH = 64  # Packets from one site before the others have their turn.

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Line:
    """One direction of one access; the first fields are set by command, as in ``netemu.h``."""

    rate: float = 0.0
    delay_us: float = 0.0
    jitter_us: float = 0.0
    loss: float = 0.0
    reorder: float = 0.0
    hold_us: float = 0.0
    duplicate: float = 0.0
    queue: float = float(1 << 20)
    chance: random.Random = field(default_factory=random.Random)
    free: float = 0.0
    latest: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)

    def offer(self, size: int, now: float) -> list[float]:
        """When a packet of ``size`` bytes arrives: never, once or twice."""
        draw = self.chance.random
        if self.loss and draw() < self.loss:
            return self._count("losses")
        late = bool(self.reorder) and draw() < self.reorder
        twice = bool(self.duplicate) and not late and draw() < self.duplicate
        sent = now
        if self.rate:
            start = max(self.free, now)
            waiting = int((start - now) * self.rate / 8)
            self.counts["queue_peak"] = max(waiting, self.counts.get("queue_peak", 0))
            if waiting > self.queue:
                return self._count("queue_drops")
            sent = self.free = start + size * 8 / self.rate
        self._count("packets")
        self._count("bytes", size)
        due = sent + self.delay_us / 1e6
        if self.jitter_us:
            due += draw() * self.jitter_us / 1e6
        if late:
            self._count("reordered")
            return [due + self.hold_us / 1e6]
        self.latest = due = max(due, self.latest)
        if twice:
            self._count("duplicates")
        return [due] * (1 + twice)

    def stats(self) -> dict[str, int]:
        """The counters; the peak begins anew."""
        names = ("packets", "bytes", "queue_drops", "losses", "reordered", "duplicates", "queue_peak")
        result = {name: self.counts.get(name, 0) for name in names}
        self.counts["queue_peak"] = 0
        return result

    def _count(self, name: str, by: int = 1) -> list[float]:
        self.counts[name] = self.counts.get(name, 0) + by
        return []


class Site:
    """A TUN device inside a namespace, and the prefixes routed to it."""

    def __init__(self, description: str, seed: int) -> None:
        self.name, namespace, device, mtu, ipv4, ipv6 = description.split(",")
        self.mtu = int(mtu)
        self.prefixes = [ipaddress.ip_network(prefix) for prefix in (ipv4, ipv6) if prefix != "-"]
        self.tun = open_tun(namespace, device)
        self.is_cut = False
        self.oversized = 0
        self.up = Line(chance=random.Random(2 * seed))
        self.down = Line(chance=random.Random(2 * seed + 1))


def open_tun(namespace: str, device: str) -> int:
    """Make a TUN device in a namespace and return its descriptor."""
    here, there = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        enter(there)
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    finally:
        enter(here)
        os.close(here)
        os.close(there)
    return tun


def enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter the namespace")


class Shaper:
    """All sites, and what is on its way between them."""

    def __init__(self, sites: list[Site]) -> None:
        self._sites = sites
        self._named = {site.name: site for site in sites}
        self._by_tun = {site.tun: site for site in sites}
        self._routes: dict[bytes, Site | None] = {}
        self._due: list[tuple[float, int, Site, bool, bytes]] = []
        self._numbers = itertools.count()
        self._poll = select.epoll()
        self._text = b""
        for tun in self._by_tun:
            self._poll.register(tun, select.EPOLLIN)
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Carry packets until standard input ends."""
        answer("ready")
        while True:
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else 1.0
            select.select([self._poll.fileno()], [], [], wait)  # epoll itself waits in whole milliseconds.
            for descriptor, _ in self._poll.poll(0):
                site = self._by_tun.get(descriptor)
                if site is not None:
                    self._read(site)
                elif not self._read_commands():
                    return
            self._move()

    def _read(self, site: Site) -> None:
        for _ in range(BATCH):
            try:
                packet = os.read(site.tun, 1 << 16)
            except BlockingIOError:
                return
            target = self._route(packet)
            if site.is_cut or target is None or target.is_cut:
                continue
            if len(packet) > target.mtu:
                target.oversized += 1
                continue
            for due in site.up.offer(len(packet), time.monotonic()):
                heapq.heappush(self._due, (due, next(self._numbers), target, True, packet))

    def _move(self) -> None:
        """Carry what is due from its uplink to its downlink, or hand it over."""
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            at, _, site, is_up, packet = heapq.heappop(self._due)
            if is_up:
                for due in site.down.offer(len(packet), at):
                    heapq.heappush(self._due, (due, next(self._numbers), site, False, packet))
            elif not site.is_cut:
                with contextlib.suppress(BlockingIOError):  # A full device drops, as a network card does.
                    os.write(site.tun, packet)

    def _route(self, packet: bytes) -> Site | None:
        destination = packet[24:40] if packet[0] >> 4 == 6 else packet[16:20]
        if destination not in self._routes:
            address = ipaddress.ip_address(destination)
            found = [(prefix.prefixlen, site) for site in self._sites for prefix in site.prefixes if address in prefix]
            self._routes[destination] = max(found, key=lambda entry: entry[0])[1] if found else None
        return self._routes[destination]

    def _read_commands(self) -> bool:
        data = os.read(sys.stdin.fileno(), 1 << 16)
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            answer(self._command(*line.decode().split(" ")))
        return bool(data)

    def _command(self, command: str, name: str = "", *values: str) -> str:
        if command == "stats":
            return json.dumps(self._stats())
        site = self._named.get(name)
        if site is None or not values:
            return f"error: {command} needs the name of a site and a value"
        match command:
            case "set":
                return self._set(site, *values)
            case "mtu":
                site.mtu = int(values[0])
            case "cut":
                site.is_cut = values[0] == "1"
            case _:
                return f"error: {command} is no command"
        return "ok"

    def _set(self, site: Site, direction: str, *assignments: str) -> str:
        if direction not in ("up", "down"):
            return f"error: {direction} is no direction: up or down"
        line = site.up if direction == "up" else site.down
        names = {entry.name for entry in fields(Line) if entry.type in (float, "float")} - {"free", "latest"}
        for assignment in assignments:
            name, _, value = assignment.partition("=")
            if name not in names:
                return f"error: {name} is no property of a line"
            setattr(line, name, float(value))
        return "ok"

    def _stats(self) -> dict[str, Any]:
        sites = {
            site.name: {"oversized": site.oversized, "up": site.up.stats(), "down": site.down.stats()}
            for site in self._sites
        }
        return {"cpu_s": time.process_time(), "sites": sites}


def answer(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    seed = int(sys.argv[1])
    Shaper([Site(description, seed * 32 + i) for i, description in enumerate(sys.argv[2:])]).run()
