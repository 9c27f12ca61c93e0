"""The same short commands over the same files: GNU parallel, Dask, and ``cottage map`` with real agents and real containers.

What is compared is what each costs beside the work. GNU parallel and Dask start a process of this machine for each file, which
nobody checks, and need no network. Cottage has two homes of this machine, each with a real agent and a real Docker engine's
containers: a file is sent, each element runs at both homes in a container of its own, and results are compared and fetched.

    python -m benchmarks.arrays.beside --files 60
    python -m benchmarks.arrays.beside --files 1000 --batched-only

Needs root for an engine of its own, busybox, Debian's ``parallel``, and ``pip install -e '.[bench]'`` for Dask.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import publish
from tests.e2e.mapped_homes import mapped_homes
from tests.support import docker as docker_support
from tests.support.arrays.images import BUSYBOX, busybox_layer, saved

CORES = os.cpu_count() or 1
COMMAND = "wc -c < {input} > size"


def _files(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    files = [folder / f"f{number:05}.txt" for number in range(count)]
    for number, file in enumerate(files):
        file.write_text("x" * (number + 1))
    return files


def gnu_parallel(files: list[Path], out: Path) -> float | None:
    """Seconds, one process for each core at a time; None: it is not installed."""
    program = shutil.which("parallel")
    if program is None:
        return None
    began = time.perf_counter()
    command = f"mkdir -p {out}/{{/}} && wc -c < {{}} > {out}/{{/}}/size"
    subprocess.run([program, f"-j{CORES}", command, ":::", *map(str, files)], check=True, capture_output=True)
    return time.perf_counter() - began


def _shell(file: str, out: str) -> None:
    folder = Path(out, Path(file).name)
    folder.mkdir(parents=True)
    subprocess.run(["sh", "-c", f"wc -c < {file} > size"], cwd=folder, check=True)


def dask(files: list[Path], out: Path) -> float | None:
    """Seconds on a cluster that is there already, one process for each core; None: it is not installed."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        return None
    with (
        LocalCluster(n_workers=CORES, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.submit(int, "0").result()
        began = time.perf_counter()
        client.gather([client.submit(_shell, str(file), str(out), pure=False) for file in files])
        return time.perf_counter() - began


BATCH = 64


async def cottage(folder: Path, files: list[Path], batched_only: bool) -> dict[str, tuple[float, Path]]:
    """Seconds of the one command and where its results are, with a container for each element and with batches."""
    image = saved(folder / "tools.tar", [busybox_layer()], {"Env": ["PATH=/bin"]})
    with pytest.MonkeyPatch.context() as patch:
        async with mapped_homes(folder, 2, patch) as homes:
            await homes.push(image, "tools:1")
            bounds = ["--memory", "64", "--disk", "16", "--seconds", "60", "--estimate", "10"]
            words = ["--over", f"{files[0].parent}/*.txt", *bounds]
            found = {}
            ways = {"cottage": [], "cottage_batched": ["--batch", str(BATCH)]}
            for name, more in list(ways.items())[batched_only:]:
                began, out = time.perf_counter(), folder / name
                line = ["map", "tools:1", f"sh -c '{COMMAND}'", "--out", str(out), "--yes", *words, *more]
                await homes.cottage(*line, *homes.server)
                found[name] = (time.perf_counter() - began, out)
            return found


def _are_right(files: list[Path], out: Path) -> bool:
    return all(int((out / file.name / "size").read_text()) == file.stat().st_size for file in files)


def measure(count: int, batched_only: bool) -> dict[str, Any]:
    """All three, one after the other, with what came of each looked at."""
    found: dict[str, Any] = {"files": count, "processes_at_a_time": CORES, "load_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="beside.") as scratch:
        folder = Path(scratch)
        files = _files(folder / "files", count)
        for name, run in (("gnu_parallel", gnu_parallel), ("dask", dask)):
            seconds = run(files, folder / name)
            found[name] = None
            if seconds is not None:
                assert _are_right(files, folder / name)
                found[name] = {"seconds": round(seconds, 2), "ms_an_element": round(1000 * seconds / count, 1)}
        found |= {"cottage": None, "cottage_batched": None}
        if not docker_support.why_not() and BUSYBOX is not None:
            (folder / "network").mkdir()
            with docker_support.shared_engine(folder / "docker"):
                mapped = asyncio.run(cottage(folder / "network", files, batched_only))
            for name, (seconds, results) in mapped.items():
                assert _are_right(files, results)
                each = round(1000 * seconds / count, 1)
                found[name] = {"seconds": round(seconds, 2), "ms_an_element": each, "ms_a_run": round(each / 2, 1)}
    return found


def main() -> None:
    """Print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--batched-only", action="store_true", help="no container for each element: for many files")
    options = parser.parse_args()
    claim = "an element costs at most half a second beside its work, with a container of its own at two owners"
    figures = measure(options.files, options.batched_only)
    held = figures["cottage"] is not None and figures["cottage"]["ms_a_run"] <= 500.0
    publish(
        "arrays-beside", claim, {**figures, "claims": {} if options.batched_only else {"half_a_second_a_run": held}}
    )


if __name__ == "__main__":
    main()
