"""A private session with a model that two real nodes hold together, with and without an adapter: real agents, WebRTC, workers."""

from pathlib import Path

import pytest

from coordinator.services.artifacts.model_archives import pack
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.process import ProcessSandbox
from protocol.identity import NodeKey
from protocol.serving import AnsweredReport, GenerateCommand, ReadyReport, Sampling, TextReport
from protocol.task import ModelSaid, TaskFailed
from tests.desktop.conftest import StartAgent
from tests.desktop.coordinator_double import Double
from tests.desktop.jobs.test_private_sessions import MARKED, Visitor, ticket_of
from tests.desktop.jobs.test_stages_of_a_model import CONTEXT, WAITS_S, Seats
from tests.trainer.serve.answering import Asking, tokens_of
from tests.trainer.serve.drawn_adapters import draw_adapter
from tests.trainer.serve.stages.stage_files import CutModel
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from trainer.serve.adapters import AdapterFiles
from trainer.serve.engine import Engine


def asked(adapter: int) -> GenerateCommand:
    return GenerateCommand(f"{adapter}", MARKED, tokens=24, sampling=Sampling(seed=5), adapter=adapter)


@pytest.mark.long
async def test_two_nodes_talk_past_the_coordinator_with_an_adapter_and_without(
    coordinator: Double,
    start_agent: StartAgent,
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    adapter, asking = draw_adapter(folder, tmp_path / "adapter", 1, 4, ("q_proj", "v_proj", "down_proj")), Asking()
    async with Engine(folder, 1, asking.say, context=CONTEXT, adapters=[AdapterFiles.of_folder(adapter)]) as engine:
        expected = await asking.over(engine, asked(0), asked(1))
    assert tokens_of(expected["0"]) != tokens_of(expected["1"])
    pack(adapter, tmp_path / "adapter.zip")
    seats = Seats(coordinator, folder, CutModel.of(folder, tmp_path / "made"), [tmp_path / "adapter.zip"])
    sandbox = ProcessSandbox(SandboxLimits(4096, 1))
    async with start_agent("first", sandbox=sandbox) as first, start_agent("last", sandbox=sandbox) as last:
        for stage in (0, 1):
            await seats.give((first, last), stage, 0)
        await seats.join((first, last), 1)
        key = NodeKey.generate()
        visitor = Visitor(coordinator, first, seats.held[0][1], key, ticket_of(key))
        async with visitor.talk() as talk:
            for number in (0, 1):
                said = [report async for report in talk.ask(asked(number))]
                tokens = tuple(token for one in said if isinstance(one, TextReport) for token in one.tokens)
                assert tokens == tokens_of(expected[f"{number}"]), number
                assert isinstance(said[-1], AnsweredReport)

            def is_signed() -> bool:
                counts = visitor.counted()
                return counts is not None and (counts.answers, counts.tokens) == (2, 48)

            await coordinator.until(is_signed, WAITS_S)
        heard = [report for body in coordinator.bodies(ModelSaid) for report in body.reports]
        assert all(isinstance(one, ReadyReport) for one in heard), "neither words nor sketches of them"
        assert not coordinator.bodies(TaskFailed)
