"""``--model FOLDER``: what lies beside the weights goes with the job, and comes back with the model."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from common.console import Terminal
from coordinator.client.client import Client
from coordinator.client.commands.base import CliUsageError
from coordinator.client.commands.send import document_of
from coordinator.client.datasets import DatasetError
from coordinator.client.errors import ClientError
from coordinator.client.folders import MAX_FILE_BYTES, tokenizer_files
from coordinator.client.options import parser
from coordinator.web.pages.forms import fill, read
from protocol import codec
from protocol.job.job import MAX_SETTINGS_BYTES, JobSpec, TokenizerSpec
from tests.support.special_tokens import CHATML, KNOWN, written
from trainer.errors import DataError
from trainer.formats.source import Dataset

KNOWN_NAME = "qwen 2.5 instruct"
CONFIG = {"model_type": "qwen2", "hidden_size": 64, "eos_token_id": 2}
GENERATION = {"eos_token_id": [2, 0], "top_p": 0.8}
DATASET = {"artifact": "1" * 64}
IRREGULAR = {
    "pipe": "is a pipe, and its content is read more than once: save it as a file, and name that",
    "socket": "is a socket, and .*: save it as a file",
    "device": "is a device or a terminal, and .*: save it as a file",
    "folder": "is a folder: name one file in it",
}


def irregular_path(kind: str, tmp_path: Path) -> Path:
    path = tmp_path / "odd"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        case "device":
            return Path("/dev/null")
        case _:
            path.mkdir()
    return path


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
    return await document_of(client, options, Terminal()), client  # type: ignore[arg-type]


async def test_a_folder_brings_config_tokenizer_and_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, client = await document(tmp_path, {}, "--model", str(folder(tmp_path)))
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
        await document(tmp_path, {}, "--model", weights)
    made, _ = await document(tmp_path, {"model": {"config": CONFIG}}, "--model", weights)
    assert made["model"]["config"] == CONFIG


@pytest.mark.parametrize("older", ["tokenizer.model", "vocab.json", "tekken.json"])
async def test_a_folder_with_another_programs_tokenizer_alone_says_how_to_have_one(
    older: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(tmp_path)
    (made / "tokenizer.json").rename(made / older)
    found, client = await document(tmp_path, {}, "--model", str(made))
    assert client.names == [("model.safetensors", "weights")]
    assert "tokenizer" not in found
    assert f"has {older} and no tokenizer.json, which is what is read here: save_pretrained" in capsys.readouterr().err
    await document(tmp_path, {"tokenizer": {"kind": "bytes"}}, "--model", str(made))
    assert older not in capsys.readouterr().err, "somebody has chosen"


async def test_a_byte_order_mark_before_a_config_is_looked_over(tmp_path: Path) -> None:
    made = folder(tmp_path)
    (made / "config.json").write_bytes(b"\xef\xbb\xbf" + (made / "config.json").read_bytes())
    found, _ = await document(tmp_path, {}, "--model", str(made))
    assert found["model"]["config"] == CONFIG


async def test_what_the_document_says_stands(tmp_path: Path) -> None:
    given = {
        "model": {"config": CONFIG | {"hidden_size": 32}, "generation": {}},
        "tokenizer": {"kind": "file", "file": "3" * 64, "settings": {"eos_token": "a"}},
    }
    made, client = await document(tmp_path, given, "--model", str(folder(tmp_path)))
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


@pytest.mark.parametrize("in_config", [None, "of the config", [{"name": "old", "template": "of the config"}]])
@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": "of the file"},
        {"chat_template.jinja": "of the file", "additional_chat_templates/tool_use.jinja": "for tools"},
        {"additional_chat_templates/rag.jinja": "for papers", "additional_chat_templates/tool_use.jinja": "for tools"},
        {"chat_template.jinja": "of the file", "additional_chat_templates/default.jinja": "for tools"},
        {"additional_chat_templates/notes.txt": "none"},
    ],
    ids=lambda files: " ".join(files),
)
async def test_transformers_finds_the_chat_templates_of_a_folder_again(
    files: dict[str, str], in_config: Any, tmp_path: Path
) -> None:
    settings = KNOWN[KNOWN_NAME].settings | {"chat_template": in_config}
    made = folder(tmp_path, tokenizer_config={key: value for key, value in settings.items() if value is not None})
    (made / "additional_chat_templates").mkdir()
    for name, text in files.items():
        (made / name).write_text(text)
    part: dict[str, Any] = {"kind": "file", "file": "2" * 64}
    taken = tokenizer_files(made, part)
    replaced = {"chat_template.jinja"} if "additional_chat_templates/default.jinja" in files else set()
    assert set(taken) - {"tokenizer_config.json"} == {name for name in files if name.endswith(".jinja")} - replaced
    finished = tmp_path / "finished"  # As trainer.export writes them: the settings as they came.
    written(KNOWN[KNOWN_NAME], finished)
    kept = codec.convert(part, TokenizerSpec).settings
    (finished / "tokenizer_config.json").write_text(json.dumps(kept))
    before, after = (AutoTokenizer.from_pretrained(one) for one in (made, finished))
    assert after.chat_template == before.chat_template
    if "chat_template.jinja" in files:
        assert "of the config" not in json.dumps(kept)


@pytest.mark.parametrize("kind", IRREGULAR)
async def test_what_cannot_be_read_twice_is_refused_before_anything_waits_for_it(kind: str, tmp_path: Path) -> None:
    pipe, model = irregular_path(kind, tmp_path), folder(tmp_path)
    for argv in (("--data", str(pipe)), ("--model", str(pipe))):
        if "model" in argv[0] and kind == "folder":
            continue  # A model's folder is what may be named there.
        with pytest.raises(DatasetError, match=f"{pipe} {IRREGULAR[kind]}"):
            await document(tmp_path, {"model": {"config": CONFIG}}, *argv)
    async with Client("http://127.0.0.1:9") as client:
        for purpose in ("dataset", "tokenizer", "weights"):
            with pytest.raises(ClientError, match=f"{pipe} {IRREGULAR[kind]}"):
                await client.upload(pipe, purpose)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=f"data.jsonl {IRREGULAR[kind]}"):
        Dataset.of(pipe, name="data.jsonl").look()
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to(pipe)
    os.mkfifo(model / "model.safetensors.index.json")
    with pytest.raises(DatasetError, match=IRREGULAR[kind]):
        await document(tmp_path, {}, "--model", str(model))


async def test_a_folder_with_a_damaged_file_names_it(tmp_path: Path) -> None:
    made = folder(tmp_path)
    for content, words in (
        (b"{", "it is cut off: its end is missing"),
        (b"[]", "no table"),
        (b"\xff", "not UTF-8"),
        (b" " * (MAX_FILE_BYTES + 1), "at most"),
    ):
        (made / "tokenizer_config.json").write_bytes(content)
        with pytest.raises(DatasetError, match=f"tokenizer_config.json:? .*{words}"):
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
