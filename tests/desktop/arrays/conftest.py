"""An agent with a real engine, an image of busybox that a stranger signed, and arrays that run in it."""

import asyncio
import contextlib
import hashlib
import io
import secrets
import tarfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from desktop.agent.base.config import Home
from desktop.agent.images.publishers import Publishers
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.containers import DockerContainers
from desktop.agent.sandbox.docker import DockerSandbox
from protocol.job.array import ArrayElement, ArraySpec
from protocol.job.elements import ArrayReady, ElementEnd, ElementRun, ElementsMoved, RunElements
from protocol.job.job import JobSpec
from protocol.node import Assign
from protocol.task import TaskFailed
from tests.desktop.conftest import JOB, Running, StartAgent, plan_of
from tests.desktop.coordinator_double import Double
from tests.support.arrays.images import KEY, busybox_layer, ready, saved
from tests.support.docker import IMAGE

SHELL = ("sh", "-c", '. "$0"')


@dataclass
class Stage:
    """One agent, and the arrays that it holds."""

    coordinator: Double
    running: Running
    sandbox: DockerSandbox
    image: str
    runs: int = 0
    assigned: dict[str, Assign] = field(default_factory=dict)

    async def array(self, **changed: Any) -> Assign:
        """Assign an array; it is not ready yet."""
        told: dict[str, Any] = {
            "image": self.image,
            "command": ("sh", "/in/run.sh"),
            "elements": "0" * 64,
            "count": 9,
            "memory_mb": 64,
            "disk_mb": 16,
            "seconds": 60.0,
        }
        array = ArraySpec(**told | changed)
        spec = JobSpec("sweep", budget=1_000_000, array=array)
        node, files = self.running.address, {"image": array.image}
        assign = Assign(secrets.token_hex(16), 1, JOB, spec, 0, 0, plan_of((0, 0, node)), files)
        self.assigned[assign.lease] = assign
        await self.coordinator.assign(node, assign)
        return assign

    async def ready(self, assign: Assign) -> ArrayReady:
        told = self.coordinator.bodies
        await self.coordinator.until(lambda: told(ArrayReady, assign.lease) or told(TaskFailed, assign.lease))
        assert told(ArrayReady, assign.lease), told(TaskFailed, assign.lease)
        return told(ArrayReady, assign.lease)[0]

    def element(self, script: str, **inputs: bytes) -> ElementRun:
        """A run of a shell script; further inputs by their names."""
        self.runs += 1
        files = {"run.sh": script.encode(), **inputs}
        laid = {name: self.coordinator.store(data) for name, data in files.items()}
        return ElementRun(self.runs, self.runs, ArrayElement(name=f"e{self.runs}", inputs=laid))

    async def send(self, assign: Assign, *runs: ElementRun) -> None:
        await self.coordinator.command(self.running.address, assign, RunElements(runs))

    def ends(self, assign: Assign) -> dict[int, ElementEnd]:
        moved = self.coordinator.bodies(ElementsMoved, assign.lease)
        return {end.run: end for body in moved for end in body.ended}

    def begun(self, assign: Assign) -> list[int]:
        return [run for body in self.coordinator.bodies(ElementsMoved, assign.lease) for run in body.begun]

    async def run(self, assign: Assign, *scripts: str) -> list[ElementEnd]:
        """Run scripts to their ends."""
        runs = [self.element(script) for script in scripts]
        await self.send(assign, *runs)
        await self.coordinator.until(lambda: {run.run for run in runs} <= self.ends(assign).keys())
        return [self.ends(assign)[run.run] for run in runs]

    def files(self, end: ElementEnd) -> dict[str, bytes]:
        """What is in a result."""
        assert end.result is not None, end
        data = end.data if end.data is not None else self.coordinator.artifacts[end.result]
        assert hashlib.sha256(data).hexdigest() == end.result
        assert len(data) == end.size
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found = {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
        assert len(found) == end.files
        return found

    def left(self) -> tuple[list[str], list[str]]:
        """Containers and folders in memory that this home has at the engine."""
        mine = {"label": f"network.cottage.home={self.sandbox.owner}"}
        client = self.sandbox.client
        return (
            [one.name for one in client.containers.list(all=True, filters=mine)],
            [one.name for one in client.volumes.list(filters=mine)],
        )


StartStage = Callable[..., AbstractAsyncContextManager[Stage]]


def archive_of(folder: Path, *, layers: Sequence[bytes] | None = None, run: dict[str, Any] | None = None) -> bytes:
    """The archive of an image as its publisher sends it."""
    ready(saved(folder / "saved.tar", layers or [busybox_layer()], run or {"Env": ["PATH=/bin"]}), folder / "ready.tar")
    return (folder / "ready.tar").read_bytes()


@pytest.fixture
def stage(docker_engine: str, tmp_path: Path, coordinator: Double, start_agent: StartAgent) -> StartStage:
    @contextlib.asynccontextmanager
    async def start(*, accepted: bool = True, archive: bytes | None = None, **more: Any) -> AsyncIterator[Stage]:
        sandbox = DockerSandbox(SandboxLimits(1024, 1), IMAGE, owner=tmp_path / "node")
        await sandbox.check()
        containers = DockerContainers(sandbox)
        image = coordinator.store(archive or archive_of(tmp_path))
        if accepted:
            Publishers(Home.at(tmp_path / "node")).accept(KEY.address, "A friend", 0.0)
        async with start_agent(sandbox=sandbox, containers=containers, **more) as running:
            made = Stage(coordinator, running, sandbox, image)
            try:
                yield made
                running.stop.set()
                await asyncio.wait((running.task,), timeout=30)
                again = DockerSandbox(SandboxLimits(1024, 1), IMAGE, owner=tmp_path / "node")
                await again.check()
                made.sandbox = again
                assert made.left() == ([], [])
            finally:
                await DockerContainers(made.sandbox).unload(image)
                await made.sandbox.aclose()

    return start
