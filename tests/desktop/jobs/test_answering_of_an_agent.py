"""A node that answers with a model: a real agent, a scripted coordinator, and workers in real processes."""

import secrets
from pathlib import Path

import msgspec
import pytest

from coordinator.services.artifacts.model_archives import pack
from desktop.agent.coordinator.report_outbox import REPORTS_BURST
from desktop.agent.jobs.model_words import PACKET_BYTES, ModelReports
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.process import ProcessSandbox
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, ServeSpec
from protocol.node import Assign
from protocol.serving import (
    MODEL_ARCHIVE,
    AnsweredReport,
    CheckedReport,
    EmbedCommand,
    EmbeddedReport,
    EngineReport,
    GenerateCommand,
    ProveCommand,
    ProvenReport,
    ReadyReport,
    RefusedReport,
    Sampling,
    TextReport,
)
from protocol.task import AskModel, ModelSaid, StopTask, TaskFailed, TaskReady
from tests.desktop.app.test_agent_as_a_process import words_of
from tests.desktop.conftest import JOB, Running, StartAgent, plan_of
from tests.desktop.coordinator_double import Double
from tests.desktop.scripted_worker import WORDS
from tests.trainer.serve.answering import check_of, end_of, is_over, text_of, tokens_of
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture

LOADS_S = 120.0


def serving(coordinator: Double, node: Running, name: str, archive: bytes = b"") -> Assign:
    spec = JobSpec(name, ModelSpec(from_job="ab" * 16), 1_000_000, serve=ServeSpec(context=128))
    files = {"config.json": coordinator.store(b'{"layers": 2}'), MODEL_ARCHIVE: coordinator.store(archive)}
    plan = plan_of((0, 0, "1" * 32), (0, 1, node.address))
    return Assign(secrets.token_hex(16), 1, JOB, spec, 0, 1, plan, files)


def said(coordinator: Double, request: str) -> list[EngineReport]:
    reports = [one for body in coordinator.bodies(ModelSaid) for one in body.reports]
    return [one for one in reports if getattr(one, "id", "") == request]


async def test_a_node_answers_goes_on_and_checks(
    coordinator: Double,
    start_agent: StartAgent,
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    pack(folder, tmp_path / "packed")
    async with start_agent(sandbox=ProcessSandbox(SandboxLimits(4096, 1))) as node:
        assign = serving(coordinator, node, "moo", (tmp_path / "packed").read_bytes())
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: any(task.loads for task in node.agent.status().tasks))
        code, text = await words_of("status", "--home", str(node.home.path))
        assert (code, "Ready to lend" in text) == (0, False)
        assert "a model is fetched and loaded, and answers once that is done" in text
        await coordinator.until(lambda: coordinator.bodies(TaskReady), LOADS_S)
        [view] = node.agent.status().tasks
        assert (view.serves, view.share, view.round, view.loads) == (True, None, None, False)
        assert "Ready to lend" in (await words_of("status", "--home", str(node.home.path)))[1]
        command = GenerateCommand("first", "Say:", tokens=30, sampling=Sampling(seed=1))
        for one in (command, GenerateCommand("second", "Tell:", tokens=20)):
            await coordinator.command(node.address, assign, AskModel(one))
        await coordinator.until(lambda: all(is_over(said(coordinator, one)) for one in ("first", "second")), LOADS_S)
        first = said(coordinator, "first")
        assert end_of(first).tokens == len(tokens_of(first)) == 30
        begun = GenerateCommand("on", "Say:", tokens=30, sampling=Sampling(seed=1), begun=tokens_of(first)[:9])
        texts = EmbedCommand("texts", ("Say:", "Tell:"))
        lie = msgspec.structs.replace(check_of(command, first), text="something else")
        for ask in (begun, check_of(command, first), ProveCommand("proof", lie, "0" * 64), texts):
            await coordinator.command(node.address, assign, AskModel(ask))
        asked = ("on", "check", "proof", "texts")
        await coordinator.until(lambda: all(is_over(said(coordinator, one)) for one in asked), LOADS_S)
        embedded, end = said(coordinator, "texts")
        assert isinstance(embedded, EmbeddedReport)
        assert (embedded.tokens, len(set(embedded.vectors)), end) == ((4, 5), 2, AnsweredReport("texts", "stop", 9, 0))
        assert text_of(first).endswith(text_of(said(coordinator, "on")))
        [checked] = said(coordinator, "check")
        assert isinstance(checked, CheckedReport)
        assert checked.wrong == ""
        [proven] = said(coordinator, "proof")
        assert isinstance(proven, ProvenReport)
        assert proven.wrong == "the text is not what its tokens say"
        assert proven.env_class == coordinator.bodies(TaskReady)[0].env_class
        ready = coordinator.bodies(ModelSaid)[0].reports[0]
        assert ready == ReadyReport(128)
        order = [
            type(report.body) for _, report in coordinator.reports if isinstance(report.body, TaskReady | ModelSaid)
        ]
        assert order[0] is TaskReady
        assert {report.seq for _, report in coordinator.reports if isinstance(report.body, ModelSaid)} == {0}
        assert not node.agent.status().links, "replicas of a model have nothing to say to each other"
        await coordinator.command(node.address, assign, StopTask("done"))
        await coordinator.until(lambda: not node.agent.status().tasks or not node.agent.status().tasks[0].pid)
        assert not coordinator.bodies(TaskFailed)


