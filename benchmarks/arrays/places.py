"""What an element costs on one node beside its work, and where the time goes: alone in a container, and in batches of 64.

A real Docker engine, the agent's own code, an image of busybox; no coordinator. Each element writes one short file. Beside it,
the same program started as a process of this machine.

    python -m benchmarks.arrays.places --alone 20 --batched 400

Needs root for an engine of its own (or DOCKER_HOST) and busybox.
"""

import argparse
import asyncio
import functools
import io
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import publish
from common.clock import SystemClock
from desktop.agent.arrays.batch_shell import BatchShell
from desktop.agent.arrays.element_place import ElementPlace, Finished, PlaceSize, PlaceTools
from desktop.agent.base.payloads import SmallPayload
from desktop.agent.jobs.spool import Spool
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.containers import DockerContainers
from desktop.agent.sandbox.docker import DockerSandbox
from protocol.images.archive import examine
from protocol.job.array import ArrayElement, ArraySpec
from protocol.job.elements import ElementRun
from tests.support import docker as docker_support
from tests.support.arrays.images import BUSYBOX, busybox_layer, ready, saved

MOST_ALONE_MS, MOST_BATCHED_MS = 500.0, 20.0
BATCH = 64
COMMAND = ("sh", "-c", "echo $COTTAGE_ELEMENT > x")
PHASES = {
    "inputs_laid_in": (ElementPlace, "_lay"),
    "batch_container_started": (ElementPlace, "_begin_batch"),
    "batch_container_ended": (ElementPlace, "_end_batch"),
    "begun": (BatchShell, "begin"),
    "waited_for_its_end": (ElementPlace, "_until_end"),
    "result_taken": (ElementPlace, "_taken"),
    "emptied": (ElementPlace, "_empty"),
}


def clocked(spent: dict[str, float]) -> None:
    """Have each phase note its seconds."""
    for name, (owner, method) in PHASES.items():
        setattr(owner, method, _clocked(name, getattr(owner, method), spent))


def _clocked(name: str, phase: Callable[..., Any], spent: dict[str, float]) -> Callable[..., Any]:
    @functools.wraps(phase)
    async def timed(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return await phase(*arguments, **named)
        finally:
            spent[name] += time.perf_counter() - began

    return timed


async def elements(folder: Path, count: int, batch: int, spent: dict[str, float]) -> dict[str, Any]:
    """So many in one place."""
    sandbox = DockerSandbox(SandboxLimits(1024, 1), docker_support.IMAGE, owner=folder / "home")
    await sandbox.check()
    containers = DockerContainers(sandbox)
    ready(saved(folder / "saved.tar", [busybox_layer()], {"Env": ["PATH=/bin"]}), folder / "ready.tar")
    data = (folder / "ready.tar").read_bytes()
    layers = examine(io.BytesIO(data)).configuration.rootfs.diff_ids
    image = await containers.load([data], "a" * 64, layers)
    array = ArraySpec(image="a" * 64, command=COMMAND, elements="0" * 64, count=count, disk_mb=16, batch=batch)
    size = PlaceSize(64, SandboxLimits(128, 1, temporary_mb=16, cpu_seconds=600))
    spool = Spool(folder, b"secret", 1 << 30)
    tools = PlaceTools("b" * 32, array, image.engine_id, image.engine_id, size, containers, spool, SystemClock())
    place = ElementPlace(tools, folder / f"place{batch}")
    await place.open()
    try:
        spent.clear()
        began, used = time.perf_counter(), time.process_time()
        for number in range(count):
            run = ElementRun(number + 1, number, ArrayElement(name=f"e{number}"))
            finished: Finished = await place.run(run, {"in": (f"{number}", SmallPayload(b"%d" % number))}, lambda: None)
            assert finished.result is not None, finished.end
        seconds, used = time.perf_counter() - began, time.process_time() - used
    finally:
        await place.close()
        await containers.unload("a" * 64)
        await sandbox.aclose()
    each = {name: round(1000 * value / count, 2) for name, value in sorted(spent.items(), key=lambda one: -one[1])}
    return {
        "elements": count,
        "batch": batch,
        "ms_an_element": round(1000 * seconds / count, 1),
        "agent_cpu_ms_an_element": round(1000 * used / count, 1),
        "of_that_ms": each,
    }


def processes(folder: Path, count: int) -> dict[str, Any]:
    """The same program as a process of this machine, one after the other."""
    began = time.perf_counter()
    for number in range(count):
        environment = {**os.environ, "COTTAGE_ELEMENT": str(number)}
        subprocess.run(COMMAND, cwd=folder, env=environment, check=True)
    return {"elements": count, "ms_an_element": round(1000 * (time.perf_counter() - began) / count, 1)}


async def measure(alone: int, batched: int) -> dict[str, Any]:
    """Both, one after the other."""
    spent: dict[str, float] = defaultdict(float)
    clocked(spent)
    with tempfile.TemporaryDirectory(prefix="places.") as scratch:
        folder = Path(scratch)
        with docker_support.shared_engine(folder / "docker"):
            found: dict[str, Any] = {"load_before": os.getloadavg()[0]}
            found["alone"] = await elements(folder, alone, 1, spent)
            found["batched"] = await elements(folder, batched, BATCH, spent)
        found["processes"] = processes(folder, batched)
    found["claims"] = {
        "half_a_second_alone": found["alone"]["ms_an_element"] <= MOST_ALONE_MS,
        "twenty_ms_batched": found["batched"]["ms_an_element"] <= MOST_BATCHED_MS,
    }
    return found


def main() -> None:
    """Print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", type=int, default=20)
    parser.add_argument("--batched", type=int, default=400)
    options = parser.parse_args()
    if (why := docker_support.why_not()) or BUSYBOX is None:
        raise SystemExit(why or "busybox is not installed")
    claim = "an element costs a node half a second at most beside its work, and 20 ms in a batch"
    publish("arrays-places", claim, asyncio.run(measure(options.alone, options.batched)))


if __name__ == "__main__":
    main()
