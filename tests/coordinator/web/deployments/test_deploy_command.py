"""``cottage deploy`` and what shows a deployment on a terminal; the same calls from Python."""

import asyncio
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
import pytest
from safetensors.numpy import save

from coordinator.client import Client, ProblemError, answers
from coordinator.client.cli import main
from coordinator.client.deployments import (
    MOST_NAME,
    answered,
    curl_of,
    deployment_name,
    drawn_again,
    hours,
    nodes_sentence,
    usual_budget,
)
from coordinator.client.line import HttpLine
from coordinator.client.text import JOB_SENTENCES
from coordinator.client.tracking import TrackerError, track
from coordinator.domain.job import JobAction
from protocol.job.job import JobSpec, ServeSpec
from tests.coordinator.web.conftest import House
from tests.coordinator.web.deployments.conftest import ENOUGH, deployed, finished
from tests.coordinator.web.deployments.serving_cluster import PER_HOUR, QUIET
from tests.support.special_tokens import KNOWN, written
from tests.support.wait import HANGS_S


async def cottage(*argv: str) -> int:
    return await asyncio.to_thread(main, list(argv))


async def loaded_soon(house: House) -> None:
    """The network, for a deployment that is funded."""
    while not (jobs := await house.cluster.list(1, None)) or jobs[0].state != "funded":
        await asyncio.sleep(0.02)
    house.cluster.step(jobs[0].id)
    house.cluster.step(jobs[0].id)


async def deploy(house: House, job: str, *words: str) -> int:
    beside = asyncio.create_task(loaded_soon(house))
    try:
        return await cottage("deploy", job, *words, "--yes", "--server", house.url)
    finally:
        beside.cancel()


