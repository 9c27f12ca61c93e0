"""The whole test: what is around this machine in about two seconds, then the rates, each phase within its own deadline.

The phases follow one another because a full line would spoil the round trips.
"""

import asyncio
import ipaddress
import socket
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from aioice.stun import Method

from common.clock import Clock, SystemClock
from common.untrusted_text import untrusted
from transport.ice.addresses import PUBLIC_V6
from transport.ice.ice import IceServer
from transport.nettest.binding import binder
from transport.nettest.errors import NoRelayError, SpeedError
from transport.nettest.nat import Filtering, Mapping, classify, find_filtering, find_mapping
from transport.nettest.phase import TOTAL_S, NettestPhase, OnPhase
from transport.nettest.ping import PingResult, ping, summarise
from transport.nettest.result import NetTest, RelayResult
from transport.nettest.speed import SETUP_S, TEST_S, measure
from transport.nettest.stream import connect
from transport.nettest.target import Target, is_ipv6, resolve
from transport.relay.message import Address
from transport.relay.speed import Direction

RESOLVE_S = 1.0
REACH_S = 2.4  # The slowest part of it are fifty Bindings and the wait for the last answer.
STREAM_PINGS = 6
MAX_NAT_SERVERS = 4  # Each further relay only confirms what two have told.
ROUTE_PORT = 9  # Discard; nothing is sent.


@dataclass
class _Surroundings:
    """What was found of one relay."""

    target: Target
    datagram: list[Address] = field(default_factory=list)
    ping: PingResult = field(default_factory=lambda: summarise(0, ()))
    stream: IceServer | None = None
    stream_rtt_s: float | None = None

    @property
    def rtt_s(self) -> float | None:
        return self.ping.rtt_s if self.ping.rtt_s is not None else self.stream_rtt_s

    @property
    def loss(self) -> float:
        """Of the way over UDP; 0 where that is blocked: it says nothing of the line."""
        return self.ping.loss if self.ping.rtt_s is not None else 0.0

    def result(self) -> RelayResult:
        udp = self.ping.rtt_s is not None
        return RelayResult(self.target.name, self.rtt_s, self.loss, udp, self.stream is not None)


@dataclass(frozen=True)
class _Line:
    """The rates, or why there are none."""

    up: float | None = None
    down: float | None = None
    relay: str = ""
    note: str = ""


async def run(
    targets: Sequence[Target], *, speed: bool = True, on_phase: OnPhase = lambda _: None, clock: Clock | None = None
) -> NetTest:
    """Measure this machine's line within ``TOTAL_S``.

    Args:
        targets: the relays.
        speed: whether to measure the rates, which takes data: at most four seconds of the line's.
        on_phase: told when a phase begins.
    Raises:
        NoRelayError: ``targets`` is empty.
    """
    if not targets:
        raise NoRelayError("no relay is named, so there is nothing to measure against")
    clock = clock or SystemClock()
    began, at = clock.now(), clock.time()
    on_phase(NettestPhase("looking for the relays, and at your router", REACH_S))
    found = await asyncio.gather(*(_look_up(target) for target in targets))
    servers = [address for one in found for address in one.datagram]
    (filtering, mapping), ipv6, _ = await asyncio.gather(
        _nat_facts(servers), _has_ipv6(servers), asyncio.gather(*(_reach(one) for one in found))
    )
    nat = classify(mapping, filtering, stream=any(one.stream for one in found))
    line = _Line(note="the rates were not asked for")
    if speed:
        line = await _rates(found, began + TOTAL_S - clock.now(), on_phase)
    return NetTest(
        at=at,
        seconds=clock.now() - began,
        nat=nat.kind,
        nat_certain=nat.certain,
        public=next(iter(mapping.seen.values()))[0] if mapping else "",
        ipv6=ipv6,
        relays=tuple(one.result() for one in found),
        up=line.up,
        down=line.down,
        speed_relay=line.relay,
        note=untrusted(line.note),
        moved=int(sum(rate * TEST_S for rate in (line.up, line.down) if rate is not None)),
    )


