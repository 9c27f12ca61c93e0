"""A published folder comes in, makes no step, and leaves as it came: config, tokenizer, generation settings, numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from protocol.job.job import ModelSpec
from protocol.models.config_keys import DROPOUT
from protocol.models.hf_classes import CLASSES
from protocol.models.model import ENDS_WITH, resolve
from tests.support.special_tokens import KNOWN, Known, written
from tests.trainer.files.test_config_keys import logits, theirs
from tests.trainer.files.test_families import stored
from tests.trainer.small import FAMILY_CONFIGS, cuts, training
from trainer.export.assemble import GENERATION, SETTINGS, assemble
from trainer.stage.stage import Stage

NAMES = list(KNOWN)
WRITTEN = {"transformers_version", "dtype"}  # By each version of the library for itself.
TALK = [{"role": "user", "content": "how are you"}]


def folder_of(family: str, known: Known, folder: Path, dtype: torch.dtype) -> dict[str, Any]:
    """A model's folder as its publishers make it; returns its config.json."""
    tokenizer = Tokenizer.from_file(str(written(known, folder)))
    ids = known.ids(tokenizer, known.config)
    model = theirs(
        {"vocab_size": 312, "pad_token_id": None, "tie_word_embeddings": True} | FAMILY_CONFIGS[family] | ids
    ).to(dtype)
    ends = ids["eos_token_id"]
    model.generation_config = GenerationConfig(**ids | {"eos_token_id": [ends] if isinstance(ends, int) else ends})
    model.generation_config.update(do_sample=True, temperature=0.6, top_p=0.9)
    model.save_pretrained(folder)
    if known.settings:
        (folder / SETTINGS).write_text(json.dumps(known.settings))
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def through(folder: Path, config: dict[str, Any], known: Known, made: Path) -> Path:
    """What a job that starts from a folder, and makes no step, leaves."""
    files = {
        name: json.loads((folder / name).read_text()) for name in (SETTINGS, GENERATION) if (folder / name).exists()
    }
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    spec = ModelSpec(config=config, weights="0" * 64, generation=files.get(GENERATION))
    resolved = resolve(spec, tokenizer.get_vocab_size(with_added_tokens=True)) | {ENDS_WITH: known.end}
    stages = [Stage(resolved, cut, training(), folder / "model.safetensors") for cut in cuts(3, 3)]
    made.mkdir()
    weights = [folder / "model.safetensors"]
    assemble(stored(stages, made), resolved, folder / "tokenizer.json", made / "model", {}, files, weights)
    return made / "model"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_a_folder_leaves_as_it_came(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    name = NAMES[list(FAMILY_CONFIGS).index(family) % len(NAMES)]
    known, hub = KNOWN[name], tmp_path / "hub"
    config = folder_of(family, known, hub, dtype)
    out = through(hub, config, known, tmp_path / "out")
    assert (out / "tokenizer.json").read_bytes() == (hub / "tokenizer.json").read_bytes()
    for file in (GENERATION, SETTINGS):
        if (hub / file).exists():
            assert json.loads((out / file).read_text()) == json.loads((hub / file).read_text())
    left = json.loads((out / "config.json").read_text())
    assert left["dtype"] == str(dtype).removeprefix("torch.")
    kept = {key for key in config if not key.startswith("_")} - WRITTEN - CLASSES[family].aliases.keys()
    assert {key: left.get(key) for key in kept} == {key: config[key] for key in kept}
    before, after = (AutoModelForCausalLM.from_pretrained(one).eval() for one in (hub, out))
    assert torch.equal(logits(before), logits(after))
    assert before.config.tie_word_embeddings == after.config.tie_word_embeddings
    weights = [(one / "model.safetensors").stat().st_size for one in (hub, out)]
    assert abs(weights[1] - weights[0]) < 4096, "the published size"
    assert before.generation_config.to_dict() == after.generation_config.to_dict()


@pytest.mark.parametrize("name", [name for name in KNOWN if KNOWN[name].settings])
def test_tokenizers_open_with_their_names_and_their_chat_template(name: str, tmp_path: Path) -> None:
    known, hub = KNOWN[name], tmp_path / "hub"
    config = folder_of("llama", known, hub, torch.float32)
    out = through(hub, config, known, tmp_path / "out")
    before, after = (AutoTokenizer.from_pretrained(one) for one in (hub, out))
    assert after.special_tokens_map == before.special_tokens_map
    assert after.eos_token == known.settings["eos_token"]
    assert after.chat_template == known.settings.get("chat_template")
    text = "a quick brown fox" + known.end + "jumps"
    assert after(text)["input_ids"] == before(text)["input_ids"]
    if after.chat_template:
        shown = after.apply_chat_template(TALK, tokenize=False)
        assert shown == before.apply_chat_template(TALK, tokenize=False)
        assert TALK[0]["content"] in shown


@pytest.mark.parametrize("name", KNOWN)
def test_without_settings_the_ids_of_the_config_name_the_tokens(name: str, tmp_path: Path) -> None:
    known, hub = KNOWN[name], tmp_path / "hub"
    config = folder_of("llama", known, hub, torch.float32)
    (hub / SETTINGS).unlink(missing_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(through(hub, config, known, tmp_path / "out"))
    ends = known.config["eos_token_id"]
    assert tokenizer.eos_token == (ends[0] if isinstance(ends, list) else ends)
    assert tokenizer.bos_token == known.config["bos_token_id"]
    assert tokenizer.pad_token == known.config.get("pad_token_id")


@pytest.mark.parametrize("name", KNOWN)
def test_a_model_from_random_weights_ends_with_its_tokenizers_end(name: str, tmp_path: Path) -> None:
    known, hub = KNOWN[name], tmp_path / "hub"
    tokenizer = Tokenizer.from_file(str(written(known, hub)))
    config = resolve(ModelSpec(config=FAMILY_CONFIGS["llama"]), tokenizer.get_vocab_size()) | {ENDS_WITH: known.end}
    stages = [Stage(config, cut, training()) for cut in cuts(3, 1)]
    beside = {GENERATION: {"eos_token_id": 7}}
    assemble(stored(stages, tmp_path), config, hub / "tokenizer.json", tmp_path / "model", {}, beside)
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert made.config.eos_token_id == tokenizer.token_to_id(known.end)
    assert made.generation_config.eos_token_id == made.config.eos_token_id, "settings of weights that it has not"
    assert AutoTokenizer.from_pretrained(tmp_path / "model").eos_token == known.end


def test_ids_that_the_vocabulary_has_stay_where_others_beside_them_go(tmp_path: Path) -> None:
    known, hub = KNOWN["llama 2"], tmp_path / "hub"
    config = folder_of("llama", known, hub, torch.float32) | {"eos_token_id": [2, 9999], "pad_token_id": -1}
    settings = json.loads((hub / GENERATION).read_text()) | {"eos_token_id": [9999, 2], "forced_eos_token_id": [9999]}
    (hub / GENERATION).write_text(json.dumps(settings))
    out = through(hub, config, known, tmp_path / "out")
    left, generation = (json.loads((out / name).read_text()) for name in ("config.json", GENERATION))
    assert (left["eos_token_id"], left["pad_token_id"]) == ([2], None)
    assert (generation["eos_token_id"], generation["forced_eos_token_id"]) == ([2], None)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_a_dropout_that_nobody_named_is_the_familys_own(family: str, tmp_path: Path) -> None:
    known, hub = KNOWN["llama 2"], tmp_path / "hub"
    config = folder_of(family, known, hub, torch.float32)
    said = {key: value for key, value in config.items() if key not in DROPOUT}
    out = through(hub, said, known, tmp_path / "out")
    assert not json.loads((out / "config.json").read_text()).keys() & DROPOUT
    dropped = dict.fromkeys(DROPOUT & config.keys(), 0.25)
    out = through(hub, said | dropped, known, tmp_path / "other")
    assert json.loads((out / "config.json").read_text()).items() >= dropped.items()
