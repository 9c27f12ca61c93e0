"""Homes that answer are killed, or fall silent, in mid-answer: how long a stream stands still, and whether any token differs.

A small network on this machine trains a tiny model, and two of its homes serve it. Each time two streams are under way, one home
is killed with its process group, or stopped (``SIGSTOP``) until both have ended. What a stream said is compared with what the
same request says beside the coordinator. At the end every share is compared with what was paid.

    python -m benchmarks.serving.takeovers [--times 50] [--tokens 300] [--seed 1]
"""

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
from openai import AsyncOpenAI

from benchmarks.common import publish
from coordinator.client import Client
from cottage.demo.options import parse
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from protocol.job.job import JobSpec, ModelSpec
from protocol.rest.api import JobView
from tests.support.small_job import CORPUS_BYTES, MODEL, small_job

CLAIM = "an answer goes on within five seconds after its home is gone or silent, and no token is another"
HOMES = 3  # Two that answer, and one that takes the place of who is gone.
WORDS = ["--nodes", str(HOMES), "--stages", "1", "--no-reference", "--json"]
PROMPTS = ("The king", "It was a dark", "Once upon", "def main", "import")
BUDGET = 50_000_000
READY_S, MOMENT_S = 120.0, 0.6


class SmallRun(DemoRun):
    """One job of a tiny model, of a few short rounds."""

    corpus_bytes = CORPUS_BYTES

    def _spec(self, artifact: str, budget: int) -> JobSpec:
        spec = small_job(artifact, budget, 1, 1, rounds=3, steps=8, commit_every=4)
        return msgspec.structs.replace(spec, model=ModelSpec(config={**MODEL, "max_position_embeddings": 512}))


@dataclass
class Found:
    """What came of all times."""

    times: int = 0
    moved: int = 0
    differing: int = 0
    gaps: list[float] = field(default_factory=list)

    def report(self) -> dict[str, float]:
        """In numbers; seconds."""
        gaps = sorted(self.gaps)
        return {
            "times": self.times,
            "streams_moved": self.moved,
            "texts_that_differ": self.differing,
            "gap_median_s": round(gaps[len(gaps) // 2], 3),
            "gap_max_s": round(gaps[-1], 3),
        }


class Takeovers:
    """One network, one deployment."""

    def __init__(self, run: SmallRun, client: Client, program: AsyncOpenAI, tokens: int, seed: int) -> None:
        self._run, self._client, self._program, self._tokens = run, client, program, tokens
        self._chance = random.Random(seed)
        self._added = 0

    async def serve(self, job: str) -> str:
        """Deploy a job's model; the deployment's id."""
        return (await self._client.deploy(job, replicas=2, hours=12.0, budget=BUDGET)).id

    async def once(self, job: str, deployment: str, number: int, found: Found) -> None:
        """Two streams, and one home that goes."""
        await self._ready(deployment)
        prompts = [self._chance.choice(PROMPTS) for _ in range(2)]
        right = [(await self._say(job, prompt, number))[0] for prompt in prompts]
        begun = asyncio.Event()
        asked = [asyncio.create_task(self._say(deployment, prompt, number, begun)) for prompt in prompts]
        await begun.wait()
        await asyncio.sleep(self._chance.uniform(0.0, MOMENT_S))
        seated = {node.node for node in await self._client.nodes(deployment) if node.state in ("ready", "waiting")}
        homes = [one for one in self._run.network.providers if one.key.address in seated and one.role is not None]
        home = self._chance.choice(homes)
        assert home.role is not None
        silent = number % 2 == 1
        if silent:
            os.killpg(home.role.pid, signal.SIGSTOP)
        else:
            await self._run.household.kill(home.role)
            self._run.network.providers.remove(home)
        said = await asyncio.gather(*asked)
        if silent:
            os.killpg(home.role.pid, signal.SIGCONT)
        else:
            self._added += 1
            await self._run.network.add_provider(f"more{self._added}")
        found.times += 1
        found.moved += sum(nodes > 1 for _, _, nodes in said)
        found.differing += sum(text != wanted for (text, _, _), wanted in zip(said, right, strict=True))
        found.gaps.append(max(later - sooner for _, times, _ in said for sooner, later in pairwise(times)))

    async def _ready(self, deployment: str) -> None:
        """Two homes hold the model, and a third one has measured itself: while it does, a small machine does little else."""
        async with asyncio.timeout(READY_S):
            while True:
                view, network = await self._client.get(deployment), await self._client.network()
                if view.serving is not None and view.serving.ready >= 2 and network.nodes_online >= HOMES:
                    return
                await asyncio.sleep(0.2)

    async def _say(
        self, model: str, prompt: str, seed: int, begun: asyncio.Event | None = None
    ) -> tuple[str, list[float], int]:
        text, times, nodes = "", [], 0
        stream = await self._program.completions.create(
            model=model, prompt=prompt, max_tokens=self._tokens, temperature=1.0, seed=seed, stream=True
        )
        async for chunk in stream:
            times.append(time.monotonic())
            text += chunk.choices[0].text
            nodes += len((chunk.model_extra or {}).get("cottage", {}).get("nodes", ()))
            if begun is not None:
                begun.set()
        return text, times, nodes

    async def paid(self, deployment: str) -> JobView:
        """End it; raises where sums are not exact."""
        await self._client.stop(deployment)
        async with asyncio.timeout(READY_S):
            view = await self._client.get(deployment)
            while view.state != "settled":
                await asyncio.sleep(0.2)
                view = await self._client.get(deployment)
        shares = await self._client.commits(deployment)
        verified = sum(share.amount for share in shares if share.state == "verified")
        if (view.paid, view.paid + view.refunded) != (verified, view.escrow):
            raise SystemExit(f"paid {view.paid}, verified {verified}, refunded {view.refunded} of {view.escrow}")
        return view


async def measure(times: int, tokens: int, seed: int, folder: Path) -> dict[str, object]:
    """All of it."""
    found = Found()
    async with SmallRun(parse([*WORDS, "--dir", str(folder)]), LineScreen()) as run:
        ledger = await run._start()
        async with (
            Client(run.network.web) as client,
            AsyncOpenAI(base_url=f"{run.network.web}/v1", api_key="none", timeout=120, max_retries=0) as program,
        ):
            job = (await run._submit(client, ledger)).id
            await run._watch(client, job)
            takeovers = Takeovers(run, client, program, tokens, seed)
            deployment = await takeovers.serve(job)
            for number in range(times):
                await takeovers.once(job, deployment, number, found)
                print(f"{number + 1} of {times}: {found.report()}", flush=True)
            view = await takeovers.paid(deployment)
    assert view.serving is not None
    answers = {"answers": view.serving.answers, "checked": view.serving.checked, "wrong": view.serving.wrong}
    return {**found.report(), **answers, "paid": view.paid, "refunded": view.refunded, "escrow": view.escrow}


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(options.times, options.tokens, options.seed, Path(folder) / "network"))
    publish("takeovers", CLAIM, result)


if __name__ == "__main__":
    main()
