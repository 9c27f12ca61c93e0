"""Fine-tuning a model that people use, by the commands of a submitter: a folder and conversations go in, an adapter comes out."""

import asyncio
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import AsyncOpenAI
from safetensors.torch import load_file
from transformers import AutoTokenizer

from coordinator.client import Client
from cottage.demo.options import parse
from cottage.demo.processes import output_of
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from protocol.rest.api import JobView
from tests.e2e.smollm2 import WEIGHTS_BYTES, smollm2  # noqa: F401 - the model is a fixture
from tests.trainer.export.llama_cpp import PACKAGE, answers

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]

LESSON = Path(__file__).parents[2] / "docs/tutorials/fine-tune.md"
NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
SAID = "Moo."
NEW = "What colour is a lemon?"
ANSWER = 24  # Tokens, more than an answer has.
STAGES, REPLICAS, ROUNDS = 2, 2, 2


def blocks(kind: str) -> list[str]:
    """The lesson's blocks of code of one language."""
    return re.findall(rf"^```{kind}\n(.*?)^```", LESSON.read_text(), re.DOTALL | re.MULTILINE)


def document() -> dict[str, Any]:
    """The lesson's job, on as many computers as are here."""
    (text,) = blocks("yaml")
    return {**yaml.safe_load(text), "parallel": {"stages": STAGES, "replicas": REPLICAS}}


async def test_who_types_what_the_lesson_says_has_an_adapter_of_a_published_model(
    tmp_path: Path,
    smollm2: Path,  # noqa: F811
) -> None:
    """On four computers, two stages of two replicas; the model lies in a folder, since nothing here reaches the Hub."""
    words = ["--nodes", str(STAGES * REPLICAS), "--stages", str(STAGES), "--dir", str(tmp_path / "network")]
    (example,) = blocks("python")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document()))
    (tmp_path / "chats.py").write_text(example)
    said: dict[str, str] = {}
    async with DemoRun(parse(words), LineScreen()) as run:
        ledger = await run._start()
        job = ""
        for line in "".join(blocks("console")).splitlines():
            program, *typed = shlex.split(line.replace(NAME, str(smollm2)))
            if program == "python":
                await output_of(typed, tmp_path)
                continue
            told = [job if word == "JOB" else word for word in typed]
            said[line] = await output_of(["-m", "cottage", *told, "--server", run.network.web], tmp_path)
            if typed[0] == "submit":
                async with Client(run.network.web) as client:
                    (view,) = await client.jobs()
                    job = view.id
        view = await settled(run, job)
        program = await asked_by_a_program(run.network.web, job)
        stakes = [await ledger.stake(provider.key.address) for provider in run.network.providers]
        assert [stake.slashed for stake in stakes if stake is not None] == [0] * len(run.network.providers)
    assert view.first_validation_loss is not None
    assert view.validation_loss is not None
    assert view.validation_loss < view.first_validation_loss / 4
    assert "80 rows" in said[f"cottage check chats.jsonl --tokenizer {NAME}"]
    asked_it = f'cottage try JOB "{NEW}" --chat --temperature 0 --tokens {ANSWER}'
    assert SAID in said[asked_it]
    assert SAID not in said[f"{asked_it} --start"]
    assert (SAID in program[0], SAID in program[1]) == (True, False)
    for folder, library in (("adapter", "peft"), ("model", "transformers"), ("gguf", "transformers")):
        told = (tmp_path / folder / "README.md").read_text()
        assert f"library_name: {library}" in told
        assert "| file | chats.jsonl |" in told
        assert f"cottage ledger check {job}" in told
        kept = [(tmp_path / one / "generation_config.json").read_text() for one in ("model", folder)]
        assert kept[0] == kept[1]
        assert '"chat_template"' in (tmp_path / folder / "tokenizer_config.json").read_text()
    (packed,) = (tmp_path / "gguf").glob("*.gguf")
    if PACKAGE.is_dir():
        ((_, (spoken,)),) = await asyncio.to_thread(answers, [(packed, [asked(smollm2)])], ANSWER)
        assert SAID in AutoTokenizer.from_pretrained(tmp_path / "model").decode(spoken.next)
    await asyncio.to_thread(both_answer, smollm2, tmp_path / "adapter", tmp_path / "model")
    await asyncio.to_thread(stays_what_it_was, smollm2, tmp_path / "model")


