"""What a relay gets to see of what two nodes say to each other through it."""

import hashlib
from pathlib import Path

import pytest

from tests.testbed.homes import Nat, RelayProgram, homes, missing
from tests.testbed.node import message
from tests.testbed.nodes import nodes
from tests.testbed.paths import captured, probe, served
from transport.messages.lanes import Lane

WHY_NOT = missing()

pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no test-bed: {WHY_NOT}" if WHY_NOT else "the test-bed can be built"),
    pytest.mark.slow,
]

SIZE = 1 << 20
HEADER = "the header of a tensor that only two nodes know"
EVERY = 512  # A packet holds more than twice as much payload: each has at least one whole needle.
NEEDLE = 16


@pytest.mark.one_in(2)
@pytest.mark.parametrize("program", list(RelayProgram))
async def test_a_relay_never_sees_plaintext(tmp_path: Path, program: RelayProgram) -> None:
    file = tmp_path / "packets"
    async with homes(2, nat=Nat.SYMMETRIC, program=program) as bed:
        relay = bed.host_of(bed.relay)
        async with (
            captured(relay, file),
            nodes(bed.home(1), bed.home(2), bed.relay.servers("udp")) as (left, right),
        ):
            left.tell(send=[Lane.BULK, HEADER, SIZE, 5])
            got = (await right.wait_for("got"))["got"]
            assert got[3] == hashlib.sha256(message(SIZE, 5)).hexdigest()
            assert "relay" in (await left.stats())["pair"]
    packets, payload = file.read_bytes(), message(SIZE, 5)
    assert len(packets) > 2 * SIZE, "it came to the relay and left it"
    assert HEADER.encode() not in packets
    assert not [at for at in range(0, SIZE, EVERY) if payload[at : at + NEEDLE] in packets]


async def test_the_capture_would_show_plaintext(tmp_path: Path) -> None:
    file = tmp_path / "packets"
    async with homes(1, relays=0) as bed, captured(bed.public, file), served(bed.public, bed.public_address):
        await probe(bed.home(1), "rtt", bed.public_address, "1")
        await probe(bed.home(1), "call", bed.public_address, "25.0.0.77")
    assert b"call 25.0.0.77" in file.read_bytes()
