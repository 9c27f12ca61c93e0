"""Every pair of NAT kinds, with and without UDP: two nodes meet, directly where that is possible, through one relay leg else."""

import hashlib
import itertools
from collections.abc import Iterator

import pytest

from tests.testbed.homes import Home, Homes, Host, Nat, RelayProgram, built, missing
from tests.testbed.node import message
from tests.testbed.nodes import Program, nodes
from transport.messages.lanes import Lane

WHY_NOT = missing()

pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no test-bed: {WHY_NOT}" if WHY_NOT else "the test-bed can be built"),
    pytest.mark.slow,
]

KINDS = (Nat.NONE, Nat.FULL_CONE, Nat.ADDRESS_CONE, Nat.PORT_CONE, Nat.SYMMETRIC)
# A symmetric NAT uses another port towards the peer than the one that the STUN server saw. Whoever filters by port never lets
# it in; an address-restricted cone does, because it has written to that address (RFC 5128 section 3.3.5).
NEED_A_RELAY = {(Nat.PORT_CONE, Nat.SYMMETRIC), (Nat.SYMMETRIC, Nat.SYMMETRIC)}
PAIRS = list(itertools.combinations_with_replacement(KINDS, 2))
assert len(PAIRS) == 15


@pytest.fixture(scope="module", params=list(RelayProgram))
def bed(request: pytest.FixtureRequest) -> Iterator[Homes]:
    with built(2, program=request.param) as network:
        yield network


@pytest.fixture(scope="module")
def bed_without_relay() -> Iterator[Homes]:
    with built(2, ipv6=True, relays=0) as network:
        yield network


async def exchange(left: Program, right: Program) -> None:
    """Messages both ways, small and large, byte by byte as they were sent."""
    letters = [
        (left, right, Lane.BULK, 1 << 20),
        (right, left, Lane.CONTROL, 100),
        (right, left, Lane.ACTIVATIONS, 9 << 10),
    ]
    for seed, (sender, receiver, lane, size) in enumerate(letters):
        sender.tell(send=[lane, f"letter {seed}", size, seed])
        got = (await receiver.wait_for("got"))["got"]
        assert got == [lane, f"letter {seed}", size, hashlib.sha256(message(size, seed)).hexdigest()]
        await sender.wait_for("sent", f"letter {seed}")


async def pairs_in_use(left: Program, right: Program) -> tuple[str, str]:
    """Kinds of candidates as each side sees them, after an exchange."""
    await exchange(left, right)
    return (await left.stats())["pair"], (await right.stats())["pair"]


def legs(pair: str) -> int:
    """How many legs of a path go through a relay of their own."""
    return pair.split("/").count("relay")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("bed", [RelayProgram.COTURN], indirect=True)
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda nat: nat.value)
async def test_every_pair_of_nats_meets_directly_or_over_one_relay_leg(bed: Homes, first: Nat, second: Nat) -> None:
    bed.set_nat(1, first)
    bed.set_nat(2, second)
    swapped = PAIRS.index((first, second)) % 2 == 1  # Either side may have to offer.
    servers = bed.relay.servers("udp", "tcp")
    async with nodes(bed.home(1), bed.home(2), servers, second_offers=swapped) as (left, right):
        pairs = await pairs_in_use(left, right)
    assert [legs(pair) for pair in pairs] == [int((first, second) in NEED_A_RELAY)] * 2, pairs


@pytest.mark.one_in(2)
async def test_two_symmetric_nats_share_one_relay_leg_of_either_relay(bed: Homes) -> None:
    bed.set_nat(1, Nat.SYMMETRIC)
    bed.set_nat(2, Nat.SYMMETRIC)
    async with nodes(bed.home(1), bed.home(2), bed.relay.servers("udp")) as (left, right):
        pairs = await pairs_in_use(left, right)
        assert (await left.stats())["relayed"]
    assert [legs(pair) for pair in pairs] == [1, 1], pairs


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "bed", [RelayProgram.COTTAGE, pytest.param(RelayProgram.COTURN, marks=pytest.mark.long)], indirect=True, ids=str
)
@pytest.mark.parametrize("transport", ["tcp", "tls"])
@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param(Nat.NONE, 1, id="the other has a public address"),
        pytest.param(Nat.SYMMETRIC, 1, id="the other is behind a symmetric NAT"),
        pytest.param(Nat.NO_UDP, 2, id="the other has no UDP either"),
    ],
)
async def test_without_udp_the_relay_is_reached_by_other_ways(
    bed: Homes, other: Nat, expected: int, transport: str
) -> None:
    bed.set_nat(1, Nat.NO_UDP)
    bed.set_nat(2, other)
    servers = bed.relay.servers("udp", transport)
    async with nodes(bed.home(1), bed.home(2), servers, authority=bed.relay.authority) as (left, right):
        pairs = await pairs_in_use(left, right)
    assert [legs(pair) for pair in pairs] == [expected] * 2, pairs


async def test_over_ipv6_two_homes_meet_directly_where_ipv4_could_not(bed_without_relay: Homes) -> None:
    bed = bed_without_relay
    for home in (1, 2):
        bed.set_nat(home, Nat.SYMMETRIC)
    async with nodes(bed.home(1), bed.home(2), []) as (left, right):
        pairs = await pairs_in_use(left, right)
    assert all(set(pair.split("/")) <= {"host", "prflx"} for pair in pairs), pairs
    assert bed.stats()["sites"]["h1"]["up"]["bytes"] > 1 << 20


async def test_two_homes_with_ipv6_alone_meet_directly() -> None:
    with built(2, ipv4=False, ipv6=True, relays=0) as bed:
        async with nodes(bed.home(1), bed.home(2), []) as (left, right):
            pairs = await pairs_in_use(left, right)
    assert all(set(pair.split("/")) <= {"host", "prflx"} for pair in pairs), pairs


@pytest.mark.one_in(2)
@pytest.mark.parametrize("nat", [Nat.PORT_CONE, Nat.SYMMETRIC, Nat.NO_UDP], ids=lambda nat: nat.value)
@pytest.mark.parametrize("bed", [RelayProgram.COTURN], indirect=True)
async def test_two_nodes_in_one_home_stay_on_its_lan(bed: Homes, nat: Nat) -> None:
    bed.set_nat(1, nat)
    before = bed.stats()["sites"]["h1"]["up"]["bytes"]
    neighbours: tuple[Home, Host] = bed.home(1), bed.home(1).second()
    async with nodes(*neighbours, bed.relay.servers("udp", "tcp")) as (left, right):
        pairs = await pairs_in_use(left, right)
    assert all(set(pair.split("/")) <= {"host", "prflx"} for pair in pairs), pairs
    assert bed.stats()["sites"]["h1"]["up"]["bytes"] - before < 100_000, "only the relay's allocations left the home"
