"""A worker whose job answers instead of learning: the model in memory, requests in, pieces of answers out."""

import asyncio
import logging
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from protocol.codec import MessageError
from protocol.serving import (
    DRAFT_ARCHIVE,
    MAX_SAID,
    MODEL_ARCHIVE,
    SMALL_ARCHIVE,
    EngineReport,
    ReadyReport,
    RefusedReport,
    adapter_archive,
)
from protocol.task import AskModel, JoinStages, ModelSaid, StopTask, TaskReady
from protocol.worker import AgentMessage, PeerDeliver, PeerSend, Setup, WorkerCommand, read_exactly, read_head
from trainer.audit.environment import configure, env_class
from trainer.files.archives import LazyTensor, ModelArchive, stage_tensors
from trainer.files.inputs import InputFolder
from trainer.serve.adapters import AdapterFiles
from trainer.serve.engine import Engine, Say
from trainer.serve.stages.draft_model import DraftModel
from trainer.serve.stages.engine import StageEngine
from trainer.worker.outbox import WorkerOutbox
from trainer.worker.thread_guard import guarded

PACKET_S = 0.02  # Between two packets; what is said meanwhile goes together.
PACKET_BYTES = 64 << 10  # More goes in two: the coordinator takes frames of four times as many.
MAX_REPORT = 192 << 10  # A report that no frame holds is not sent.
SKIPPED_AT_ONCE = 1 << 20
LACKS_MEMORY = "the model does not fit into this machine's memory"

LOG = logging.getLogger("cottage.worker")


class Packets:
    """Gathers what the model says. All on one loop."""

    def __init__(self, outbox: WorkerOutbox) -> None:
        """Give packets to ``outbox``."""
        self._outbox = outbox
        self._waiting: list[EngineReport] = []
        self._bytes = 0
        self._due: asyncio.TimerHandle | None = None
        self._next = 0.0  # When another packet may go, by the loop's clock.

    def say(self, report: EngineReport) -> None:
        """Keep a report until its packet goes."""
        size = len(msgspec.msgpack.encode(report))
        if size > MAX_REPORT and not isinstance(report, ReadyReport):
            report = RefusedReport(
                report.id, "failed", f"what the model said at once has {size:,} bytes: too many to send"
            )
            size = 0
        if len(self._waiting) >= MAX_SAID or (self._waiting and self._bytes + size > PACKET_BYTES):
            self.flush()
        self._waiting.append(report)
        self._bytes += size
        if self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_later(max(0.0, self._next - loop.time()), self.flush)

    def flush(self) -> None:
        """Send what is there."""
        if self._due is not None:
            self._due.cancel()
        reports, self._waiting, self._bytes, self._due = tuple(self._waiting), [], 0, None
        self._next = asyncio.get_running_loop().time() + PACKET_S
        if reports:
            self._outbox.report(ModelSaid(reports))


Engines = Engine | StageEngine


async def answer(setup: Setup, reader: asyncio.StreamReader, outbox: WorkerOutbox) -> bool:
    """Load the model, then answer until the agent stops the task or goes away; False where it failed, which is reported."""
    packets, made = Packets(outbox), list[Engines]()
    loading = partial(guarded, outbox, lambda: made.append(_load(setup, packets.say, outbox)), LACKS_MEMORY)
    if not await asyncio.to_thread(loading):
        return False
    async with made.pop() as engine:
        LOG.info("%s parameters answer on %s", f"{engine.parameters:,}", setup.device)
        outbox.report(TaskReady(env_class(setup.threads, setup.device), engine.parameters))
        if not isinstance(engine, StageEngine) or engine.leads:
            packets.say(ReadyReport(engine.longest))
        failure = await engine.beside(_read(reader, engine))
        packets.flush()
        return failure is None or guarded(outbox, partial(_fail, failure), LACKS_MEMORY)


