"""What a worker hands over and is handed: the same bytes whatever their length, on the disk where they are many."""

import asyncio
import contextlib
import hashlib
import hmac
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.encrypted_files import seal
from desktop.agent.base.payloads import BORDER, Payload, SmallPayload, read_pieces
from desktop.agent.errors import WorkerProtocolError
from desktop.agent.jobs import spool
from desktop.agent.jobs.crash_records import RoundStart
from desktop.agent.jobs.outside import Outside
from desktop.agent.jobs.spool import Spooled
from desktop.agent.jobs.state_store import StateStore
from desktop.agent.jobs.worker_bridge import WorkerBridge
from protocol.codec import encode
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, TrainingSpec
from protocol.models.handed_bytes import handed_bytes
from protocol.models.model import inspect_config, resolve
from protocol.node import Assign
from protocol.state import digest_of, manifest_of
from protocol.task import (
    BeginRound,
    KeptState,
    Layers,
    OuterRecord,
    ReplayOuter,
    RoundApplied,
    StepOpened,
    TaskReport,
    Validation,
    WorkerLog,
)
from protocol.worker import (
    MAX_PAYLOAD,
    AgentMessage,
    PeerSend,
    RecordKept,
    RecordPart,
    RecordRecall,
    Setup,
    TensorName,
    WorkerCommand,
    WorkerReport,
    read_frame,
    write_frame,
)
from tests.desktop.conftest import JOB, plan_of
from tests.support.published_configs import LLAMA_3_2_1B

SECRET, NODE = b"s" * 32, "1" * 32
SIZES = (0, 1, BORDER, BORDER + 1, 2 * BORDER + 77)
LAST = (1 << 20) + 3


def some(size: int) -> bytes:
    return random.Random(size).randbytes(size)


class Agent:
    """A bridge with a real store; what leaves it is kept here."""

    def __init__(self, folder: Path, assign: Assign | None = None) -> None:
        spec = JobSpec("small", ModelSpec("tiny-llama"), 1_000_000, DatasetSpec("00" * 32))
        self.assign = assign or Assign("ab" * 16, 3, JOB, spec, 0, 0, plan_of((0, 0, NODE)), {})
        self.folder = folder
        self.store = StateStore(folder, SECRET)
        self.reports: asyncio.Queue[TaskReport] = asyncio.Queue()
        self.uploaded: dict[str, bytes] = {}
        self.recorded: list[tuple[RecordPart, bytes]] = []
        self.stored: dict[str, Payload] = {}
        self.kinds: list[type] = []
        self.bridge = WorkerBridge(
            self.assign,
            Outside(
                self._nothing,
                self._upload,
                self._fetch,
                self._fetch_state,
                self._keep,
                self.store.spool,
                self._report,
                self._record,
            ),
        )

    async def _nothing(self, *_: object) -> None:
        raise AssertionError("nobody is sent anything")

    async def _upload(self, payload: Payload, digest: str, answers: str, urgent: bool) -> None:
        self.kinds.append(type(payload))
        self.uploaded[digest] = b"".join(read_pieces(payload))

    async def _fetch(self, digest: str) -> Payload:
        return self.stored[digest]

    async def _fetch_state(self, kept: KeptState) -> Payload:
        return self.stored[kept.manifest]

    async def _keep(self, state: Payload, own: bool) -> str:
        return await asyncio.to_thread(self.store.keep, "own" if own else "seat", state)

    async def _report(self, body: TaskReport, _reliable: bool) -> None:
        self.reports.put_nowait(body)

    async def _record(self, part: RecordPart, _start: RoundStart, payload: Payload) -> bool:
        self.kinds.append(type(payload))
        self.recorded.append((part, b"".join(read_pieces(payload))))
        return True

    def on_the_way(self) -> list[Path]:
        return list(self.folder.glob(f"*{spool.PART}"))

    @asynccontextmanager
    async def worker(self) -> AsyncIterator["Worker"]:
        inner, outer = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=inner)
        worker = Worker(*await asyncio.open_connection(sock=outer))
        assign = self.assign
        setup = Setup(assign.spec, assign.plan, 0, 0, "/", 1)
        serving = asyncio.create_task(self.bridge.serve(reader, writer, setup))
        worker.served = serving
        await read_frame(worker.reader, AgentMessage)
        yield worker
        worker.writer.close()
        with contextlib.suppress(EOFError, WorkerProtocolError, OSError):
            await serving
        writer.close()