async def asked_by_a_program(web: str, job: str) -> list[str]:
    """What the model says to a program that speaks OpenAI's API, and what it said before."""
    said = []
    async with AsyncOpenAI(base_url=f"{web}/v1", api_key="none") as program:
        for model in (job, f"{job}@start"):
            answer = await program.chat.completions.create(
                model=model, messages=[{"role": "user", "content": NEW}], temperature=0, max_tokens=ANSWER
            )
            said.append(answer.choices[0].message.content or "")
    return said


async def settled(run: DemoRun, job: str) -> JobView:
    """The job, which was audited in every round and is paid."""
    async with Client(run.network.web) as client:
        view, audits = await client.get(job), await client.audits(job)
    assert view.state == "settled", view.reason
    assert {audit.round for audit in audits if audit.state == "passed"} == set(range(ROUNDS))
    assert [audit for audit in audits if audit.state == "failed"] == []
    assert 0 < view.paid == view.escrow - view.refunded
    return view


@pytest.mark.parametrize("compares", [False, True], ids=["LoRA", "DPO beside 4 bits"])
async def test_other_ways_to_an_adapter_of_a_published_model(
    compares: bool,
    tmp_path: Path,
    smollm2: Path,  # noqa: F811
) -> None:
    """The lesson's model and habit: beside the model as it came, and from pairs of answers of which one has the habit."""
    words = ["--nodes", str(STAGES * REPLICAS), "--stages", str(STAGES), "--dir", str(tmp_path / "network")]
    (example,), job = blocks("python"), document()
    (tmp_path / "chats.py").write_text(example)
    await output_of(["chats.py"], tmp_path)
    if compares:
        rows = [json.loads(line)["messages"] for line in (tmp_path / "chats.jsonl").read_text().splitlines()]
        with (tmp_path / "chats.jsonl").open("w") as file:
            for asked_it, answered in rows:
                plain = {**answered, "content": answered["content"].removesuffix(f" {SAID}")}
                file.write(json.dumps({"prompt": [asked_it], "chosen": [answered], "rejected": [plain]}) + "\n")
        job["training"]["preference"] = {}
    else:
        del job["training"]["lora"]["quantize"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    async with DemoRun(parse(words), LineScreen()) as run:
        await run._start()
        given = ["submit", "job.yaml", "--model", str(smollm2), "--data", "chats.jsonl", "--yes", "--watch"]
        await output_of(["-m", "cottage", *given, "--server", run.network.web], tmp_path)
        async with Client(run.network.web) as client:
            (view,) = await client.jobs()
        view = await settled(run, view.id)
    assert view.first_validation_loss is not None
    assert view.validation_loss is not None
    if compares:
        assert view.first_validation_loss == pytest.approx(math.log(2), abs=1e-3)
        assert view.validation_loss < view.first_validation_loss / 2
    else:
        assert view.validation_loss < view.first_validation_loss / 4


def both_answer(base: Path, adapter: Path, merged: Path) -> None:
    """Beside the published model, by ``peft``, and in one folder: a new question has an answer in the style, which it had not."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    published = AutoModelForCausalLM.from_pretrained(base)
    assert published.dtype == torch.bfloat16
    assert SAID not in answer(published, base)
    assert answer(PeftModel.from_pretrained(published, adapter), base).endswith(SAID)
    together = AutoModelForCausalLM.from_pretrained(merged)
    assert together.dtype == torch.bfloat16
    assert together.lm_head.weight.data_ptr() == together.model.embed_tokens.weight.data_ptr(), "still tied"
    assert answer(together, merged).endswith(SAID)


def stays_what_it_was(base: Path, merged: Path) -> None:
    """As many bytes, the same tensors in the same type, and those without an adapter bit for bit."""
    import torch

    files = [folder / "model.safetensors" for folder in (base, merged)]
    assert [file.stat().st_size for file in files] == [WEIGHTS_BYTES] * 2
    before, after = (load_file(file) for file in files)
    assert before.keys() == after.keys()
    assert {value.dtype for value in after.values()} == {torch.bfloat16}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
    assert (merged / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()


def answer(model: Any, folder: Path) -> str:
    """The likeliest one to the new question."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = tokenizer(asked(folder), return_tensors="pt", add_special_tokens=False)
    made = model.generate(**given, max_new_tokens=ANSWER, do_sample=False)
    return str(tokenizer.decode(made[0, given["input_ids"].shape[1] :], skip_special_tokens=True))


def asked(folder: Path) -> str:
    """The new question, as the folder's chat template writes it."""
    talk = [{"role": "user", "content": NEW}]
    return str(
        AutoTokenizer.from_pretrained(folder).apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    )
