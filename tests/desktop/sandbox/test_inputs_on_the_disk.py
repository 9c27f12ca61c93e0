"""A job's inputs cannot be read on the owner's disk: not while a real worker trains with them, and not afterwards."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import docker
import msgspec
import pytest
from safetensors.numpy import save

from coordinator.services.artifacts.weight_index import index_weights
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.docker import DockerSandbox, owner_of
from desktop.agent.sandbox.restrictions import HOME_LABEL
from protocol.job.job import ModelSpec
from protocol.models.weights import WEIGHT_INDEX
from protocol.node import Assign
from protocol.task import ApplyRound, BeginRound, Layers, RoundApplied, RoundCommit, TaskReady
from tests.desktop.conftest import StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.support.docker import IMAGE
from tests.trainer.small import config_of, job, job_folder
from trainer.stage.model import Cut
from trainer.stage.stage import Stage

MARKER_BYTES = 64  # In a row, by which a file is known again: no other file has them by chance.
PATIENCE_S = 120.0
ONE_STAGE = (Layers(0, 3),)


def marker_of(data: bytes) -> bytes:
    marker = data[len(data) // 2 :][:MARKER_BYTES]
    assert len(set(marker)) > 8, "these bytes could be anything"
    return marker


def real_job(coordinator: Double, folder: Path, node: str) -> tuple[Assign, dict[str, bytes]]:
    """A job of one stage that starts from weights, stored with the coordinator; and a marker of each of its files."""
    job_folder(folder)
    whole = Stage(config_of(), Cut(0, 3, True, True), job().training)
    values = {s.name: whole.parameters[s.start : s.start + s.count].view(s.shape).numpy() for s in whole.slots}
    model = folder / "model.safetensors"
    model.write_bytes(save(values))
    (folder / WEIGHT_INDEX).write_bytes(index_weights([(coordinator.store(model.read_bytes()), model)], config_of()))
    markers = {path.name: marker_of(path.read_bytes()) for path in folder.iterdir()}
    files = {path.name: coordinator.store(path.read_bytes()) for path in folder.iterdir() if path != model}
    plan = msgspec.structs.replace(plan_of((0, 0, node)), layers=ONE_STAGE)
    spec = msgspec.structs.replace(job(), model=ModelSpec(config=config_of(), weights="0" * 64))
    return msgspec.structs.replace(assignment(coordinator, plan, 0, 0), spec=spec, files=files), markers


def seen(markers: dict[str, bytes], folders: list[Path]) -> list[str]:
    """Which markers can be read where."""
    return [
        f"{name} in {path}"
        for folder in folders
        for path in regular_files(folder)
        for name, marker in markers.items()
        if marker in path.read_bytes()
    ]


def regular_files(folder: Path) -> Iterator[Path]:
    for above, _, names in os.walk(folder):
        yield from (path for name in names if (path := Path(above, name)).is_file() and not path.is_symlink())


def places_of(home: Path) -> tuple[list[Path], str]:
    """All that a home's one container can write to or has mounted, as this computer sees it; and what the engine says of it."""
    client = docker.from_env()
    try:
        [container] = client.containers.list(filters={"label": f"{HOME_LABEL}={owner_of(home)}"})
        inside = Path(f"/proc/{container.attrs['State']['Pid']}/root")
        layer = Path(container.attrs["GraphDriver"]["Data"]["UpperDir"])
        return [inside / "job", inside / "tmp", inside / "dev/shm", layer], json.dumps(container.attrs)
    finally:
        client.close()


@pytest.mark.docker
@pytest.mark.slow
async def test_nothing_of_a_job_can_be_read_on_the_disk_while_it_trains_or_afterwards(
    docker_engine: str, coordinator: Double, start_agent: StartAgent, tmp_path: Path
) -> None:
    sandbox = DockerSandbox(SandboxLimits(memory_mb=2048, threads=1), IMAGE, owner=tmp_path / "node")
    await sandbox.check()
    async with start_agent(sandbox=sandbox) as node:
        assign, markers = real_job(coordinator, tmp_path / "brought", node.address)
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady), PATIENCE_S)
        await coordinator.command(node.address, assign, BeginRound(assign.plan, 0, 0, 4, 4, validate=True))
        await coordinator.until(lambda: coordinator.bodies(RoundCommit), PATIENCE_S)
        [commit] = coordinator.bodies(RoundCommit)
        order = ApplyRound(0, 0, {0: commit.pseudo_gradient}, checkpoint=True)
        await coordinator.command(node.address, assign, order)
        await coordinator.until(lambda: coordinator.bodies(RoundApplied), PATIENCE_S)
        [applied] = coordinator.bodies(RoundApplied)
        markers["the state"] = marker_of(coordinator.artifacts[applied.checkpoint])

        mounts, described = places_of(tmp_path / "node")
        assert {path.name for path in regular_files(mounts[0])} >= {"train.bin", "weights-0-3.safetensors"}
        assert seen(markers, [node.home.path, *mounts]) == []
        [held] = node.agent._holdings.tasks.values()
        keys = {f"key of {name}": key for name, key in held._keys.items()}
        assert len(keys) == len(assign.files)
        assert seen(keys, [node.home.path, *mounts]) == []
        assert not any(key.hex() in described for key in keys.values())
    assert seen(markers, [node.home.path]) == []


async def test_an_agent_that_begins_again_fetches_what_it_cannot_read_any_more(
    coordinator: Double, start_agent: StartAgent
) -> None:
    for count in (1, 2):
        async with start_agent() as node:
            assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0, "checkpoint")
            await coordinator.assign(node.address, assign)
            await coordinator.until(lambda count=count: len(coordinator.bodies(TaskReady)) == count)
            [digest] = assign.files.values()
            assert len([name for _, name, _ in coordinator.requests if name == digest]) == count
            state = b"a state of the stage" * 100
            kept = await node.agent._states.keep("job-0-0", state)
            assert seen({"config": coordinator.artifacts[digest], "state": state[:100]}, [node.home.path]) == []
        node.home.jobs.rmdir()
    assert node.agent._states._store.read(kept, slice(0, None)) == state