async def test_nodes_that_hold_it_together_are_asked_for_and_named_in_the_price(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job = await finished(house)
    assert await deploy(house, job, "--stages", "3", "--hours", "8", "--budget", "5") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "for 3 nodes and 8 hours" in said
    assert (await house.cluster.list(1, None))[0].spec.serve == ServeSpec(stages=3)
    async with Client(house.url) as client:
        made = await client.deploy(job, 2, 8.0, ENOUGH, stages=2)
    assert made.spec.serve == ServeSpec(2, stages=2)
    one = msgspec.structs.replace(QUIET, stages=3, ready=1, loading=2)
    assert nodes_sentence(one) == "1 replica of 3 nodes answers, 2 load the model"
    assert nodes_sentence(msgspec.structs.replace(one, ready=0, loading=0)) == "no replica of 3 nodes answers"


async def test_weights_in_fewer_bits_are_asked_for_and_named(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    job = await finished(house)
    assert await deploy(house, job, "--weights", "nf4", "--hours", "8", "--budget", "5") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the model with its matrices in 4 bits (nf4), its cache for answers, and the programs" in said
    assert "nodes hold the model, its matrices in 4 bits (nf4)" in said
    assert (await house.cluster.list(1, None))[0].spec.serve == ServeSpec(weights="nf4")
    async with Client(house.url) as client:
        assert (await client.deploy(job, 1, 8.0, ENOUGH, weights="int8")).spec.serve == ServeSpec(weights="int8")


async def test_a_model_is_deployed_with_its_price_and_then_says_how_it_is_asked(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job = await finished(house, {"chat_template": "{{ messages }}"})
    assert await deploy(house, job, "--replicas", "2", "--hours", "8", "--budget", "5") == 0
    made, _ = await house.cluster.list(5, None)
    assert (made.name, made.spec.serve, made.spec.model.from_job) == ("moo at homes", ServeSpec(2), job)
    assert (made.spec.budget, made.spec.deadline_hours, made.spec.dataset) == (ENOUGH, 8.0, None)
    said = capsys.readouterr().out
    assert "812 MB on each node: the model in float32, its cache for answers, and the programs" in " ".join(
        said.split()
    )
    for words in (
        "¤ 2.40 for 2 nodes and 8 hours",
        "¤ 5.00, the most that is paid",
        "a million tokens of answers cost 1.20",
        "1 node answers, 1 loads the model",
        f"base URL  {house.url}/v1",
        f"model     {made.id}",
        curl_of(house.url, made.id, True),
        f"cottage stop {made.id}",
    ):
        assert words in said, words
    assert "twice" not in said
    assert not re.search(r"\bround|loss\b", said), "it learns nothing"


@pytest.mark.parametrize("words", [("deploy",), ("submit", "--watch"), ("watch",)])
async def test_a_pipe_hears_of_each_change_as_it_comes(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    job = await finished(house)
    document = {"name": "x", "model": {"from_job": job}, "serve": {}, "budget": ENOUGH, "deadline_hours": 8}
    (file := tmp_path / "serve.json").write_text(json.dumps(document))
    named = {"deploy": job, "submit": str(file)}.get(words[0]) or await deployed(house, replicas=1)
    said = ""

    async def heard(sentence: str) -> None:
        nonlocal said
        while sentence not in said:
            said += capsys.readouterr().out
            await asyncio.sleep(0.01)

    agreed = () if words == ("watch",) else ("--yes",)
    command = asyncio.create_task(cottage(*words, named, *agreed, "--server", house.url))
    async with asyncio.timeout(HANGS_S):
        await heard(JOB_SENTENCES["funded"])
        made = (await house.cluster.list(1, None))[0].id
        house.cluster.step(made)
        await heard(JOB_SENTENCES["planned"])
        house.cluster.step(made)
        if words != ("deploy",):
            await heard("\nIt answers on 1 of 1 nodes.\n")
            await house.cluster.ask(made, JobAction.STOP)
            house.cluster.step(made)
        assert await command == 0
    said += capsys.readouterr().out
    for state in ("funded", "planned"):
        assert said.count(JOB_SENTENCES[state]) == 1, "a line for each change, and none beside"


async def test_the_folder_of_a_model_is_sent_and_answers_without_a_job_that_made_it(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cow"
    written(KNOWN["qwen 2.5 instruct"], folder)
    (folder / "model.safetensors").write_bytes(save({"a": np.zeros(2, np.float32)}))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 200_000}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert await deploy(house, str(folder), "--budget", "5") == 0
    made = (await house.cluster.list(1, None))[0]
    assert (made.name, made.spec.serve, made.spec.model.from_job) == ("cow at homes", ServeSpec(), None)
    assert made.spec.model.config == {"model_type": "qwen2", "vocab_size": 200_000}
    assert made.spec.tokenizer.file is not None
    said = capsys.readouterr()
    assert "config.json of" in said.err
    assert "chat/completions" in said.out, "its template goes with it"
    assert "no chat template" not in said.out
    assert await cottage("deploy", str(folder), "--round", "2", "--yes", "--server", house.url) == 2
    assert "--round is a checkpoint of a job" in capsys.readouterr().err
    assert await cottage("deploy", str(folder), "--round", "2", "--draft", made.id, "--server", house.url) == 2
    assert "of a draft model's job it is --draft JOB@N" in capsys.readouterr().err
    (folder / "tokenizer.json").unlink()
    assert await cottage("deploy", str(folder), "--yes", "--server", house.url) == 2
    assert "has no tokenizer.json: a model answers with its own tokenizer only" in capsys.readouterr().err
    async with aiohttp.ClientSession() as http, http.get(f"{house.url}/jobs/{made.id}") as answer:
        page = await answer.text()
    assert (answer.status, "nodes answer with a model that was sent for it" in page) == (200, True)


@pytest.mark.parametrize("name", ["/tmp/nowhere", "../smol", "a/b/c", "", "...", "cow", "x?y=1"])
async def test_what_is_neither_a_job_nor_a_folder_is_told_and_never_asked_for(
    house: House, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked = []
    monkeypatch.setattr(HttpLine, "request", lambda _line, *words, **_more: asked.append(words))
    assert await cottage("deploy", name, "--yes", "--server", house.url) == 2
    assert f"there is neither a job nor a folder {name!r}: name a job" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize("name", ["/tmp/nowhere", "../smol", "", "a b", "0#1", ".", "0?after=1"])
async def test_an_id_that_is_none_leads_to_no_other_path(
    house: House, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked = []
    monkeypatch.setattr(HttpLine, "request", lambda _line, *words, **_more: asked.append(words))
    for command in ("show", "watch", "stop", "logs", "output", "checkpoints"):
        assert await cottage(command, name, "--server", house.url) == 1
        assert f"there is no job {name!r}: write its id" in capsys.readouterr().err
    async with Client(house.url) as client:
        for call in (
            client.node_account,
            client.get_upload,
            client.revoke_key,
            client.admin_node,
            client.withdraw_invitation,
        ):
            with pytest.raises(ProblemError, match="there is no"):
                await call(name)
        with pytest.raises(ProblemError, match="there is no job"):
            await client.deploy(name)
    assert asked == []


async def test_the_file_of_weights_is_deployed_with_what_lies_beside_it(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cow"
    written(KNOWN["qwen 2.5 instruct"], folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(save({"a": np.zeros(2, np.float32)}))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 200_000}))
    assert await deploy(house, str(weights), "--budget", "5") == 0
    made = (await house.cluster.list(1, None))[0]
    assert made.name == "cow at homes"
    assert made.spec.model.config == {"model_type": "qwen2", "vocab_size": 200_000}
    assert made.spec.tokenizer.file is not None
    capsys.readouterr()
    (folder / "tokenizer.json").unlink()
    assert await cottage("deploy", str(weights), "--yes", "--server", house.url) == 2
    assert f"there is no tokenizer.json beside {weights}" in capsys.readouterr().err
    shard = weights.rename(folder / "model-00001-of-00002.safetensors")
    assert await cottage("deploy", str(shard), "--yes", "--server", house.url) == 2
    assert "is one part of several of the same weights: name its folder" in capsys.readouterr().err


def test_the_help_says_that_with_json_nothing_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("deploy", "submit"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        said = " ".join(capsys.readouterr().out.split())
        assert "print JSON, for programs; nothing is asked" in said
        assert "do not ask before funding; --json does not ask either" in said


async def test_without_a_budget_it_is_twice_what_being_ready_costs_and_that_is_told(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job = await finished(house)
    assert await deploy(house, job, "--hours", "4", "--name", "cow", "--context", "512", "--round", "4") == 0
    made = (await house.cluster.list(1, None))[0]
    assert made.spec.budget == 2 * 4 * PER_HOUR
    assert (made.spec.name, made.spec.serve, made.spec.model.from_round) == ("cow", ServeSpec(1, 512), 4)
    said = " ".join(capsys.readouterr().out.split())
    assert "¤ 1.20, the most that is paid, twice what being ready costs, since none was named" in said
    assert '"prompt": "Once upon a time"' in said, "it has no chat template"
    only = "it has no chat template: programs ask it at /v1/completions, /v1/chat/completions refuses them"
    assert said.count(only) == 2, "with the price, and where it says how it is asked"
    async with aiohttp.ClientSession() as http, http.get(f"{house.url}/jobs/{made.id}") as answer:
        assert f"Texts only: {only}." in await answer.text()


async def test_where_being_ready_costs_little_the_budget_is_the_least_in_escrow_and_that_is_told(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job = await finished(house)
    house.cluster.least = 1_000_000  # type: ignore[attr-defined]
    assert await deploy(house, job, "--hours", "1") == 0
    assert (await house.cluster.list(1, None))[0].spec.budget == 1_000_000
    said = " ".join(capsys.readouterr().out.split())
    assert "¤ 1.00, the most that is paid, the least that a job has in escrow here, since none was named" in said
    assert "twice" not in said


async def test_programs_get_the_job_as_json_once_it_answers(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    job = await finished(house)
    assert await deploy(house, job, "--json") == 0
    view = json.loads(capsys.readouterr().out)
    assert (view["state"], view["serving"]["ready"], view["spec"]["model"]["from_job"]) == ("running", 1, job)
    assert await deploy(house, job, "--json", "--budget", "0.01") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "the budget 0.01 is below 1.20" in shown.err


async def test_nothing_is_made_of_what_the_price_forbids_or_nobody_agrees_to(
    house: House, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await finished(house)
    assert await cottage("deploy", job, "--budget", "1", "--yes", "--server", house.url) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "✗ the budget 1.00 is below 1.20" in said
    assert "budget ¤ 1.00, the most that is paid" in said, "as it was asked for"
    monkeypatch.setattr("common.console.Terminal.input", lambda *_: "n")
    assert await cottage("deploy", job, "--server", house.url) == 1
    assert len(await house.cluster.list(5, None)) == 1


async def test_where_nobody_can_be_asked_a_line_says_how_one_agrees(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await finished(house)
    file = tmp_path / "serve.json"
    file.write_text(json.dumps({"name": "x", "model": {"from_job": job}, "serve": {}, "budget": ENOUGH}))
    for words in (("deploy", job), ("submit", str(file))):
        monkeypatch.setattr("sys.stdin", io.StringIO())
        assert await cottage(*words, "--server", house.url) == 2
        said = capsys.readouterr()
        assert "Submit and fund it? [y/N]" in said.out
        assert said.err == "cottage: nobody can be asked here: --yes agrees\n"
    assert len(await house.cluster.list(5, None)) == 1


async def test_a_deployment_that_ends_before_it_answers_is_no_success(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job = await finished(house)

    async def cancelled() -> None:
        while (made := (await house.cluster.list(1, None))[0]).state != "funded":
            await asyncio.sleep(0.02)
        await house.cluster.cancel(made.id)

    beside = asyncio.create_task(cancelled())
    assert await cottage("deploy", job, "--yes", "--server", house.url) == 1
    await beside
    assert "cancelled by the submitter" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--hours", "-3"), "-3 is out of reach: write hours above 0, 2,160 at most"),
        (("--hours", "0"), "0 is out of reach"),
        (("--hours", "many"), "'many' is no number"),
        (("--replicas", "0"), "0 is out of reach: write 1 to 64"),
        (("--replicas", "65"), "65 is out of reach"),
        (("--context", "8"), "8 is out of reach: write 64 to 8,192"),
        (("--context", "8193"), "8193 is out of reach"),
        (("--budget", "1000000000000"), "'1000000000000' is too large: write 999,999,999,999 at most"),
        (("--round", "0"), "0 is out of reach"),
        (("--budget", "0"), "0 pays for nothing: write an amount above 0, such as 2.50"),
        (("--budget", "-1"), "'-1' is not an amount"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_right(
    capsys: pytest.CaptureFixture[str], words: Sequence[str], says: str
) -> None:
    with pytest.raises(SystemExit):
        main(["deploy", "JOB", *words])
    assert says in capsys.readouterr().err


async def test_a_job_without_a_model_is_refused_with_the_way_out(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"name": "x", "model": {"preset": "tiny-llama"}, "dataset": {"artifact": await house.dataset()}}
    async with Client(house.url) as client:
        job = (await client.create_job(spec | {"budget": 9_000_000})).id
        await client.fund(job)
    assert await cottage("deploy", job, "--yes", "--server", house.url) == 1
    assert f"job {job} is funded and has no finished model: it is served once it is verified" in capsys.readouterr().err
    for _ in range(8):
        house.cluster.step(job)
    assert await cottage("deploy", job, "--yes", "--server", house.url) == 1
    assert "its checkpoint after round 5 can be (--round 5)" in capsys.readouterr().err
    made = await deployed(house)
    assert await cottage("deploy", made, "--yes", "--server", house.url) == 1
    assert f"job {made} serves the model of another job and makes none: name that one:" in capsys.readouterr().err


async def test_every_command_shows_a_deployment_without_rounds_and_losses(
    house: House, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await deployed(house, 2)
    assert await cottage("show", made, "--server", house.url) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "moo at homes running It answers on 2 of 2 nodes.",
        "2 nodes answer · 3 answers under way, 1 waiting",
        "80 answers of 12,000 tokens, for prompts of 18,000",
        "12 answers were drawn again, none was wrong",
        "¤ 1.20 a million tokens of answers, ¤ 0.24 of prompts, ¤ 0.15 an hour of a ready node",
        "cost so far ¤ 0.06 of 5.00, never more",
    ):
        assert words in said, words
    assert "round" not in said
    assert "loss" not in said
    monkeypatch.setenv("COLUMNS", "120")
    assert await cottage("jobs", "--server", house.url) == 0
    assert re.search(rf"{made} +moo at homes +running +80 answers", capsys.readouterr().out)
    assert await cottage("stop", made, "--server", house.url) == 0
    assert "answers no more" in capsys.readouterr().out or True
    house.cluster.step(made)
    assert await cottage("watch", made, "--server", house.url) == 0
    assert "under way" not in capsys.readouterr().out
    assert await cottage("download", made, str(tmp_path / "m"), "--server", house.url) == 1
    assert "serves the model of another job and makes none: download that of" in capsys.readouterr().err


async def test_a_document_with_serve_is_quoted_and_submitted_as_others_are(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        f"name: cow\nmodel: {{from_job: '{await finished(house)}'}}\nserve: {{replicas: 2}}\nbudget: 5000000\n"
        "deadline_hours: 8\n"
    )
    assert await cottage("quote", str(file), "--server", house.url) == 0
    assert "¤ 2.40 for 2 nodes and 8 hours" in capsys.readouterr().out
    assert await cottage("submit", str(file), "--yes", "--server", house.url) == 0
    assert (await house.cluster.list(1, None))[0].state == "funded"


async def test_a_program_deploys_a_model_and_waits_for_it(house: House) -> None:
    job = await finished(house)
    async with Client(house.url) as client:
        made = await client.deploy(job, hours=2.0)
        assert (made.state, made.spec.budget) == ("funded", 2 * 2 * PER_HOUR)
        house.cluster.step(made.id)
        house.cluster.step(made.id)
        view = await client.wait(made.id, until=answers)
        assert answers(view)
        assert view.ended is None
        own = await client.deploy(job, budget=ENOUGH, submitter="1" * 32)
        assert own.state == "created", "its wallet funds it"
        with pytest.raises(ProblemError, match="is below"):
            await client.deploy(job, budget=1)
        with pytest.raises(TrackerError, match="serves a model and has no curve"):
            await track(client, made.id, "mlflow")


async def test_words_follow_their_numbers(house: House) -> None:
    change = msgspec.structs.replace
    assert nodes_sentence(QUIET) == "no node answers"
    assert nodes_sentence(change(QUIET, ready=3, loading=2)) == "3 nodes answer, 2 load the model"
    assert answered(QUIET) == "no answer yet"
    assert answered(change(QUIET, answers=1, tokens=9, prompt_tokens=7)) == "1 answer of 9 tokens, for prompts of 7"
    told = {
        (0, 0): "no answer was drawn again yet",
        (1, 0): "1 answer was drawn again, and was right",
        (1, 1): "1 answer was drawn again, and was wrong",
        (12, 0): "12 answers were drawn again, none was wrong",
        (12, 1): "12 answers were drawn again, 1 was wrong",
        (1_200, 2): "1,200 answers were drawn again, 2 were wrong",
    }
    for (checked, wrong), words in told.items():
        assert drawn_again(change(QUIET, checked=checked, wrong=wrong)) == words
    assert [hours(number) for number in (1, 8.0, 0.5)] == ["1 hour", "8 hours", "0.5 hours"]
    assert len(deployment_name("x" * 200)) == MOST_NAME
    job = await finished(house)
    document = {"name": "x", "model": {"from_job": job}, "serve": {}, "budget": 1, "deadline_hours": 1.0}
    assert usual_budget(await house.cluster.quote(msgspec.convert(document, JobSpec))) == 2 * PER_HOUR
