"""Allocations at TURN relays: each relay by UDP, else by TCP, else by TLS, whichever way a home's firewall leaves open."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from aioice import stun
from aioice.candidate import Candidate, candidate_foundation, candidate_priority
from aioice.ice import StunProtocol
from aioice.turn import create_turn_endpoint

from common.errors import ConnectError, IceConfigError
from transport.ice.ice import IceServer

MAX_RELAYS = 2  # The best for the pair, and one that stands by.
WAY_STEP_S = 0.5  # UDP answers within two round trips; a firewall that drops it says nothing.
# UDP's second try, after half a second and two round trips: TCP is worse for as long as the link lives.
UDP_LAST_CHANCE_S = 0.9
BEST_PREFERENCE = 65535  # Local preference of a candidate, RFC 8445 section 5.1.2.1.
STREAM_PENALTY = 16384  # A relay that is reached by TCP or TLS stands behind every one that is reached by UDP.
STANDBY_PENALTY = 4096


class RelayWay(IntEnum):
    """How a relay is reached, the best first."""

    UDP = 0
    TCP = 1
    TLS = 2


@dataclass(frozen=True)
class IceRelay:
    """One relay and the ways to it.

    Attributes:
        ways: server entries, the best way first, at most one for each.
    """

    host: str
    ways: tuple[tuple[RelayWay, IceServer], ...]


@dataclass(frozen=True)
class RelayedAddress:
    """A relayed address of ours."""

    candidate: Candidate
    protocol: StunProtocol
    way: RelayWay


def relays(servers: Sequence[IceServer]) -> list[IceRelay]:
    """Group the entries of the first ``MAX_RELAYS`` relays, in the order of their first entries.

    An entry without a transport stands for UDP and for TCP to the same port. A way that a host has already is another relay.
    """
    found: list[tuple[str, dict[RelayWay, IceServer]]] = []
    for server in servers:
        if server.is_relay:
            ways = dict.fromkeys(_ways(server), server)
            known = [taken for host, taken in found if host == server.host and not ways.keys() & taken.keys()]
            if known:
                known[0].update(ways)
            else:
                found.append((server.host, ways))
    return [IceRelay(host, tuple(sorted(ways.items(), key=lambda item: item[0]))) for host, ways in found[:MAX_RELAYS]]


def _ways(server: IceServer) -> tuple[RelayWay, ...]:
    if server.secure:
        return (RelayWay.TLS,)
    return {"udp": (RelayWay.UDP,), "tcp": (RelayWay.TCP,)}.get(server.transport, (RelayWay.UDP, RelayWay.TCP))


async def allocate(
    relay: IceRelay, factory: Callable[[], StunProtocol], *, standby: bool, first: RelayWay
) -> RelayedAddress:
    """Get a relayed address, each way given ``WAY_STEP_S`` before the next one is tried beside it.

    Args:
        factory: makes the ICE connection's protocol.
        standby: the relay is not the best one: its candidates come behind.
        first: the way that worked last: it and all better ones are tried at once.
    Raises:
        ConnectError: no way leads to an allocation.
    """
    began = asyncio.get_running_loop().time()
    jobs: dict[asyncio.Task[RelayedAddress], RelayWay] = {}
    complaints: list[str] = []
    try:
        waiting = list(relay.ways)
        while waiting or jobs:
            while waiting and (not jobs or waiting[0][0] <= first or _due(began, len(jobs) + len(complaints))):
                way, server = waiting.pop(0)
                jobs[asyncio.create_task(_allocate(way, server, factory, standby))] = way
            done, _ = await asyncio.wait(jobs, timeout=WAY_STEP_S, return_when=asyncio.FIRST_COMPLETED)
            for job in sorted(done, key=lambda job: jobs[job]):
                way = jobs.pop(job)
                if (error := job.exception()) is None:
                    return await _better(job.result(), jobs, began, trusted=way <= first)
                complaints.append(f"{way.name}: {error or type(error).__name__}")
        raise ConnectError(f"relay {relay.host} gives no address ({'; '.join(complaints)})")
    finally:
        await _end(jobs)


def _due(began: float, started: int) -> bool:
    return asyncio.get_running_loop().time() >= began + WAY_STEP_S * started


async def _better(
    found: RelayedAddress, jobs: dict[asyncio.Task[RelayedAddress], RelayWay], began: float, *, trusted: bool
) -> RelayedAddress:
    """Give UDP its last chance before a stream is settled for, unless that stream was the way last time."""
    left = began + UDP_LAST_CHANCE_S - asyncio.get_running_loop().time()
    udp = [job for job, way in jobs.items() if way is RelayWay.UDP]
    if found.way is RelayWay.UDP or trusted or left <= 0 or not udp:
        return found
    done, _ = await asyncio.wait(udp, timeout=left)
    if not done or udp[0].exception() is not None:
        return found
    del jobs[udp[0]]
    found.protocol.transport.close()
    return udp[0].result()


async def _end(jobs: dict[asyncio.Task[RelayedAddress], RelayWay]) -> None:
    """Stop the ways that are not needed; an allocation that has just been made is given back."""
    for job in jobs:
        job.cancel()
    for result in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(result, RelayedAddress):
            result.protocol.transport.close()


async def _allocate(
    way: RelayWay, server: IceServer, factory: Callable[[], StunProtocol], standby: bool
) -> RelayedAddress:
    """Make one allocation one way.

    Raises:
        OSError, aioice's TransactionError, IceConfigError: it did not work.
    """
    transport, protocol = await create_turn_endpoint(
        factory,
        server_addr=(server.host, server.port),
        username=server.username,
        password=server.credential,
        ssl=_tls(server) if way is RelayWay.TLS else None,
        transport="udp" if way is RelayWay.UDP else "tcp",
    )
    inner: Any = transport._TurnTransport__inner_protocol  # type: ignore[attr-defined]
    inner.delete = lambda: _give_back(inner)
    host, port = transport.get_extra_info("sockname")
    related = transport.get_extra_info("related_address")
    preference = BEST_PREFERENCE - STREAM_PENALTY * (way is not RelayWay.UDP) - STANDBY_PENALTY * standby
    protocol.local_candidate = Candidate(
        foundation=candidate_foundation("relay", "udp", host),
        component=1,
        transport="udp",
        priority=candidate_priority(1, "relay", preference),
        host=host,
        port=port,
        type="relay",
        related_address=related[0],
        related_port=related[1],
    )
    return RelayedAddress(protocol.local_candidate, protocol, way)


def _tls(server: IceServer) -> ssl.SSLContext:
    """Certificates are checked against the system's store, or the given authority alone.

    Raises:
        IceConfigError: the authority's file cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=server.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise IceConfigError(f"{server.ca_file!r} cannot be used to check relays: {error}") from error


async def _give_back(inner: Any) -> None:
    """Delete an allocation without waiting for the answer: aioice asks for half a minute when the path is dead.

    An allocation whose deletion got lost ends by itself after ten minutes.
    """
    if inner.refresh_task is not None:
        inner.refresh_task.cancel()
        inner.refresh_task = None
    if inner.transport.is_closing():
        return
    if inner.integrity_key is not None:
        request = stun.Message(message_method=stun.Method.REFRESH, message_class=stun.Class.REQUEST)
        request.attributes["LIFETIME"] = 0
        inner._TurnClientMixin__add_authentication(request)
        with contextlib.suppress(OSError):
            inner._send(bytes(request))
    inner.transport.close()
