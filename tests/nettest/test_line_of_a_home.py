"""The command in a home of the test-bed: every kind of NAT is told, and round trips, losses and rates are what the line has."""

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.nettest.conftest import MAIN, Bed, bed_with
from tests.testbed.homes import Homes, Link, Nat
from transport.nettest.result import PeerTest

PERFECT = Link()
ANOTHER_PORT = 3500
AT_ONCE = 3  # Homes that measure side by side.
TRIES = 4  # A machine with other work is late by itself at times.


async def found_behind(bed: Bed, nats: Sequence[Nat]) -> list[dict[str, Any]]:
    """What the command finds in homes of which each has another NAT; most of its time it waits for what does not come."""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def found(number: int, nat: Nat) -> dict[str, Any]:
        bed.homes.set_link(number, PERFECT)
        bed.homes.set_nat(number, nat)
        async with at_once:
            return await bed.nettest("--no-speed", home=number)

    return await asyncio.gather(*(found(number, nat) for number, nat in enumerate(nats, 1)))


@pytest.mark.long
async def test_every_kind_of_nat_is_told_by_its_name(bed: Bed) -> None:
    kinds = {
        Nat.NONE: "none",
        Nat.FULL_CONE: "full cone",
        Nat.ADDRESS_CONE: "address cone",
        Nat.PORT_CONE: "port cone",
        Nat.SYMMETRIC: "symmetric",
        Nat.NO_UDP: "no udp",
    }
    everybody = await found_behind(bed, list(kinds))
    for number, (nat, found) in enumerate(zip(kinds, everybody, strict=True), 1):
        assert (found["nat"], found["nat_certain"]) == (kinds[nat], True), nat
        [relay] = found["relays"]
        assert (relay["udp"], relay["stream"]) == (nat is not Nat.NO_UDP, True), nat
        home = bed.homes.home(number)
        assert found["public"] == {Nat.NONE: home.address, Nat.NO_UDP: ""}.get(nat, home.wan)
        assert found["seconds"] < 9.5


async def test_a_relay_with_one_address_tells_the_strictest_kind_that_fits(network: Homes, tmp_path: Path) -> None:
    kinds = {
        Nat.NONE: ("none", True),
        Nat.FULL_CONE: ("address cone", False),
        Nat.PORT_CONE: ("port cone", False),
        Nat.SYMMETRIC: ("symmetric", True),
    }
    with bed_with(network, tmp_path, [MAIN], ANOTHER_PORT) as bed:
        everybody = await found_behind(bed, list(kinds))
    assert [(found["nat"], found["nat_certain"]) for found in everybody] == list(kinds.values())


async def test_a_relay_without_a_second_port_cannot_tell_and_says_so(network: Homes, tmp_path: Path) -> None:
    network.set_link(1, PERFECT)
    network.set_nat(1, Nat.PORT_CONE)
    with bed_with(network, tmp_path, [MAIN], ANOTHER_PORT, "--no-nat-port") as bed:
        found = await bed.nettest("--no-speed")
    assert (found["nat"], found["nat_certain"]) == ("unknown", False)
    assert found["relays"][0]["udp"]


@pytest.mark.parametrize("rtt_ms", [20, 100])
async def test_the_round_trip_is_that_of_the_line(bed: Bed, rtt_ms: float) -> None:
    bed.homes.set_nat(1, Nat.PORT_CONE)
    bed.homes.set_link(1, Link(rtt_ms=rtt_ms))
    to_relay = rtt_ms / 2  # Between two homes the line is crossed twice as often.
    measured: list[tuple[float, float, float]] = []
    while not measured or not _is_of(min(measured), to_relay):
        found, plain_ms = await asyncio.gather(bed.nettest("--no-speed"), bed.plain_ping())
        [relay] = found["relays"]
        measured.append((relay["loss"], relay["rtt_s"] * 1000, plain_ms))
        if len(measured) == TRIES:
            break
    assert _is_of(min(measured), to_relay), measured


def _is_of(measured: tuple[float, float, float], to_relay: float) -> bool:
    """Whether nothing was lost and the round trip is the line's; a busy machine makes a plain socket's longer, too."""
    lost, ours, plain = measured
    return lost == 0 and to_relay <= ours <= max(to_relay, plain) + 2


