"""How busy computing is over home lines: two stages x two replicas in four homes, two more audit, outer steps and payments on.

Coordinator, ledger, agents, workers, messages and lines are the real ones (``tests/testbed``: lines of 100 Mbit/s down and 20 up
with 30 and 50 ms, then lines without limits). Two cores hold no four computing nodes, so each worker's passes are drawn out:
a micro-batch is computed for real, and then slept until it has taken ``--pace`` seconds forward and twice that backward
(``trainer.worker.throttle``), as a card of a fixed speed would. The model must therefore be small; activations cross as
float32, so that
lines are as full as with a larger one in 8 bits. An audit is not drawn out; spares make it, two since some are made twice, with
the processor time that the others leave: they would be computers of their own.

*Busy, as workers say*: the part of the time in which a worker waited neither for payloads nor between two rounds.
*Busy*: the time that the steps of complete rounds take at that pace, as part of the time from the end of the first round to the
end of the last: bubbles, waits for payloads, exchanges, commitments and orders of the coordinator are all in the rest. *Slower*:
the same job's rounds against those over lines without limits.

Goals: busy at least 96 %, at most 4 % slower. Needs root. Writes ``build/bench/utilisation.json``.

    sudo python -m benchmarks.links.utilisation [--methods diloco,streaming] [--rounds 3] [--micro-batches 64]
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import publish
from coordinator.client import Client
from cottage.demo.network import STAKE, Provider
from cottage.demo.processes import DemoProcess
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, ParallelSpec, TokenizerSpec, TrainingSpec
from tests.chaos.storm import Storm, Weather
from tests.testbed.homes import homes
from tests.testbed.link import Link
from tests.testbed.nat import Nat

STAGES, REPLICAS = 2, 2
LINES = {
    "no limits": Link(),
    "100/20 Mbit/s, 30 ms": Link(up=20e6, down=100e6, rtt_ms=30),
    "100/20 Mbit/s, 50 ms": Link(up=20e6, down=100e6, rtt_ms=50),
}
METHODS: dict[str, dict[str, Any]] = {
    "diloco": {"outer": "diloco"},
    "streaming": {"outer": "streaming", "fragments": 2, "mixing": 0.5, "overlap": 1},
}
SEQUENCE, ROWS = 128, 2  # Tokens of a window; windows of a micro-batch.
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": STAGES,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": SEQUENCE,
}
ENTER = "import os, sys; os.execvp('nsenter', ['nsenter', *sys.argv[1:]])"
BUSY, SLOWER = 0.96, 0.04
LOWEST = 19  # Priority, setpriority(2).


@dataclass
class Between(Storm):
    """A calm network whose nodes live in homes; runs within the public host's namespace. ``options``: of one row, see ``run``."""

    options: dict[str, Any] = field(default_factory=dict)

    async def run_node(self, provider: Provider) -> DemoProcess:
        """Start a node's agent in its home."""
        number = self.providers.index(provider)
        words = [
            "-m",
            "cottage",
            "node",
            "run",
            "--coordinator",
            self.web,
            "--home",
            str(provider.home),
            "--name",
            provider.name,
            "--sandbox",
            "process",
            "--threads",
            "1",
            "--stake",
            STAKE,
            f"--worker-argument=--pace={self.options['pace']}",
        ]
        inside = [f"--net=/run/netns/{self.options['homes'][number]}", sys.executable, *words]
        provider.role = await self.household.start(f"node-{provider.name}", ["-c", ENTER, *inside])
        return provider.role

    def spec(self, artifact: str, budget: int) -> JobSpec:
        """The job's document."""
        options, micros = self.options, self.options["micro_batches"]
        steps = options["rounds"] * options["inner_steps"]
        training = TrainingSpec(
            tokens=steps * micros * ROWS * SEQUENCE * REPLICAS,
            sequence=SEQUENCE,
            batch=ROWS * micros,
            micro_batches=micros,
            inner_steps=options["inner_steps"],
            activations=options["activations"],
            schedule="zero-bubble",
            lookahead=options["lookahead"],
            pseudo_gradient="fp32",
            **METHODS[options["method"]],
        )
        return JobSpec(
            name="a run between homes",
            model=ModelSpec(config=MODEL),
            dataset=DatasetSpec(artifact=artifact, heldout=0.005),
            budget=budget,
            tokenizer=TokenizerSpec(kind="bytes"),
            training=training,
            parallel=ParallelSpec(stages=STAGES, replicas=REPLICAS),
            deadline_hours=6.0,
        )


_SAYS = re.compile(r"round (\d+): \d+ steps in ([\d.]+) s, of which ([\d.]+) s waiting")
_said: list[tuple[int, float, float]] = []
"""Of each worker's rounds: number, seconds of its steps, and how many of them it waited for payloads."""


async def _listen(place: Path) -> None:
    """Read what workers write while they run; their logs end with them."""
    while True:
        with contextlib.suppress(OSError):  # A log that ends between two looks.
            texts = [log.read_text(errors="replace") for log in place.glob("nodes/**/*.log")]
            found = [(int(n), float(took), float(waited)) for text in texts for n, took, waited in _SAYS.findall(text)]
            if len(found) >= len(_said):
                _said[:] = found
        await asyncio.sleep(1.0)


