"""Our data path and Debian's Chromium: a browser on the other side, as offerer and as answerer."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aioice.ice
import pytest

from tests.testbed.homes import Link, Nat, homes, missing
from tests.transport.sctp.interop.ends import End, RtcEnd, both_ways, join, may_be_lost, opened_page, program
from tests.transport.sctp.pairs import until

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=WebRtcHideLocalIpsWithMdns",  # Nobody here resolves names of the form x.local.
    "--allow-loopback-in-peer-connection",
]
GREATEST = 256 << 10  # What Chromium takes in one message.
MANY = 20 << 20
WHY_NO_BED = missing(relays=False)

playwright = pytest.importorskip("playwright.async_api")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}: apt-get install chromium"),
]


@asynccontextmanager
async def browser(executable: Path) -> AsyncIterator[Any]:
    async with playwright.async_playwright() as driver:
        one = await driver.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield one
        await one.close()


@pytest.fixture
async def chromium() -> AsyncIterator[End]:
    async with browser(Path(CHROMIUM)) as one:
        yield await opened_page(one)


@pytest.fixture
async def ours() -> AsyncIterator[RtcEnd]:
    with patch.object(aioice.ice, "get_host_addresses", lambda **families: ["127.0.0.1"]):
        end = RtcEnd("ours")
        yield end
        await end.end()


@pytest.fixture(params=["ours offers", "Chromium offers"])
def pair(request: pytest.FixtureRequest, ours: RtcEnd, chromium: End) -> tuple[End, End]:
    """The offerer and the answerer."""
    return (ours, chromium) if request.param == "ours offers" else (chromium, ours)


@pytest.mark.long
@pytest.mark.parametrize(
    "pair", [pytest.param("ours offers", marks=pytest.mark.long), "Chromium offers"], indirect=True
)
async def test_twenty_megabytes_in_both_directions_at_once_are_byte_identical(pair: tuple[End, End]) -> None:
    await join(*pair, {"data": {}})
    await both_ways(*pair, "data", MANY // (64 << 10), 64 << 10)


@pytest.mark.one_in(2)
async def test_messages_of_the_greatest_size_pass(pair: tuple[End, End]) -> None:
    await join(*pair, {"data": {}})
    await both_ways(*pair, "data", 8, GREATEST)


@pytest.mark.one_in(2)
async def test_texts_and_empty_messages_keep_their_kind(pair: tuple[End, End]) -> None:
    texts = ["", None, "Grüße, 世界", "\0", "a" * 5000, None, ""]
    await join(*pair, {"data": {}})
    for sender, receiver in (pair, pair[::-1]):
        await sender.say("data", texts)
        assert await receiver.heard("data", len(texts)) == texts


@pytest.mark.one_in(2)
async def test_channels_of_every_kind_are_understood_alike(pair: tuple[End, End]) -> None:
    # So much that a busy machine gives nothing up, whose every byte is to come.
    wanted: dict[str, dict[str, Any]] = {
        "ordered": {},
        "unordered": {"ordered": False, "protocol": "tensor"},
        "often": {"maxRetransmits": 50},
        "a minute": {"maxPacketLifeTime": 60_000, "ordered": False},
    }
    one, two = pair
    await join(one, two, wanted)
    for label, options in wanted.items():
        mine, theirs = await one.opened(label), await two.opened(label)
        assert {name: mine[name] for name in options} == options
        assert {name: theirs[name] for name in mine} == mine
        await both_ways(one, two, label, 20, 20_000)


@pytest.mark.one_in(2)
async def test_channels_opened_later_by_either_side_work(pair: tuple[End, End]) -> None:
    one, two = pair
    await join(one, two, {"first": {}})
    for number, (opener, other) in enumerate((pair, pair[::-1], pair)):
        label = f"later {number}"
        await opener.open(label, {})
        await other.opened(label)
        await both_ways(opener, other, label, 3, 50_000)


@pytest.mark.one_in(2)
async def test_channels_that_were_agreed_on_need_no_announcement(pair: tuple[End, End]) -> None:
    one, two = pair
    await join(one, two, {"first": {}})
    agreed = {"negotiated": True, "id": 100}
    await asyncio.gather(one.open("agreed", agreed), two.open("agreed", agreed))
    await both_ways(one, two, "agreed", 30, 30_000)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("closer", [0, 1], ids=["the offerer closes", "the answerer closes"])
async def test_closing_a_channel_closes_it_on_the_other_side_after_what_was_sent(
    pair: tuple[End, End], closer: int
) -> None:
    one, two = pair[closer], pair[1 - closer]
    await join(*pair, {"data": {}, "other": {}})
    sent = await one.send("data", 40, 60_000)
    await one.close("data")
    await asyncio.gather(one.closed("data"), two.closed("data"))
    assert await two.digest("data", 40) == sent
    await both_ways(*pair, "other", 3, 10_000)


@pytest.mark.one_in(2)
async def test_a_closed_connection_is_noticed_on_both_sides(pair: tuple[End, End], ours: RtcEnd) -> None:
    one, two = pair
    await join(one, two, {"data": {}})
    await one.end()
    await two.closed("data")


async def test_chromium_answers_the_probes_of_the_paths_mtu(chromium: End, ours: RtcEnd) -> None:
    await join(ours, chromium, {"data": {}})
    sctp = ours.connection.sctp
    assert sctp is not None
    await until(lambda: sctp.path_stats().mtu == 1500)
    await both_ways(ours, chromium, "data", 20, 60_000)
    assert sctp.path_stats().mtu == 1500


@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NO_BED), reason=WHY_NO_BED or "the test-bed can be built")
@pytest.mark.parametrize("offers", ["ours", pytest.param("chromium", marks=pytest.mark.long)])
async def test_over_a_lossy_line_every_byte_comes_and_what_may_be_lost_does_not_delay_it(
    tmp_path: Path, offers: str
) -> None:
    line = Link(up=50e6, down=50e6, rtt_ms=40, loss=0.01)
    async with homes(2, nat=Nat.NONE, link=line, relays=0) as bed:
        inside = tmp_path / "chromium"
        inside.write_text("#!/bin/sh\nexec " + " ".join(bed.home(1).enter([CHROMIUM])) + ' "$@"\n')
        inside.chmod(0o755)
        async with browser(inside) as one, program(bed.home(2), "ours") as mine:
            page = await opened_page(one)
            pair: tuple[End, End] = (mine, page) if offers == "ours" else (page, mine)
            await join(*pair, {"data": {}, "news": {"ordered": False, "maxRetransmits": 0}})
            await both_ways(*pair, "data", 16, 64 << 10)
            for sender, receiver in (pair, pair[::-1]):
                numbers = await may_be_lost(sender, receiver, "news", "data", count=200, size=5000, least=160)
                assert len(set(numbers)) == len(numbers)
                assert len(numbers) < 200  # Five packets each: about one message in twenty is lost.
