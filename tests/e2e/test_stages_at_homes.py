"""A model that two homes hold together: stock clients read the tokens of one process, also while one dies and a third comes."""

import asyncio
import re
from pathlib import Path

import numpy as np
import pytest
from openai import AsyncOpenAI

from coordinator.client import Client
from cottage.demo.options import parse
from cottage.demo.processes import output_of
from cottage.demo.screen import LineScreen
from protocol.rest.api import JobNode
from protocol.serving import EmbedCommand, EmbeddedReport, GenerateCommand, Sampling
from tests.e2e.smollm2 import smollm2  # noqa: F401 - a fixture
from tests.e2e.test_serving_at_homes import PROMPTS, WORDS, SmallRun, say, state_of
from tests.trainer.serve.answering import Asking, text_of
from trainer.serve.embeddings import TOLERANCE
from trainer.serve.engine import Engine

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LOADS_S = 240.0
CONTEXT, FEW, MORE = 512, 16, 96
TEXTS = ("a lemon", "a king", "The queen walks by the sea. " * 20)


async def seats_of(client: Client, deployment: str) -> dict[int, JobNode]:
    """Who holds which stage now."""
    nodes = [node for node in await client.nodes(deployment) if node.state in ("ready", "waiting")]
    return {node.stage: node for node in nodes if node.stage is not None}


async def of_one_process(model: Path, *commands: GenerateCommand) -> tuple[dict[str, str], list[np.ndarray]]:
    """What the whole model says, by request, and the vectors of ``TEXTS``."""
    asking = Asking()
    async with Engine(model, 1, asking.say, context=CONTEXT) as engine:
        found = await asking.over(engine, *commands, EmbedCommand("texts", TEXTS))
    made = [one for report in found.pop("texts") if isinstance(report, EmbeddedReport) for one in report.vectors]
    texts = {request: text_of(said) for request, said in found.items()}
    return texts, [np.frombuffer(one, "<f4") for one in made]


@pytest.mark.timeout(1800)
async def test_a_model_that_people_use_is_held_by_two_homes_and_a_third(smollm2: Path, tmp_path: Path) -> None:  # noqa: F811
    asked = [
        GenerateCommand(
            f"{prompt} {temperature} {tokens}", prompt, tokens=tokens, sampling=Sampling(temperature, seed=7)
        )
        for prompt in PROMPTS[:2]
        for temperature, tokens in ((0.0, FEW), (1.0, FEW), (1.0, MORE))
    ]
    right, vectors = await of_one_process(smollm2, *asked)
    async with SmallRun(parse([*WORDS, "3", "--dir", str(tmp_path / "network")]), LineScreen()) as run:
        await run._start()
        web, server = run.network.web, ["--server", run.network.web]
        limits = ["--stages", "2", "--hours", "1", "--context", str(CONTEXT)]
        said = await output_of(["-m", "cottage", "deploy", str(smollm2), *limits, "--yes", *server], tmp_path)
        deployment = re.findall(r"[0-9a-f]{32}", said)[0]
        async with Client(web) as client, AsyncOpenAI(base_url=f"{web}/v1", api_key="none") as program:
            view = await state_of(client, deployment, "running", LOADS_S)
            assert view.serving is not None
            assert (view.serving.stages, view.serving.ready) == (2, 1)
            names = set()
            for prompt in PROMPTS[:2]:
                for temperature in (0.0, 1.0):
                    there, nodes = await say(program, deployment, prompt, temperature, FEW)
                    assert there == right[f"{prompt} {temperature} {FEW}"], f"{prompt} at {temperature}"
                    names |= set(nodes)
            assert len(names) == 2, "both have answered each of them"
            made = await program.embeddings.create(model=deployment, input=list(TEXTS))
            assert [one.index for one in made.data] == [0, 1, 2]
            for one, due in zip(made.data, vectors, strict=True):
                assert float(np.linalg.norm(np.array(one.embedding) - due)) < TOLERANCE / 10
            long = [right[f"{prompt} 1.0 {MORE}"] for prompt in PROMPTS[:2]]
            await in_mid_answer(run, client, program, deployment, long, MORE)
            await output_of(["-m", "cottage", "stop", deployment, *server], tmp_path)
            view = await state_of(client, deployment, "settled", LOADS_S)
            assert view.serving is not None
            assert (view.serving.wrong, view.serving.checked > 0) == (0, True)
            paid = await client.nodes(deployment)
        assert view.paid > 0
        assert view.paid + view.refunded == view.escrow
        assert view.paid == sum(node.paid for node in paid)
        assert len([node for node in paid if node.paid]) == 3
        checked = await output_of(
            ["-m", "cottage", "ledger", "check", deployment, "--coordinator", web, "--rpc", run.network.ledger_url],
            tmp_path,
        )
        assert "sum" in checked


async def in_mid_answer(
    run: SmallRun, client: Client, program: AsyncOpenAI, deployment: str, right: list[str], tokens: int
) -> None:
    """Kill the home with the last layers while it answers: the free one takes its place, and no token is another."""
    last = (await seats_of(client, deployment))[1]
    begun = asyncio.Event()
    asked = [asyncio.create_task(say(program, deployment, one, 1.0, tokens, begun)) for one in PROMPTS[:2]]
    await begun.wait()
    await asyncio.sleep(0.3)
    victim = next(provider for provider in run.network.providers if provider.key.address == last.node)
    assert victim.role is not None
    await run.household.kill(victim.role)
    said = await asyncio.gather(*asked)
    assert [text for text, _ in said] == right
    assert max(len(nodes) for _, nodes in said) == 3, "one of them had its home killed under it"
