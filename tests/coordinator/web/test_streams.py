"""Live streams: what readers share, what a slow one costs, and what nobody misses."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from coordinator.client import Client
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.web import feed as feeds
from coordinator.web import stream
from coordinator.web.http import protect
from coordinator.web.stream import StreamLimits, Streams
from protocol.rest.api import NewJob
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake import Cluster
from tests.coordinator.web.fake_services import Registry
from tests.coordinator.web.test_api import spec, submitted
from tests.support.wait import HANGS_S


class Station:
    """Streams of one job, alone behind a port."""

    def __init__(self, cluster: Cluster, job: str, limits: StreamLimits) -> None:
        self.cluster, self.job, self.port = cluster, job, 0
        self.streams = Streams(cluster, Registry(cluster), limits)
        self.app = web.Application()
        protect(self.app, lambda *_: None)
        self.app.router.add_get("/{job}", lambda request: self.streams.job(request, request.match_info["job"]))
        self.app.on_shutdown.append(self.streams.close)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.job}"

    @property
    def feed(self) -> feeds.Feed:
        (found,) = self.streams._feeds.values()
        return found


@pytest.fixture
async def station(tmp_path: Path) -> AsyncIterator[Station]:
    cluster = Cluster(DiskArtifacts(tmp_path))

    async def chunks() -> AsyncIterator[bytes]:
        yield b"to be or not to be\n" * 200

    assert cluster.artifacts is not None
    data = await cluster.artifacts.put(chunks(), None, 1 << 20)
    job = (await cluster.create(msgspec.convert({"spec": spec(data)}, NewJob))).id
    made = Station(cluster, job, StreamLimits(total=40, each=40))
    runner = web.AppRunner(made.app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str, list[dict[str, int]]]]:
    """Name, id and data of each event."""
    fields: dict[str, str] = {}
    async for line in response.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            yield fields["event"], fields.get("id", ""), msgspec.json.decode(fields["data"])
            fields = {}
        else:
            fields = {}


async def test_a_reader_that_stalls_costs_a_buffer_and_then_gets_every_point_once(station: Station) -> None:
    async with aiohttp.ClientSession(read_bufsize=1 << 17) as http:
        async with http.get(station.url) as response:
            told = events(response)
            async with asyncio.timeout(HANGS_S):
                while (await anext(told))[0] != "job":
                    pass
            station.cluster.flood(station.job, 40_000)
            async with asyncio.timeout(HANGS_S):
                while station.feed.mark.points < 40_000:
                    await asyncio.sleep(0.01)
            assert station.feed._bytes <= feeds.KEPT_BYTES + 200_000, (
                "what is held does not grow with the readers' distance"
            )
            seen = []
            async with asyncio.timeout(30):
                while len(seen) < 40_000:
                    event, _, points = await anext(told)
                    seen += [point["step"] for point in points] if event == "metrics" else []
            assert seen == list(range(40_000))


def test_what_happens_now_and_then_is_looked_at_at_once_and_a_flood_as_often_as_agreed() -> None:
    pace = feeds.FeedPace()
    assert [pace.wait(at / 5) for at in range(200)] == [0.0] * 200, "five changes a second wait for nothing"
    now, looks, pace = 1000.0, 0, feeds.FeedPace()
    while now < 1010.0:
        now, looks = now + pace.wait(now) + 1e-6, looks + 1
    assert looks <= 10 * feeds.LOOKS_A_SECOND + feeds.LOOKS_AT_ONCE + 1
    assert looks >= 10 * feeds.LOOKS_A_SECOND - 1
    assert pace.wait(2000.0) == 0.0, "what was not used is not saved up beyond its bound"
    waits = [pace.wait(2000.0) for _ in range(feeds.LOOKS_AT_ONCE + 1)]
    assert waits[: feeds.LOOKS_AT_ONCE - 1] == [0.0] * (feeds.LOOKS_AT_ONCE - 1)
    assert waits[-1] > 0


async def test_readers_of_one_job_share_its_reading(station: Station) -> None:
    async with aiohttp.ClientSession(read_bufsize=1 << 17) as http:
        open_ = [await http.get(station.url) for _ in range(20)]
        readers = [events(response) for response in open_]
        async with asyncio.timeout(HANGS_S):
            for told in readers:
                while (await anext(told))[0] != "job":
                    pass
        before = station.cluster.metric_reads
        station.cluster.flood(station.job, 1000)
        async with asyncio.timeout(HANGS_S):
            for told in readers:
                seen = 0
                while seen < 1000:
                    event, _, points = await anext(told)
                    seen += len(points) if event == "metrics" else 0
        assert station.cluster.metric_reads - before < 20, "read once, not once a reader"
        for response in open_:
            response.close()
        async with asyncio.timeout(HANGS_S):
            while station.streams._feeds:
                await asyncio.sleep(0.01)


async def test_whoever_comes_back_with_its_last_id_gets_the_rest(station: Station) -> None:
    station.cluster.flood(station.job, 1200)
    async with aiohttp.ClientSession(read_bufsize=1 << 17) as http:
        async with http.get(station.url) as response:
            told = events(response)
            async with asyncio.timeout(HANGS_S):
                _, mark, first = await anext(told)
        assert [point["step"] for point in first] == list(range(len(first)))
        station.cluster.flood(station.job, 300)
        async with http.get(station.url, headers={"Last-Event-ID": mark}) as response:
            told, seen = events(response), len(first)
            async with asyncio.timeout(HANGS_S):
                while seen < 1500:
                    event, _, points = await anext(told)
                    if event == "metrics":
                        assert points[0]["step"] == seen
                        seen += len(points)
        async with http.get(station.url, headers={"Last-Event-ID": "999999999-999999999"}) as response:
            async with asyncio.timeout(HANGS_S):
                assert (await anext(events(response)))[0] == "job", "a mark that was never given counts as the latest"


async def test_a_reader_that_takes_nothing_is_cut_off(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STALL_S", 0.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", station.port, limit=1 << 12)
    writer.write(f"GET /{station.job} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    await reader.readuntil(b"event: job")
    station.cluster.flood(station.job, 100_000)
    async with asyncio.timeout(HANGS_S):
        while station.streams._feeds:
            await asyncio.sleep(0.05)
    writer.transport.abort()


async def test_a_quiet_stream_says_that_it_lives_and_one_that_grows_old_ends(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "HEART_S", 0.1)
    monkeypatch.setattr(stream, "LOOK_S", 0.1)
    monkeypatch.setattr(stream, "LIFE_S", 0.5)
    async with aiohttp.ClientSession(read_bufsize=1 << 17) as http:
        async with http.get(station.url) as response:
            async with asyncio.timeout(HANGS_S):
                whole = await response.read()
    assert b"\n: alive\n" in whole
    assert whole.startswith(b"retry: ")


async def test_streams_beyond_the_limit_are_refused_and_those_that_end_make_room(
    house: House, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamLimits.__init__, "__defaults__", (10, 1))
    await house.stop()
    await house.start()
    url = f"{house.api}/network/stream"
    async with http.get(url) as first:
        assert b"retry" in await first.content.readline()
        async with http.get(url) as second:
            assert second.status == 503
            assert "1 of them yours" in (await second.json())["detail"]
    async with asyncio.timeout(HANGS_S):
        while True:
            await asyncio.sleep(0.1)
            async with http.get(url) as third:
                if third.status == 200:
                    break


async def test_a_feed_that_fails_ends_its_streams_and_the_next_reader_begins_anew(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, failures = await submitted(house), iter([True])
    right = house.cluster.get

    async def get(name: str) -> object:
        if house.cluster.metric_reads > 1 and next(failures, False):
            raise RuntimeError("the database is gone for a moment")
        return await right(name)

    monkeypatch.setattr(house.cluster, "get", get)
    async with Client(house.url, sleep=lambda _s: asyncio.sleep(0.01)) as client:
        async with asyncio.timeout(HANGS_S):
            house.cluster.now += 1
            async for update in client.watch(job.id):
                if update.job is not None and update.job.state == "created":
                    await house.cluster.fund(job.id)
                if update.job is not None and update.job.state == "funded":
                    house.cluster.run(job.id)
    assert next(failures, None) is None, "it did fail"