async def _stand_back(network: Between) -> None:
    """Give spares what processor time nodes that compute leave."""
    while not (network.web and network.token):  # noqa: ASYNC110 - The coordinator starts; nobody tells when.
        await asyncio.sleep(0.5)
    async with Client(network.web, network.token) as client:
        while True:
            jobs = await client.jobs()
            nodes = [node for job in jobs for node in await client.nodes(job.id)]
            spares = {node.node for node in nodes if node.stage is None}
            for provider in network.providers:
                if provider.key.address in spares and provider.role is not None:
                    _yield_processors(provider.role.pid)
            await asyncio.sleep(2.0)


def _yield_processors(pid: int) -> None:
    """Give a process and all that it has started the lowest priority; on Linux each thread has its own."""
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        agent = psutil.Process(pid)
        for process in (agent, *agent.children(recursive=True)):
            for thread in process.threads():
                os.setpriority(os.PRIO_PROCESS, thread.id, LOWEST)


async def inside(options: dict[str, Any]) -> None:
    """One row, from the public host; prints its figures as JSON."""
    weather = Weather(stages=STAGES, replicas=REPLICAS, spares=2, joiners=0, kills=0, lease_seconds=15.0, audits=1)
    with tempfile.TemporaryDirectory() as place:
        network = Between(Path(place), weather, host=options["host"], options=options)
        async with network:
            beside = [asyncio.create_task(work) for work in (_listen(Path(place)), _stand_back(network))]
            outcome = await network.to_the_end()
            for task in beside:
                if task.done():
                    task.result()  # It failed.
                task.cancel()
    if outcome.job.state != "settled":
        raise RuntimeError(f"the job is {outcome.job.state}: {outcome.job.reason}")
    rounds = [r for r in outcome.complete() if r.tokens]
    ends = [r.ended or 0.0 for r in rounds]
    seconds = [after - before for before, after in itertools.pairwise(ends)]
    step = 3 * options["pace"] * options["micro_batches"]
    told = [line for line in _said if line[0] > 1]  # Not of the round that warms up; workers count from 1.
    print(
        json.dumps(
            {
                "busy, as workers say": statistics.mean(took - waited for _, took, waited in told)
                / statistics.mean(seconds),
                "busy": options["inner_steps"] * step / statistics.mean(seconds),
                "round seconds": statistics.mean(seconds),
                "rounds": len(rounds),
                "all contributed": all(len(r.contributors) == REPLICAS for r in rounds),
                "seconds by round": [round(value, 2) for value in seconds],
                "bytes": outcome.job.bytes_sent,
                "loss": [r.train_loss for r in rounds],
                "audits passed": sum(audit.state == "passed" for audit in outcome.audits),
            }
        ),
        flush=True,
    )


async def run(line: Link, options: dict[str, Any]) -> dict[str, Any]:
    """One row: build the homes, and run ``inside`` on the public host."""
    count = STAGES * REPLICAS + 2
    async with homes(count, nat=Nat.NONE, link=line, relays=0) as bed:
        names = [Path(bed.home(number).enter([])[1].removeprefix("--net=")).name for number in range(1, count + 1)]
        told = options | {"homes": names, "host": bed.public_address}
        process = await bed.public.start(
            [sys.executable, "-m", "benchmarks.links.utilisation", "--inside", json.dumps(told)], stderr=None
        )
        out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"a row ended with status {process.returncode}")
    found: dict[str, Any] = json.loads(out)
    return found


async def main(options: argparse.Namespace) -> int:
    """All rows."""
    job = {
        name: getattr(options, name)
        for name in ("rounds", "inner_steps", "micro_batches", "lookahead", "activations", "pace")
    }
    rows: dict[str, dict[str, Any]] = {}
    for method in options.methods.split(","):
        for name in options.lines.split(";"):
            found = rows[f"{method}, {name}"] = await run(LINES[name], job | {"method": method})
            free = rows.get(f"{method}, no limits")
            if free is not None:
                found["slower"] = found["round seconds"] / free["round seconds"] - 1
            print(
                f"{method:10} {name:22}",
                {k: v for k, v in found.items() if k.startswith(("busy", "slower", "round s"))},
                flush=True,
            )
    goals = {name: row["busy"] >= BUSY and row.get("slower", 0.0) <= SLOWER for name, row in rows.items()}
    publish(
        "utilisation",
        "busy at least 96 %, at most 4 % slower than over lines without limits",
        {"computing": "drawn out to a fixed pace; the rest is real", "job": job, "rows": rows, "goals": goals},
    )
    return 0 if all(goals.values()) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="the first one warms up and is not counted")
    parser.add_argument("--inner-steps", type=int, default=8)
    parser.add_argument("--micro-batches", type=int, default=64)
    parser.add_argument("--lookahead", type=int, default=6)
    parser.add_argument("--activations", choices=["int8", "int4", "fp32"], default="fp32")
    parser.add_argument(
        "--pace", type=float, default=0.045, help="seconds of a micro-batch forward; backward takes two"
    )
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--lines", default=";".join(LINES))
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    asked = _parser().parse_args()
    if asked.inside:
        asyncio.run(inside(json.loads(asked.inside)))
    else:
        raise SystemExit(asyncio.run(main(asked)))