class Worker:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.served: asyncio.Task[None]

    async def announce(self, message: object, length: int, *sent: bytes) -> None:
        header = encode(message)  # type: ignore[arg-type]
        self.writer.write(struct.pack("<IQ", len(header), length) + header + b"".join(sent))
        await self.writer.drain()


@pytest.mark.parametrize("size", SIZES)
async def test_an_opening_of_any_length_is_stored_as_it_was_handed_over(tmp_path: Path, size: int) -> None:
    agent, data = Agent(tmp_path), some(size)
    digest = hashlib.sha256(data).hexdigest()
    async with agent.worker() as worker:
        await write_frame(worker.writer, WorkerReport(StepOpened("ab" * 16, digest)), data)
        said = [await agent.reports.get() for _ in range(2 if size else 1)]
        assert isinstance(said[-1], StepOpened)
        assert said[-1].opening == digest
    assert agent.uploaded == ({digest: data} if size else {})
    assert agent.kinds == ([Spooled if size > BORDER else SmallPayload] if size else [])
    assert agent.on_the_way() == []


@pytest.mark.parametrize("size", [size for size in SIZES if size])
@pytest.mark.parametrize("moments", [0, 5, LAST])
async def test_a_state_is_kept_and_stored_with_its_moments_beside_it(tmp_path: Path, size: int, moments: int) -> None:
    agent, state, own = Agent(tmp_path), some(size), some(moments + 1)[:moments]
    digest = hashlib.sha256(state).hexdigest()
    async with agent.worker() as worker:
        report = WorkerReport(RoundApplied(0, 0, "ab" * 32, digest), size if own else 0)
        await write_frame(worker.writer, report, state + own)
        said = await agent.reports.get()
        assert isinstance(said, RoundApplied)
        for name, data in ((said.kept, state), (said.moments, own)):
            kept = None if name is None else agent.store.whole(name)
            assert (b"" if kept is None else kept.read()) == data
            assert kept is None or agent.store.manifest(str(name)) == manifest_of(data)
    assert agent.uploaded == {digest: state}
    assert agent.on_the_way() == []


@pytest.mark.parametrize("size", SIZES)
async def test_a_record_of_any_length_is_kept_as_it_was_handed_over(tmp_path: Path, size: int) -> None:
    agent, part, data = Agent(tmp_path), RecordPart(0, 0, "steps"), some(size)
    async with agent.worker() as worker:
        await write_frame(worker.writer, RecordPart(0, 0, "state"), some(BORDER + 9))
        await write_frame(worker.writer, part, data)
        assert await read_frame(worker.reader, AgentMessage) == (RecordKept(0, 0, "steps"), b"")
    assert agent.recorded == [(part, data)]
    assert agent.on_the_way() == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spooled", [False, True])
async def test_a_worker_is_handed_a_state_and_moments_of_any_length(tmp_path: Path, size: int, spooled: bool) -> None:
    agent = Agent(tmp_path)
    state, own = SmallPayload(some(size)), SmallPayload(some(LAST))
    given = agent.store.spool.copy(state) if spooled and size else state
    agent.stored = {"aa" * 32: given, "bb" * 32: agent.store.spool.copy(own) if spooled else own}
    begin = BeginRound(
        agent.assign.plan, 3, 30, 10, 100, kept=KeptState("aa" * 32, ()), moments=KeptState("bb" * 32, ())
    )
    async with agent.worker() as worker:
        agent.bridge.command(begin)
        message, payload = await read_frame(worker.reader, AgentMessage)
        async with asyncio.timeout(30):  # Both are kept here, too: a record of the round needs them.
            while len(list(tmp_path.glob("*.sealed"))) < 2:
                await asyncio.sleep(0.001)
    assert message == WorkerCommand(begin, size)
    assert payload == state.data + own.data
    assert agent.on_the_way() == []


@pytest.mark.parametrize("size", SIZES)
async def test_a_worker_is_handed_an_opening_of_any_length(tmp_path: Path, size: int) -> None:
    agent, opening = Agent(tmp_path), SmallPayload(some(size))
    agent.stored = {"aa" * 32: agent.store.spool.copy(opening)}  # In the agent it lies in the cache.
    plan = agent.assign.plan
    replay = ReplayOuter("ab" * 16, plan, 0, 1, {0: "cd" * 32}, outer_record(), "ef" * 32, "aa" * 32)
    async with agent.worker() as worker:
        agent.bridge.command(replay)
        assert await read_frame(worker.reader, AgentMessage) == (WorkerCommand(replay), opening.data)


