"""Answers that keep to a JSON schema, of a model that has learnt nothing: only the schema can have made them."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import validate
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from protocol.job.job import TokenizerSpec
from protocol.serving import AnsweredReport, EngineReport, GenerateCommand, RefusedReport, Sampling, TextReport
from tests.trainer.small import FAMILY_CONFIGS
from trainer.data.prepare import BYTE_SPECIALS, make_tokenizer
from trainer.errors import DataError
from trainer.serve.engine import Engine
from trainer.serve.grammar import AnswerForms

PLACE = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "yellow"]},
        "count": {"type": "integer", "minimum": 3, "maximum": 7},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["colour", "count", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("random")
    more = {
        "vocab_size": 300,
        "max_position_embeddings": 512,
        "pad_token_id": None,
        "eos_token_id": 256,
        "bos_token_id": None,
    }
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(FAMILY_CONFIGS["llama"] | more)))
    model.save_pretrained(here)
    made = make_tokenizer(TokenizerSpec("bytes"), None, lambda: iter(()))
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token=BYTE_SPECIALS[0]).save_pretrained(here)
    return here


async def asked(folder: Path, *commands: GenerateCommand) -> dict[str, tuple[str, EngineReport]]:
    texts, ends = dict.fromkeys((one.id for one in commands), ""), dict[str, EngineReport]()
    over = asyncio.Event()

    def say(report: EngineReport) -> None:
        if isinstance(report, TextReport):
            texts[report.id] += report.text
        elif isinstance(report, AnsweredReport | RefusedReport):
            ends[report.id] = report
            if len(ends) == len(commands):
                over.set()

    async with Engine(folder, 1, say) as engine, asyncio.timeout(60):
        for command in commands:
            engine.generate(command)
        await over.wait()
    return {name: (texts[name], ends[name]) for name in texts}


async def test_answers_keep_to_their_schemas_beside_one_that_is_free(folder: Path) -> None:
    drawn = [GenerateCommand(str(n), "Say:", tokens=400, sampling=Sampling(seed=n), schema=PLACE) for n in range(6)]
    likeliest = GenerateCommand("greedy", "Say:", tokens=400, sampling=Sampling(0), schema=PLACE)
    free = GenerateCommand("free", "Say:", tokens=40, sampling=Sampling(0))
    found = await asked(folder, *drawn, likeliest, free)
    for name, (text, end) in found.items():
        assert isinstance(end, AnsweredReport)
        if name != "free":
            assert end.reason == "stop"
            validate(json.loads(text), PLACE)
    assert len({text for text, _ in found.values()}) > 4
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(found["free"][0])


async def test_without_the_library_only_answers_in_a_form_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    formed, free = GenerateCommand("1", "Say:", schema=PLACE), GenerateCommand("2", "Say:", tokens=2)
    found = await asked(folder, formed, free)
    refused = RefusedReport("1", "bad-schema", "answers in a form need llguidance, which is not installed here")
    assert found["1"][1] == refused
    assert isinstance(found["2"][1], AnsweredReport)
    with pytest.raises(DataError, match="need llguidance"):
        AnswerForms(None, 300, [256]).of("{}", 0)


async def test_a_schema_that_nobody_can_keep_to_is_told(folder: Path) -> None:
    wrong = GenerateCommand("1", "Say:", schema={"type": "colour"})
    ((_, end),) = (await asked(folder, wrong)).values()
    assert isinstance(end, RefusedReport)
    assert end.code == "bad-schema"
    assert end.detail.startswith("the schema cannot be kept to: ")


FIRST = """
import sys
from pathlib import Path
import torch
from transformers import AutoTokenizer
from protocol.serving import GenerateCommand
from trainer.serve.grammar import AnswerForms, grammar_of
grammar = grammar_of(GenerateCommand("1", "Say:", schema={"type": "object"}))
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
form = AnswerForms(tokenizer, 300, [256]).of(grammar, 2)
row = torch.zeros(1, 300)
form.restrict(row, [65, 66])
print(tokenizer.decode([token for token, value in enumerate(row[0].tolist()) if value == 0.0]))
"""


async def test_what_may_follow_is_told_without_a_compiler(folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FIRST, str(folder), stdout=asyncio.subprocess.PIPE, env={"PATH": "/nowhere"}
    )
    out, _ = await process.communicate()
    assert out.decode().strip() == "{"
