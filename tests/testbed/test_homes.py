"""The bed is built quickly, changes while it runs, and leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.testbed.homes import FOLDER, ROOT, Homes, Link, Nat, homes, sweep
from tests.testbed.paths import probe, served

LEFT_BY_A_KILLED_PROCESS = """
import asyncio
from tests.testbed.homes import homes
async def main():
    async with homes(1, relays=1):
        print("built", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def namespaces_of(pid: int) -> list[str]:
    return [path.name for path in Path("/run/netns").iterdir() if path.name.startswith(f"ct{pid}-")]


def folders_of(pid: int) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{FOLDER}{pid}-*"))


async def reaches(bed: Homes, home: int, address: str) -> bool:
    found = await probe(bed.home(home), "rtt", address, "3")
    return bool(found["rtt_ms"])


async def test_two_homes_and_a_relay_stand_within_two_seconds_and_leave_nothing() -> None:
    begin = time.monotonic()
    async with homes(2) as bed:
        took = time.monotonic() - begin
        process = await bed.home(1).start(["sleep", "600"])
        assert namespaces_of(os.getpid())
    assert await process.wait() == -signal.SIGKILL
    assert not namespaces_of(os.getpid())
    assert took < 2 * 5, "two seconds, and slack for a machine that does other things"


async def test_a_bed_that_cannot_be_built_leaves_nothing() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        async with homes(2, nat=[Nat.NONE]):
            pass
    assert not namespaces_of(os.getpid())


def test_what_a_killed_process_left_is_swept() -> None:
    command = [sys.executable, "-c", LEFT_BY_A_KILLED_PROCESS]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"built\n"
        killed.kill()
    assert namespaces_of(killed.pid)
    assert folders_of(killed.pid)
    sweep()
    assert not namespaces_of(killed.pid)
    assert not folders_of(killed.pid)


@pytest.mark.parametrize("portable", [False, True], ids=["compiled", "portable"])
async def test_a_cable_is_cut_and_healed_while_everything_runs(portable: bool) -> None:
    async with homes(1, relays=0, portable=portable) as bed, served(bed.public, bed.public_address):
        assert await reaches(bed, 1, bed.public_address)
        bed.cut(1)
        assert not await reaches(bed, 1, bed.public_address)
        bed.heal(1)
        assert await reaches(bed, 1, bed.public_address)


async def test_addresses_of_the_router_and_of_the_host_change() -> None:
    async with homes(1, relays=0) as bed, served(bed.public, bed.public_address):
        home = bed.home(1)
        for which in ("wan", "lan", "wan", "lan"):
            before = home.wan, home.address
            bed.change_address(1, which)
            assert (home.wan != before[0], home.address != before[1]) == (which == "wan", which == "lan")
            found = await probe(home, "nat", bed.public_address, bed.public_address)
            assert {address for address, _ in found["seen"]} == {home.wan}


async def test_over_ipv6_a_home_has_its_own_address_behind_a_firewall() -> None:
    async with homes(2, relays=0, ipv4=False, ipv6=True) as bed, served(bed.public, bed.public_address):
        found = await probe(bed.home(1), "nat", bed.public_address, bed.public_address)
        assert {address for address, _ in found["seen"]} == {bed.home(1).ipv6}
        assert found["let_in"] == []
        async with served(bed.home(2), bed.home(2).ipv6):
            assert not await reaches(bed, 1, bed.home(2).ipv6)


@pytest.mark.parametrize("hairpin", [False, True])
async def test_a_second_host_meets_the_first_on_the_lan_and_by_hairpin_only_where_the_router_turns_back(
    hairpin: bool,
) -> None:
    async with homes(1, relays=0) as bed, served(bed.public, bed.public_address):
        home, second = bed.home(1), bed.home(1).second()
        bed.set_nat(1, Nat.FULL_CONE, hairpin=hairpin)
        async with served(second, home.second_address):
            assert await reaches(bed, 1, home.second_address)
            # The router must have a mapping for the port before it can turn anything back to it.
            await probe(home, "call", home.second_address, bed.public_address)
            assert await reaches(bed, 1, home.wan) is hairpin


async def test_an_impossible_command_is_answered_with_what_is_possible() -> None:
    async with homes(1, relays=0) as bed:
        with pytest.raises(RuntimeError, match="needs the name of a site"):
            bed.set_link("h9", Link())
        bed.set_link("h1", Link())


async def test_programs_in_the_bed_get_the_environment_that_was_asked_for() -> None:
    async with homes(1, relays=0) as bed:
        process = await bed.home(1).start(["printenv", "WORD"], {"WORD": "kept"}, stdin=asyncio.subprocess.DEVNULL)
        out, _ = await process.communicate()
    assert out == b"kept\n"
