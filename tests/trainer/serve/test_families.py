"""Every family that trains answers as ``generate`` has it, and a check finds it so; models that see do, too."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from protocol.job.job import TokenizerSpec
from tests.trainer.export.test_text_part import KINDS, whole
from tests.trainer.serve.answering import answered
from tests.trainer.small import FAMILY_CONFIGS
from trainer.data.prepare import make_tokenizer

PROMPT, TOKENS = "A quick brown fox é", 9
ROUNDING = 1e-3  # Nats.
HALF = "\N{REPLACEMENT CHARACTER}"


def equals_generate(model: Any, folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(TokenizerSpec("bytes"), None, lambda: iter(())))
    tokenizer.save_pretrained(folder)
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    made = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None)
    said, end, checked = answered(folder, PROMPT, TOKENS)
    assert said.rstrip(HALF) == tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True).rstrip(HALF)
    assert (end.prompt, end.tokens, end.reason) == (ids.shape[1], TOKENS, "length")
    assert checked.wrong == ""
    assert checked.worst < ROUNDING


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_each_family_answers_as_generate_does(family: str, tmp_path: Path) -> None:
    more = {"vocab_size": 512, "pad_token_id": None, "eos_token_id": None, "bos_token_id": None}
    config = AutoConfig.for_model(**(FAMILY_CONFIGS[family] | more))
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    equals_generate(model, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_see_answer_as_generate_does(kind: str, tmp_path: Path) -> None:
    equals_generate(whole(kind, tmp_path).float(), tmp_path)
