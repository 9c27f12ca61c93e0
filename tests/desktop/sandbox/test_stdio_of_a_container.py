"""A worker that speaks over its container's standard streams, which needs no socket that is shared with the engine's machine."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import docker
import pytest

from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.docker import TAMPERED, DockerSandbox
from desktop.agent.sandbox.restrictions import desktop_names
from protocol.node import Assign
from protocol.task import BeginRound, OpenStep, RoundHolding, StepOpened, TaskFailed, TaskReady
from tests.desktop.conftest import SCRIPT, Running, StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.support.docker import IMAGE

pytestmark = pytest.mark.docker


@pytest.fixture
async def node(docker_engine: str, start_agent: StartAgent, tmp_path: Path) -> AsyncIterator[Running]:
    """An agent whose workers speak so."""
    script = ("python3", "-c", SCRIPT.read_text())
    sandbox = DockerSandbox(
        SandboxLimits(512, 1), IMAGE, owner=tmp_path, entry=script, extra=("--note=lent",), stdio=True
    )
    await sandbox.check()
    async with start_agent(sandbox=sandbox) as running:
        yield running


async def given(node: Running, coordinator: Double, script: str) -> Assign:
    assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, script)
    await coordinator.assign(node.address, assign)
    return assign


def container_of(assign: Assign) -> Any:
    (found,) = docker.from_env().containers.list(filters={"label": f"network.cottage.lease={assign.lease}"})
    return found


async def test_a_worker_takes_megabytes_keeps_no_log_and_ends_for_whoever_else_attaches(
    node: Running, coordinator: Double
) -> None:
    assign = await given(node, coordinator, "checkpoint")
    await coordinator.until(lambda: coordinator.bodies(TaskReady))
    assert coordinator.bodies(TaskReady)[0].env_class == "scripted --note=lent"
    state = os.urandom(24 << 20)
    begin = BeginRound(assign.plan, 0, 0, 5, 10, state=coordinator.store(state))
    await coordinator.command(node.address, assign, begin)
    await coordinator.until(lambda: coordinator.bodies(RoundHolding))
    assert coordinator.bodies(RoundHolding)[0].held == {0: hashlib.sha256(state).hexdigest()}
    await coordinator.command(node.address, assign, OpenStep("ef" * 16, 0, 3, 1))
    await coordinator.until(lambda: coordinator.bodies(StepOpened))

    container = container_of(assign)
    assert container.attrs["HostConfig"]["LogConfig"]["Type"] == "none"
    assert not coordinator.bodies(TaskFailed)
    await asyncio.to_thread(lambda: container.attach_socket().close())
    await coordinator.until(lambda: coordinator.bodies(TaskFailed))
    assert f"{TAMPERED}: somebody attached to it" in coordinator.bodies(TaskFailed)[0].reason


async def test_a_worker_that_dies_is_heard_with_its_last_words(node: Running, coordinator: Double) -> None:
    await given(node, coordinator, "dying")
    await coordinator.until(lambda: coordinator.bodies(TaskFailed))
    reason = coordinator.bodies(TaskFailed)[0].reason
    assert reason.startswith("the worker ended with exit code 7: ")
    assert reason.endswith("the last words of this worker")


def test_docker_desktops_names_of_a_folder_are_known() -> None:
    windows = PureWindowsPath(r"C:\Users\ann\AppData\Local\cottage\node\jobs\1")
    assert desktop_names(windows) == ("/run/desktop/mnt/host/c/Users/ann/AppData/Local/cottage/node/jobs/1",)
    assert desktop_names(PurePosixPath("/Users/ann/jobs/1")) == ("/host_mnt/Users/ann/jobs/1",)
