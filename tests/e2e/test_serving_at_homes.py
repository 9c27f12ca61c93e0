"""A finished model is served at homes: stock clients read the same tokens as of one process, also while a home dies."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import yaml
from openai import AsyncOpenAI

from coordinator.client import Client
from cottage.demo.options import parse
from cottage.demo.processes import output_of
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from protocol.job.job import JobSpec, ModelSpec
from protocol.rest.api import JobView
from tests.support.small_job import BATCH, CORPUS_BYTES, MODEL, SEQUENCE, small_job

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WORDS = ["--stages", "1", "--no-reference", "--json", "--nodes"]
PROMPTS = ("The king", "It was a dark", "Once")
STEPS, ROUNDS, REPLICAS = 8, 2, 2  # Of an adapter.
TOKENS, LONG = 48, 400  # The second so many that a home can die in the middle.


class SmallRun(DemoRun):
    """One job of a model of 0.1 M parameters, of a few short rounds."""

    corpus_bytes = CORPUS_BYTES

    def _spec(self, artifact: str, budget: int) -> JobSpec:
        stages, replicas = self.options.stages, self.options.replicas
        spec = small_job(artifact, budget, stages, replicas, rounds=3, steps=8, commit_every=4)
        return msgspec.structs.replace(spec, model=ModelSpec(config={**MODEL, "max_position_embeddings": 512}))


@asynccontextmanager
async def trained(folder: Path, nodes: int = 2) -> AsyncIterator[tuple[SmallRun, str]]:
    """A network with a job that is done."""
    async with SmallRun(parse([*WORDS, str(nodes), "--dir", str(folder)]), LineScreen()) as run:
        ledger = await run._start()
        async with Client(run.network.web) as client:
            job = (await run._submit(client, ledger)).id
            assert (await run._watch(client, job)).state == "settled"
        yield run, job


async def say(
    program: AsyncOpenAI,
    model: str,
    prompt: str,
    temperature: float,
    tokens: int = TOKENS,
    begun: asyncio.Event | None = None,
) -> tuple[str, list[str]]:
    """What a model says, and which nodes said it."""
    pieces, nodes = "", []
    stream = await program.completions.create(
        model=model, prompt=prompt, max_tokens=tokens, temperature=temperature, seed=7, stream=True
    )
    async for chunk in stream:
        if begun is not None:
            begun.set()
        pieces += chunk.choices[0].text
        nodes += (chunk.model_extra or {}).get("cottage", {}).get("nodes", [])
    return pieces, nodes


async def state_of(client: Client, job: str, wanted: str, seconds: float = 60.0) -> JobView:
    async with asyncio.timeout(seconds):
        while (view := await client.get(job)).state != wanted:
            await asyncio.sleep(0.2)
    return view


async def test_a_model_is_served_at_homes_and_goes_on_when_one_dies(tmp_path: Path) -> None:
    async with trained(tmp_path / "network") as (run, job):
        web, server = run.network.web, ["--server", run.network.web]
        said = await output_of(
            ["-m", "cottage", "deploy", job, "--replicas", "2", "--hours", "1", "--budget", "5", "--yes", *server],
            tmp_path,
        )
        deployment = re.findall(r"[0-9a-f]{32}", said.replace(job, ""))[0]
        async with Client(web) as client, AsyncOpenAI(base_url=f"{web}/v1", api_key="none") as program:
            async with asyncio.timeout(60):
                while (view := await client.get(deployment)).serving is None or view.serving.ready < 2:
                    await asyncio.sleep(0.2)
            assert deployment in [model.id async for model in await program.models.list()]
            names = set()
            for temperature in (0.0, 1.0):
                for prompt in PROMPTS:
                    here, _ = await say(program, job, prompt, temperature)
                    there, nodes = await say(program, deployment, prompt, temperature)
                    assert there == here, f"{prompt} at {temperature}: token for token"
                    names |= set(nodes)
            assert names <= {provider.name for provider in run.network.providers}
            await in_mid_answer(run, program, job, deployment)
            assert run.network.coordinator is not None
            await run.household.kill(run.network.coordinator)
            await run.network.start_coordinator()
            here, _ = await say(program, job, PROMPTS[0], 1.0)
            there, _ = await say(program, deployment, PROMPTS[0], 1.0)
            assert there == here, "the home that is left holds the model still"
            view = await client.get(deployment)
            assert view.serving is not None
            assert view.serving.wrong == 0
            assert view.serving.tokens >= TOKENS, "of what was counted since, and before in periods"
            await output_of(["-m", "cottage", "stop", deployment, *server], tmp_path)
            view = await state_of(client, deployment, "settled")
            nodes = await client.nodes(deployment)
        assert view.paid > 0
        assert view.paid + view.refunded == view.escrow
        assert view.paid == sum(node.paid for node in nodes)
        checked = await output_of(
            ["-m", "cottage", "ledger", "check", deployment, "--coordinator", web, "--rpc", run.network.ledger_url],
            tmp_path,
        )
        assert "sum" in checked or checked


async def in_mid_answer(run: SmallRun, program: AsyncOpenAI, job: str, deployment: str) -> None:
    """Kill one of the homes that answer: its stream goes on at the other one, and no token is another."""
    right = [(await say(program, job, prompt, 1.0, LONG))[0] for prompt in PROMPTS[:2]]
    begun = asyncio.Event()
    asked = [asyncio.create_task(say(program, deployment, one, 1.0, LONG, begun)) for one in PROMPTS[:2]]
    await begun.wait()
    await asyncio.sleep(0.3)
    (first, _) = run.network.providers
    assert first.role is not None
    await run.household.kill(first.role)
    said = await asyncio.gather(*asked)
    assert [text for text, _ in said] == right
    assert max(len(nodes) for _, nodes in said) >= 2, "one of them had its home killed under it"


def adapter_document(spec: JobSpec, base: str) -> dict[str, object]:
    """A job that has an adapter learn beside the model of another one, from the same text."""
    assert spec.dataset is not None
    training = {
        "tokens": ROUNDS * STEPS * BATCH * SEQUENCE * REPLICAS,
        "sequence": SEQUENCE,
        "batch": BATCH,
        "micro_batches": 2,
        "inner_steps": STEPS,
        "commit_every": 4,
        "learning_rate": 0.02,
        "warmup_steps": 1,
        "lora": {"rank": 4, "alpha": 16},
    }
    return {
        "name": "small adapted",
        "model": {"from_job": base},
        "dataset": {"artifact": spec.dataset.artifact, "heldout": 0.005},
        "training": training,
        "parallel": {"stages": 1, "replicas": REPLICAS},
        "budget": spec.budget,
        "deadline_hours": 2.0,
    }


async def adapted(run: SmallRun, base: str, folder: Path) -> str:
    """A job with an adapter of ``base``, which is done."""
    async with Client(run.network.web) as client:
        spec = (await client.get(base)).spec
        (folder / "adapter.yaml").write_text(yaml.safe_dump(adapter_document(spec, base)))
        words = ["submit", "adapter.yaml", "--yes", "--server", run.network.web]
        await output_of(["-m", "cottage", *words], folder)
        (job,) = [view.id for view in await client.jobs() if view.id != base]
        view = await state_of(client, job, "settled", 300.0)
    assert view.paid > 0
    return job


async def test_an_adapter_that_was_trained_here_answers_beside_its_base(tmp_path: Path) -> None:
    async with trained(tmp_path / "network") as (run, base):
        web, server = run.network.web, ["--server", run.network.web]
        adapter = await adapted(run, base, tmp_path)
        typed = ["deploy", base, "--adapter", adapter, "--hours", "1", "--budget", "5", "--yes"]
        told = await output_of(["-m", "cottage", *typed, *server], tmp_path)
        (deployment,) = set(re.findall(r"[0-9a-f]{32}", told)) - {base, adapter}
        beside = f"{deployment}:{adapter}"
        async with Client(web) as client, AsyncOpenAI(base_url=f"{web}/v1", api_key="none") as program:
            async with asyncio.timeout(60):
                while (view := await client.get(deployment)).serving is None or view.serving.ready < 1:
                    await asyncio.sleep(0.2)
            assert {deployment, beside} <= {model.id async for model in program.models.list()}
            with_it, without = [], []
            for temperature in (0.0, 1.0):
                for prompt in PROMPTS:
                    alone, _ = await say(program, base, prompt, temperature)
                    learnt, _ = await say(program, adapter, prompt, temperature)
                    said, nodes = await say(program, beside, prompt, temperature)
                    assert said == learnt, "as the coordinator's own process says it with the job's adapter"
                    assert nodes
                    assert (await say(program, deployment, prompt, temperature))[0] == alone
                    with_it.append(said)
                    without.append(alone)
            assert with_it != without, "the adapter has learnt something"
            await output_of(["-m", "cottage", "stop", deployment, *server], tmp_path)
            view = await state_of(client, deployment, "settled")
        assert view.serving is not None
        assert view.serving.wrong == 0
        assert view.paid + view.refunded == view.escrow
