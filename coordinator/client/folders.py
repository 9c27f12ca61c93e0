"""The small files beside a model's weights or its tokenizer, as Hugging Face folders have them, for the job document."""

from pathlib import Path
from typing import Any

from common.system_words import reason
from coordinator.client.datasets import DatasetError
from protocol.codec import MessageError, decode_json

CONFIG, GENERATION, SETTINGS = "config.json", "generation_config.json", "tokenizer_config.json"
TOKENIZER, TEMPLATE, NAMES = "tokenizer.json", "chat_template.jinja", "special_tokens_map.json"
OLDER_TOKENIZERS = ("tokenizer.model", "spiece.model", "vocab.json", "tekken.json")  # What a tokenizer.json is made of.
TEMPLATES = "additional_chat_templates"  # A folder of templates with names, as ``tool_use.jinja``.
MAX_FILE_BYTES = 16 << 20  # Gemma 3 lists 6,000 unused tokens in its tokenizer_config.json: 1.2 MB.


def model_files(folder: Path, model: dict[str, Any]) -> list[str]:
    """Put config and generation settings into a document's ``model`` where it names none; the files that were taken.

    Raises:
        DatasetError: a file is too large or no JSON.
    """
    taken = []
    if not model.keys() & {"preset", "config", "from_job"} and (config := _read(folder / CONFIG)) is not None:
        model["config"] = config
        taken.append(CONFIG)
    if "generation" not in model and (generation := _read(folder / GENERATION)) is not None:
        model["generation"] = generation
        taken.append(GENERATION)
    return taken


def tokenizer_files(folder: Path, tokenizer: dict[str, Any]) -> list[str]:
    """The same for a document's ``tokenizer``: names of special tokens, and the chat templates.

    Templates in files of their own stand for all that ``tokenizer_config.json`` has, as in transformers
    (``PreTrainedTokenizerBase._from_pretrained``); several are a list with names, which it reads back as the same.
    ``added_tokens_decoder`` stays behind: it repeats ``tokenizer.json``.
    """
    if "settings" in tokenizer:
        return []
    found = {name: _read(folder / name) for name in (NAMES, SETTINGS)}
    settings = {**(found[NAMES] or {}), **(found[SETTINGS] or {})}
    settings.pop("added_tokens_decoder", None)
    taken = [name for name, content in found.items() if content is not None]
    files = {"default": folder / TEMPLATE} if (folder / TEMPLATE).is_file() else {}
    files |= {path.stem: path for path in sorted((folder / TEMPLATES).glob("*.jinja")) if path.is_file()}
    if files:
        named = [{"name": name, "template": _text(path)} for name, path in files.items()]
        settings["chat_template"] = named[0]["template"] if [*files] == ["default"] else named
        taken += [str(path.relative_to(folder)) for path in files.values()]
    if settings:
        tokenizer["settings"] = settings
    return taken


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = decode_json(_text(path), Any, 2 * MAX_FILE_BYTES)
    except MessageError as error:
        raise DatasetError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise DatasetError(f"{path} is no table of settings: it begins with {{ and ends with }}")
    return value


def _text(path: Path) -> str:
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise DatasetError(f"{path} has {size:,} bytes, and such a file {MAX_FILE_BYTES:,} at most: move it elsewhere")
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: {reason(error)}") from error
