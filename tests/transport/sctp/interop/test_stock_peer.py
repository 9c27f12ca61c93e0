"""Our data path and stock aiortc in two homes, over a line that loses packets; on loopback see ``test_association``."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.testbed.homes import Link, Nat, homes, missing
from tests.transport.sctp.interop.ends import End, both_ways, join, may_be_lost, program

WHY_NOT = missing(relays=False)
LINE = Link(up=50e6, down=50e6, rtt_ms=20, loss=0.01, jitter_ms=2, reorder=0.005, duplicate=0.005)

pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "the test-bed can be built"),
    pytest.mark.slow,
]

EITHER = [("ours", "stock"), ("stock", "ours")]
OURS_OFFERS = pytest.mark.parametrize(
    "pair",
    [pytest.param(EITHER[0], id="ours offers"), pytest.param(EITHER[1], id="stock offers", marks=pytest.mark.long)],
    indirect=True,
)


@pytest.fixture(params=EITHER, ids=["ours offers", "stock offers"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[End, End]]:
    """The offerer and the answerer, each at home."""
    first, second = request.param
    async with homes(2, nat=Nat.NONE, link=LINE, relays=0) as bed:
        async with program(bed.home(1), first) as one, program(bed.home(2), second) as two:
            yield one, two


@pytest.mark.one_in(2)
async def test_every_byte_comes_in_order_whatever_the_line_does(pair: tuple[End, End]) -> None:
    await join(*pair, {"data": {}})
    await both_ways(*pair, "data", 12, 50_000)


@OURS_OFFERS
async def test_what_may_be_lost_is_not_sent_again_and_delays_nothing(pair: tuple[End, End]) -> None:
    await join(*pair, {"data": {}, "news": {"ordered": False, "maxRetransmits": 0}})
    for sender, receiver in (pair, pair[::-1]):
        numbers = await may_be_lost(sender, receiver, "news", "data", count=80, size=5000, least=60)
        assert len(set(numbers)) == len(numbers) < 80  # Five packets each: about one message in twenty is lost.


@OURS_OFFERS
async def test_what_may_be_lost_keeps_its_order(pair: tuple[End, End], request: pytest.FixtureRequest) -> None:
    await join(*pair, {"data": {}, "row": {"maxRetransmits": 0}})
    ours_first = "ours offers" in request.node.name
    for sender, receiver, ours in ((*pair, not ours_first), (*pair[::-1], ours_first)):
        # Stock aiortc 1.16 forgets, besides, what it holds behind a message that was given up (``prune_chunks``).
        least = 60 if ours else 1
        numbers = await may_be_lost(sender, receiver, "row", "data", count=80, size=5000, least=least)
        assert numbers == sorted(set(numbers))
        assert len(numbers) < 80


@pytest.mark.one_in(2)
@pytest.mark.parametrize("closer", [0, 1], ids=["the offerer closes", "the answerer closes"])
async def test_closing_a_channel_closes_it_on_the_other_side_after_what_was_sent(
    pair: tuple[End, End], closer: int
) -> None:
    one, two = pair[closer], pair[1 - closer]
    await join(*pair, {"data": {}, "other": {}})
    sent = await one.send("data", 10, 50_000)
    await one.close("data")
    await asyncio.gather(one.closed("data"), two.closed("data"))
    assert await two.digest("data", 10) == sent
    await both_ways(*pair, "other", 3, 10_000)