def _load(setup: Setup, say: Say, outbox: WorkerOutbox) -> Engines:
    served = setup.spec.serve
    assert served is not None
    files = InputFolder(Path(setup.folder), setup.keys, setup.weights_key)
    cut = files.has(SMALL_ARCHIVE)  # Else the whole model is here, also where this is one of several stages.
    archive = ModelArchive(files.file(SMALL_ARCHIVE if cut else MODEL_ARCHIVE))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        archive.unpack_small(folder)
        weights = _tensors_of_stage(setup, files) if cut else archive.tensors()
        count = len(served.adapters)
        adapters = [AdapterFiles.of_archive(files.file(adapter_archive(number))) for number in range(1, count + 1)]
        if len(setup.plan.layers) > 1:
            draft = _draft_of(setup, files, folder / "draft") if files.has(DRAFT_ARCHIVE) else None
            send = partial(_send, outbox)
            return StageEngine(folder, setup, say, send, weights, adapters, draft)
        return Engine(folder, setup.threads, say, setup.device, served.context, weights, served.weights, adapters)


def _send(outbox: WorkerOutbox, name: PeerSend, pieces: tuple[bytes | memoryview, ...]) -> None:
    outbox.put(name, *pieces)


def _draft_of(setup: Setup, files: InputFolder, folder: Path) -> DraftModel | None:
    """The draft model; None where it cannot be loaded: answers go on without it, and the log says so."""
    assert setup.spec.serve is not None
    configure(setup.threads, setup.device)
    try:
        folder.mkdir()
        archive = ModelArchive(files.file(DRAFT_ARCHIVE))
        archive.unpack_small(folder)
        draft = DraftModel(folder, archive.tensors(), setup.device, setup.spec.serve.context)
    except Exception as error:  # noqa: BLE001 - whatever it is: a file that was changed, numbers that are none
        LOG.warning("the draft model cannot be loaded, and answers go on without it: %s", error)
        return None
    LOG.info("a draft model of %s parameters drafts here", f"{draft.parameters:,}")
    return draft


def _tensors_of_stage(setup: Setup, files: InputFolder) -> Mapping[str, LazyTensor]:
    """What the agent fetched for this seat."""
    assert setup.stage is not None
    return stage_tensors(files.weights_of(setup.plan.layers[setup.stage]))


def _fail(error: BaseException) -> None:
    raise error


async def _read(reader: asyncio.StreamReader, engine: Engines) -> None:
    """Ask the engine until the agent stops the task or goes away."""
    try:
        while True:
            message, size = await read_head(reader, AgentMessage)
            wanted = not isinstance(message, PeerDeliver) or (
                isinstance(engine, StageEngine) and engine.takes(message.name, message.stage, message.replica, size)
            )
            payload = await read_exactly(reader, size) if wanted else await _skip(reader, size)
            match message:
                case WorkerCommand(body=AskModel(body=command)):
                    engine.ask(command)
                case WorkerCommand(body=JoinStages(plan=plan, key=key)) if isinstance(engine, StageEngine):
                    engine.join(plan, key)
                case PeerDeliver(stage=stage, replica=replica, name=name) if isinstance(engine, StageEngine):
                    if wanted:
                        engine.deliver(name, stage, replica, payload)
                case WorkerCommand(body=StopTask(reason=reason)):
                    LOG.info("stopped: %s", reason)
                    return
                case WorkerCommand(body=body):
                    LOG.warning("a model that answers is not told %s", type(body).__name__)
                case _:
                    LOG.warning("a model that answers is not told %s", type(message).__name__)
    except EOFError:
        LOG.info("the agent is gone")
    except MessageError as error:
        LOG.error("the agent sent a message that cannot be read: %s", error)


async def _skip(reader: asyncio.StreamReader, size: int) -> bytes:
    """Read past a payload that nobody wants; nothing of it is kept."""
    while size:
        size -= len(await read_exactly(reader, min(size, SKIPPED_AT_ONCE)))
    return b""