async def test_a_talkative_model_loses_no_word_and_fills_no_line(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        assign = serving(coordinator, node, "chatting")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        await coordinator.command(node.address, assign, AskModel(GenerateCommand("1")))
        await coordinator.until(lambda: is_over(said(coordinator, "1")))
        assert tokens_of(said(coordinator, "1")) == tuple(range(WORDS))
        assert len(coordinator.bodies(ModelSaid)) <= REPORTS_BURST + 25


async def test_a_report_that_no_frame_holds_ends_its_task(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        await coordinator.assign(node.address, serving(coordinator, node, "shouting"))
        await coordinator.until(lambda: coordinator.bodies(TaskFailed))
        assert "at once" in coordinator.bodies(TaskFailed)[0].reason
        assert not coordinator.bodies(ModelSaid)


async def test_a_worker_that_takes_no_more_requests_has_them_refused(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        assign = serving(coordinator, node, "hanging")
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        for number in range(90):
            await coordinator.command(node.address, assign, AskModel(GenerateCommand(str(number), "x" * 250_000)))
        await coordinator.until(lambda: coordinator.bodies(ModelSaid))
        refused = coordinator.bodies(ModelSaid)[0].reports[0]
        assert isinstance(refused, RefusedReport)
        assert refused.code == "busy"


@pytest.mark.parametrize("name", ["checkpoint", "chatting"])
async def test_who_is_not_there_or_trains_says_nothing(coordinator: Double, start_agent: StartAgent, name: str) -> None:
    async with start_agent() as node:
        assign = serving(coordinator, node, name)
        if name == "checkpoint":
            spec = JobSpec(name, ModelSpec("tiny-llama"), 1_000_000, DatasetSpec("00" * 32))
            assign = Assign(assign.lease, 1, JOB, spec, 0, 0, plan_of((0, 0, node.address)), assign.files)
            await coordinator.assign(node.address, assign)
            await coordinator.until(lambda: coordinator.bodies(TaskReady))
        else:
            await coordinator.assign(node.address, assign)
        await coordinator.command(node.address, assign, AskModel(GenerateCommand("1")))
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        beats = len(coordinator.beats)
        await coordinator.until(lambda: len(coordinator.beats) > beats + 2)
        assert not said(coordinator, "1")


async def test_packets_are_as_large_as_a_frame_bears() -> None:
    sent: list[ModelSaid] = []

    async def send(packet: ModelSaid, _reliable: bool) -> None:
        sent.append(packet)
        if sum(len(one.reports) for one in sent) == 303:
            raise EOFError

    words = ModelReports(send)
    small = tuple(TextReport("1", "", (number,)) for number in range(300))
    await words.put(ModelSaid(small[:200]))
    await words.put(ModelSaid(small[200:]))
    await words.put(ModelSaid((TextReport("2", "x" * 60_000), TextReport("2", "y" * 60_000))))
    words.say(AnsweredReport("2", "stop", 1, 1))
    words.begin()
    with pytest.raises(EOFError):
        await words.run()
    assert [len(one.reports) for one in sent] == [256, 45, 2]
    assert PACKET_BYTES < 200_000
