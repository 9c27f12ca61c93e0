"""Real agents, links and workers hold a model together: they say what one process says, also when one of them is another."""

import json
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.process import ProcessSandbox
from protocol.job.job import JobSpec, ModelSpec, ServedAdapter, ServeSpec
from protocol.models.weights import WEIGHT_INDEX
from protocol.node import Assign
from protocol.plan import Layers, Member, Plan
from protocol.serving import (
    SKETCH_BYTES,
    SMALL_ARCHIVE,
    BoundarySketches,
    CheckedReport,
    EngineCommand,
    EngineReport,
    GenerateCommand,
    Sampling,
    SketchReport,
    adapter_archive,
)
from protocol.task import AskModel, JoinStages, ModelSaid, TaskFailed, TaskReady
from tests.desktop.conftest import JOB, Running, StartAgent
from tests.desktop.coordinator_double import Double
from tests.e2e.smollm2 import smollm2  # noqa: F401 - a fixture
from tests.trainer.serve.answering import GREEDY, Asking, check_of, end_of, is_over, text_of, tokens_of
from tests.trainer.serve.stages.stage_files import CutModel
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from trainer.serve.engine import Engine

WAITS_S = 300.0
CONTEXT = 128
ASKED = (
    GenerateCommand("greedy", "Once upon a time", tokens=24, sampling=GREEDY),
    GenerateCommand("seeded", "Tell me:", tokens=24, sampling=Sampling(seed=5)),
)


