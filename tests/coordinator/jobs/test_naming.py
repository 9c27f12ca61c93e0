"""What people read: names for addresses, sums with their sign, one list of nodes in a sentence."""

import msgspec
import pytest

from coordinator.client.text import amount, money, short
from coordinator.services.core.display_names import MAX_LISTED, MAX_NAME, listed, names_in, readable
from coordinator.store.memory import MemoryStore
from coordinator.store.records import NodeRecord
from ledger.money import MAX_AMOUNT, show
from protocol.identity import NodeKey
from tests.coordinator.fakes import digest, profile


def address(number: int) -> str:
    return NodeKey((9000 + number).to_bytes(32, "big")).address


async def read(text: str, **names: int) -> str:
    """The text as people get it, in a network where ``names`` are known."""
    store = MemoryStore()
    async with store.transaction() as tx:
        for name, number in names.items():
            await tx.insert(NodeRecord(address(number), address(number), profile(name), 0.0, 0.0))
        return readable(text, await names_in(tx, [text]))


async def test_an_address_becomes_the_name_and_its_two_ends() -> None:
    one = address(1)
    assert await read(f"node {one} is ready", anna=1) == f"anna ({one[:4]}…{one[-4:]}) is ready"
    assert await read(f"taken from {one}: gone", anna=1) == f"taken from anna ({short(one)}): gone"


async def test_an_address_that_nobody_has_is_shortened() -> None:
    assert await read(f"node {address(2)} is ready", anna=1) == f"node {short(address(2))} is ready"
    assert await read(f"back to wallet {address(2)}") == f"back to wallet {short(address(2))}"


@pytest.mark.parametrize("other", [digest("artifact"), "7" * 32, "5jxTKDaK" * 11, "x" * 45])
async def test_what_only_looks_like_an_address_stays(other: str) -> None:
    assert await read(f"there is no {other} here") == f"there is no {other} here"


async def test_a_name_is_one_short_line_without_control_characters() -> None:
    store = MemoryStore()
    for number, name in enumerate(["\x1b[31mred\nline", "long" * 50, " \n "]):
        record = NodeRecord(address(number), address(number), profile("x"), 0.0, 0.0)
        async with store.transaction() as tx:
            await tx.insert(msgspec.structs.replace(record, profile=profile(name)))
    async with store.transaction() as tx:
        names = await names_in(tx, [f"{address(0)} {address(1)} {address(2)}"])
    assert names[address(0)] == "\N{REPLACEMENT CHARACTER}[31mred line"
    assert len(names[address(1)]) == MAX_NAME
    assert address(2) not in names


async def test_a_name_that_is_an_address_is_not_read_again() -> None:
    store = MemoryStore()
    async with store.transaction() as tx:
        await tx.insert(NodeRecord(address(1), address(1), profile(address(2)[:MAX_NAME]), 0.0, 0.0))
        await tx.insert(NodeRecord(address(2), address(2), profile("bob"), 0.0, 0.0))
        names = await names_in(tx, [f"node {address(1)}"])
    assert readable(f"node {address(1)} left", names) == f"{address(2)[:MAX_NAME]} ({short(address(1))}) left"


def test_nodes_are_listed_as_in_a_sentence() -> None:
    assert listed(["a"]) == "node a"
    assert listed(["a", "b"]) == "node a and node b"
    assert listed(["a", "b", "c"]) == "node a, node b and node c"
    many = listed([str(number) for number in range(MAX_LISTED + 3)])
    assert many.endswith("node 5 and 3 more")


def test_amounts_read_the_same_everywhere() -> None:
    assert money(1_885_691) == "¤ 1.885691"
    assert money(0) == "¤ 0.00"
    assert amount(-1_234_567_890_000) == "-1,234,567.89"
    for micro in (0, 1, 999_999, 10**6, 10**12 + 5, int(MAX_AMOUNT)):
        assert float(amount(micro, 6).replace(",", "")) == float(show(micro))
