"""How busy computing is over home lines: two stages in two homes, outer exchanges on, against unlimited lines.

Two homes of ``tests/testbed``, lines of 100 Mbit/s down and 20 up with 30 and 50 ms; each
home runs one stage on one core, activations cross in 8 bits, and every ``period`` steps each home sends the other a 4-bit
pseudo-gradient of its stage on the bulk lane while it computes on. *Busy*: the part of a step in which the computing thread
does not wait for its neighbour, the schedule's own bubble included in what it waits; first steps are left out.

Claims: busy at least 96 %, and at most 4 % slower than over unlimited lines. Needs root, and two idle cores.

    sudo python benchmarks/utilisation.py [--steps 12] [--micro-batches 16] [--schedule zero-bubble] [--lookahead 2]
"""

import argparse
import asyncio
import json
import secrets
import statistics
import sys
from pathlib import Path
from typing import Any

from _common import publish

from tests.testbed.homes import Homes, homes
from tests.testbed.link import Link
from tests.testbed.nat import Nat

HERE = Path(__file__).resolve().parent
LINES = {
    "unlimited": Link(),
    "100/20 Mbit/s, 30 ms": Link(up=20e6, down=100e6, rtt_ms=30),
    "100/20 Mbit/s, 50 ms": Link(up=20e6, down=100e6, rtt_ms=50),
}
WARM = 2  # Steps until the congestion window has grown and memory is warm.
LIMIT_S = 1800.0


class Node:
    """One process of ``_stage_node.py``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.other: Node | None = None
        self.steps: asyncio.Future[list[dict[str, float]]] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if "signal" in message and self.other is not None:
                assert self.other._process.stdin is not None
                self.other._process.stdin.write(line)
            elif "steps" in message:
                self.steps.set_result(message["steps"])
        if not self.steps.done():
            self.steps.set_exception(RuntimeError("a stage ended before its steps were done"))

    async def end(self) -> None:
        """Stop it, however far it is."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._reading.cancel()


async def run(bed: Homes, options: dict[str, Any]) -> dict[str, float]:
    """One row."""
    options = options | {"seeds": [secrets.token_hex(32), secrets.token_hex(32)], "servers": []}
    nodes = []
    try:
        for stage in (1, 0):
            command = [sys.executable, str(HERE / "_stage_node.py"), json.dumps(options | {"stage": stage})]
            nodes.append(Node(await bed.home(stage + 1).start(command, limit=1 << 26)))
        nodes[0].other, nodes[1].other = nodes[1], nodes[0]
        async with asyncio.timeout(LIMIT_S):
            stages = [await node.steps for node in nodes]
    finally:
        for node in nodes:
            await node.end()
    steady = [steps[WARM:] for steps in stages]
    walls = [max(pair) for pair in zip(*([step["wall"] for step in steps] for steps in steady), strict=True)]
    busy = [1 - sum(s["waited"] for s in steps) / sum(s["wall"] for s in steps) for steps in steady]
    return {"seconds a step": statistics.median(walls), "busy, last stage": busy[0], "busy, first stage": busy[1]}


async def main(options: argparse.Namespace) -> None:
    """All lines."""
    training = {
        "sequence": 128, "batch": 4 * options.micro_batches, "micro_batches": options.micro_batches,
        "activations": options.activations, "schedule": options.schedule, "lookahead": options.lookahead,
    }  # fmt: skip
    job = {"training": training, "steps": options.steps, "period": options.period, "width": 192, "layers": 8}
    rows: dict[str, dict[str, float]] = {}
    for name, line in LINES.items():
        async with homes(2, nat=Nat.NONE, link=line, relays=0) as bed:
            rows[name] = await run(bed, job)
        free = rows["unlimited"]["seconds a step"]
        rows[name]["slower"] = rows[name]["seconds a step"] / free - 1
        print(f"{name:24}", "  ".join(f"{key} {value:.4g}" for key, value in rows[name].items()), flush=True)
    publish("utilisation", "busy at least 96 %, at most 4 % slower than unlimited lines", {"job": job, "rows": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--schedule", choices=["1f1b", "zero-bubble"], default="zero-bubble")
    parser.add_argument("--lookahead", type=int, default=2)
    parser.add_argument("--activations", choices=["int8", "int4", "fp32"], default="int8")
    parser.add_argument("--period", type=int, default=4, help="steps between two pseudo-gradients; 0: none")
    asyncio.run(main(parser.parse_args()))
