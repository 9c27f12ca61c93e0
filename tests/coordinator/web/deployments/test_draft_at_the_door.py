"""A deployment with a draft model: by command, from Python and by the form; its page says which one drafts."""

from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from coordinator.client import Client
from coordinator.client.errors import ProblemError
from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.services.artifacts.artifacts import file_digest
from protocol.ids import NOT_SENT
from protocol.job.job import JobSpec, ModelSpec, ServeSpec
from protocol.rest.api import Quote
from tests.coordinator.web.conftest import House
from tests.coordinator.web.deployments.conftest import ENOUGH, finished, model_folder
from tests.coordinator.web.deployments.serving_cluster import ServingCluster
from tests.coordinator.web.deployments.test_deploy_command import deploy
from tests.coordinator.web.deployments.test_serve_form import page, send, words


async def test_the_command_and_a_program_name_the_job_that_drafts(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job, small = await finished(house), await finished(house)
    assert await deploy(house, job, "--stages", "2", "--draft", small, "--hours", "8", "--budget", "5") == 0
    made = (await house.cluster.list(1, None))[0]
    assert made.spec.serve == ServeSpec(stages=2, draft=ModelSpec(from_job=small))
    capsys.readouterr()
    async with Client(house.url) as client:
        found = await client.deploy(job, 1, 8.0, ENOUGH, stages=2, draft=small)
        assert found.spec.serve == made.spec.serve
        with pytest.raises(ProblemError, match="no job") as refused:
            await client.deploy(job, 1, 8.0, ENOUGH, draft="0" * 32)
        assert refused.value.field == "serve.draft"
        with pytest.raises(ProblemError, match=r"serve\.stages is 1"):
            await client.deploy(job, 1, 8.0, ENOUGH, stages=1, draft=small)


async def test_a_checkpoint_of_the_draft_and_one_of_the_model_are_named_apart(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job, small = await finished(house), await finished(house)
    few = ("--stages", "2", "--hours", "8", "--budget", "5")
    assert await deploy(house, job, *few, "--draft", f"{small}@3", "--round", "2") == 0
    made = (await house.cluster.list(1, None))[0]
    assert made.spec.serve == ServeSpec(stages=2, draft=ModelSpec(from_job=small, from_round=3))
    assert made.spec.model.from_round == 2, "--round is of the model alone"
    assert await deploy(house, f"{job}@2", *few, "--draft", small) == 0
    made = (await house.cluster.list(1, None))[0]
    assert (made.spec.model.from_job, made.spec.model.from_round) == (job, 2)
    assert made.spec.serve == ServeSpec(stages=2, draft=ModelSpec(from_job=small))
    capsys.readouterr()
    assert await deploy(house, f"{job}@2", *few, "--round", "3") == 2
    assert "and --round 3 name two checkpoints: leave one of them out" in capsys.readouterr().err
    async with Client(house.url) as client:
        found = await client.deploy(job, 1, 8.0, ENOUGH, stages=2, draft=f"{small}@3")
    assert found.spec.serve == ServeSpec(stages=2, draft=ModelSpec(from_job=small, from_round=3))


async def test_a_draft_whose_job_is_not_done_is_refused_with_the_checkpoint_that_it_has(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job, data = await finished(house), await house.dataset()
    async with Client(house.url) as client:
        spec = {"name": "x", "model": {"preset": "tiny-llama"}, "dataset": {"artifact": data}, "budget": 9_000_000}
        small = (await client.create_job(spec)).id
        await client.fund(small)
    for _ in range(8):
        house.cluster.step(small)
    assert await deploy(house, job, "--draft", small) == 1
    assert f"its checkpoint after round 5 can be (--draft {small}@5)" in capsys.readouterr().err


@pytest.mark.parametrize("of_job", [True, False])
async def test_a_draft_of_another_tokenizer_is_refused_before_weights_are_sent(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, of_job: bool
) -> None:
    """The coordinator compares the tokens: the command names both files, or the job whose model has one."""
    sent = sends(monkeypatch)
    model, draft = model_folder(tmp_path / "model"), model_folder(tmp_path / "draft")
    (draft / "tokenizer.json").write_text((draft / "tokenizer.json").read_text() + "\n")
    usual, named = ServingCluster.quote, []
    job = await finished(house) if of_job else None

    async def told(self: ServingCluster, spec: JobSpec, account_id: str = LOCAL_ACCOUNT) -> Quote:
        assert spec.serve is not None
        named.append((spec.model.from_job, spec.tokenizer.file, spec.serve.draft_tokenizer))
        problem = "the draft model has another tokenizer than the model"
        return msgspec.structs.replace(await usual(self, spec, account_id), problems=(problem,))

    monkeypatch.setattr(ServingCluster, "quote", told)
    assert await deploy(house, job or str(model), "--draft", str(draft), "--budget", "5") == 1
    assert "the draft model has another tokenizer than the model" in capsys.readouterr().out
    own, other = (file_digest(folder / "tokenizer.json") for folder in (model, draft))
    assert named == [(job, None if of_job else own, other)]
    assert sent == ["tokenizer.json"] * (2 - of_job)


async def test_what_the_price_forbids_is_told_before_weights_are_sent(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = sends(monkeypatch)
    model, draft = model_folder(tmp_path / "model"), model_folder(tmp_path / "draft")
    usual = ServingCluster.quote

    async def other_tokens(self: ServingCluster, spec: JobSpec, account_id: str = LOCAL_ACCOUNT) -> Quote:
        draft = None if spec.serve is None else spec.serve.draft
        assert draft is not None
        assert draft.config is not None, "all that a price needs is there"
        assert spec.tokenizer.file is not None
        assert (spec.model.weights, draft.weights) == (NOT_SENT, NOT_SENT)
        problem = "serve.draft knows 7 tokens and the model 9"
        return msgspec.structs.replace(await usual(self, spec, account_id), problems=(problem,))

    monkeypatch.setattr(ServingCluster, "quote", other_tokens)
    assert await deploy(house, str(model), "--draft", str(draft)) == 1
    assert "serve.draft knows 7 tokens and the model 9" in capsys.readouterr().out
    assert "model.safetensors" not in sent
    monkeypatch.setattr(ServingCluster, "quote", usual)
    assert await deploy(house, str(model), "--draft", str(draft), "--stages", "2", "--budget", "5") == 0
    assert sent.count("model.safetensors") == 2
    made = (await house.cluster.list(1, None))[0]
    serve = made.spec.serve
    assert serve is not None
    assert serve.draft is not None
    assert NOT_SENT not in (made.spec.model.weights, serve.draft.weights)
    assert made.spec.model.weights == serve.draft.weights, "the same file"


def sends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that go to the coordinator, by name."""
    sent: list[str] = []
    usual = Client.upload

    async def noted(self: Client, path: Path, *given: Any, **more: Any) -> Any:
        sent.append(path.name)
        return await usual(self, path, *given, **more)

    monkeypatch.setattr(Client, "upload", noted)
    return sent


async def test_the_form_takes_a_job_that_drafts_and_the_page_says_so(house: House, http: aiohttp.ClientSession) -> None:
    job, small = await finished(house), await finished(house)
    asked = {"stages": "2", "hours": "8", "budget": "5", "action": "create"}
    wrong = await send(house, http, job, {**asked, "draft": "moo"}, 422)
    assert "is no job: write the id of one" in words(wrong)
    assert 'id="error-draft"' in wrong
    assert 'id="error-draft"' in await send(house, http, job, {**asked, "draft": "0" * 32}, 404)
    await send(house, http, job, {**asked, "draft": f"{small}@3"})
    made = (await house.cluster.list(1, None))[0]
    assert made.spec.serve == ServeSpec(stages=2, draft=ModelSpec(from_job=small, from_round=3))
    await send(house, http, job, {**asked, "draft": small})
    made = (await house.cluster.list(1, None))[0]
    assert made.spec.serve == ServeSpec(stages=2, draft=ModelSpec(from_job=small))
    async with Client(house.url) as client:
        await client.fund(made.id)
    assert "a draft model beside the first one" in words(await page(house, http, f"/jobs/{made.id}"))
