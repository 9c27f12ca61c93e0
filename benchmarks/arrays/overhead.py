"""What an element costs the coordinator: arrays of elements that take no time, on stand-in nodes, over a database on the disk.

Claims: a batched element costs at most 20 ms; an array of ten thousand costs as much for each as one of a thousand; each result
is there once. Beside it, where Debian's ``parallel`` is installed: what GNU parallel takes to start a program that does nothing.

    python -m benchmarks.arrays.overhead --elements 1000 10000
"""

import argparse
import asyncio
import dataclasses
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from benchmarks.common import publish
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.store.sql import SqlStore
from protocol.job.array import ArrayElement, ArraySpec, element_lines
from protocol.job.job import JobSpec
from tests.coordinator.arrays.arrayed import ArrayWorld
from tests.coordinator.bench import CONFIG

NODES, SLOTS, TURN_S = 8, 16, 0.25
MOST_MS = 20.0
GROWTH = 1.5  # Of what an element costs, from the smallest array to the largest: quadratic work would be tenfold.


async def array(count: int, owners: int, folder: Path) -> dict[str, Any]:
    """Run one; every turn of the world is a quarter of a second to the nodes, which end all that they have in each."""
    store = await SqlStore.open(f"sqlite+aiosqlite:///{folder}/cottage.db")
    config = dataclasses.replace(CONFIG, data=folder, minimum_price=1)
    world = ArrayWorld(store, config=config, artifacts=cast(ArtifactStore, DiskArtifacts(folder / "artifacts")))
    for number in range(1, NODES + 1):
        await world.come(number, slots=SLOTS, pace=0.0)
    artifacts = cast(DiskArtifacts, world.artifacts)
    image, listed = folder / "image", folder / "elements"
    image.write_bytes(b"an image")
    listed.write_bytes(element_lines([ArrayElement(name=f"e{number}") for number in range(count)]))
    spec = ArraySpec(
        image=await artifacts.put_file(image),
        command=("true",),
        elements=await artifacts.put_file(listed),
        count=count,
        owners=owners,
    )
    job = await world.submit(JobSpec("overhead", budget=9_000_000, array=spec))
    began = time.perf_counter()
    turns = 0
    while (await world.stored(job)).state != "settled":
        await world.turn(TURN_S)
        turns += 1
    seconds = time.perf_counter() - began
    done = sum(course.result is not None for course in await world.courses(job))
    runs = sum(len(node.ran) for node in world.nodes)
    await store.close()
    return {
        "elements": count,
        "owners": owners,
        "done": done,
        "runs": runs,
        "seconds": round(seconds, 2),
        "ms_an_element": round(1000 * seconds / count, 2),
        "ms_a_run": round(1000 * seconds / runs, 2),
        "turns": turns,
    }


def gnu_parallel(count: int) -> dict[str, Any] | None:
    """What GNU parallel takes for so many programs that do nothing, two at a time; None: it is not installed."""
    program = shutil.which("parallel")
    if program is None:
        return None
    began = time.perf_counter()
    lines = "\n".join(map(str, range(count)))
    subprocess.run([program, "-j2", "true"], input=lines, text=True, check=True, capture_output=True)
    return {"elements": count, "ms_an_element": round(1000 * (time.perf_counter() - began) / count, 2)}


async def measure(counts: list[int], owners: int) -> dict[str, Any]:
    """Each size in a folder of its own."""
    found = []
    for count in counts:
        with tempfile.TemporaryDirectory(prefix="arrays.") as folder:
            found.append(await array(count, owners, Path(folder)))
    claims = {
        "every_result_is_there": all(one["done"] == one["elements"] for one in found),
        "at_most_20_ms_an_element": all(one["ms_an_element"] <= MOST_MS for one in found),
        "no_more_for_each_of_many": found[-1]["ms_an_element"] <= GROWTH * found[0]["ms_an_element"],
    }
    return {"arrays": found, "claims": claims}


def main() -> None:
    """Print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--owners", type=int, default=2)
    options = parser.parse_args()
    found = asyncio.run(measure(options.elements, options.owners))
    claim = "an element of a batch costs the coordinator 20 ms at most, however many there are"
    publish("arrays", claim, {**found, "gnu_parallel": gnu_parallel(options.elements[0])})


if __name__ == "__main__":
    main()
