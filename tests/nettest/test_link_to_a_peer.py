"""The test of a link: figures over real links, and what a peer may not ask for."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from common.clock import SystemClock
from common.errors import DeliveryFailedError
from protocol.codec import encode_json
from tests.transport.conftest import Node, Received, Switchboard
from transport.messages.lanes import Lane
from transport.nettest import peer as peer_module
from transport.nettest.errors import NettestError
from transport.nettest.peer import ECHO, LOAD, PREFIX, RECEIVE, RESULT, SEND, PeerTests
from transport.nettest.result import PeerTest

LIMIT_S = 40.0


class Side:
    """A node that lets its link be tested; ``refusal`` is why its line must not be filled."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.refusal = ""
        self.tests = PeerTests(node.net, SystemClock(), lambda: self.refusal)

        async def take(message: Received) -> None:
            await self.tests.on_message(message.peer, message.lane, message.header, message.payload)

        node.handler = take

    @property
    def address(self) -> str:
        return self.node.address

    async def ask(self, other: "Side", lane: Lane, header: bytes, payload: bytes = b"") -> None:
        await self.node.net.send(other.address, lane, header, payload, timeout=10)


@pytest.fixture
async def sides() -> AsyncIterator[tuple[Side, Side]]:
    board = Switchboard()
    one, two = (Side(node) for node in await board.pair())
    async with asyncio.timeout(LIMIT_S):
        yield one, two
    await one.tests.aclose()
    await two.tests.aclose()
    await board.close()


async def test_a_link_is_measured_both_ways_and_the_peer_is_told(sides: tuple[Side, Side]) -> None:
    one, two = sides
    found = await one.tests.measure(two.address)
    assert found.peer == two.address
    assert 0 < found.rtt_s < 0.5
    assert found.note == ""
    assert found.up is not None
    assert found.down is not None
    assert min(found.up, found.down) > 0
    await one.tests.tell(two.address, found)
    seen = await two.tests.results.get()
    assert (seen.peer, seen.up, seen.down) == (one.address, found.down, found.up)


async def test_a_peer_that_must_not_be_filled_is_measured_without_rates(sides: tuple[Side, Side]) -> None:
    one, two = sides
    two.refusal = "limits are set here"
    found = await one.tests.measure(two.address)
    assert (found.up, found.down) == (None, None)
    assert "limits are set here" in found.note
    one.refusal = "limits are set on this side"
    assert (await one.tests.measure(two.address)).note == "limits are set on this side"
    assert (await one.tests.measure(two.address, speed=False)).note == "the rates were not asked for"


async def test_load_that_nobody_has_agreed_to_is_refused(sides: tuple[Side, Side]) -> None:
    one, two = sides
    with pytest.raises(DeliveryFailedError, match="no test is under way"):
        await one.ask(two, Lane.BULK, LOAD, bytes(1000))


async def test_a_peer_can_ask_for_load_only_now_and_then(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = sides
    monkeypatch.setattr(peer_module, "BOTH_WAYS_S", 0.0)
    await one.ask(two, Lane.CONTROL, RECEIVE)
    with pytest.raises(DeliveryFailedError, match="is enough"):
        await one.ask(two, Lane.CONTROL, RECEIVE)
    with pytest.raises(DeliveryFailedError, match="is enough"):
        await one.ask(two, Lane.CONTROL, SEND)


async def test_one_load_at_a_time_goes_to_a_peer(sides: tuple[Side, Side]) -> None:
    one, two = sides
    one.tests._expect(two.address, SystemClock().now())
    await one.ask(two, Lane.CONTROL, SEND)
    with pytest.raises(DeliveryFailedError, match="already"):
        await one.ask(two, Lane.CONTROL, SEND)


async def test_a_test_in_which_too_much_arrives_is_over(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = sides
    monkeypatch.setattr(peer_module, "MAX_BYTES", 5000)
    await one.ask(two, Lane.CONTROL, RECEIVE)
    await one.ask(two, Lane.BULK, LOAD, bytes(6000))
    with pytest.raises(DeliveryFailedError, match="no test is under way"):
        await one.ask(two, Lane.BULK, LOAD, bytes(1))


@pytest.mark.parametrize(
    ("lane", "header", "payload"),
    [
        (Lane.CONTROL, PREFIX + b"format-disk", b""),
        (Lane.CONTROL, ECHO, b"with something inside"),
        (Lane.ACTIVATIONS, LOAD, b"x"),
        (Lane.CONTROL, RESULT, b"not json"),
    ],
)
async def test_what_is_no_test_is_refused(sides: tuple[Side, Side], lane: Lane, header: bytes, payload: bytes) -> None:
    one, two = sides
    with pytest.raises(DeliveryFailedError):
        await one.ask(two, lane, header, payload)


async def test_only_the_first_unread_result_is_kept(sides: tuple[Side, Side]) -> None:
    one, two = sides
    for rtt in (0.1, 0.2, 0.3):
        await one.ask(two, Lane.CONTROL, RESULT, encode_json(PeerTest(two.address, rtt, 0.0)))
    assert two.tests.results.qsize() == 1
    assert (await two.tests.results.get()).rtt_s == 0.1


async def test_a_peer_that_is_gone_is_an_error_with_its_name(sides: tuple[Side, Side]) -> None:
    one, two = sides
    await one.node.net.allow(set())
    with pytest.raises(NettestError, match=two.address):
        await one.tests.measure(two.address)
