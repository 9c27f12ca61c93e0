"""A storm of strangers against a real coordinator with the limits as they are: what it costs in disk, memory, files and lamports.

    python -m benchmarks.hostile.strangers                          # two minutes, 40 strangers of each kind at a time
    python -m benchmarks.hostile.strangers --seconds 900 --actors 100

Beside the strangers an operator asks for the network and a price twice a second, and a staked node beats. Fails where a bound
is broken or one of them is not answered. Writes build/bench/strangers.json.
"""

import argparse
import asyncio
import dataclasses
import tempfile
from pathlib import Path

from benchmarks.common import publish
from tests.coordinator.strangers import storm


def main() -> None:
    """Run, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--actors", type=int, default=40, help="strangers of each kind at a time")
    parser.add_argument("--scale", type=float, default=1.0, help="of the limits")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures, most = asyncio.run(storm(Path(folder), options.seconds, options.scale, options.actors, options.seed))
    rows = figures.rows
    found = {
        "accounts": rows["accounts"] - 1,
        "nodes": rows["nodes"] - 1,
        "challenges": rows["challenges"],
        "unpaid": rows["unpaid jobs"],
        "trail": rows["trail"],
        "disk": figures.disk,
        "lamports": figures.lamports,
    }
    bounds = dataclasses.asdict(most)
    publish(
        "strangers",
        "whatever strangers ask for, it costs what the limits say, and who was there before is answered",
        {
            "seconds": round(figures.seconds, 1),
            "requests": sum(figures.asked.values()),
            "asked": dict(figures.asked.most_common()),
            "answers": dict(figures.answers.most_common()),
            "found": found,
            "bounds": {name: round(bounds[name]) for name in found},
            "memory_grew_mb": round(figures.memory / 2**20, 1),
            "most_memory_mb": round(figures.most_memory / 2**20, 1),
            "most_open_files": figures.most_files,
            "processor_s": {"coordinator": round(figures.processor, 1), "strangers": round(figures.of_storm, 1)},
            "operator_answered": len(figures.waits),
            "operator_waits_s": {str(part): round(figures.wait(part), 3) for part in (0.5, 0.9, 0.99)},
            "node_beats": figures.beats,
            "failed": figures.failed,
        },
    )
    broken = [name for name, value in found.items() if value > bounds[name]]
    assert not broken, f"beyond the limits: {', '.join(broken)}"
    assert not figures.failed, figures.failed[0]


if __name__ == "__main__":
    main()
