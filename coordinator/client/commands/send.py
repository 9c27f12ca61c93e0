"""A job document with what it names: files are sent, and models of the Hub are fetched by the coordinator or here."""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from common.console import Terminal
from common.terminal import say, somebody_answers
from coordinator.client.client import Client
from coordinator.client.commands.base import CliUsageError, progress_bar
from coordinator.client.datasets import format_of, missing_shards, shards
from coordinator.client.documents import read_document
from coordinator.client.errors import ProblemError
from coordinator.client.folders import CONFIG, OLDER_TOKENIZERS, TOKENIZER, model_files, tokenizer_files
from coordinator.client.hub import HubModel, fetch, find, is_hub_name, sentence
from protocol.ids import NOT_SENT
from protocol.rest.hub import HubFile, HubModelView

HUB_VARIABLE = "HF_ENDPOINT"
_HERE = frozenset({404, 409, 422, 503})
"""What a coordinator answers where it cannot fetch a model of the Hub, and the submitter's machine perhaps can."""
Later = list[Callable[[], Awaitable[None]]]
"""What sends weights, and puts them into the document."""


async def document_of(client: Client, options: argparse.Namespace, out: Terminal) -> dict[str, Any]:
    """The job document as plain data, with what was uploaded for it put in."""
    document = read_document(options.document)
    part = document.get("model")
    if options.model is not None and isinstance(part, dict) and part.get("from_job"):
        way = "leave --model out, or model.from_job"
        raise CliUsageError(
            f"{options.document}: a job starts from job {part['from_job']} or from {options.model}: {way}"
        )
    await _take_from_hub(client, document, options, out)
    if options.model is not None:
        await _upload_weights(client, document, options, out)
    for number, (path, weight) in enumerate(options.data):
        part = _part(document, "dataset", options) if number == 0 else {}
        await _upload_dataset(client, path, part, options, out)
        if weight is not None:
            part["weight"] = weight
        if number:
            document.setdefault("more_datasets", []).append(part)
    if options.heldout_data is not None:
        part = _part(document, "heldout_dataset", options)
        await _upload_dataset(client, options.heldout_data, part, options, out)
    await _take_tokenizer(client, document, options, out)
    return document


async def model_files_of(
    client: Client, model: Path, options: argparse.Namespace, out: Terminal, later: Later
) -> dict[str, Any]:
    """A document with nothing but a model's files and its tokenizer, which is sent.

    Args:
        model: a folder, the file of its weights, or a name on the Hub.
        later: gets what sends its weights: until then ``NOT_SENT`` stands for them.
    Raises:
        CliUsageError: it has no tokenizer that can be used.
    """
    document: dict[str, Any] = {}
    own = argparse.Namespace(**{**vars(options), "model": model, "tokenizer": None, "document": model})
    await _take_from_hub(client, document, own, out, later)
    if own.model is not None:
        await _upload_weights(client, document, own, out, own.model.parent, later)
    await _take_tokenizer(client, document, own, out)
    if "tokenizer" not in document:
        lacks = f"there is no {TOKENIZER} beside {model}" if model.is_file() else f"{model} has no {TOKENIZER}"
        raise CliUsageError(f"{lacks}: a model answers with its own tokenizer only")
    return document


async def _take_tokenizer(client: Client, document: dict[str, Any], options: argparse.Namespace, out: Terminal) -> None:
    if options.tokenizer is None:
        return
    part = _part(document, "tokenizer", options)
    part["kind"] = "file"
    folder = options.tokenizer.parent
    say_taken(folder, tokenizer_files(folder, part))
    part["file"] = await upload_file(client, options.tokenizer, "tokenizer", part, options, out)


def _part(document: dict[str, Any], place: str, options: argparse.Namespace) -> dict[str, Any]:
    part = document.setdefault(place, {})
    if not isinstance(part, dict):
        raise CliUsageError(f"{options.document}: {place} is {part!r}, not a table")
    return part


async def _upload_dataset(
    client: Client, path: Path, part: dict[str, Any], options: argparse.Namespace, out: Terminal
) -> None:
    said, field = part.get("format"), str(part.get("text_field", "text"))
    ask = somebody_answers() and not options.json
    part["format"] = format_of(path, None if said is None else str(said), field, out, ask)
    part["artifact"] = await upload_file(client, path, "dataset", part, options, out)


async def _take_from_hub(
    client: Client, document: dict[str, Any], options: argparse.Namespace, out: Terminal, later: Later | None = None
) -> None:
    """Put a model that ``--model`` or ``model.hub`` names into the document: the coordinator fetches it, or this machine does."""
    part = document.get("model", {})
    named = hub_name(options.model)
    if named is None and options.model is None and isinstance(part, dict) and "weights" not in part:
        named = None if part.get("hub") is None else str(part["hub"])
    if named is None:
        return
    part = document.setdefault("model", {})
    if not isinstance(part, dict):
        return
    if HUB_VARIABLE not in os.environ:  # Another Hub than the coordinator's, perhaps.
        try:
            await _pull(client, await client.hub_model(named), document, options, out, later)
            options.model = None
            return
        except ProblemError as error:
            if error.status not in _HERE:
                raise
            say(f"cottage: {error}: it is fetched here, and sent on", error=True)
    model = await found_on_hub(named)
    options.model = await asyncio.to_thread(fetch, model)
    part |= {"hub": model.pinned} | ({"license": model.license} if model.license else {})


