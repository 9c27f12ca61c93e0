"""Workers that hold a model together: real processes behind real sockets, payloads taken from one to the other."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from common.encrypted_files import fresh_key, seal
from coordinator.services.artifacts.model_archives import pack
from protocol.models.weights import weights_name
from protocol.plan import Plan
from protocol.serving import (
    DRAFT_ARCHIVE,
    MODEL_ARCHIVE,
    SMALL_ARCHIVE,
    EngineCommand,
    GenerateCommand,
    ReadyReport,
    RefusedReport,
    Sampling,
    SketchReport,
)
from protocol.task import AskModel, JoinStages, ModelSaid, StopTask, TaskFailed, TaskReady, TaskReport, WorkerLog
from protocol.worker import (
    PeerDeliver,
    PeerSend,
    Setup,
    TensorName,
    WorkerCommand,
    WorkerMessage,
    WorkerReport,
    read_frame,
    write_frame,
)
from tests.trainer.router import Handle, make_plan, start_process
from tests.trainer.serve.answering import Asking, Reports, end_of, is_over, text_of, tokens_of
from tests.trainer.serve.stages.early_exit import early_exit
from tests.trainer.serve.stages.ring import tensors_of
from tests.trainer.serve.stages.stage_files import CutModel
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from tests.trainer.worker.test_answering import SPEC
from trainer.files.inputs import InputFolder
from trainer.serve.engine import Engine
from trainer.worker.answering import _draft_of

SECONDS = 300.0
CUTS = [(0, 1), (1, 3)]
ASKED = GenerateCommand("asked", "Say:", tokens=30, sampling=Sampling(seed=1))


class Replica:
    """Both workers, and what they say."""

    def __init__(self) -> None:
        self.workers: list[Handle] = []
        self.bodies: list[list[TaskReport]] = [[], []]
        self.said: list[Reports] = [{}, {}]
        self.news = asyncio.Event()

    async def read(self, stage: int) -> None:
        """Take what a worker sends to where it belongs, until it is gone."""
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                message, payload = await read_frame(self.workers[stage].reader, WorkerMessage)
                if isinstance(message, PeerSend):
                    target = self.workers[message.stage].writer
                    await write_frame(target, PeerDeliver(stage, message.replica, message.name), payload)
                elif isinstance(message, WorkerReport):
                    self.bodies[stage].append(message.body)
                    for one in message.body.reports if isinstance(message.body, ModelSaid) else ():
                        self.said[stage].setdefault(getattr(one, "id", ""), []).append(one)
                    self.news.set()

    async def until(self, there: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not there():
                self.news.clear()
                await self.news.wait()

    def has(self, kind: type) -> list[bool]:
        return [any(isinstance(one, kind) for one in bodies) for bodies in self.bodies]

    def drafts(self) -> list[str]:
        """What the first stage's log says of a draft model."""
        told = [line.text for one in self.bodies[0] if isinstance(one, WorkerLog) for line in one.lines]
        return [text for text in told if "draft" in text]

    async def join(self, plan: Plan) -> None:
        for one in self.workers:
            await write_frame(one.writer, WorkerCommand(JoinStages(plan)))

    async def ask(self, command: EngineCommand, stage: int = 0) -> None:
        await write_frame(self.workers[stage].writer, WorkerCommand(AskModel(command)))

    async def over(self, command: EngineCommand, stage: int = 0) -> list[object]:
        """What comes of a command, without sketches."""

        def told() -> list[object]:
            return [one for one in self.said[stage].get(command.id, []) if not isinstance(one, SketchReport)]

        await self.ask(command, stage)
        await self.until(lambda: is_over(told()))  # type: ignore[arg-type]
        return told()


def laid_out(made: CutModel, into: Path, whole: bool, draft: bytes | None = None) -> list[Setup]:
    """What each stage begins with: the weights of its layers, or the whole model where a deployment has no index of them.

    ``draft``: the archive of a draft model, which the first one has, too.
    """
    setups, plan = [], make_plan(CUTS, [0])
    for stage, layers in enumerate(plan.layers):
        key, weights_key, here = fresh_key(), fresh_key(), into / f"job-{stage}"
        here.mkdir()
        name, source = (MODEL_ARCHIVE, made.archive) if whole else (SMALL_ARCHIVE, made.small)
        seal(here / name, key, source.read_bytes())
        keys = {name: key}
        if draft is not None and stage == 0:
            keys[DRAFT_ARCHIVE] = fresh_key()
            seal(here / DRAFT_ARCHIVE, keys[DRAFT_ARCHIVE], draft)
        if not whole:
            seal(here / weights_name(layers), weights_key, made.weights(layers, CUTS[-1][1]))
        setups.append(Setup(SPEC, plan, stage, 0, str(here), 1, keys=keys, weights_key=weights_key))
    return setups