def plan_for(model: Path, nodes: Sequence[Running], epoch: int) -> Plan:
    layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    cut = (Layers(0, layers // 2), Layers(layers // 2, layers))
    return Plan(epoch, cut, tuple(Member(stage, 0, node.address) for stage, node in enumerate(nodes)))


class Seats:
    """Two nodes that hold a model, as a coordinator has them, with adapters of it in archives."""

    def __init__(self, coordinator: Double, model: Path, made: CutModel, adapters: Sequence[Path] = ()) -> None:
        self.coordinator, self.model, self.made = coordinator, model, made
        self.archive = coordinator.store(made.archive.read_bytes())
        self.files = {
            "config.json": coordinator.store((model / "config.json").read_bytes()),
            SMALL_ARCHIVE: coordinator.store(made.small.read_bytes()),
            WEIGHT_INDEX: coordinator.store(msgspec.json.encode(made.index)),
        }
        self.adapters = [ServedAdapter(f"{number:02}" * 16) for number, _ in enumerate(adapters, 1)]
        for number, one in enumerate(adapters, 1):
            self.files[adapter_archive(number)] = coordinator.store(one.read_bytes())
        self.held: dict[int, tuple[Running, Assign]] = {}

    async def give(self, nodes: Sequence[Running], stage: int, epoch: int) -> None:
        serve = ServeSpec(context=CONTEXT, stages=2, adapters=tuple(self.adapters))
        spec = JobSpec("moo", ModelSpec(from_job="ab" * 16), 1_000_000, serve=serve)
        plan = plan_for(self.model, nodes, epoch)
        assign = Assign(secrets.token_hex(16), 1, JOB, spec, stage, 0, plan, self.files)
        self.held[stage] = (nodes[stage], assign)
        before = len(self.coordinator.bodies(TaskReady))
        await self.coordinator.assign(nodes[stage].address, assign)
        await self.coordinator.until(lambda: len(self.coordinator.bodies(TaskReady)) > before, WAITS_S)

    def fetched(self) -> int:
        """Bytes of the archive that were asked for."""
        ranges = [asked for _, digest, asked in self.coordinator.requests if digest == self.archive]
        assert all(ranges), "never all of it"
        return sum(int(b) + 1 - int(a) for a, b in (one.removeprefix("bytes=").split("-") for one in ranges))

    def needed(self, stage: int) -> int:
        """Bytes of weights that a stage holds."""
        cut = plan_for(self.model, (), 0).layers
        names = self.made.names(cut[stage], cut[-1].last)
        return sum(tensor.end - tensor.begin for name, tensor in self.made.index.tensors.items() if name in names)

    async def join(self, nodes: Sequence[Running], epoch: int) -> None:
        for node, assign in self.held.values():
            await self.coordinator.command(node.address, assign, JoinStages(plan_for(self.model, nodes, epoch)))

    async def ask(self, command: EngineCommand) -> None:
        node, lead = self.held[0]
        await self.coordinator.command(node.address, lead, AskModel(command))

    def said(self, request: str, stage: int = 0, sketches: bool = False) -> list[EngineReport]:
        bodies = self.coordinator.bodies(ModelSaid, self.held[stage][1].lease)
        reports = [one for body in bodies for one in body.reports if getattr(one, "id", "") == request]
        return [one for one in reports if isinstance(one, SketchReport) == sketches]


async def check_again(model: Path, said: list[EngineReport], sent: bytes, got: bytes) -> None:
    """What two homes said, held against the whole model as a coordinator does: right, drawn otherwise, with other sketches."""
    cut = plan_for(model, (), 0).layers[1].first
    right = check_of(ASKED[1], said)
    right = msgspec.structs.replace(right, id="right", boundaries=(BoundarySketches(cut, 0, sent, got),))
    other = msgspec.structs.replace(right.asked, sampling=Sampling(seed=6))
    drawn = msgspec.structs.replace(right, id="drawn", asked=other)
    nothing = bytes(len(got))
    got_otherwise, sent_otherwise = (
        msgspec.structs.replace(drawn, id=name, boundaries=(BoundarySketches(cut, 0, *sides),))
        for name, sides in (("got", (sent, nothing)), ("sent", (nothing, got)))
    )
    found = await alone(model, right, drawn, got_otherwise, sent_otherwise)
    verdicts = {name: reports[-1] for name, reports in found.items()}
    assert all(isinstance(one, CheckedReport) for one in verdicts.values())
    assert {name: (bool(one.wrong), one.stages) for name, one in verdicts.items()} == {
        "right": (False, ()),
        "drawn": (True, (1,)),
        "got": (True, (0, 1)),
        "sent": (True, (0,)),
    }


async def alone(model: Path, *commands: EngineCommand) -> dict[str, list[EngineReport]]:
    """What one process with the whole model says."""
    asking = Asking()
    async with Engine(model, 1, asking.say, context=CONTEXT) as engine:
        return await asking.over(engine, *commands)


async def two_homes_and_a_third(model: Path, coordinator: Double, start_agent: StartAgent, tmp_path: Path) -> None:
    right = await alone(model, *ASKED)
    seats = Seats(coordinator, model, CutModel.of(model, tmp_path / "made"))
    async with AsyncExitStack() as stack:
        here = [
            await stack.enter_async_context(start_agent(name, sandbox=ProcessSandbox(SandboxLimits(4096, 1))))
            for name in ("first", "last", "heir")
        ]
        pair = here[:2]
        for stage in (0, 1):
            before = seats.fetched()
            await seats.give(pair, stage, 0)
            assert seats.fetched() - before == seats.needed(stage), "its own tensors, each of them once"
        assert max(map(seats.needed, (0, 1))) < seats.made.archive.stat().st_size * 2 / 3
        await seats.join(pair, 1)
        for command in ASKED:
            await seats.ask(command)
        await coordinator.until(lambda: all(is_over(seats.said(one.id)) for one in ASKED), WAITS_S)
        for command in ASKED:
            found = seats.said(command.id)
            assert tokens_of(found) == tokens_of(right[command.id]), command.id
            assert text_of(found) == text_of(right[command.id])
            assert end_of(found) == end_of(right[command.id])
        await coordinator.until(lambda: all(seats.said(one.id, 1, sketches=True) for one in ASKED), WAITS_S)
        [sent] = seats.said("seeded", 0, sketches=True)
        [got] = seats.said("seeded", 1, sketches=True)
        assert isinstance(sent, SketchReport)
        assert isinstance(got, SketchReport)
        assert (sent.side, got.side) == ("sent", "got")
        assert sent.values == got.values, "the line changes nothing"
        end = end_of(seats.said("seeded"))
        assert len(sent.values) // SKETCH_BYTES == end.prompt + end.tokens - 1, "all but the last token are passed on"

        await check_again(model, seats.said("seeded"), sent.values, got.values)
        heir = [pair[0], here[2]]
        before = seats.fetched()
        await seats.give(heir, 1, 2)
        assert seats.fetched() - before == seats.needed(1)
        await seats.join(heir, 3)
        whole = tokens_of(right["seeded"])
        half = len(whole) // 2
        await seats.ask(msgspec.structs.replace(ASKED[1], id="on", begun=whole[:half]))
        await coordinator.until(lambda: is_over(seats.said("on")), WAITS_S)
        assert tokens_of(seats.said("on")) == whole[half:], "behind the tokens that are there"
        assert not coordinator.bodies(TaskFailed)


@pytest.mark.long
async def test_two_homes_answer_as_one_process_does_and_a_third_goes_on_for_one_of_them(
    coordinator: Double,
    start_agent: StartAgent,
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    await two_homes_and_a_third(folder, coordinator, start_agent, tmp_path)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_the_same_with_a_model_that_people_use(
    coordinator: Double,
    start_agent: StartAgent,
    smollm2: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    await two_homes_and_a_third(smollm2, coordinator, start_agent, tmp_path)
