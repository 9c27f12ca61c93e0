"""The README of what is downloaded, as the Hub and people read it."""

import json
from typing import Any

import msgspec
import pytest
from huggingface_hub import ModelCard

from protocol.job.job import DatasetSpec, JobSpec, LoraSpec, ModelSpec, TrainingSpec
from trainer.errors import WeightsError
from trainer.export.adapter import _spec
from trainer.export.card import merged_card, model_card

COMMIT = "12fd25f77366fa6b3b4b768ec3050bf629380bac"
NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUB = f"{NAME}@{COMMIT}"
CONFIG = {"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "vocab_size": 49_152}


def card(lora: LoraSpec | None = None, **model: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"config": {}, "weights": "a" * 64, "hub": HUB, "license": "apache-2.0"} | model
    spec = JobSpec("moo", ModelSpec(**given), 50, DatasetSpec("d" * 64), training=TrainingSpec(lora=lora))
    return {
        "name": "moo",
        "job": "0" * 32,
        "submitter": "a wallet",
        "loss_before": 3.1,
        "loss_after": 0.123456,
        "audits": 4,
        "paid": "1.50 tokens",
        "data": {"name": "chats.jsonl", "training_sequences": 32, "heldout_sequences": 4},
        "rounds": [{"round": 0, "tokens": 2048, "train_loss": 2.0, "validation_loss": 3.1}],
        "spec": msgspec.to_builtins(spec),
    }


def test_the_hub_reads_base_model_and_licence_out_of_it() -> None:
    read = ModelCard(model_card(card(), 134_515_008, CONFIG)).data
    assert (read.library_name, read.license, read.base_model) == (
        "transformers",
        "apache-2.0",
        NAME,
    )
    assert (read.pipeline_tag, read.tags, read["base_model_relation"]) == ("text-generation", ["cottage"], "finetune")


@pytest.mark.parametrize("name", ["village-1", "a: b", 'quote"', "llama2-community"])
def test_a_licence_that_the_hub_has_no_word_for_keeps_its_name(name: str) -> None:
    read = ModelCard(model_card(card(license=name), 1, CONFIG)).data
    assert (read.license, read.license_name) == ("other", name)


def test_people_read_where_it_came_from_what_it_learnt_and_what_was_paid() -> None:
    text = model_card(card(LoraSpec(rank=8, alpha=16, quantize="nf4")), 4_884_480, CONFIG, adapter=True)
    for line in (
        "An adapter, low-rank matrices for a llama language model: 4,884,480 parameters, trained on a Cottage network.",
        f"| model | [{NAME}](https://huggingface.co/{NAME}/tree/{COMMIT}) |",
        "| licence | apache-2.0 |",
        f"| weights | SHA-256 `{'a' * 64}` |",
        "| file | chats.jsonl |",
        f"| SHA-256 | `{'d' * 64}` |",
        "| training sequences | 32 |",
        "| heldout sequences | 4 |",
        f"| used beside | {NAME} |",
        "| method | LoRA of rank 8, alpha 16, beside a model in 4 bits (QLoRA) |",
        "| held-out loss before | 3.1 |",
        "| held-out loss after | 0.123456 |",
        "| paid | 1.50 tokens |",
        f"What was paid and audited stands on the ledger: `cottage ledger check {'0' * 32}`.",
    ):
        assert line in text.splitlines(), line


def test_further_datasets_and_preferences_are_named() -> None:
    told = card(LoraSpec(rank=8, alpha=16))
    told["spec"] |= {"more_datasets": [{"artifact": "e" * 64}], "heldout_dataset": {"artifact": "f" * 64}}
    told["spec"]["training"] |= {"preference": {"beta": 0.1}}
    lines = model_card(told, 1, CONFIG, adapter=True).splitlines()
    assert f"| further SHA-256 | `{'e' * 64}` |" in lines
    assert f"| held out SHA-256 | `{'f' * 64}` |" in lines
    assert "| method | LoRA of rank 8, alpha 16, which of two answers is preferred (DPO) |" in lines


def test_a_loss_of_pairs_has_no_perplexity() -> None:
    told = card(LoraSpec(rank=8, alpha=16)) | {"rounds": [{"round": 0, "validation_loss": 0.5}]}
    assert "perplexity" in model_card(told, 1, CONFIG, adapter=True)
    told["spec"]["training"] |= {"preference": {"beta": 0.1}}
    text = model_card(told, 1, CONFIG, adapter=True)
    assert "perplexity" not in text
    assert "| 0 | 0.5 |" in text
    told |= {"accuracy": 0.875, "margin": 1.25, "rounds": [{"round": 0, "accuracy": 0.875, "margin": 1.25}]}
    lines = model_card(told, 1, CONFIG, adapter=True).splitlines()
    assert "| held-out pairs told apart (accuracy) | 0.875 |" in lines
    assert "| round | accuracy | margin |" in lines


def test_what_began_at_random_or_with_another_job_says_so() -> None:
    assert "| weights | random, from seed 0 |" in model_card(card(weights=None, hub=None, license=None), 1, CONFIG)
    text = model_card(card(weights=("a" * 64, "b" * 64), hub=None, from_job="1" * 32, from_round=3), 1, CONFIG)
    assert f"| from job | {'1' * 32}, after round 3 |" in text
    assert f"| weights 2 | SHA-256 `{'b' * 64}` |" in text
    assert "base_model" not in ModelCard(text).data.to_dict()


def test_a_merged_adapter_is_a_model_of_transformers() -> None:
    adapter = model_card(card(LoraSpec()), 99, CONFIG, adapter=True)
    before, after = ModelCard(adapter).data, ModelCard(merged_card(adapter)).data
    assert (before.library_name, before["base_model_relation"]) == ("peft", "adapter")
    assert (after.library_name, after["base_model_relation"]) == ("transformers", "finetune")
    assert "An adapter, merged into the model that it adapts, low-rank matrices for a llama" in merged_card(adapter)
    assert "| used beside |" in adapter
    assert "| used beside |" not in merged_card(adapter)


def test_an_adapter_of_an_earlier_jobs_model_says_how_that_is_had() -> None:
    text = model_card(card(LoraSpec(), hub=None, from_job="7" * 32), 4_884_480, CONFIG, adapter=True)
    beside = f"the whole model of job {'7' * 32} (`cottage download {'7' * 32} FOLDER --merged`)"
    assert f"| used beside | {beside} |" in text.splitlines()


def test_peft_finds_the_base_model_by_the_name_that_it_has_on_the_hub() -> None:
    assert _spec(card(LoraSpec()))[1] == NAME
    assert _spec(card(LoraSpec(), hub=None))[1] == ""
    with pytest.raises(WeightsError, match="adapters need the job"):
        _spec(card())


def test_a_card_survives_what_strangers_call_things() -> None:
    odd = card() | {"name": "a\n# b | c", "data": {"name": "x`|\n---\ny"}}
    text = model_card(odd, 1, CONFIG)
    assert "# a # b \\| c" in text.splitlines()
    assert "| file | x`\\| --- y |" in text.splitlines()
    document = text[text.index("```json") + 7 : text.rindex("```")]
    assert json.loads(document)["name"] == "moo"
    assert ModelCard(text).data.license == "apache-2.0"