@pytest.fixture(params=["own weights"])
async def replica(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Replica]:
    sockets = tmp_path_factory.mktemp("s")
    made = CutModel.of(folder, tmp_path / "made")
    pack(early_exit(folder, 1, tmp_path / "small"), tmp_path / DRAFT_ARCHIVE)
    draft = {"a draft model": (tmp_path / DRAFT_ARCHIVE).read_bytes(), "a broken draft model": b"PK"}.get(request.param)
    setups = laid_out(made, tmp_path, request.param == "whole model", draft)
    here, reading = Replica(), list[asyncio.Task[None]]()
    try:
        for stage in range(2):
            connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()
            path = str(sockets / f"{stage}.sock")
            server = await asyncio.start_unix_server(lambda r, w, to=connected: to.set_result((r, w)), path)  # type: ignore[misc]
            process = await asyncio.to_thread(start_process, ["worker", "--socket", path], False)
            async with asyncio.timeout(SECONDS):
                here.workers.append(Handle(process, *await connected))
            server.close()
            await write_frame(here.workers[stage].writer, setups[stage])
            reading.append(asyncio.ensure_future(here.read(stage)))
        yield here
    finally:
        for one in here.workers:
            one.process.kill()
            one.writer.close()
        await asyncio.gather(*reading)


@pytest.mark.parametrize(
    "replica", ["own weights", "whole model", "a draft model", "a broken draft model"], indirect=True
)
async def test_two_workers_answer_together_and_end_when_they_are_told(
    folder: Path,  # noqa: F811
    replica: Replica,
    request: pytest.FixtureRequest,
) -> None:
    await replica.until(lambda: all(replica.has(TaskReady)))
    await replica.until(lambda: "" in replica.said[0])
    assert replica.said[0][""] == [ReadyReport(256)]
    assert replica.said[1] == {}, "only the first stage says that the model is ready"
    early = (await replica.over(GenerateCommand("early", "Say:")))[-1]
    assert isinstance(early, RefusedReport)
    assert early.code == "failed"

    await replica.join(make_plan(CUTS, [0], epoch=3))
    found = await replica.over(ASKED)
    await replica.until(
        lambda: all(any(isinstance(one, SketchReport) for one in s.get("asked", [])) for s in replica.said)
    )
    asking = Asking()
    async with Engine(folder, 1, asking.say, context=256) as engine:
        expected = (await asking.over(engine, ASKED))[ASKED.id]
    assert tokens_of(found) == tokens_of(expected)  # type: ignore[arg-type]
    assert text_of(found) == text_of(expected)  # type: ignore[arg-type]
    assert end_of(found) == end_of(expected)  # type: ignore[arg-type]
    sides = [[one.side for one in s["asked"] if isinstance(one, SketchReport)] for s in replica.said]
    assert sides == [["sent"], ["got"]]

    refused = (await replica.over(GenerateCommand("there", "Say:"), stage=1))[-1]
    assert isinstance(refused, RefusedReport), "only the first stage is asked"
    long = TensorName("pass", 3, 0, 99, 0)
    await write_frame(replica.workers[1].writer, PeerDeliver(0, 0, long), bytes(4 << 20))  # Longer than any pass.
    again = await replica.over(GenerateCommand("again", "Tell:", tokens=5))
    assert end_of(again).tokens == 5  # type: ignore[arg-type]

    expects = {"a draft model": "drafts here", "a broken draft model": "cannot be loaded, and answers go on without it"}
    wanted = expects.get(request.node.callspec.params["replica"])
    await replica.until(lambda: not wanted or bool(replica.drafts()))  # A worker's words go in parcels.
    assert [wanted in text for text in replica.drafts()] == [True] if wanted else not replica.drafts()

    for one in replica.workers:
        await write_frame(one.writer, WorkerCommand(StopTask("enough")))
    assert [await one.process.wait() for one in replica.workers] == [0, 0]
    assert replica.has(TaskFailed) == [False, False]


async def test_a_plan_with_other_cuts_ends_the_task(replica: Replica) -> None:
    await replica.until(lambda: all(replica.has(TaskReady)))
    await replica.join(make_plan([(0, 2), (2, 3)], [0], epoch=1))
    await replica.until(lambda: all(replica.has(TaskFailed)))
    assert [await one.process.wait() for one in replica.workers] == [1, 1]


@pytest.mark.parametrize("how", ["damaged", "without numbers"])
def test_a_stage_answers_without_a_draft_model_that_cannot_be_used(
    how: str,
    folder: Path,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    small = early_exit(folder, 1, tmp_path / "small")
    if how == "without numbers":
        weights = tensors_of(small)
        broken = {name: torch.full_like(value, torch.nan) for name, value in weights.items()}
        save_file(broken, small / "model.safetensors", metadata={"format": "pt"})
    pack(small, tmp_path / DRAFT_ARCHIVE)
    made = CutModel.of(folder, tmp_path / "made")
    first = laid_out(made, tmp_path, False, (tmp_path / DRAFT_ARCHIVE).read_bytes())[0]
    sealed = Path(first.folder) / DRAFT_ARCHIVE
    if how == "damaged":
        content = bytearray(sealed.read_bytes())
        content[len(content) // 2] ^= 1
        sealed.write_bytes(content)
    files = InputFolder(Path(first.folder), first.keys, first.weights_key)
    with caplog.at_level(logging.WARNING, "cottage.worker"):
        assert _draft_of(first, files, tmp_path / "draft") is None
    assert "the draft model cannot be loaded, and answers go on without it" in caplog.text
