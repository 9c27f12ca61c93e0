"""What a dataset's file is, looked at before it is uploaded; what its content leaves open is asked, with the choices."""

import difflib
import json
import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from common.console import Terminal
from common.regular_file import irregular
from common.terminal import say
from protocol.datasets.file_formats import HEAD_BYTES, WORDS, ContentError, FileContent, recognise, remarks, settle
from protocol.job.job import MAX_SHARDS, DatasetFormat

CHOICES = ("auto", *WORDS)
_SHARD = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.safetensors")


class DatasetError(Exception):
    """The file is no dataset, or somebody must say what it is; the text names the choices."""


def format_of(path: Path, wanted: str | None, text_field: str, out: Terminal, ask: bool) -> DatasetFormat:
    """The format to name with an upload. Says on standard error what somebody may not have noticed.

    Args:
        wanted: what was said; None or ``auto``: it is looked at.
        ask: somebody is there to choose between what it can be.
    Raises:
        DatasetError: it is none, not what was said, or nobody chose; or there is no such format.
    """
    if wanted is not None and wanted not in CHOICES:
        near = difflib.get_close_matches(wanted, CHOICES, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise DatasetError(f"dataset.format is {wanted[:60]!r}, no format: {hint}There are {', '.join(CHOICES)}")
    check_regular(path)
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    content = recognise(head, len(head) < HEAD_BYTES, path.name, text_field)
    if not content.formats and not content.problem:
        return wanted or "auto"  # type: ignore[return-value]  # Packed in a way that is not known here: the coordinator looks.
    asked = wanted in (None, "auto") and len(content.formats) > 1 and ask and not content.problem
    try:
        chosen = settle(content, path.name, _chosen(content, path.name, out) if asked else wanted or "auto")
    except ContentError as error:
        raise DatasetError(str(error)) from error
    for remark in remarks(content, path.name, chosen):
        say(f"cottage: {remark}", error=True)
    return chosen


def check_regular(path: Path) -> None:
    """Refuse a pipe, a device or a folder before anything waits for what it says.

    Raises:
        DatasetError: it is one. OSError: nothing is there.
    """
    if what := irregular(path):
        raise DatasetError(f"{path} {what}")


def _chosen(content: FileContent, name: str, out: Terminal) -> str:
    from rich.prompt import Prompt

    shown = " or ".join(f"{one} ({WORDS[one]})" for one in content.formats)
    return Prompt.ask(f"{name} can be {shown}. Which is it?", console=out, choices=[*content.formats])


def shards(path: Path) -> tuple[list[Path], list[Path]]:
    """The files of a model's weights to upload, and others in the same folder, as the same weights once more or an adapter.

    A folder may have shards, named by an index, beside one consolidated file: of both, the shards are taken.

    Raises:
        DatasetError: there are none, or a shard that the index or the other shards' numbers name is not there.
    """
    if not path.is_dir():
        check_regular(path)
        if path.suffix == ".gguf":
            way = "name the folder or the Hub's repository that it was made of, with *.safetensors"
            raise DatasetError(f"{path} is GGUF, which is made for running and not for training further: {way}")
        return [path], []
    found = sorted(path.glob("*.safetensors"))
    index = path / "model.safetensors.index.json"
    named = named_in(index)
    if any("/" in name or "\\" in name for name in named):
        chosen = _in_folders(index, named)
        return chosen, [one for one in found if one not in chosen]
    if not found:
        raise DatasetError(f"{path} holds no *.safetensors: {_instead(path)}")
    numbered = [one for one in found if _SHARD.fullmatch(one.name)]
    chosen = (
        [one for one in found if one.name in named]
        or numbered
        or [one for one in found if one.name == "model.safetensors"]
    )
    chosen = chosen or found
    names = {one.name for one in chosen}
    _refuse_lacking(path, sorted(named - names) if named & names else missing_shards(names))
    if (path / "adapter_config.json").exists() and [one.name for one in chosen] == ["adapter_model.safetensors"]:
        raise DatasetError(
            f"{path} holds an adapter, not a model: merge it into its base model (merge_and_unload of peft), and name the folder "
            "that save_pretrained writes then"
        )
    if gone := next((one for one in chosen if not one.exists()), None):
        raise DatasetError(f"{gone} is a link to a file that is not there: download the model anew")
    for one in chosen:
        check_regular(one)
    return chosen, [one for one in found if one not in chosen]


def _refuse_lacking(folder: Path, lacking: list[str]) -> None:
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise DatasetError(f"{folder} has not {lacking[0]}{more}, a part of the same weights: download all of them")


def _in_folders(index: Path, named: Collection[str]) -> list[Path]:
    """The shards of an index that names some in folders below its own; whatever else it names, no file beyond is read.

    A snapshot in Hugging Face's cache has links to the blobs beside it.

    Raises:
        DatasetError: one is not there, or lies elsewhere.
    """
    folder = index.parent.resolve()
    roots = [folder, folder.parent.parent / "blobs"] if folder.parent.name == "snapshots" else [folder]
    for name in sorted(named):
        parts = PurePosixPath(name).parts
        straight = parts and "\\" not in name and ":" not in parts[0] and parts[0] != "/" and ".." not in parts
        if not straight or not any((folder / name).resolve().is_relative_to(root) for root in roots):
            raise DatasetError(
                f"{index} names {name[:200]!r}, which is no file in its folder or in one below it: mend the index, or name one "
                "file of weights"
            )
    _refuse_lacking(index.parent, sorted(name for name in named if not (folder / name).exists()))
    chosen = [index.parent / name for name in sorted(named)]
    for one in chosen:
        check_regular(one)
    return chosen


def _instead(folder: Path) -> str:
    """What to do about a folder without safetensors, from what it has."""
    below = sorted({one.parent for kind in ("*", "snapshots/*") for one in folder.glob(f"{kind}/*.safetensors")})
    if below:
        newest = max(below, key=lambda one: one.stat().st_mtime)
        others = "" if len(below) == 1 else f", the newest of {len(below):,}"
        return f"its folder {newest.relative_to(folder)} does{others}, name that"
    if any(folder.glob("*.gguf")):
        return "a GGUF file cannot be trained further, take the model that it was made of"
    if any(one for kind in ("*.bin", "*.pt", "*.pth") for one in folder.glob(kind)):
        return "transformers reads the model that is there, and save_pretrained writes it as safetensors"
    return "name the folder of a model, or its model.safetensors"


def missing_shards(names: Collection[str]) -> list[str]:
    """Shards that belong to numbered ones among ``names``, as ``model-00001-of-00003.safetensors``, and are not there."""
    wanted = {
        f"{found[1]}-{number:05}-of-{found[3]}.safetensors"
        for found in map(_SHARD.fullmatch, names)
        if found and int(found[3]) <= MAX_SHARDS
        for number in range(1, int(found[3]) + 1)
    }
    return sorted(wanted - set(names))


def named_in(index: Path) -> set[str]:
    """The files that an index names; none where there is none that can be read."""
    if not index.is_file():  # A pipe would never answer.
        return set()
    try:
        weights = json.loads(index.read_bytes())["weight_map"]
        return {name for name in weights.values() if isinstance(name, str)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()
