"""The door as other stock clients find it: OpenAI's for JavaScript, and LangChain's."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protocol.serving import AnswerReport, AskCommand
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake_services import Outputs
from tests.coordinator.web.test_life import started

ROOT = Path(__file__).parents[4] / "build" / "openai"
WAY = "npm install --prefix build/openai openai@6.49.0"


def halt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing come for a while before each piece of an answer, so that streams say that they wait."""
    usual = Outputs.complete

    async def halting(self: Outputs, job: str, point: Any, command: AskCommand) -> AsyncIterator[AnswerReport]:
        async for report in usual(self, job, point, command):
            await asyncio.sleep(0.15)
            yield report

    monkeypatch.setattr(Outputs, "complete", halting)
    monkeypatch.setattr("coordinator.web.stream.PACE_S", 0.03)


@pytest.mark.skipif(
    shutil.which("node") is None or not (ROOT / "node_modules" / "openai").is_dir(),
    reason=f"OpenAI's client for JavaScript is not here: {WAY}",
)
@pytest.mark.parametrize("halting", [False, True])
async def test_the_client_for_javascript_is_answered(
    house: House, halting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await started(house)
    if halting:
        halt(monkeypatch)
    script = ROOT / "client.mjs"  # A module finds packages beside itself.
    shutil.copyfile(Path(__file__).with_name("client.mjs"), script)
    process = await asyncio.create_subprocess_exec(
        *("node", str(script), f"{house.url}/v1", job), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, complaint = await process.communicate()
    assert process.returncode == 0, complaint.decode()
    assert json.loads(printed) == {
        "models": [job],
        "said": " to be or",
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        "streamed": " to be or not",
        "refused": {"status": 404, "code": "model_not_found", "param": "model"},
    }


@pytest.mark.parametrize("halting", [False, True])
async def test_langchain_is_answered(house: House, halting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if halting:
        halt(monkeypatch)
    chat_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed").ChatOpenAI
    job = await started(house)
    model = chat_openai(base_url=f"{house.url}/v1", api_key="none", model=job, max_retries=0)
    answer = await model.ainvoke("to be or not")
    assert (answer.content, answer.usage_metadata["total_tokens"]) == (" to be or not", 11)
    assert "".join([piece.content async for piece in model.astream("to be")]) == " to be"


async def test_langchain_has_answers_in_a_form_that_is_a_call(house: House) -> None:
    chat_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed").ChatOpenAI
    job = await started(house)
    model = chat_openai(base_url=f"{house.url}/v1", api_key="none", model=job, max_retries=0)
    form = {"title": "sum", "description": "Adds.", "type": "object", "properties": {"a": {"type": "integer"}}}
    assert await model.with_structured_output(form, method="function_calling").ainvoke("Any.") == {"a": 3}
    asked = await model.bind_tools([form], tool_choice="required", parallel_tool_calls=False).ainvoke("Any.")
    assert [(call["name"], call["args"]) for call in asked.tool_calls] == [("sum", {"a": 3})]


async def test_langchain_goes_on_with_a_text(house: House) -> None:
    kind = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed").OpenAI
    job = await started(house)
    model = kind(base_url=f"{house.url}/v1", api_key="none", model=job, max_tokens=3, max_retries=0)
    assert (
        await model.ainvoke("to be or not") == "".join([piece async for piece in model.astream("to be or not")]) != ""
    )
    both = await model.agenerate(["to be", "or not to be"])
    assert [one[0].text for one in both.generations] == [" to be", " or not to"]


async def test_langchain_has_embeddings(house: House) -> None:
    kind = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed").OpenAIEmbeddings
    job = await started(house)
    # Otherwise it sends tokens of OpenAI's own models.
    model = kind(base_url=f"{house.url}/v1", api_key="none", model=job, check_embedding_ctx_length=False)
    texts = [f"{'x' * number}!" for number in range(30)]
    made = await model.aembed_documents(texts, chunk_size=8)
    assert [round(one[0]) for one in made] == [len(text) for text in texts]
    assert round((await model.aembed_query("four"))[0]) == 4
