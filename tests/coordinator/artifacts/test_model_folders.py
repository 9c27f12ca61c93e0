"""``--weights FOLDER``: what lies beside the weights goes with the job, and comes back with the model."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.console import Terminal
from coordinator.client import cli
from coordinator.client.cli import CliUsageError
from coordinator.client.datasets import DatasetError
from coordinator.client.folders import MAX_FILE_BYTES, tokenizer_files
from coordinator.client.options import parser
from coordinator.web.pages.forms import fill, read
from protocol import codec
from protocol.job.job import MAX_SETTINGS_BYTES, JobSpec
from tests.support.special_tokens import CHATML, KNOWN, written

KNOWN_NAME = "qwen 2.5 instruct"
CONFIG = {"model_type": "qwen2", "hidden_size": 64, "eos_token_id": 2}
GENERATION = {"eos_token_id": [2, 0], "top_p": 0.8}
DATASET = {"artifact": "1" * 64}


class Uploads:
    """Takes files as a coordinator would."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []

    async def upload(self, path: Path, purpose: str, *_: Any) -> Any:
        self.names.append((path.name, purpose))
        return type("Upload", (), {"artifact": str(len(self.names)) * 64})


def folder(tmp_path: Path, **files: Any) -> Path:
    made = tmp_path / "qwen"
    written(KNOWN[KNOWN_NAME], made)
    (made / "model.safetensors").write_bytes(b"0" * 8)
    own = {"config": CONFIG, "generation_config": GENERATION, "tokenizer_config": KNOWN[KNOWN_NAME].settings}
    for name, content in (own | files).items():
        if content is not None:
            (made / f"{name}.json").write_text(json.dumps(content))
    return made


async def document(tmp_path: Path, given: dict[str, Any], *argv: str) -> tuple[dict[str, Any], Uploads]:
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"name": "a", "dataset": DATASET, "budget": 1} | given))
    client = Uploads()
    options = parser().parse_args(["quote", str(job), "--json", *argv])
    return await cli._document(client, options, Terminal()), client  # type: ignore[arg-type]


async def test_a_folder_brings_config_tokenizer_and_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, client = await document(tmp_path, {}, "--weights", str(folder(tmp_path)))
    assert client.names == [("model.safetensors", "weights"), ("tokenizer.json", "tokenizer")]
    assert made["model"] == {"weights": "1" * 64, "config": CONFIG, "generation": GENERATION}
    assert made["tokenizer"] == {"kind": "file", "file": "2" * 64, "settings": KNOWN[KNOWN_NAME].settings}
    assert codec.convert(made, JobSpec).tokenizer.settings == KNOWN[KNOWN_NAME].settings
    told = capsys.readouterr().err
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        assert name in told


async def test_a_folder_without_its_config_is_told_before_anything_is_uploaded(tmp_path: Path) -> None:
    weights = str(folder(tmp_path, config=None))
    with pytest.raises(CliUsageError, match=r"holds weights and no config\.json: download that too"):
        await document(tmp_path, {}, "--weights", weights)
    made, _ = await document(tmp_path, {"model": {"config": CONFIG}}, "--weights", weights)
    assert made["model"]["config"] == CONFIG


async def test_a_byte_order_mark_before_a_config_is_looked_over(tmp_path: Path) -> None:
    made = folder(tmp_path)
    (made / "config.json").write_bytes(b"\xef\xbb\xbf" + (made / "config.json").read_bytes())
    found, _ = await document(tmp_path, {}, "--weights", str(made))
    assert found["model"]["config"] == CONFIG


async def test_what_the_document_says_stands(tmp_path: Path) -> None:
    given = {
        "model": {"config": CONFIG | {"hidden_size": 32}, "generation": {}},
        "tokenizer": {"kind": "file", "file": "3" * 64, "settings": {"eos_token": "a"}},
    }
    made, client = await document(tmp_path, given, "--weights", str(folder(tmp_path)))
    assert client.names == [("model.safetensors", "weights")]
    assert made["model"] == {**given["model"], "weights": "1" * 64}
    assert made["tokenizer"] == given["tokenizer"]


async def test_templates_and_names_in_files_of_their_own_are_settings_too(tmp_path: Path) -> None:
    settings = {key: value for key, value in KNOWN[KNOWN_NAME].settings.items() if key != "chat_template"}
    decoder = {str(number): {"content": f"<unused{number}>"} for number in range(6000)}
    names = {"eos_token": {"content": "<|odd|>"}, "cls_token": "<|im_start|>"}
    made = folder(tmp_path, tokenizer_config=settings | {"added_tokens_decoder": decoder}, special_tokens_map=names)
    (made / "chat_template.jinja").write_text(CHATML)
    part: dict[str, Any] = {}
    assert tokenizer_files(made, part) == ["special_tokens_map.json", "tokenizer_config.json", "chat_template.jinja"]
    assert part["settings"] == settings | {"chat_template": CHATML, "cls_token": "<|im_start|>"}


async def test_a_folder_with_a_damaged_file_names_it(tmp_path: Path) -> None:
    made = folder(tmp_path)
    for content, words in (
        (b"{", "is no JSON"),
        (b"[]", "no table"),
        (b"\xff", "not UTF-8"),
        (b" " * (MAX_FILE_BYTES + 1), "at most"),
    ):
        (made / "tokenizer_config.json").write_bytes(content)
        with pytest.raises(DatasetError, match=f"tokenizer_config.json .*{words}"):
            tokenizer_files(made, {})


def test_settings_are_bounded_and_belong_to_a_file() -> None:
    job = {"name": "a", "dataset": DATASET, "budget": 1, "model": {"preset": "gpt2"}}
    for tokenizer, words in (
        ({"kind": "file", "settings": {"chat_template": "x" * MAX_SETTINGS_BYTES}}, "131,072 at most"),
        ({"kind": "bytes", "settings": {}}, "tokenizer.kind is bytes"),
    ):
        with pytest.raises(codec.MessageError, match=words):
            codec.convert(job | {"tokenizer": tokenizer}, JobSpec)
    large = {"preset": "gpt2", "generation": {"a": "x" * MAX_SETTINGS_BYTES}}
    with pytest.raises(codec.MessageError, match=r"model.generation has .* 131,072 at most"):
        codec.convert(job | {"model": large}, JobSpec)


def test_the_form_keeps_what_it_shows_nobody() -> None:
    model = {"config": CONFIG, "weights": "2" * 64, "generation": GENERATION}
    tokenizer = {"kind": "file", "file": "3" * 64, "settings": KNOWN[KNOWN_NAME].settings, "end": "<|endoftext|>"}
    spec = codec.convert(
        {"name": "a", "dataset": DATASET, "budget": 1, "model": model, "tokenizer": tokenizer}, JobSpec
    )
    assert read(fill(spec)).spec == spec
    broken = read(fill(spec) | {"tokenizer.settings": "[]", "model.generation": "{"})
    assert "tokenizer_config.json is a table" in broken.errors["tokenizer.settings"]
    assert "not a generation_config.json" in broken.errors["model.generation"]
