"""Homes that answer are killed, or fall silent, in mid-answer: how long a stream stands still, and whether any token differs.

A small network on this machine trains a tiny model, and two replicas of one home, or of several (``--stages``), serve it. One
more home is free. Each time two streams are under way, one home that holds a seat, drawn by lot, is killed with its process group
(SIGKILL), or stopped (SIGSTOP) until both have ended. What a stream said is compared with what the same request says beside the
coordinator. At the end every share is compared with what was paid, and ``cottage ledger check`` must hold.

    python -m benchmarks.serving.takeovers [--times 50] [--tokens 300] [--seed 1] [--stages 1] [--replicas 2]
                                           [--manner killed|silent|both] [--model FOLDER]

``--model``: that folder's model is served in place of the tiny one. What it says undisturbed, at the same homes, is what its
streams are compared with.
"""

import argparse
import asyncio
import os
import random
import re
import signal
import statistics
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
from cottage.demo.processes import output_of
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from protocol.job.job import JobSpec, ModelSpec
from protocol.rest.api import JobView
from tests.support.small_job import CORPUS_BYTES, MODEL, small_job

CLAIM = "an answer goes on within five seconds after its home is gone or silent, and no token is another"
WORDS = ["--stages", "1", "--no-reference", "--json", "--nodes"]
PROMPTS = ("The king", "It was a dark", "Once upon", "def main", "import")
BUDGET, CONTEXT, SEED = 50_000_000, 512, 7
READY_S, MOMENT_S = 600.0, 0.6  # A machine that does much else takes minutes to start a home.


class SmallRun(DemoRun):
    """One job of a tiny model, of a few short rounds."""

    corpus_bytes = CORPUS_BYTES

    def _spec(self, artifact: str, budget: int) -> JobSpec:
        spec = small_job(artifact, budget, 1, 1, rounds=3, steps=8, commit_every=4)
        return msgspec.structs.replace(spec, model=ModelSpec(config={**MODEL, "max_position_embeddings": 512}))


@dataclass(frozen=True)
class TakeoverOptions:
    """What is done how often. ``manner``: what befalls homes; both: in turn."""

    times: int
    tokens: int
    seed: int
    stages: int
    replicas: int
    manner: str
    model: Path | None = None

    @property
    def homes(self) -> int:
        """Those that hold the model, and one that takes the place of who is gone."""
        return self.stages * self.replicas + 1


@dataclass
class Found:
    """What came of all times."""

    times: int = 0
    moved: int = 0
    differing: int = 0
    gaps: dict[str, list[float]] = field(default_factory=dict)

    def note(self, manner: str, gap: float) -> None:
        """How long the streams of one time stood still at most, in seconds."""
        self.gaps.setdefault(manner, []).append(gap)

    def report(self) -> dict[str, float]:
        """In numbers; seconds."""
        found = {"times": self.times, "streams_moved": self.moved, "texts_that_differ": self.differing}
        gaps = {f"{manner}_median_s": statistics.median(ones) for manner, ones in self.gaps.items()}
        gaps |= {f"{manner}_max_s": max(ones) for manner, ones in self.gaps.items()}
        return {**found, **{name: round(gap, 3) for name, gap in gaps.items()}}