def outer_record() -> OuterRecord:
    return OuterRecord("11" * 32, "22" * 32)


# --- hostile lengths ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "length", "words"),
    [
        (WorkerReport(RoundApplied(0, 0, "ab" * 32)), MAX_PAYLOAD, "the owner lends"),
        (WorkerReport(StepOpened("ab" * 16, None)), MAX_PAYLOAD, "the owner lends"),
        (RecordPart(0, 0, "state"), MAX_PAYLOAD, "the owner lends"),
        (WorkerReport(RoundApplied(0, 0, "ab" * 32)), MAX_PAYLOAD + 1, "beyond the limits"),
        (WorkerReport(Validation(0, 0, 1.0, 1)), BORDER + 1, "carries no artifact"),
        (WorkerReport(Validation(0, 0, 1.0, 1)), 1, "carries no artifact"),
        (WorkerReport(WorkerLog(())), MAX_PAYLOAD, "carries none"),
        (RecordRecall(0, 0, "steps"), 1, "carries none"),
        (PeerSend(0, 1, TensorName("activation", 0, 0, 0, 0)), (512 << 20) + 1, "for a peer"),
        (PeerSend(0, 1, TensorName("activation", 0, 0, 0, 0)), 0, "for a peer"),
    ],
)
async def test_what_nobody_may_hand_over_ends_the_task_before_it_is_taken(
    tmp_path: Path, message: object, length: int, words: str
) -> None:
    agent = Agent(tmp_path)
    async with agent.worker() as worker:
        await worker.announce(message, length, b"x")
        with pytest.raises(WorkerProtocolError, match=words):
            await worker.served
    assert list(tmp_path.iterdir()) == []


def of_llama(folder: Path) -> Agent:
    """An agent with a seat in a lean job of 1.2 billion parameters in two stages."""
    training = TrainingSpec(memory="lean", precision="bf16", pseudo_gradient="coarse")
    spec = JobSpec("large", ModelSpec(config=LLAMA_3_2_1B), 1_000_000, DatasetSpec("00" * 32), training=training)
    plan = plan_of((0, 0, NODE), (1, 0, NODE))
    plan = type(plan)(0, (Layers(0, 8), Layers(8, 16)), plan.members)
    agent = Agent(folder, Assign("ab" * 16, 3, JOB, spec, 0, 0, plan, {}))
    agent.bridge.shape = inspect_config(resolve(ModelSpec(config=LLAMA_3_2_1B), 128_256))
    agent.store.lend(10**12)
    return agent


@pytest.mark.parametrize(
    ("message", "length", "words"),
    [
        (WorkerReport(RoundApplied(0, 0, "ab" * 32)), 14 * 10**9, "a state of 14,000,000,000 bytes: this job's has"),
        (RecordPart(0, 0, "state"), 14 * 10**9, "a state of 14,000,000,000 bytes: this job's has"),
        (RecordPart(0, 0, "outer"), 60 * 10**9, "a record of 60,000,000,000 bytes: this job's has"),
        (WorkerReport(StepOpened("ab" * 16, None)), 60 * 10**9, "an artifact of 60,000,000,000 bytes: this job's has"),
    ],
)
async def test_what_no_stage_of_the_job_can_come_to_is_not_taken(
    tmp_path: Path, message: object, length: int, words: str
) -> None:
    agent = of_llama(tmp_path)
    async with agent.worker() as worker:
        await worker.announce(message, length)
        with pytest.raises(WorkerProtocolError, match=words):
            await worker.served
    assert list(tmp_path.iterdir()) == []


def test_bounds_of_a_large_job_are_above_what_it_hands_over_and_not_far(tmp_path: Path) -> None:
    agent = of_llama(tmp_path)
    assert agent.bridge.shape is not None
    bounds = handed_bytes(agent.bridge.shape, agent.assign.spec, agent.assign.plan, 0, 2)
    parameters = agent.bridge.shape.stage_parameters(0, 8, True, False)
    assert 16 * parameters <= bounds.state <= 18 * parameters
    assert 40 * parameters <= bounds.other <= 100 * parameters


# --- the disk ---------------------------------------------------------------------------------------------------------------


