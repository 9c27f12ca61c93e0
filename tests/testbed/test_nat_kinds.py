"""Each NAT kind maps and filters as its name says (RFC 4787 sections 4 and 5), seen by a probe in the home."""

from collections.abc import AsyncIterator

import pytest

from tests.testbed.homes import Homes, Nat, homes
from tests.testbed.paths import probe, served
from tests.testbed.probe import PORTS

MAIN, OTHER = "25.0.0.10", "25.0.0.9"  # Two addresses of the public host.

SAME_ADDRESS = [[MAIN, PORTS[1]]]
OTHER_ADDRESS = [[OTHER, PORTS[0]], [OTHER, PORTS[1]]]


@pytest.fixture
async def bed() -> AsyncIterator[Homes]:
    async with homes(1, relays=0) as network:
        network.public.run("ip", "addr", "add", f"{OTHER}/32", "dev", "wan")
        yield network


@pytest.mark.parametrize(
    ("nat", "mappings", "let_in"),
    [
        pytest.param(Nat.NONE, 1, SAME_ADDRESS + OTHER_ADDRESS, id="no NAT"),
        pytest.param(Nat.FULL_CONE, 1, SAME_ADDRESS + OTHER_ADDRESS, id="full cone"),
        pytest.param(Nat.ADDRESS_CONE, 1, SAME_ADDRESS, id="address-restricted cone"),
        pytest.param(Nat.PORT_CONE, 1, [], id="port-restricted cone"),
        pytest.param(Nat.SYMMETRIC, 3, [], id="symmetric"),
    ],
)
async def test_a_nat_maps_and_filters_as_its_name_says(
    bed: Homes, nat: Nat, mappings: int, let_in: list[list[object]]
) -> None:
    bed.set_nat(1, nat)
    async with served(bed.public, MAIN, OTHER):
        found = await probe(bed.home(1), "nat", MAIN, OTHER)
    ports = [port for _, port in found["seen"]]
    assert {address for address, _ in found["seen"]} == {bed.home(1).address if nat is Nat.NONE else bed.home(1).wan}
    assert len(set(ports)) == mappings
    assert (ports[0] == found["local"]) is (mappings == 1)
    assert found["let_in"] == let_in


async def test_a_router_without_udp_still_lets_tcp_out(bed: Homes) -> None:
    bed.set_nat(1, Nat.NO_UDP)
    async with served(bed.public, MAIN, OTHER):
        found = await probe(bed.home(1), "nat", MAIN, OTHER)
        assert found["seen"] == [None] * 3
        assert (await probe(bed.home(1), "tcp", MAIN, "0.05"))["sent"] > 0