class Takeovers:
    """One network, one deployment."""

    def __init__(self, run: SmallRun, client: Client, program: AsyncOpenAI, options: TakeoverOptions) -> None:
        self._run, self._client, self._program, self._options = run, client, program, options
        self._chance = random.Random(options.seed)
        self._added = 0
        self._right: dict[str, str] = {}

    async def serve(self) -> tuple[str, str]:
        """Deploy the model: the deployment's id, and whom to ask what is right."""
        options = self._options
        if options.model is not None:
            words = ["--stages", options.stages, "--replicas", options.replicas, "--hours", 12, "--context", CONTEXT]
            asks = [
                "-m",
                "cottage",
                "deploy",
                options.model.resolve(),
                *words,
                "--yes",
                "--server",
                self._run.network.web,
            ]
            said = await output_of([str(word) for word in asks], self._run.options.folder)
            deployment = re.findall(r"[0-9a-f]{32}", said)[0]
            return deployment, deployment
        ledger = self._run.network.ledger
        assert ledger is not None
        job = (await self._run._submit(self._client, ledger)).id
        await self._run._watch(self._client, job)
        replicas, stages = options.replicas, options.stages
        return (await self._client.deploy(job, replicas, 12.0, BUDGET, stages=stages)).id, job

    async def once(self, job: str, deployment: str, number: int, found: Found) -> None:
        """Two streams, and one home that goes."""
        await self._ready(deployment)
        prompts = self._chance.sample(PROMPTS, 2)
        for prompt in prompts:
            if prompt not in self._right:
                self._right[prompt], _, _ = await self._say(job, prompt)
        right = [self._right[prompt] for prompt in prompts]
        begun = asyncio.Event()
        asked = [asyncio.create_task(self._say(deployment, prompt, begun)) for prompt in prompts]
        await begun.wait()
        await asyncio.sleep(self._chance.uniform(0.0, MOMENT_S))
        nodes = await self._client.nodes(deployment)
        seated = {node.node: node for node in nodes if node.state in ("ready", "waiting")}
        homes = [one for one in self._run.network.providers if one.key.address in seated and one.role is not None]
        home = self._chance.choice(homes)
        assert home.role is not None
        silent = number % 2 == 1 if self._options.manner == "both" else self._options.manner == "silent"
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
        gap = max(later - sooner for _, times, _ in said for sooner, later in pairwise(times))
        seat, manner = seated[home.key.address], "silent" if silent else "killed"
        found.note(manner, gap)
        where = f"stage {(seat.stage or 0) + 1} of replica {(seat.replica or 0) + 1}"
        same = all(text == wanted for (text, _, _), wanted in zip(said, right, strict=True))
        print(
            f"{number + 1}: {where} {manner}: {gap:.2f} s, {'the same tokens' if same else 'OTHER TOKENS'}", flush=True
        )

    async def _ready(self, deployment: str) -> None:
        """All replicas answer, and one more home has measured itself: while it does, a small machine does little else."""
        async with asyncio.timeout(READY_S):
            while True:
                view, network = await self._client.get(deployment), await self._client.network()
                ready = 0 if view.serving is None else view.serving.ready
                if ready >= self._options.replicas and network.nodes_online >= self._options.homes:
                    return
                await asyncio.sleep(0.2)

    async def _say(self, model: str, prompt: str, begun: asyncio.Event | None = None) -> tuple[str, list[float], int]:
        text, times, nodes = "", [], 0
        stream = await self._program.completions.create(
            model=model, prompt=prompt, max_tokens=self._options.tokens, temperature=1.0, seed=SEED, stream=True
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
        web, rpc = self._run.network.web, self._run.network.ledger_url
        await output_of(["-m", "cottage", "ledger", "check", deployment, "--coordinator", web, "--rpc", rpc])
        return view


async def measure(options: TakeoverOptions, folder: Path) -> dict[str, object]:
    """All of it."""
    found = Found()
    async with SmallRun(parse([*WORDS, str(options.homes), "--dir", str(folder)]), LineScreen()) as run:
        await run._start()
        async with (
            Client(run.network.web) as client,
            AsyncOpenAI(base_url=f"{run.network.web}/v1", api_key="none", timeout=600, max_retries=0) as program,
        ):
            takeovers = Takeovers(run, client, program, options)
            deployment, job = await takeovers.serve()
            for number in range(options.times):
                await takeovers.once(job, deployment, number, found)
            print(found.report(), flush=True)
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
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--manner", choices=("killed", "silent", "both"), default="both")
    parser.add_argument("--model", type=Path, help="a folder of Hugging Face's; without it a tiny one is trained")
    options = TakeoverOptions(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(options, Path(folder) / "network"))
    publish("takeovers" if options.stages == 1 else "stage_takeovers", CLAIM, result)


if __name__ == "__main__":
    main()
