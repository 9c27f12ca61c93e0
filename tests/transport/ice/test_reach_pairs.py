"""Which pair two real ICE agents agree on: direct before one relay before two, the same one on both sides."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable

import pytest
from aioice.candidate import Candidate, candidate_priority
from aioice.ice import CandidatePair, Connection, StunProtocol

from tests.relay.conftest import credentials, relay_options
from transport.ice.candidate_checks import HEAD_START_S, CandidateChecks, is_private, relay_legs
from transport.ice.candidates import Gatherer, RelayMemory
from transport.ice.ice import IceServer
from transport.relay.server import RelayServer

HERE = ("127.0.0.1",)
LIMIT_S = 15.0
Tell = Callable[[Candidate], Candidate | None]


def everything(candidate: Candidate) -> Candidate | None:
    return candidate


def only_relays(candidate: Candidate) -> Candidate | None:
    return candidate if candidate.type == "relay" else None


def dead_hosts(candidate: Candidate) -> Candidate | None:
    """Relays as they are, and hosts at a port that never answers."""
    return candidate if candidate.type == "relay" else make_candidate("host", candidate.host, 9)


def make_candidate(kind: str, host: str, port: int = 1000) -> Candidate:
    return Candidate("1", 1, "udp", candidate_priority(1, kind), host, port, kind)


class Agent:
    """One side."""

    def __init__(self, *, controlling: bool) -> None:
        self.connection = Connection(ice_controlling=controlling)
        self.checks = CandidateChecks(self.connection)
        self.checks.install()

    async def gather(self, servers: tuple[IceServer, ...]) -> None:
        found = await Gatherer(self.connection, servers, RelayMemory()).gather(HERE)
        self.connection._local_candidates = found
        self.connection._local_candidates_start = self.connection._local_candidates_end = True

    async def learn(self, other: "Agent", tell: Tell) -> None:
        self.connection.remote_username = other.connection.local_username
        self.connection.remote_password = other.connection.local_password
        for candidate in other.connection.local_candidates:
            if (told := tell(candidate)) is not None:
                await self.connection.add_remote_candidate(told)
        await self.connection.add_remote_candidate(None)

    @property
    def pair(self) -> CandidatePair:
        return self.connection._nominated[1]


@contextlib.asynccontextmanager
async def connected(
    servers: tuple[IceServer, ...],
    tells_first: Tell = everything,
    tells_second: Tell = everything,
    conflict: bool = False,
) -> AsyncIterator[tuple[Agent, Agent]]:
    """Two agents that have agreed; each is told of the other's candidates in its own way."""
    agents = Agent(controlling=True), Agent(controlling=conflict)
    first, second = agents
    try:
        await asyncio.gather(*(agent.gather(servers) for agent in agents))
        await asyncio.gather(first.learn(second, tells_first), second.learn(first, tells_second))
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(agent.connection.connect() for agent in agents))
        yield agents
    finally:
        await asyncio.gather(*(agent.connection.close() for agent in agents))


def entry(relay: RelayServer) -> IceServer:
    host, port = relay.addresses[0]
    return IceServer(f"turn:{host}:{port}?transport=udp", *credentials())


def same(first: Agent, second: Agent) -> bool:
    """Whether what one sends to is where the other one receives."""
    return (first.pair.remote_addr, second.pair.remote_addr) == (second.pair.local_addr, first.pair.local_addr)


async def test_neighbours_meet_directly_though_a_relay_would_answer_too() -> None:
    async with RelayServer(relay_options()) as relay, connected((entry(relay),)) as (first, second):
        assert relay_legs(first.pair) == relay_legs(second.pair) == 0
        assert same(first, second)


async def test_one_relay_is_enough_where_both_sides_have_one() -> None:
    async with RelayServer(relay_options()) as relay:
        async with connected((entry(relay),), only_relays, only_relays) as (first, second):
            assert relay_legs(first.pair) == relay_legs(second.pair) == 1
            assert same(first, second)


async def test_both_sides_use_the_same_pair_every_time() -> None:
    async with RelayServer(relay_options()) as relay:
        for _ in range(10):
            async with connected((entry(relay),)) as (first, second):
                assert same(first, second)


async def test_data_crosses_the_chosen_pair_both_ways() -> None:
    async with RelayServer(relay_options()) as relay:
        async with connected((entry(relay),), only_relays, only_relays) as (first, second):
            await first.connection.send(b"there")
            assert await asyncio.wait_for(second.connection.recv(), 5) == b"there"
            await second.connection.send(b"back")
            assert await asyncio.wait_for(first.connection.recv(), 5) == b"back"


async def test_two_that_both_want_to_control_agree() -> None:
    async with connected((), conflict=True) as (first, second):
        assert first.connection.ice_controlling is not second.connection.ice_controlling
        assert same(first, second)


async def test_a_relay_waits_for_its_betters_and_not_for_ever() -> None:
    loop = asyncio.get_running_loop()
    async with RelayServer(relay_options()) as relay:
        began = loop.time()
        async with connected((entry(relay),), dead_hosts, only_relays) as (first, _):
            assert relay_legs(first.pair) == 1
            assert HEAD_START_S <= loop.time() - began < 5


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("192.168.1.1", True),
        ("10.9.9.9", True),
        ("172.31.0.1", True),
        ("172.32.0.1", False),
        ("100.64.0.1", True),
        ("100.128.0.1", False),
        ("127.0.0.1", True),
        ("203.0.113.5", False),
        ("fd12::1", True),
        ("fc00::1", True),
        ("fe00::1", False),
        ("2001:db8::1", False),
    ],
)
def test_private_addresses_are_known(address: str, private: bool) -> None:
    assert is_private(address) is private


@pytest.mark.parametrize(
    ("local", "remote", "asks"),
    [
        (("relay", "203.0.113.5"), ("host", "192.168.1.2"), False),
        (("relay", "203.0.113.5"), ("srflx", "198.51.100.2"), True),
        (("relay", "192.168.1.9"), ("host", "192.168.1.2"), True),
        (("host", "192.168.1.9"), ("host", "192.168.1.2"), True),
        (("host", "192.168.1.9"), ("relay", "203.0.113.5"), True),
    ],
)
async def test_a_public_relay_is_not_asked_to_reach_a_private_address(
    local: tuple[str, str], remote: tuple[str, str], asks: bool
) -> None:
    connection = Connection(ice_controlling=True)
    asked: list[bytes] = []

    class Silent(StunProtocol):
        async def request(self, request, addr, integrity_key=None, retransmissions=None):  # type: ignore[no-untyped-def]
            asked.append(bytes(request))
            await asyncio.get_running_loop().create_future()

    protocol = Silent(connection)
    protocol.local_candidate = make_candidate(*local)
    connection.remote_username, connection.remote_password = "user", "p" * 22
    CandidateChecks(connection).install()
    there = make_candidate(*remote)
    there._network_host = there.host
    pair = CandidatePair(protocol, there)
    connection.check_start_task(pair)
    for _ in itertools.repeat(None, 10):
        await asyncio.sleep(0)
    assert bool(asked) is asks
    assert (pair.state is CandidatePair.State.FAILED) is not asks
    if pair.task is not None:
        pair.task.cancel()
        await asyncio.gather(pair.task, return_exceptions=True)