async def test_a_disk_without_room_is_said_before_anything_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(tmp_path)
    monkeypatch.setattr(spool, "SPARE_BYTES", 1 << 60)
    async with agent.worker() as worker:
        await worker.announce(WorkerReport(RoundApplied(0, 0, "ab" * 32)), BORDER + 1)
        with pytest.raises(OSError, match=r"8,388,609 bytes are to be kept on the disk, which has [\d,]+ left"):
            await worker.served
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_files() -> Iterator[None]:
    """The system lets no file become larger than twelve megabytes, as a disk does that fills up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
async def test_a_disk_that_fills_up_in_the_middle_ends_the_task_in_clear_words(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with agent.worker() as worker:
        handing = asyncio.create_task(
            worker.announce(WorkerReport(RoundApplied(0, 0, "ab" * 32)), 2 * BORDER, some(2 * BORDER))
        )
        with pytest.raises(OSError, match="16,777,216 bytes are to be kept on the disk: the disk is full: make room"):
            await worker.served
        handing.cancel()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_files")
async def test_a_record_that_the_disk_does_not_take_is_passed_over_and_work_goes_on(tmp_path: Path) -> None:
    agent, data = Agent(tmp_path), some(100)
    digest = hashlib.sha256(data).hexdigest()
    async with agent.worker() as worker:
        await write_frame(worker.writer, RecordPart(0, 0, "steps"), some(2 * BORDER))
        await write_frame(worker.writer, WorkerReport(RoundApplied(0, 0, "ab" * 32, digest)), data)
        said = await agent.reports.get()
        assert isinstance(said, RoundApplied)
    assert agent.recorded == []
    assert agent.uploaded == {digest: data}
    assert agent.on_the_way() == []


async def test_a_record_beyond_what_the_owner_lends_is_passed_over_too(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.store.lend(BORDER)
    async with agent.worker() as worker:
        await write_frame(worker.writer, RecordPart(0, 0, "steps"), some(BORDER + 1))
        await write_frame(worker.writer, WorkerReport(RoundApplied(0, 0, "ab" * 32)), b"state")
        assert isinstance(await agent.reports.get(), RoundApplied)
    assert agent.recorded == []


async def test_a_worker_that_goes_away_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with agent.worker() as worker:
        await worker.announce(WorkerReport(StepOpened("ab" * 16, None)), 3 * BORDER, bytes(2 * BORDER))
        while not agent.on_the_way():
            await asyncio.sleep(0.001)
        worker.writer.close()
        with pytest.raises(EOFError):
            await worker.served
    assert list(tmp_path.iterdir()) == []


DIES = """
import os, signal, sys
from pathlib import Path
from desktop.agent.jobs.state_store import StateStore
store = StateStore(Path(sys.argv[1]), b"s" * 32)
store.keep("seat", b"kept" * 1000)
coming = store.spool.begin(30 << 20)
for _ in range(20):
    coming.write(bytes(1 << 20))
print(len(list(Path(sys.argv[1]).iterdir())), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_agent_that_is_killed_in_the_middle_finds_what_it_kept_and_nothing_else(tmp_path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, "3\n"), died.stderr
    store = StateStore(tmp_path, SECRET)
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".manifest", ".sealed"]
    [file] = tmp_path.glob("*.manifest")
    kept = store.whole(file.name.split(".")[1])
    assert kept is not None
    assert kept.read() == b"kept" * 1000


def test_a_state_is_moved_onto_the_shelf_and_not_written_again(tmp_path: Path) -> None:
    store, data = StateStore(tmp_path, SECRET), some(BORDER + 1)
    spooled = store.spool.copy(SmallPayload(data))
    [part] = tmp_path.iterdir()
    place = part.stat().st_ino
    digest = store.keep("seat", spooled)
    [file] = tmp_path.glob("*.sealed")
    assert file.stat().st_ino == place
    other = store.keep("another", spooled)  # Who has it already does not lose it.
    assert other == digest
    assert len(list(tmp_path.glob(f"*.{digest}.*.sealed"))) == 2
    del spooled
    kept = store.whole(digest)
    assert kept is not None
    assert kept.read() == data


def test_a_state_that_an_earlier_version_kept_is_still_read(tmp_path: Path) -> None:
    data = some(70_000)
    manifest = encode(manifest_of(data))
    digest = digest_of(manifest)
    key = hmac.digest(SECRET, b"cottage/shelf/1\0" + digest.encode(), hashlib.sha256)
    seal(tmp_path / f"seat.{digest}.sealed", key, data)
    (tmp_path / f"seat.{digest}.manifest").write_bytes(manifest)
    kept = StateStore(tmp_path, SECRET).whole(digest)
    assert kept is not None
    assert kept.read() == data