async def test_losses_are_counted(bed: Bed) -> None:
    bed.homes.set_nat(1, Nat.PORT_CONE)
    bed.homes.set_link(1, Link(loss=0.2))
    [relay] = (await bed.nettest("--no-speed"))["relays"]
    assert 0.02 <= relay["loss"] <= 0.44  # 50 Bindings: 10 lost on average, within four standard deviations.


async def test_a_cut_line_is_told_within_the_promised_time_and_by_the_exit_code(bed: Bed) -> None:
    bed.homes.set_nat(1, Nat.PORT_CONE)
    bed.homes.cut(1)
    try:
        found = await bed.nettest(code=1)
    finally:
        bed.homes.heal(1)
    assert found["relays"][0]["rtt_s"] is None
    assert (found["nat"], found["up"], found["down"]) == ("unknown", None, None)
    assert "TCP" in found["note"]
    assert found["seconds"] < 9.5


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "share"),
    [
        pytest.param(Link(up=20e6, down=100e6, rtt_ms=40), 0.15, id="20 up, 100 down", marks=pytest.mark.long),
        pytest.param(Link(up=20e6, down=100e6, rtt_ms=100, loss=0.01), 0.2, id="the same, far away and lossy"),
        pytest.param(Link(up=1e6, down=4e6, rtt_ms=40), 0.2, id="1 up, 4 down"),
    ],
)
async def test_the_rates_are_those_of_the_line(bed: Bed, line: Link, share: float) -> None:
    bed.homes.set_nat(1, Nat.PORT_CONE)
    bed.homes.set_link(1, line)
    found = await bed.nettest()
    assert found["up"] * 8 == pytest.approx(line.up, rel=share)
    assert found["down"] * 8 == pytest.approx(line.down, rel=share)
    assert found["seconds"] < 9.5


@pytest.mark.long
@pytest.mark.slow
async def test_where_udp_is_blocked_the_rates_are_measured_all_the_same(bed: Bed) -> None:
    bed.homes.set_nat(1, Nat.NO_UDP)
    bed.homes.set_link(1, Link(up=10e6, down=10e6, rtt_ms=20))
    found = await bed.nettest()
    assert found["nat"] == "no udp"
    assert found["up"] * 8 == pytest.approx(10e6, rel=0.15)


@pytest.mark.long
@pytest.mark.slow
async def test_people_get_a_table_in_words(bed: Bed) -> None:
    bed.homes.set_nat(1, Nat.SYMMETRIC)
    bed.homes.set_link(1, Link(up=5e6, down=20e6, rtt_ms=20))
    process = await bed.homes.home(1).python("cottage", *bed.words(), stderr=subprocess.STDOUT)
    text = (await process.communicate())[0].decode()
    assert process.returncode == 0
    for words in ("symmetric", "reach you through a relay only", "Mbit/s", "outer rounds wait for you"):
        assert words in " ".join(text.split()), text


@pytest.mark.slow
async def test_two_machines_that_share_a_relay_measure_the_link_between_them(bed: Bed) -> None:
    bed.homes.set_nat(1, Nat.PORT_CONE)
    bed.homes.set_link(1, Link(up=4e6, down=4e6, rtt_ms=20))
    async with asyncio.timeout(60):
        waiting = await bed.homes.public.python("cottage", *bed.words("--json", "--listen"), stderr=subprocess.PIPE)
        assert waiting.stderr is not None
        while not (line := await waiting.stderr.readline()).startswith(b"cottage nettest --peer"):
            assert line, "the inviting side has ended"
        there = await bed.nettest("--peer", line.split()[-1].decode())
        here, _ = await waiting.communicate()
    assert waiting.returncode == 0
    assert 10 <= there["rtt_s"] * 1000 < 40
    assert not there["relayed"]
    assert 1e6 < there["up"] * 8 < 4.2e6
    assert 1e6 < there["down"] * 8 < 4.2e6

    seen = msgspec.json.decode(here, type=PeerTest)
    assert (seen.up, seen.down, seen.rtt_s) == (there["down"], there["up"], there["rtt_s"])