async def _pull(
    client: Client,
    model: HubModelView,
    document: dict[str, Any],
    options: argparse.Namespace,
    out: Terminal,
    later: Later | None,
) -> None:
    """Have the coordinator fetch a model, and put it into the document, which may have a config and a tokenizer of its own."""
    say(f"cottage: {sentence(model.repository, model.commit, model.license, model.terms)}", error=True)
    part = document["model"]

    async def send() -> None:
        try:
            found = [await _pull_file(client, model, file, options, out) for file in model.files]
        except ProblemError as error:
            if later is None or error.status not in _HERE:
                raise
            say(f"cottage: {error}: it is fetched here, and sent on", error=True)
            here = await asyncio.to_thread(fetch, await found_on_hub(f"{model.repository}@{model.commit}"))
            found = [await upload_file(client, one, "weights", part, options, out) for one in shards(here)[0]]
        part["weights"] = found[0] if len(found) == 1 else found

    await _now_or_later(part, send, later)
    given = {name: value for name, value in model.model.items() if name in ("hub", "license") or name not in part}
    if part.keys() & {"preset", "config"}:
        given.pop("config", None)
    part |= {name: value for name, value in given.items() if name != "weights"}
    if options.tokenizer is None and model.tokenizer:
        document.setdefault("tokenizer", model.tokenizer)


async def _now_or_later(part: dict[str, Any], send: Callable[[], Awaitable[None]], later: Later | None) -> None:
    if later is None:
        await send()
        return
    part["weights"] = NOT_SENT
    later.append(send)


async def _pull_file(
    client: Client, model: HubModelView, file: HubFile, options: argparse.Namespace, out: Terminal
) -> str | None:
    with progress_bar(out, options) as bar:
        task = bar.add_task(file.path, total=file.size)
        return (await client.pull(model, file, lambda done, _all: bar.update(task, completed=done))).artifact


async def found_on_hub(named: str) -> HubModel:
    """A model of the Hub; its licence is shown."""
    model = await asyncio.to_thread(find, named)
    say(f"cottage: {sentence(model.repository, model.commit, model.license, model.terms)}", error=True)
    return model


def hub_name(path: Path | None) -> str | None:
    """The name of a model of the Hub, where that is meant: what is there is a path."""
    return path.as_posix() if path is not None and not path.exists() and is_hub_name(path.as_posix()) else None


async def _upload_weights(
    client: Client,
    document: dict[str, Any],
    options: argparse.Namespace,
    out: Terminal,
    beside: Path | None = None,
    later: Later | None = None,
) -> None:
    """One file, or every shard of a model's folder; what is in them says which tensors they hold.

    Of a folder config, tokenizer and generation settings are taken too, where the document names none. ``beside``: where they
    are of one file; None: of one file nothing else is taken.
    """
    path, part = options.model, document.setdefault("model", {})
    folder = path if path.is_dir() else beside
    if not isinstance(part, dict):
        raise CliUsageError(f"{options.document}: model is {part!r}, not a table")
    chosen, others = shards(path)
    if missing_shards({one.name for one in chosen}):
        raise CliUsageError(f"{path} is one part of several of the same weights: name its folder")
    given = part.keys() & {"preset", "config", "from_job"}
    if folder is not None and not given and not (folder / CONFIG).is_file():
        raise CliUsageError(
            f"{folder} holds weights and no {CONFIG}: download that too, or give model.config in the document"
        )
    if others:
        left, taken = ", ".join(one.name for one in others), ", ".join(one.name for one in chosen[:3])
        more = " ..." if len(chosen) > 3 else ""
        say(
            f"cottage: {left} {'is' if len(others) == 1 else 'are'} left out: the weights are {taken}{more}", error=True
        )

    async def send() -> None:
        found = [await upload_file(client, shard, "weights", part, options, out) for shard in chosen]
        part["weights"] = found[0] if len(found) == 1 else found

    await _now_or_later(part, send, later)
    if folder is not None:
        say_taken(folder, model_files(folder, part))
        if options.tokenizer is None and "tokenizer" not in document and (folder / TOKENIZER).is_file():
            options.tokenizer = folder / TOKENIZER
        elif options.tokenizer is None and "tokenizer" not in document:
            _say_without_tokenizer(folder)


def _say_without_tokenizer(folder: Path) -> None:
    older = next((name for name in OLDER_TOKENIZERS if (folder / name).is_file()), None)
    if older is not None:
        way = "save_pretrained of transformers' AutoTokenizer writes it"
        say(f"cottage: {folder} has {older} and no {TOKENIZER}, which is what is read here: {way}", error=True)


def say_taken(folder: Path, names: Sequence[str]) -> None:
    """Tell which files of a folder go with the job."""
    if names:
        say(f"cottage: {', '.join(names)} of {folder} {'goes' if len(names) == 1 else 'go'} with the job", error=True)


async def upload_file(
    client: Client, path: Path, purpose: Any, part: dict[str, Any], options: argparse.Namespace, out: Terminal
) -> str | None:
    """Send one file and return its artifact."""
    with progress_bar(out, options) as bar:
        task = bar.add_task(path.name, total=path.stat().st_size)
        upload = await client.upload(
            path,
            purpose,
            part.get("format", "auto") if purpose == "dataset" else "auto",
            str(part.get("text_field", "text")),
            lambda done, _total: bar.update(task, completed=done),
        )
    return upload.artifact
