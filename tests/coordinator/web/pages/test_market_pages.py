"""Pages about the market, documents and downloads over plain HTTP: links that lead somewhere, sums, hostile input."""

import asyncio
import hashlib
import math
import re
import subprocess
from functools import partial
from html.parser import HTMLParser

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.errors import InvalidError
from coordinator.web.pages import atlas, chart, gpus
from coordinator.web.pages.downloads import system_of
from coordinator.web.pages.guides import shown
from coordinator.web.pages.market import ranked
from coordinator.web.pages.pipeline import drawing, pipeline
from coordinator.web.pages.render import NODE_LOOKS
from protocol.codec import convert
from protocol.job.job import JobSpec
from protocol.rest.api import JobNode, NewJob, NodeView
from protocol.rest.market import Market as MarketView
from protocol.rest.market import Region
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake import address
from tests.coordinator.web.fake_services import Market

HTML = {"Accept": "text/html"}


class Links(HTMLParser):
    """Addresses that a page leads to, and ids that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.to: set[str] = set()
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in ("a", "link", "script", "img", "use") and (address := found.get("href") or found.get("src")):
            self.to.add(address)
        if found.get("id"):
            self.ids.append(str(found["id"]))


async def test_every_link_of_every_page_leads_somewhere_and_no_id_is_there_twice(
    house: House, http: aiohttp.ClientSession
) -> None:
    wanted = {"model": {"preset": "tiny-llama"}, "dataset": {"artifact": await house.dataset()}, "budget": 9_000_000}
    # Not over the client, which would choose another id than that which the cluster's other pages know.
    job = await house.cluster.create(NewJob(convert({**wanted, "name": "linked"}, JobSpec)))
    await house.cluster.fund(job.id)
    for _ in range(4):
        house.cluster.step(job.id)
    due, seen = {"/"}, set[str]()
    while due:
        path = due.pop()
        seen.add(path)
        async with http.get(house.url + path, headers=HTML) as response:
            assert response.status == 200, path
            if response.content_type != "text/html":
                continue
            links = Links(await response.text())
        assert sorted(set(links.ids)) == sorted(links.ids), path
        for link in links.to:
            target, _, anchor = link.partition("#")
            if target.startswith("https://") and path.startswith("/docs"):
                continue  # Documents name their sources.
            if target.startswith("cottage:"):
                continue  # Opens the app.
            assert not target.startswith(("http:", "//", "javascript:")), f"{path} leads away, to {link}"
            if not target:
                assert anchor in links.ids, f"{path} has no {anchor}"
            # Rounds need real books; figures are the application's own.
            elif not re.match(r"/jobs/\w+/rounds/|/ledger/node/|/metrics$", target) and target not in seen:
                due.add(target)
    assert {
        "/network",
        "/machines",
        "/lenders",
        "/earn",
        "/status",
        "/download",
        "/join",
        "/docs",
        "/jobs",
        f"/jobs/{job.id}",
    } <= seen
    assert {"/docs/api", *(f"/docs/{file.stem}" for file in shown())} <= seen


@pytest.mark.parametrize(
    "path",
    [
        "/machines?page=99999999999",
        "/machines?page=-1",
        "/machines?owner=%00<script>alert(1)</script>",
        "/earn?gpu=<script>",
        "/earn?hours=1e9",
        "/earn?hours=nan",
        "/earn?price_kwh=-1",
        "/earnings?address=<script>alert(1)</script>",
        "/earnings?address=" + "1" * 5000,
        "/compare?job=<script>",
        "/compare?job=" + "0" * 32,
        "/docs/..%2f..%2fREADME",
        "/docs/images/..%2fexplanation%2ftrust.md",
        "/download/..%2f..%2fetc%2fpasswd",
        "/download/SHA256SUMS",
        "/docs/nothing",
        "/join?key=<script>alert(1)</script>",
        "/join?key=" + "1" * 5000,
    ],
)
async def test_whatever_is_typed_is_answered_without_becoming_markup(
    house: House, http: aiohttp.ClientSession, path: str
) -> None:
    async with http.get(house.url + path, headers=HTML) as response:
        assert response.status in (200, 404, 422)
        text = await response.text()
    assert "<script>alert" not in text
    assert "root:" not in text


async def test_a_mistyped_address_is_told_what_was_meant(house: House, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{house.url}/netwrok", headers=HTML) as response:
        assert response.status == 404
        assert '<a href="/network">Network</a>' in await response.text()
    async with http.get(f"{house.url}/jobs/{'0' * 32}", headers=HTML) as response:
        assert "Others see it once its owner shares it" in await response.text()


async def test_a_file_is_offered_with_its_checksum_and_nothing_else_of_the_folder_is(
    house: House, http: aiohttp.ClientSession
) -> None:
    folder = house.folder / "downloads"
    folder.mkdir()
    (folder / "cottage_1.0_amd64.deb").write_bytes(b"a package")
    (folder / "cottage.key").write_bytes(b"secret")
    (folder / "<b>.deb").write_bytes(b"x")
    (folder / "link.deb").symlink_to("/etc/passwd")
    linux = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)", **HTML}
    async with http.get(f"{house.url}/download", headers=linux) as response:
        text = await response.text()
    assert hashlib.sha256(b"a package").hexdigest() in text
    assert text.index("Linux</h2>") < text.index("Windows</h2>"), "the visitor's own system is first"
    assert "no installer for Windows" in text
    for name in ("cottage.key", "%3Cb%3E.deb", "link.deb"):
        async with http.get(f"{house.url}/download/{name}") as response:
            assert response.status == 404
    async with http.get(f"{house.url}/download/cottage_1.0_amd64.deb") as response:
        assert await response.read() == b"a package"
        assert response.headers["Content-Disposition"].startswith("attachment")
    async with http.get(f"{house.url}/download/SHA256SUMS") as response:
        sums = await response.text()
    check = partial(subprocess.run, ["sha256sum", "--check", "--strict"], input=sums.encode(), cwd=folder)
    assert (await asyncio.to_thread(check)).returncode == 0
    (folder / "cottage_1.0_amd64.deb").write_bytes(b"another one")
    async with http.get(f"{house.url}/download/SHA256SUMS") as response:
        assert hashlib.sha256(b"another one").hexdigest() in await response.text()


@pytest.mark.parametrize(
    ("agent", "system"),
    [
        ("Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36", "windows"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15", "macos"),
        ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "linux"),
        ("Mozilla/5.0 (Linux; Android 15; Pixel 9) AppleWebKit/537.36 Mobile", ""),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X)", ""),
        ("curl/8", ""),
    ],
)
def test_a_browser_says_which_system_it_runs_on(agent: str, system: str) -> None:
    assert system_of(agent) == system


def test_regions_stand_where_their_cities_are() -> None:
    assert atlas.project(0, 0)[0] == atlas.WIDTH / 2
    assert atlas.project(0, -180)[0] == 0.0
    east, west = atlas.project(40, 75), atlas.project(40, -75)
    assert math.isclose(east[0] + west[0], atlas.WIDTH, abs_tol=0.11), "east and west are alike"
    assert atlas.project(60, 0)[1] < atlas.project(30, 0)[1] < atlas.project(-30, 0)[1]
    assert atlas.place_of("EU, Frankfurt (Main)") == atlas.place_of("frankfurt")
    assert atlas.place_of("the moon") is atlas.place_of("") is atlas.place_of("Parisian") is None
    for place in atlas._PLACES.values():
        x, y = atlas.project(*place)
        assert 0 < x < atlas.WIDTH
        assert 0 < y < atlas.HEIGHT
    found, others = atlas.marks(
        [Region("Tokyo", 1, 2, 0, 1e12), Region("Berlin", 0, 9, 9, 1e14), Region("x", 1, 0, 0, 0.0)]
    )
    assert [mark.region.name for mark in found] == ["Berlin", "Tokyo"], "small discs lie on large ones"
    assert [region.name for region in others] == ["x"]


def market_of(rate: int = 2_000_000, paid: int = 0, capacity: float = 0.0) -> MarketView:
    return MarketView(rate, 1, "", 0.0, 0.0, 0, 0, (), paid, capacity)


def node_of(device: str, flops: float, owner: str = "a", earned: int = 0, online: bool = True) -> NodeView:
    return NodeView(
        address(device + owner), owner, device, device, "cuda", 1, flops, "docker", online, False, False, 0, earned, 1.0
    )


def test_a_card_is_promised_what_machines_weeks_brought() -> None:
    market = msgspec.structs.replace(market_of(rate=2_000_000), pay_low=500_000, pay_high=3_000_000)
    found = gpus.estimate(gpus.GpuQuestion("RTX 4090", 10.0, 0.4, 0.5), market, [node_of("RTX 4090", 2e13)])
    seconds = 10 * 3600 * 30
    assert found.learned
    assert (found.low, found.high) == (int(5e-10 * 2e13 * seconds), int(3e-9 * 2e13 * seconds))
    assert found.at_work == 0.25
    assert found.profit_low == pytest.approx(found.low / 1e6 * 0.5 - 54.0 / 4)
    assert found.profit_high == pytest.approx(found.high / 1e6 * 0.5 - 54.0)


def test_a_cards_range_follows_from_price_payouts_and_electricity() -> None:
    asked = gpus.GpuQuestion("RTX 4090", hours=10.0, price_kwh=0.4, token=0.5)
    seconds = 10 * 3600 * 30
    found = gpus.estimate(asked, market_of(rate=2_000_000, paid=100, capacity=1e6 * 1e15), [])
    assert found.high == pytest.approx(2_000_000 * 82.6e12 * gpus.PART_HIGH / 1e15 * seconds, rel=1e-9)
    assert found.low == pytest.approx(1e-4 * 82.6e12 * gpus.PART_LOW / 1e15 * seconds, abs=1.0)
    assert found.kwh == pytest.approx(135.0)
    assert found.profit_high == pytest.approx(found.high / 1e6 * 0.5 - 54.0)
    assert gpus.estimate(asked, market_of(), []).low == 0, "nothing was paid, so nothing is promised"
    machines = [node_of("NVIDIA GeForce RTX 4090", flops) for flops in (1e13, 3e13, 2e13)]
    measured = gpus.estimate(asked, market_of(), [*machines, node_of("NVIDIA GeForce RTX 4090 Laptop GPU", 0.0)])
    assert (measured.measured, measured.speed) == (3, (2e13, 2e13))


@given(
    st.sampled_from(gpus.GPUS),
    st.floats(0, 24),
    st.floats(0, 10),
    st.floats(0, 100),
    st.integers(1, 10**9),
    st.integers(0, 10**12),
    st.floats(0, 1e24),
)
def test_the_low_end_is_never_above_the_high_end(
    card: gpus.GpuDataSheet, hours: float, kwh: float, token: float, rate: int, paid: int, capacity: float
) -> None:
    found = gpus.estimate(gpus.GpuQuestion(card.name, hours, kwh, token), market_of(rate, paid, capacity), [])
    assert 0 <= found.low <= found.high
    assert 0 <= found.at_work <= 1
    assert found.profit_high <= found.high / 1e6 * token


@pytest.mark.parametrize(
    ("device", "card"),
    [
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER"),
        ("NVIDIA GeForce RTX 4070 Ti", "RTX 4070 Ti"),
        ("NVIDIA GeForce RTX 4070", "RTX 4070"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 40700", ""),
        ("AMD Ryzen 7", ""),
    ],
)
def test_a_device_is_known_by_its_makers_name(device: str, card: str) -> None:
    assert gpus.card_of(device) == card


def test_what_is_no_number_is_refused_with_its_bounds() -> None:
    for name, text in (
        ("hours", "25"),
        ("hours", "-1"),
        ("hours", "nan"),
        ("watts", "1e3"),
        ("token", "x"),
        ("gpu", "RTX 1"),
    ):
        with pytest.raises(InvalidError) as refused:
            gpus.question({name: text})
        assert refused.value.field == name
    assert gpus.question({"hours": "7,5"}).hours == 7.5


def test_lenders_are_ranked_by_what_they_earned_and_the_banned_are_left_out() -> None:
    nodes = [node_of("one", 1e12, "a", 5), node_of("two", 2e12, "a", 6, online=False), node_of("three", 1e12, "b", 10)]
    banned = NodeView(address("x"), "c", "x", "x", "cpu", 1, 1.0, "docker", False, False, True, 0, 99, 1.0)
    first, second = ranked([*nodes, banned])
    assert (first.address, first.earned, first.machines, first.online, first.flops) == ("a", 11, 2, 1, 1e12)
    assert second.address == "b"


def seat(replica: int | None, stage: int | None, name: str = "n", state: str = "training") -> JobNode:
    node = address(f"{replica} {stage}")
    return JobNode(node, name, "d", stage, replica, state, 0, 0, 0, 0, 0, 0, 0, 0, 0)  # type: ignore[arg-type]


def test_the_pipeline_is_drawn_with_empty_seats_hostile_names_and_not_beyond_what_can_be_read() -> None:
    hostile = '"><script>alert(1)</script>'
    shape = pipeline([seat(0, 0, hostile), seat(0, 1), seat(1, 1), seat(None, None)])
    assert [[part is not None for part in seats] for _, seats in shape.rows] == [[True, True], [False, True]]
    assert len(shape.others) == 1
    svg = drawing(shape, [], NODE_LOOKS)
    assert svg.count("<a ") == 3
    assert "nobody yet" in svg
    assert "<script>" not in svg
    assert drawing(pipeline([]), [], NODE_LOOKS) == ""
    assert (
        drawing(pipeline([seat(replica, stage) for replica in range(10) for stage in range(10)]), [], NODE_LOOKS) == ""
    )


@given(st.floats(-1e12, 1e12), st.floats(0, 1e12), st.integers(2, 10))
def test_ticks_enclose_what_is_drawn(low: float, span: float, wanted: int) -> None:
    ticks = chart.nice_ticks(low, low + span, wanted)
    assert 2 <= len(ticks) <= 3 * wanted + 3
    slack = 1e-6 * max(1.0, abs(low), span)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + span - slack
    assert ticks == sorted(set(ticks))


@given(st.integers(0, 4 * 10**9), st.integers(60, 10**8), st.integers(4, 10))
def test_times_have_ticks_at_whole_minutes_hours_or_days(start: int, span: int, wanted: int) -> None:
    ticks = chart.time_ticks(start, start + span, wanted)
    assert all(start <= tick <= start + span and tick % 60 == 0 for tick in ticks)
    assert len(ticks) <= wanted + 1


async def test_the_price_and_the_map_are_on_the_network_page(house: House, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{house.url}/network") as response:
        text = await response.text()
    assert 'id="price-wide"' in text
    assert text.count('class="mark') == 2, "the moon is on no map"
    assert "no place on the map has this name" in text
    house.market.region_list = [Region("<img src=x>", 1, 1, 0, 1.0)]
    async with http.get(f"{house.url}/network") as response:
        text = await response.text()
    assert "<img src=x>" not in text
    assert 'class="map"' not in text


async def test_a_wallets_page_shows_its_sums_exactly(house: House, http: aiohttp.ClientSession) -> None:
    wallet = address("attic-4090 payout")
    earned = await Market(house.cluster).earnings(wallet)
    async with http.get(f"{house.url}/earnings?address={wallet}") as response:
        text = await response.text()
    assert f"{earned.paid / 1e6:,.6f}" in text
    assert 'id="days-wide"' in text
    assert f'href="/nodes/{earned.machines[0].node}"' in text
