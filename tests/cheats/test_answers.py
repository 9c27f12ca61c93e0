"""Who answers with something else than the model is caught in every world and loses stake; honest nodes lose nothing.

With a small model of random weights; ``benchmarks.trust.answers --proofs`` does the same with one that people use.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from benchmarks.trust._answering import here, there
from benchmarks.trust._asked import world
from benchmarks.trust.answers import TOGETHER, Measuring, cheat_row
from protocol.job.job import TokenizerSpec
from tests.trainer.small import LLAMA
from trainer.data.prepare import BYTE_SPECIALS, make_tokenizer

WORLDS, TOKENS = 20, 24
COSTS_STAKE = (
    "without its last fifth of layers",
    "another prompt's answer",
    "half of it",
    "half of it, and an end",
    "tokens counted behind the end",
    "a longer prompt counted",
    "another text than its tokens",
)
"""A smaller model, a copied answer, an early stop, inflated counts."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6, "max_position_embeddings": 4096}
    ends = {"vocab_size": 300, "pad_token_id": None, "eos_token_id": 256, "bos_token_id": None}
    torch.manual_seed(1)
    made: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(LLAMA | sizes | ends)))
    with torch.no_grad():
        made.lm_head.weight.mul_(30.0)
    made.save_pretrained(tmp_path)
    tokenizer = make_tokenizer(TokenizerSpec("bytes"), None, lambda: iter(()))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=BYTE_SPECIALS[0]).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_lies_cost_stake_in_every_world_and_honest_nodes_nothing(model: Path) -> None:
    worlds = [world(number, TOKENS, template=False) for number in range(WORLDS)]
    async with here(model, 1) as checker, there(model, 1, {}) as other:
        run = Measuring(checker, worlds, model, 1, ",".join(COSTS_STAKE), other=other)
        run.honest, _ = await checker.answers(run.asked, TOGETHER)
        await run.look("honest", run.honest)
        await run.with_other_models()
        await run.with_lies()
    assert not any(one.wrong for one in run.seen["honest"].values())
    assert not any(run.proven["honest"])
    assert run.apart == 0, "two processes come to the same bits"
    assert set(run.seen) - {"honest"} == set(COSTS_STAKE)
    for way in COSTS_STAKE:
        row = cheat_row(worlds, run.seen[way], run.proven[way])
        assert (row["worlds"], row["caught"], row["stake_lost"]) == (WORLDS,) * 3, way
