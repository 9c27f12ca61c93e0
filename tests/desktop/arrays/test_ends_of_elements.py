"""What ends a run from outside, and that nothing of it stays: its coordinator, its owner, somebody who reaches in, kill -9."""

import asyncio
import contextlib
import sys
import time

import docker
import pytest
from docker.errors import APIError

from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.docker import DockerSandbox
from protocol.job.elements import DropElements, RunElements
from protocol.task import StopTask, TaskFailed
from tests.desktop.arrays.conftest import Stage, StartStage
from tests.support.docker import IMAGE

pytestmark = pytest.mark.docker


def containers(it: Stage) -> list[docker.models.containers.Container]:
    """The container of the run that is under way."""
    mine = {"label": f"network.cottage.home={it.sandbox.owner}"}
    found = it.sandbox.client.containers.list(filters=mine, ignore_removed=True)
    return [
        one
        for one in found
        if "/in" in str(one.attrs["Mounts"]) and "python3" not in str(one.attrs["Path"] + str(one.attrs["Args"]))
    ]


async def begin(it: Stage, *scripts: str):
    assign = await it.array()
    await it.ready(assign)
    runs = [it.element(script) for script in scripts]
    await it.send(assign, *runs)
    await it.coordinator.until(lambda: runs[0].run in it.begun(assign))
    return assign, runs


async def test_what_nobody_waits_for_any_more_ends_and_is_not_told(stage: StartStage) -> None:
    async with stage() as it:
        assign, runs = await begin(it, "sleep 50", "echo dropped > x", "echo kept > x")
        dropped = DropElements((runs[0].run, runs[1].run))
        await it.coordinator.command(it.running.address, assign, dropped)
        await it.coordinator.command(it.running.address, assign, RunElements((runs[2], runs[1])))  # Sent again.
        await it.coordinator.until(lambda: runs[2].run in it.ends(assign))
        assert it.ends(assign).keys() == {runs[2].run}


async def test_a_lease_that_is_over_leaves_nothing_within_two_seconds(stage: StartStage) -> None:
    async with stage() as it:
        assign, _ = await begin(it, "sleep 50")
        began = time.perf_counter()
        await it.coordinator.command(it.running.address, assign, StopTask("it is over"))
        while it.left() != ([], []):
            await asyncio.sleep(0.05)
        assert time.perf_counter() - began < 2 * 5  # Two seconds, and as much again for a crowded machine.


async def test_the_owner_has_the_processor_at_once_and_a_paused_run_goes_on(stage: StartStage) -> None:
    async with stage() as it:
        assign = await it.array(seconds=5.0)
        await it.ready(assign)
        run = it.element("n=0; while [ $n -lt 20 ]; do n=$((n+1)); sleep 0.1; done; echo $n > n")
        await it.send(assign, run)
        await it.coordinator.until(lambda: it.begun(assign))
        (task,) = it.running.agent._holdings.tasks.values()
        began = time.perf_counter()
        await task.freeze(True)
        assert time.perf_counter() - began < 2
        (container,) = containers(it)
        assert container.status == "paused"
        await asyncio.sleep(6)  # Longer than its time, which does not count meanwhile.
        assert not it.ends(assign)
        await task.freeze(False)
        await it.coordinator.until(lambda: it.ends(assign))
        assert it.files(it.ends(assign)[run.run]) == {"n": b"20\n"}


@pytest.mark.parametrize("whose", ["the element's", "the porter's"])
async def test_who_reaches_in_ends_the_lease_and_it_is_told(stage: StartStage, whose: str) -> None:
    async with stage() as it:
        assign, _ = await begin(it, "sleep 50")
        found = containers(it)
        if whose == "the porter's":
            mine = {"label": f"network.cottage.home={it.sandbox.owner}"}
            others = {one.id for one in found}
            found = [
                one
                for one in it.sandbox.client.containers.list(filters=mine, ignore_removed=True)
                if one.id not in others
            ]
        with contextlib.suppress(APIError):  # It may be dead before the command has begun.
            await asyncio.to_thread(found[0].exec_run, ["true"])
        await it.coordinator.until(lambda: it.coordinator.bodies(TaskFailed, assign.lease))
        assert it.coordinator.bodies(TaskFailed, assign.lease)[0].tampered


async def test_a_coordinator_that_is_away_hears_later_of_more_runs_than_reports_may_wait(
    stage: StartStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("desktop.agent.coordinator.report_outbox.MAX_UNACKNOWLEDGED", 6)
    monkeypatch.setattr("desktop.agent.arrays.held_array.MOST_UNTOLD", 3)
    async with stage() as it:
        assign = await it.array()
        await it.ready(assign)
        (task,) = it.running.agent._holdings.tasks.values()
        it.coordinator.acknowledge = False
        runs = [it.element("sleep 0.4") for _ in range(9)]
        await it.send(assign, *runs)
        await it.coordinator.until(lambda: task.done == len(runs) or task.state == "failed")
        assert task.state == "running", task.reason
        assert len(it.ends(assign)) < len(runs), "the rest waits"
        it.coordinator.acknowledge = True
        await it.coordinator.nodes[it.running.address].close()
        await it.coordinator.until(lambda: it.ends(assign).keys() == {run.run for run in runs})


LEFT = """
import asyncio, sys
from pathlib import Path
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.containers import DockerContainers
from desktop.agent.sandbox.docker import DockerSandbox

async def main(home, image, trusted):
    sandbox = DockerSandbox(SandboxLimits(1024, 1), trusted, owner=Path(home))
    await sandbox.check()
    containers = DockerContainers(sandbox)
    folders = await containers.folders("ab" * 16, 16, 16)
    limits = SandboxLimits(64, 1, temporary_mb=16)
    await containers.element(folders, image, ("sleep", "600"), {}, limits, False)
    print("begun", flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_what_a_killed_agent_left_is_removed_by_the_next(stage: StartStage) -> None:
    async with stage() as it:
        await it.ready(await it.array())
        name = f"cottage-element-{it.sandbox.owner[:12]}:{it.image}"
        other = it.running.home.path.parent / "other"
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", LEFT, str(other), name, IMAGE), stdout=asyncio.subprocess.PIPE
        )
        assert program.stdout is not None
        assert await program.stdout.readline() == b"begun\n"
        program.kill()
        await program.wait()
        again = DockerSandbox(SandboxLimits(1024, 1), IMAGE, owner=other)
        await again.check()
        mine = {"label": f"network.cottage.home={again.owner}"}
        assert [one.status for one in again.client.containers.list(filters=mine, ignore_removed=True)] == ["running"]
        assert len(again.client.volumes.list(filters=mine)) == 2
        assert await again.sweep() == 1
        assert not again.client.containers.list(all=True, filters=mine)
        assert not again.client.volumes.list(filters=mine)
        await again.aclose()
