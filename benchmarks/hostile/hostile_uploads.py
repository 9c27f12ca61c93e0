"""Random and hostile uploads, and as many archives: how each ended, and that nothing stayed on the disk.

    python -m benchmarks.hostile.hostile_uploads                    # 2,000 of each
    python -m benchmarks.hostile.hostile_uploads --cases 100000     # minutes

Where it can, the files lie in memory (/dev/shm): what is left behind is seen there as on a disk, and nobody waits for fsync.
Writes build/bench/hostile_uploads.json.
"""

import argparse
import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path

from benchmarks.common import publish
from tests.coordinator import archive_storm, upload_storm

PART = 1000  # Cases in one folder.
MEMORY = Path("/dev/shm")


def main() -> None:
    """Run, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2_000, help="of uploads, and of archives")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.perf_counter()
    folder = MEMORY if os.access(MEMORY, os.W_OK) else None
    sizes = [min(PART, options.cases - done) for done in range(0, options.cases, PART)]
    seeds = range(options.seed, options.seed + len(sizes))
    with ProcessPoolExecutor() as pool:
        uploads = _added(pool.map(_uploads, sizes, seeds, repeat(folder)))
        archives = _added(pool.map(partial(archive_storm.storm, folder=folder), sizes, seeds))
    publish(
        "hostile_uploads",
        "hostile uploads and archives: nothing left on the disk, limits kept",
        {
            "uploads": sum(uploads.values()),
            "archives": sum(archives.values()),
            "left_on_disk": 0,  # Else a check of the storms would have ended the run.
            "upload_ends": uploads,
            "archive_ends": archives,
            "seed": options.seed,
            "seconds": round(time.perf_counter() - began, 1),
        },
    )


def _uploads(cases: int, seed: int, folder: Path | None) -> dict[str, int]:
    return asyncio.run(upload_storm.storm(cases, seed, folder))


def _added(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    ends = Counter[str]()
    for part in parts:
        ends.update(part)
    return dict(ends.most_common())


if __name__ == "__main__":
    main()
