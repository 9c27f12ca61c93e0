"""A worker that answers: a real process behind a real socket, and a model that lies encrypted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.encrypted_files import fresh_key, seal
from coordinator.services.artifacts.model_archives import pack
from protocol.job.job import JobSpec, ModelSpec, ServedAdapter, ServeSpec
from protocol.serving import (
    MODEL_ARCHIVE,
    AnsweredReport,
    CancelCommand,
    CheckedReport,
    CheckEmbeddingsCommand,
    EmbedCommand,
    EmbeddedReport,
    EngineReport,
    GenerateCommand,
    ReadyReport,
    RefusedReport,
    Sampling,
    TextReport,
    adapter_archive,
)
from protocol.task import AbandonRound, AskModel, ModelSaid, StopTask, TaskFailed, TaskReady, TaskReport, WorkerLog
from protocol.worker import Setup, WorkerCommand, WorkerMessage, WorkerReport, read_frame, write_frame
from tests.trainer.router import make_plan, start_process
from tests.trainer.serve.answering import GREEDY, Reports, check_of, end_of, is_over, text_of, tokens_of
from tests.trainer.serve.drawn_adapters import draw_adapter, likeliest, merged
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from trainer.serve import sampling
from trainer.worker import answering
from trainer.worker.answering import MAX_REPORT, Packets

SECONDS = 120.0
SPEC = JobSpec("moo", ModelSpec(from_job="ab" * 16), 1000, serve=ServeSpec(context=256))


class Answers:
    """A worker's other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: Any) -> None:
        self.reader, self.writer, self.process = reader, writer, process
        self.bodies: list[TaskReport] = []
        self.said: Reports = {}

    async def ask(self, command: Any) -> None:
        await write_frame(self.writer, WorkerCommand(AskModel(command)))

    async def until(self, there: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not there():
                message, _ = await read_frame(self.reader, WorkerMessage)
                assert isinstance(message, WorkerReport)
                self.bodies.append(message.body)
                if isinstance(message.body, ModelSaid):
                    for one in message.body.reports:
                        self.said.setdefault(getattr(one, "id", ""), []).append(one)

    def has(self, kind: type) -> bool:
        return any(isinstance(one, kind) for one in self.bodies)

    async def over(self, *requests: str) -> list[list[EngineReport]]:
        await self.until(lambda: all(is_over(self.said.get(one, [])) for one in requests))
        return [self.said[one] for one in requests]


Start = Callable[..., AbstractAsyncContextManager[Answers]]


@pytest.fixture
def start(folder: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:  # noqa: F811
    sockets = tmp_path_factory.mktemp("s")

    @contextlib.asynccontextmanager
    async def started(
        change: Callable[[bytes], bytes] = lambda data: data, adapters: Sequence[Path] = ()
    ) -> AsyncIterator[Answers]:
        pack(folder, tmp_path / "packed")
        key = fresh_key()
        (tmp_path / "job").mkdir(exist_ok=True)
        seal(tmp_path / "job" / MODEL_ARCHIVE, key, change((tmp_path / "packed").read_bytes()))
        keys = {MODEL_ARCHIVE: key}
        for number, adapter in enumerate(adapters, 1):
            pack(adapter, tmp_path / "packed")
            keys[adapter_archive(number)] = fresh_key()
            sealed = tmp_path / "job" / adapter_archive(number)
            seal(sealed, keys[adapter_archive(number)], (tmp_path / "packed").read_bytes())
        beside = tuple(ServedAdapter(f"{number:032x}") for number in range(len(adapters)))
        spec = msgspec.structs.replace(SPEC, serve=ServeSpec(context=256, adapters=beside))
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()
        server = await asyncio.start_unix_server(lambda r, w: connected.set_result((r, w)), sockets / "w.sock")
        process = await asyncio.to_thread(start_process, ["worker", "--socket", str(sockets / "w.sock")], False)
        async with asyncio.timeout(SECONDS):
            reader, writer = await connected
        server.close()
        setup = Setup(spec, make_plan([(0, 1)], [0]), 0, 0, str(tmp_path / "job"), 1, keys=keys)
        await write_frame(writer, setup)
        try:
            yield Answers(reader, writer, process)
        finally:
            process.kill()
            writer.close()

    return started


async def test_a_worker_answers_two_at_once_and_goes_on_with_what_was_begun(start: Start) -> None:
    first = GenerateCommand("first", "Say:", tokens=40, sampling=Sampling(seed=1))
    second = GenerateCommand("second", "Tell:", tokens=30, sampling=GREEDY)
    async with start() as worker:
        await worker.ask(first)
        await worker.ask(second)
        one, other = await worker.over("first", "second")
        assert isinstance(worker.bodies[0], TaskReady)
        assert worker.bodies[0].parameters > 1000
        assert worker.said[""] == [ReadyReport(256)], "the document says how much"
        packets = [body.reports for body in worker.bodies if isinstance(body, ModelSaid)]
        assert any({"first", "second"} <= {getattr(said, "id", "") for said in packet} for packet in packets)
        assert (end_of(one).tokens, end_of(other).tokens) == (40, 30)

        begun = tokens_of(one)[:11]
        await worker.ask(msgspec.structs.replace(first, id="on", begun=begun))
        await worker.ask(check_of(first, one, "check"))
        on, checked = await worker.over("on", "check")
        assert begun + tokens_of(on) == tokens_of(one)
        assert text_of(one).endswith(text_of(on))
        assert isinstance(checked[-1], CheckedReport)
        assert checked[-1].wrong == ""

        await write_frame(worker.writer, WorkerCommand(AbandonRound(0, 0)))
        await worker.ask(GenerateCommand("long", "Say:", sampling=Sampling(seed=2)))
        await worker.until(lambda: "long" in worker.said)
        await worker.ask(CancelCommand("long"))
        await worker.until(lambda: any("AbandonRound" in one.text for one in lines(worker)))
        await write_frame(worker.writer, WorkerCommand(StopTask("enough")))
        with contextlib.suppress(EOFError):
            await worker.until(lambda: False)
        assert await worker.process.wait() == 0
        assert not is_over(worker.said["long"])


async def test_a_worker_makes_embeddings_and_looks_at_others(start: Start) -> None:
    command = EmbedCommand("texts", ("Say:", "Tell: " * 30))
    async with start() as worker:
        await worker.ask(command)
        (said,) = await worker.over("texts")
        made = tuple(vector for part in said if isinstance(part, EmbeddedReport) for vector in part.vectors)
        for name, vectors in (("right", made), ("wrong", made[::-1])):
            await worker.ask(CheckEmbeddingsCommand(name, command, (4, 180), vectors))
        found = await worker.over("right", "wrong")
        assert [bool(one.wrong) for (one,) in found if isinstance(one, CheckedReport)] == [False, True]
        await worker.ask(EmbedCommand("long", ("x" * 257,)))
        ((refused,),) = await worker.over("long")
        assert refused == RefusedReport("long", "long-text", "text 1 of 1 has 257 tokens: give 1 to 256")


def lines(worker: Answers) -> list[Any]:
    return [line for body in worker.bodies if isinstance(body, WorkerLog) for line in body.lines]


async def test_a_worker_answers_with_an_adapter_that_lies_encrypted(
    start: Start,
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    adapter = draw_adapter(folder, tmp_path / "adapter", 1, 4, ("q_proj", "up_proj"))
    whole = merged(folder, adapter, tmp_path / "whole")
    commands = [GenerateCommand(str(number), "Say:", tokens=20, sampling=GREEDY, adapter=number) for number in range(2)]
    async with start(adapters=[adapter]) as worker:
        for one in commands:
            await worker.ask(one)
        said = await worker.over("0", "1")
    expected = [likeliest(one, "Say:", 20) for one in (folder, whole)]
    assert expected[0] != expected[1]
    assert [tokens_of(one) for one in said] == expected


async def test_a_worker_ends_with_its_agent(start: Start) -> None:
    async with start() as worker:
        await worker.until(lambda: worker.has(TaskReady))
        worker.writer.close()
        assert await worker.process.wait() == 0


@pytest.mark.parametrize(
    ("change", "cause", "part"),
    [
        (lambda _: b"no archive", "inputs", "is no archive"),
        (lambda data: data.replace(b'"llama"', b'"lalma"'), "inputs", "cannot be loaded"),
    ],
)
async def test_a_model_that_cannot_be_loaded_is_the_jobs_own_fault(
    start: Start, change: Callable[[bytes], bytes], cause: str, part: str
) -> None:
    async with start(change) as worker:
        await worker.until(lambda: worker.has(TaskFailed))
        [failed] = [body for body in worker.bodies if isinstance(body, TaskFailed)]
        assert failed.cause == cause
        assert part in failed.reason
        assert await worker.process.wait() == 1


class _Outbox:
    def __init__(self) -> None:
        self.sent: list[ModelSaid] = []

    def report(self, body: ModelSaid) -> None:
        self.sent.append(body)


async def test_what_is_said_goes_in_packets_that_a_frame_holds() -> None:
    outbox: Any = _Outbox()
    packets = Packets(outbox)
    for number in range(300):
        packets.say(TextReport("1", "x", (number,)))
    packets.say(TextReport("2", "y" * 60_000))
    packets.say(TextReport("3", "z" * 60_000))
    packets.say(TextReport("4", "é" * MAX_REPORT))
    packets.flush()
    packets.flush()
    assert [len(one.reports) for one in outbox.sent] == [256, 45, 2]
    assert max(len(msgspec.msgpack.encode(one)) for one in outbox.sent) < 200 << 10
    refused = outbox.sent[-1].reports[-1]
    assert isinstance(refused, RefusedReport)
    assert refused.id == "4"


async def test_a_word_goes_at_once_and_those_after_it_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "PACKET_S", 600.0)
    outbox: Any = _Outbox()
    packets = Packets(outbox)
    packets.say(TextReport("1", "first", (0,)))
    async with asyncio.timeout(60):
        while not outbox.sent:
            await asyncio.sleep(0)
    for number in range(3):
        packets.say(TextReport("1", "x", (number,)))
    await asyncio.sleep(0)
    assert [len(one.reports) for one in outbox.sent] == [1]
    packets.flush()
    assert [len(one.reports) for one in outbox.sent] == [1, 3]


async def test_a_thread_that_dies_ends_the_task_with_its_cause(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> int:
        raise MemoryError("no memory is left")

    monkeypatch.setattr(sampling, "drawn", fail)
    pack(folder, tmp_path / MODEL_ARCHIVE)
    setup = Setup(SPEC, make_plan([(0, 1)], [0]), 0, 0, str(tmp_path), 1)
    outbox: Any = _Outbox()
    reader = asyncio.StreamReader()

    class Writer:
        def write(self, data: bytes) -> None:
            reader.feed_data(data)

        async def drain(self) -> None:
            pass

    await write_frame(Writer(), WorkerCommand(AskModel(GenerateCommand("1", "Say:"))))  # type: ignore[arg-type]
    assert not await answering.answer(setup, reader, outbox)
    assert isinstance(outbox.sent[0], TaskReady)
    failed = outbox.sent[-1]
    assert isinstance(failed, TaskFailed)
    assert failed.cause == "memory"
    said = [one for body in outbox.sent if isinstance(body, ModelSaid) for one in body.reports]
    assert [type(one) for one in said] == [ReadyReport, RefusedReport]
    assert not any(isinstance(one, AnsweredReport) for one in said)
