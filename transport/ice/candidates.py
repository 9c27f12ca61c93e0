"""Gathering: the addresses at which a peer may reach this node, collected from its interfaces, STUN servers and TURN relays.

aioice asks one STUN server and one relay, one way, and waits five seconds for either. Here all are asked at once, the offer waits
for what is worth waiting for and for no dead server, and ICE, checks and nomination stay aioice's.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aioice import stun
from aioice.candidate import Candidate, candidate_foundation, candidate_priority
from aioice.ice import StunProtocol

from common.errors import TransportError
from transport.ice.ice import IceServer
from transport.ice.turn_client import IceRelay, RelayedAddress, RelayWay, allocate, relays

LOG = logging.getLogger(__name__)

LOOPBACK_ADDRESSES = ("127.0.0.1",)
MAX_STUN_SERVERS = 3
STUN_STEP_S = 0.3  # The next server is asked beside one that has not answered by then.
GATHER_S = 2.0  # Enough for TLS to a far relay; an offer without that relay is better than a late one.
GATHER_NOTHING_S = 5.0  # Without any address there is nothing to offer: the wait is longer.
SIBLINGS_S = 0.1  # Once one interface's question is answered: those of host-only networks never are.
STANDBY_S = 0.1  # The second relay is welcome while it is about as quick as the first one.
BEST_RELAY_S = 0.3  # The first relay is waited for so long after the second one has answered.
REFLEXIVE_PATIENCE_S = 0.5  # A relay answered and STUN did not: UDP is most likely blocked.
BLOCKED_PATIENCE_S = 0.2  # It was last time.
_LOOK_S = 0.05


@dataclass
class RelayMemory:
    """Which way led to a relay last: a home whose firewall drops UDP need not find that out for every link."""

    _ways: dict[str, RelayWay] = field(default_factory=dict)

    def way(self, host: str) -> RelayWay:
        """The way to try beside all better ones; UDP where nothing is known."""
        return self._ways.get(host, RelayWay.UDP)

    def learn(self, host: str, way: RelayWay) -> None:
        """Remember the way that has just worked."""
        self._ways[host] = way

    def forget(self) -> None:
        """The machine is on another network now."""
        self._ways.clear()


@dataclass
class _Yield:
    """What one question brought, and when its first answer came."""

    candidates: list[Candidate] = field(default_factory=list)
    first_at: float | None = None


class Gatherer:
    """Stands in for ``aioice.Connection.get_component_candidates``."""

    def __init__(
        self, connection: Any, servers: Sequence[IceServer], memory: RelayMemory, *, relayed: bool = True
    ) -> None:
        """Take the aioice connection whose candidates these will be; ``relayed``: those of relays among them."""
        self._connection = connection
        self._relays = relays(servers) if relayed else []
        self._stun = _stun_servers(servers)
        self._memory = memory
        self.udp_blocked = False

    async def gather(self, addresses: Sequence[str]) -> list[Candidate]:
        """Collect candidates; a server that does not answer is left out.

        Args:
            addresses: local addresses, each a host candidate.
        Returns:
            candidates, also when none was found; their protocols are known to the connection. ``udp_blocked`` is set from now on.
        """
        hosts = [protocol for address in addresses if (protocol := await self._host(address)) is not None]
        reflexive, relayed = _Yield(), [_Yield() for _ in self._relays]
        jobs = [asyncio.create_task(self._reflexive(protocol, reflexive)) for protocol in hosts if self._asks(protocol)]
        stun_jobs = list(jobs)
        jobs += [
            asyncio.create_task(self._relayed(relay, found, standby=number > 0))
            for number, (relay, found) in enumerate(zip(self._relays, relayed, strict=True))
        ]
        try:
            await self._enough(jobs, stun_jobs, reflexive, relayed, anything=bool(hosts))
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
        found = [candidate for part in (reflexive, *relayed) for candidate in part.candidates]
        self.udp_blocked = self._by_stream() and reflexive.first_at is None
        return [protocol.local_candidate for protocol in hosts] + found

    def _by_stream(self) -> bool:
        """Whether a relay answered by TCP or TLS last, and not by UDP."""
        return any(self._memory.way(relay.host) is not RelayWay.UDP for relay in self._relays)

    def _asks(self, protocol: StunProtocol) -> bool:
        """IPv6 has no address translation worth asking about."""
        return bool(self._stun) and ":" not in protocol.local_candidate.host

    async def _enough(
        self,
        jobs: list[asyncio.Task[None]],
        stun_jobs: list[asyncio.Task[None]],
        reflexive: _Yield,
        relayed: list[_Yield],
        *,
        anything: bool,
    ) -> None:
        """Return when waiting longer is not worth it."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pending = set(jobs)
        relay_jobs = jobs[len(stun_jobs) :]
        patience = BLOCKED_PATIENCE_S if self._by_stream() else REFLEXIVE_PATIENCE_S
        while pending:
            _, pending = await asyncio.wait(pending, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            now = loop.time()
            relay_there = any(found.candidates for found in relayed)
            stun_done = all(job.done() for job in stun_jobs) or (
                now > began + patience and relay_there
                if reflexive.first_at is None
                else now > reflexive.first_at + SIBLINGS_S
            )
            if stun_done and _relays_settled(relay_jobs, relayed, now):
                return
            some = anything or relay_there
            if now > began + (GATHER_S if some else GATHER_NOTHING_S):
                LOG.info("gathering ends without %d of %d answers", len(pending), len(jobs))
                return

    async def _host(self, address: str) -> StunProtocol | None:
        """Open a socket at a local address; None where the address has just gone."""
        connection, loop = self._connection, asyncio.get_running_loop()
        try:
            _, protocol = await loop.create_datagram_endpoint(lambda: StunProtocol(connection), local_addr=(address, 0))
        except OSError as error:
            LOG.info("no socket at %s: %s", address, error)
            return None
        host, port = protocol.transport.get_extra_info("sockname")[:2]
        protocol.local_candidate = Candidate(
            foundation=candidate_foundation("host", "udp", host),
            component=1,
            transport="udp",
            priority=candidate_priority(1, "host"),
            host=host,
            port=port,
            type="host",
        )
        connection._protocols.append(protocol)
        return protocol

    async def _reflexive(self, protocol: StunProtocol, found: _Yield) -> None:
        """Ask every STUN server, each a little later than the one before; the first answer counts."""
        jobs: set[asyncio.Task[tuple[str, int]]] = set()
        try:
            for server in self._stun:
                jobs.add(asyncio.create_task(_mapped(protocol, server)))
                last = server == self._stun[-1]
                while jobs:
                    done, jobs = await asyncio.wait(
                        jobs, timeout=None if last else STUN_STEP_S, return_when=asyncio.FIRST_COMPLETED
                    )
                    answers = [job.result() for job in done if job.exception() is None]
                    if answers:
                        self._add_reflexive(protocol, answers[0], found)
                        return
                    if not done:
                        break
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    def _add_reflexive(self, protocol: StunProtocol, mapped: tuple[str, int], found: _Yield) -> None:
        base = protocol.local_candidate
        _note(found)
        if mapped == (base.host, base.port):
            return
        candidate = Candidate(
            foundation=candidate_foundation("srflx", "udp", base.host),
            component=1,
            transport="udp",
            priority=candidate_priority(1, "srflx"),
            host=mapped[0],
            port=mapped[1],
            type="srflx",
            related_address=base.host,
            related_port=base.port,
        )
        found.candidates.append(candidate)

    async def _relayed(self, relay: IceRelay, found: _Yield, *, standby: bool) -> None:
        connection = self._connection
        try:
            made: RelayedAddress = await allocate(
                relay, lambda: StunProtocol(connection), standby=standby, first=self._memory.way(relay.host)
            )
        except TransportError as error:
            LOG.info("%s", error)
            return
        self._memory.learn(relay.host, made.way)
        connection._protocols.append(made.protocol)
        found.candidates.append(made.candidate)
        _note(found)


def _note(found: _Yield) -> None:
    if found.first_at is None:
        found.first_at = asyncio.get_running_loop().time()


def _relays_settled(jobs: list[asyncio.Task[None]], relayed: list[_Yield], now: float) -> bool:
    """Whether the relays that answered are enough."""
    if all(job.done() for job in jobs):
        return True
    best, others = relayed[0], relayed[1:]
    if best.first_at is not None:
        return now > best.first_at + STANDBY_S
    return any(other.first_at is not None and now > other.first_at + BEST_RELAY_S for other in others)


def _stun_servers(servers: Sequence[IceServer]) -> list[tuple[str, int]]:
    """STUN servers, then the relays that speak UDP: they answer the same question."""
    asked = [server for server in servers if not server.is_relay]
    asked += [server for server in servers if server.is_relay and not server.secure and server.transport != "tcp"]
    return list(dict.fromkeys((server.host, server.port) for server in asked))[:MAX_STUN_SERVERS]


async def _mapped(protocol: StunProtocol, server: tuple[str, int]) -> tuple[str, int]:
    """The address that a STUN server sees.

    Raises:
        OSError, aioice's TransactionError: it cannot be asked or does not answer.
    """
    loop = asyncio.get_running_loop()
    address = (await loop.getaddrinfo(*server, family=socket.AF_INET, type=socket.SOCK_DGRAM))[0][4]
    request = stun.Message(message_method=stun.Method.BINDING, message_class=stun.Class.REQUEST)
    response, _ = await protocol.request(request, (str(address[0]), int(address[1])))
    host, port = response.attributes["XOR-MAPPED-ADDRESS"]
    return str(host), int(port)
