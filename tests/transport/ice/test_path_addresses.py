"""Which of a machine's addresses are offered to peers, and how a change of them is noticed."""

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

from tests.support.wait import HANGS_S
from tests.testbed.namespaces import Namespaces, missing
from transport.ice.addresses import (
    MAX_HOST_ADDRESSES,
    AddressWatch,
    HostAddress,
    host_addresses,
    local_addresses,
    source_for,
    worth_offering,
)

ROOT = Path(__file__).parents[3]
WHY_NOT = missing()
needs_namespaces = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "namespaces can be made")

WATCH = """
import asyncio, sys
from transport.ice.addresses import AddressWatch, host_addresses

async def main():
    with AddressWatch(poll=sys.argv[1] == "poll").subscribe() as changed:
        while True:
            print(*host_addresses(), flush=True)
            await changed.wait()
            changed.clear()

asyncio.run(main())
"""


def on(interface: str, *texts: str, **more: bool) -> list[HostAddress]:
    return [HostAddress(text, interface, **more) for text in texts]


def test_the_address_that_the_system_prefers_comes_first() -> None:
    found = on("eth0", "192.168.1.10") + on("wlan0", "192.168.7.3")
    assert worth_offering(found, ["192.168.7.3"]) == ["192.168.7.3", "192.168.1.10"]


@pytest.mark.parametrize("bridge", ["docker0", "br-0123456789ab", "virbr0", "lxcbr0"])
def test_bridges_to_containers_are_not_offered(bridge: str) -> None:
    assert worth_offering(on(bridge, "172.17.0.1") + on("eth0", "10.0.0.2"), []) == ["10.0.0.2"]


def test_a_bridge_that_a_user_made_is_offered() -> None:
    assert worth_offering(on("br0", "192.168.1.10"), []) == ["192.168.1.10"]


def test_of_one_ipv6_network_the_temporary_address_is_offered_alone() -> None:
    found = on("eth0", "2001:db8:1::aa") + on("eth0", "2001:db8:1::bb", temporary=True)
    assert worth_offering(found, []) == ["2001:db8:1::bb"]


def test_the_preferred_ipv6_address_stands_for_its_network() -> None:
    found = on("eth0", "2001:db8:1::aa", "2001:db8:1::cc") + on("eth0", "2001:db8:1::bb", temporary=True)
    assert worth_offering(found, ["2001:db8:1::cc"]) == ["2001:db8:1::cc"]


def test_two_ipv6_networks_are_both_offered() -> None:
    assert set(worth_offering(on("eth0", "2001:db8:1::1", "fd00::1"), [])) == {"2001:db8:1::1", "fd00::1"}


def test_deprecated_addresses_are_not_offered() -> None:
    assert worth_offering(on("eth0", "2001:db8:1::1", usable=False), []) == []


def test_a_machine_with_very_many_addresses_offers_some() -> None:
    many = on("eth0", *(f"10.0.0.{number}" for number in range(1, 100)))
    assert worth_offering(many, ["10.0.0.77"])[0] == "10.0.0.77"
    assert len(worth_offering(many, [])) == MAX_HOST_ADDRESSES


def test_neither_loopback_nor_link_local_addresses_are_this_machines() -> None:
    assert not any(one.text.startswith(("127.", "fe80")) or one.text == "::1" for one in local_addresses())


def test_the_system_tells_from_where_it_would_send() -> None:
    assert source_for("127.0.0.1") == "127.0.0.1"
    assert source_for("255.255.255.255") == "", "broadcast needs a permission that nobody asked for"


@needs_namespaces
@pytest.mark.parametrize("how", ["poll", "told"])
async def test_an_address_that_comes_or_goes_is_noticed(how: str) -> None:
    spaces = Namespaces()
    try:
        spaces.add("one")
        spaces.ip("one", "link add near type veth peer name far", "link set far up", "link set near up")
        watcher = await asyncio.create_subprocess_exec(
            *spaces.enter("one", [sys.executable, "-c", WATCH, how]), stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        try:
            assert watcher.stdout is not None
            assert (await asyncio.wait_for(watcher.stdout.readline(), 20)).split() == []
            spaces.ip("one", "addr add 192.168.5.5/24 dev near")
            await until_line(watcher.stdout, [b"192.168.5.5"])
            spaces.ip("one", "addr add 2001:db8:9::5/64 dev near nodad", "addr del 192.168.5.5/24 dev near")
            await until_line(watcher.stdout, [b"2001:db8:9::5"])
        finally:
            watcher.kill()
            await watcher.wait()
    finally:
        spaces.remove()


async def until_line(stream: asyncio.StreamReader, wanted: list[bytes]) -> None:
    async with asyncio.timeout(HANGS_S):
        while (await stream.readline()).split() != wanted:
            pass


async def test_a_watch_that_nobody_waits_for_holds_nothing_open() -> None:
    for poll in (False, True):
        watch = AddressWatch(poll=poll)
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(watch.subscribe())
            assert watch._stop is not None or watch._timer is not None
        assert watch._stop is None
        assert watch._timer is None


def test_this_machines_offer_is_among_its_addresses() -> None:
    assert set(host_addresses()) <= {one.text for one in local_addresses()}
