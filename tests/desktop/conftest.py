"""An agent, a coordinator and jobs for the tests of the agent."""

import asyncio
import contextlib
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.clock import Clock, SystemClock
from desktop.agent.app.agent import Agent
from desktop.agent.app.owner_api import Handles, OwnerApi
from desktop.agent.app.parts import AgentParts
from desktop.agent.app.selftest import SelfTestMeans
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import NOTHING, Device, processor
from desktop.agent.images.publishers import Publishers
from desktop.agent.lending.keeper import Readings
from desktop.agent.sandbox.base import Sandbox, SandboxLimits
from desktop.agent.sandbox.containers import Containers
from desktop.agent.sandbox.process import ProcessSandbox
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec
from protocol.node import Assign, NodeProfile
from protocol.task import Layers, Member, Plan
from tests.desktop.coordinator_double import Double

SCRIPT = Path(__file__).with_name("scripted_worker.py")
JOB = "0123456789abcdef" * 2


async def _nothing(*_: object) -> Any:
    raise AssertionError("this test asks for no self-test")


NO_MEANS = SelfTestMeans(lambda: processor(""), _nothing, _nothing)


@dataclass
class Running:
    """An agent that runs in this process."""

    agent: Agent
    address: str
    home: Home
    stop: asyncio.Event
    task: asyncio.Task[None]

    def pids(self) -> list[int]:
        return [task.pid for task in self.agent.status().tasks if task.pid is not None]


StartAgent = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
async def coordinator() -> AsyncIterator[Double]:
    double = Double()
    await double.start()
    yield double
    await double.stop()


@pytest.fixture
def start_agent(tmp_path: Path, coordinator: Double) -> StartAgent:
    @contextlib.asynccontextmanager
    async def start(
        name: str = "node",
        worker_arguments: tuple[str, ...] = (),
        sandbox: Sandbox | None = None,
        readings: Readings | None = None,
        clock: Clock | None = None,
        bond: int = 0,
        device: Device = NOTHING,
        coordinator_key: str = "",
        invitation: str = "",
        containers: Containers | None = None,
        release_key: str = "",
    ) -> AsyncIterator[Running]:
        home = Home.at(tmp_path / name)
        key = home.key()
        settings = Settings(
            coordinator=coordinator.url,
            coordinator_key=coordinator_key,
            invitation=invitation,
            name=name,
            sandbox="process",
            threads=1,
            loopback=True,
            bond=bond,
        ).completed(key.address)
        chosen = sandbox or ProcessSandbox(
            SandboxLimits(1024, 1), worker_arguments, command=(sys.executable, str(SCRIPT))
        )
        profile = NodeProfile(name, "test", "cpu", 1024, 1e9, "scripted", chosen.kind)
        offered = containers is not None and bool(Publishers(home, release_key).all())
        profile = msgspec.structs.replace(profile, containers=offered)
        home.jobs.mkdir(exist_ok=True)
        home.remember(settings)
        stop = asyncio.Event()
        desk = OwnerApi(home, "test", Handles(lambda on: None if on else stop.set(), stop.set, lambda _: NO_MEANS))
        means = (clock or SystemClock(), device, readings, containers, release_key)
        agent = Agent(AgentParts(home, settings, key, profile, chosen, *means), desk.books)
        desk.agent = agent

        async def serve() -> None:
            async with desk:
                await agent.work(stop)

        task = asyncio.create_task(serve())
        running = Running(agent, key.address, home, stop, task)
        try:
            await coordinator.until(lambda: key.address in coordinator.nodes or task.done() or agent.status().reason)
            yield running
        finally:
            stop.set()
            await asyncio.wait((task,), timeout=30)
            assert task.done(), "the agent did not end"
            if not task.cancelled() and task.exception() is None:
                task.result()

    return start


def plan_of(*nodes: tuple[int, int, str], epoch: int = 0) -> Plan:
    stages = max((stage for stage, _, _ in nodes), default=0) + 1
    layers = tuple(Layers(stage, stage + 1) for stage in range(stages))
    return Plan(epoch, layers, tuple(Member(stage, replica, node) for stage, replica, node in nodes))


def assignment(
    coordinator: Double, plan: Plan, stage: int | None, replica: int | None, script: str = "exchange"
) -> Assign:
    spec = JobSpec(script, ModelSpec("tiny-llama"), 1_000_000, DatasetSpec("00" * 32))
    config = coordinator.store(b'{"layers": 2}')
    return Assign(secrets.token_hex(16), 1, JOB, spec, stage, replica, plan, {"config.json": config})
