"""A model that goes to a bucket of its submitter's own: whole, once, with the submitter's key, and never inside this network."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from common.clock import SystemClock
from coordinator.domain.job import Job, JobState
from coordinator.errors import ConflictError, FilesAwayError, InvalidError, NotFoundError
from coordinator.services.artifacts.bucket.address import BucketAddress
from coordinator.services.artifacts.bucket.client import PART_BYTES, BucketClient, PartsUpload
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.output_buckets import ATTEMPTS, NEXT_LOOK_S, OutputBuckets, OutsideBuckets
from coordinator.store.ports import col
from coordinator.store.records import OutputRecord
from protocol.rest import api
from tests.coordinator.artifacts.test_stores import made_up, pieces, sha
from tests.coordinator.bench import Bench
from tests.support.buckets import KEY, SECRET, BucketServer, in_buckets

HOME = (ipaddress.ip_network("127.0.0.0/8"),)
ADA, BOB = "a" * 32, "b" * 32
MINE = BucketAddress("mine", "models/")


class Points:
    """Checkpoints as they are listed."""

    def __init__(self) -> None:
        self.views: list[api.CheckpointView] = []

    async def list(self, job: str) -> list[api.CheckpointView]:
        return self.views


class Studio:
    """A bench with a job, its files on a disk, and what sends them."""

    def __init__(self, folder: Path, server: BucketServer, allowed: Any = HOME) -> None:
        self.bench = Bench()
        self.store = DiskArtifacts(folder / "artifacts")
        self.points = Points()
        self.server = server
        outside = OutsideBuckets(SystemClock(), allowed)
        context = self.bench.parts.context
        self.buckets = OutputBuckets(context, self.store, cast(Checkpoints, self.points), outside)

    def wanted(self, url: str = "s3://mine/models", **changes: Any) -> api.NewOutput:
        return msgspec.structs.replace(api.NewOutput(url, KEY, SECRET, self.server.url), **changes)

    async def keep(self, data: bytes) -> str:
        return await self.store.put(pieces(data), None, len(data))

    async def becomes(self, job: str, **changes: Any) -> None:
        async with self.bench.store.transaction() as tx:
            await tx.update(msgspec.structs.replace(await tx.get(Job, job), **changes))

    async def checkpoint(self, round_: int, *parts: bytes, verified: bool = True) -> None:
        found = tuple([api.CheckpointPart(n, await self.keep(part), len(part)) for n, part in enumerate(parts)])
        size = sum(map(len, parts))
        self.points.views.insert(0, api.CheckpointView(round_, 0, 0, 0.0, None, None, verified, size, found))

    async def record(self, job: str) -> OutputRecord:
        async with self.bench.store.transaction() as tx:
            return (await tx.find(OutputRecord, col(OutputRecord.job).equals(job)))[0]

    async def names(self) -> set[str]:
        async with self.server.open(MINE) as bucket:
            names, unfinished = await in_buckets(bucket)
            assert unfinished == 0
            return names

    async def bytes_of(self, name: str, size: int) -> bytes:
        async with self.server.open(MINE) as bucket:
            return b"".join([piece async for piece in bucket.read(name, 0, size)])


@pytest.fixture
async def studio(tmp_path: Path) -> AsyncIterator[Studio]:
    server = BucketServer("nanio")
    server.start()
    await server.make("mine")
    yield Studio(tmp_path, server)
    server.remove()


async def test_a_finished_model_goes_there_once_and_its_key_is_forgotten(studio: Studio) -> None:
    job, model = await studio.bench.job(), made_up(2 * PART_BYTES + 5)
    view = await studio.buckets.put(job, ADA, studio.wanted())
    assert (view.state, view.sent, view.answer) == ("waiting", (), "")
    assert SECRET not in str(msgspec.to_builtins(view))
    await studio.checkpoint(4, b"nobody asked for it")
    assert await studio.buckets.send() == 1
    assert await studio.names() == set()
    assert await studio.buckets.send() == 0, "it is looked at once a minute"
    await studio.becomes(job, state=JobState.SETTLED, model=await studio.keep(model))
    studio.bench.clock.t += NEXT_LOOK_S
    assert await studio.buckets.send() == 1
    assert await studio.names() == {f"{job}/model.zip"}
    assert await studio.bytes_of(f"{job}/model.zip", len(model)) == model
    view = await studio.buckets.get(job)
    assert (view.state, view.sent) == ("sent", ("model.zip",))
    assert (await studio.record(job)).secret == ""
    studio.bench.clock.t += 1e6
    assert await studio.buckets.send() == 0


async def test_verified_checkpoints_go_there_as_they_come(studio: Studio) -> None:
    job = await studio.bench.job()
    await studio.buckets.put(job, ADA, studio.wanted(checkpoints=True))
    await studio.checkpoint(4, b"one", b"two")
    await studio.checkpoint(8, b"three", b"four", verified=False)
    await studio.buckets.send()
    first = {f"{job}/round-000004/stage-{stage}.safetensors" for stage in (0, 1)}
    assert await studio.names() == first
    studio.points.views[0] = msgspec.structs.replace(studio.points.views[0], verified=True)
    studio.points.views.pop()  # An older one is not listed any more, and stays in the bucket.
    studio.bench.clock.t += NEXT_LOOK_S
    await studio.buckets.send()
    assert await studio.names() == first | {f"{job}/round-000008/stage-{stage}.safetensors" for stage in (0, 1)}
    assert await studio.bytes_of(f"{job}/round-000008/stage-1.safetensors", 4) == b"four"


async def test_no_address_of_this_network_is_reached(studio: Studio, tmp_path: Path) -> None:
    inside = Studio(tmp_path / "inside", studio.server, allowed=())
    job = await inside.bench.job()
    await inside.becomes(job, state=JobState.SETTLED, model=await inside.keep(b"a model"))
    for endpoint in (studio.server.url, studio.server.url.replace("127.0.0.1", "localhost")):
        await inside.buckets.put(job, ADA, inside.wanted(endpoint=endpoint))
        await inside.buckets.send()
        view = await inside.buckets.get(job)
        assert view.state == "failed"
        assert "is no address of the public Internet" in view.answer
        assert (await inside.record(job)).secret == ""
    assert await studio.names() == set()


async def test_nothing_of_this_machine_is_used(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its key, nor its server, nor its proxy."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the operator")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    job = await studio.bench.job()
    await studio.becomes(job, state=JobState.SETTLED, model=await studio.keep(b"a model"))
    await studio.buckets.put(job, ADA, studio.wanted(key="guessed"))
    await studio.buckets.send()
    view = await studio.buckets.get(job)
    assert (view.state, view.attempts) == ("waiting", 1)
    assert "does not know the access key" in view.answer
    await studio.buckets.put(job, ADA, studio.wanted())
    await studio.buckets.send()
    assert (await studio.buckets.get(job)).state == "sent", "straight, not by the proxy"


async def test_who_does_not_answer_is_tried_again_with_growing_pauses_and_then_given_up(studio: Studio) -> None:
    job = await studio.bench.job()
    await studio.becomes(job, state=JobState.SETTLED, model=await studio.keep(b"a model"))
    await studio.buckets.put(job, ADA, studio.wanted("s3://nowhere"))
    pauses = []
    for _ in range(ATTEMPTS):
        assert await studio.buckets.send() == 1
        view = await studio.buckets.get(job)
        pauses.append(view.due - studio.bench.clock.t)
        studio.bench.clock.t = view.due
    assert pauses[:3] == [10.0, 40.0, 160.0]
    assert (view.state, view.attempts) == ("failed", ATTEMPTS)
    assert "has no bucket of this name" in view.answer
    assert (await studio.record(job)).secret == ""
    assert await studio.buckets.send() == 0
    await studio.buckets.put(job, ADA, studio.wanted())
    await studio.buckets.send()
    assert (await studio.buckets.get(job)).state == "sent", "named again, it begins anew"


async def test_what_breaks_off_leaves_nothing_and_what_has_arrived_is_not_sent_again(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, big = await studio.bench.job(), made_up(3 * PART_BYTES)
    await studio.buckets.put(job, ADA, studio.wanted(checkpoints=True))
    await studio.checkpoint(4, b"small", big)
    send = PartsUpload.send

    async def cut(self: PartsUpload, number: int, data: bytes) -> None:
        if number == 2:
            raise FilesAwayError("the line was cut")
        await send(self, number, data)

    monkeypatch.setattr(PartsUpload, "send", cut)
    await studio.buckets.send()
    assert await studio.names() == {f"{job}/round-000004/stage-0.safetensors"}
    assert (await studio.buckets.get(job)).answer == "the line was cut"
    monkeypatch.setattr(PartsUpload, "send", send)
    (studio.store.path(sha(b"small"))).unlink()
    studio.bench.clock.t += 60.0
    await studio.buckets.send()
    view = await studio.buckets.get(job)
    assert (len(view.sent), view.answer, view.attempts) == (2, "", 0)
    assert await studio.bytes_of(f"{job}/round-000004/stage-1.safetensors", len(big)) == big


async def test_the_coordinators_own_store_is_not_named_to_strangers(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_digest: str) -> int:
        raise FilesAwayError("s3://secret-bucket cannot be reached")

    monkeypatch.setattr(studio.store, "size", away)
    job = await studio.bench.job()
    await studio.becomes(job, state=JobState.SETTLED, model=sha(b"a model"))
    await studio.buckets.put(job, ADA, studio.wanted())
    await studio.buckets.send()
    view = await studio.buckets.get(job)
    assert "secret-bucket" not in view.answer
    assert (view.state, view.attempts) == ("waiting", 0), "and it costs no attempt"


async def test_what_is_named_is_looked_at_and_taken_back(studio: Studio) -> None:
    job = await studio.bench.job()
    with pytest.raises(NotFoundError, match="no bucket is named"):
        await studio.buckets.get(job)
    with pytest.raises(InvalidError, match="a prefix has"):
        await studio.buckets.put(job, ADA, studio.wanted("s3://mine/../theirs"))
    await studio.buckets.put(job, ADA, studio.wanted())
    await studio.buckets.remove(job)
    assert await studio.buckets.send() == 0
    with pytest.raises(NotFoundError):
        await studio.buckets.remove(job)
    await studio.becomes(job, state=JobState.FAILED)
    with pytest.raises(ConflictError, match="has no model"):
        await studio.buckets.put(job, ADA, studio.wanted())


async def test_a_slow_server_holds_up_nobody_else(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    held, jobs = asyncio.Event(), sorted([await studio.bench.job() for _ in range(3)])  # The first one is sent first.
    put = BucketClient.put

    async def slow(self: BucketClient, key: str, data: bytes) -> None:
        if key.startswith(jobs[0]):
            await held.wait()
        await put(self, key, data)

    monkeypatch.setattr(BucketClient, "put", slow)
    for job, account in zip(jobs, (ADA, BOB, ADA), strict=True):
        await studio.becomes(job, state=JobState.SETTLED, model=await studio.keep(job.encode()))
        await studio.buckets.put(job, account, studio.wanted())
    first = asyncio.create_task(studio.buckets.send())
    async with asyncio.timeout(60):
        while (await studio.buckets.get(jobs[1])).state != "sent":
            await asyncio.sleep(0.01)
    assert await studio.buckets.send() == 0, "one job of an account at a time"
    held.set()
    assert await first == 2
    assert await studio.buckets.send() == 1
    assert [(await studio.buckets.get(job)).state for job in jobs] == ["sent"] * 3