async def _look_up(target: Target) -> _Surroundings:
    found = _Surroundings(target)
    if target.datagram is not None:
        try:
            async with asyncio.timeout(RESOLVE_S):
                found.datagram = await resolve(target.datagram, socket.SOCK_DGRAM)
        except TimeoutError:
            return found
    return found


async def _nat_facts(servers: Sequence[Address]) -> tuple[Filtering, Mapping | None]:
    """IPv4 only: IPv6 has no translation. Relays in the Internet know more than one in the same house."""
    ipv4 = [server for server in servers if not is_ipv6(server)]
    public = [server for server in ipv4 if ipaddress.ip_address(server[0]).is_global]
    chosen = list(dict.fromkeys(public or ipv4))[:MAX_NAT_SERVERS]
    if not chosen:
        return Filtering(), None
    try:
        mapping, filtering = await asyncio.gather(find_mapping(chosen), find_filtering(chosen))
    except OSError:  # No way out over IPv4.
        return Filtering(), None
    return filtering, mapping


async def _has_ipv6(servers: Sequence[Address]) -> bool:
    """Whether a relay answers over IPv6; where none has such an address, whether this machine has a public one."""
    known = [server for server in servers if is_ipv6(server)]
    try:
        if not known:
            return _public_ipv6()
        async with binder(ipv6=True) as own:
            answers = await asyncio.gather(*(own.ask(server, 1.0) for server in known))
            return any(answers)
    except OSError:
        return False


def _public_ipv6() -> bool:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        probe.connect((PUBLIC_V6, ROUTE_PORT))
        return ipaddress.ip_address(probe.getsockname()[0]).is_global


async def _reach(found: _Surroundings) -> None:
    jobs = [asyncio.ensure_future(_reach_by_stream(found))]
    if found.datagram:
        jobs.append(asyncio.ensure_future(_reach_by_datagram(found)))
    try:
        done, _ = await asyncio.wait(jobs, timeout=REACH_S)
        for job in done:
            job.result()
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


async def _reach_by_datagram(found: _Surroundings) -> None:
    found.ping = await ping(found.datagram[0])


async def _reach_by_stream(found: _Surroundings) -> None:
    """The first of TCP and TLS that works."""
    for server in found.target.streams:
        try:
            async with asyncio.timeout(REACH_S / 2), connect(server) as stream:
                rtts = []
                for _ in range(STREAM_PINGS):
                    began = asyncio.get_running_loop().time()
                    await stream.ask(Method.BINDING)
                    rtts.append(asyncio.get_running_loop().time() - began)
        except (OSError, UnicodeError, SpeedError):  # Silent, refused, or a name that is none.
            continue
        found.stream, found.stream_rtt_s = server, statistics.median(rtts)
        return


async def _rates(found: Sequence[_Surroundings], seconds: float, on_phase: OnPhase) -> _Line:
    """By the nearest relay that measures."""
    deadline = asyncio.get_running_loop().time() + seconds
    notes = []
    reachable = [one for one in found if one.stream is not None and one.rtt_s is not None]
    for one in sorted(reachable, key=lambda one: one.rtt_s or 0.0):
        rates: dict[Direction, float] = {}
        assert one.stream is not None
        try:
            async with asyncio.timeout_at(deadline):
                for direction, text in ((Direction.DOWN, "download"), (Direction.UP, "upload")):
                    on_phase(NettestPhase(f"measuring the {text}", SETUP_S / 2 + TEST_S))
                    rates[direction] = await measure(one.stream, direction, *rates.values())
        except SpeedError as error:
            notes.append(f"{one.target.name}: {error}")
        except TimeoutError:
            notes.append(f"{one.target.name}: the time was over")
        if rates:
            return _Line(rates.get(Direction.UP), rates.get(Direction.DOWN), one.target.name, "; ".join(notes)[:200])
    return _Line(note=("; ".join(notes) or "no relay is reached over TCP, which the rates need")[:200])
