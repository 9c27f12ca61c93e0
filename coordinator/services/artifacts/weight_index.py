"""A job's weights: whether they are its model's, and the index of them, so that nodes fetch only what their stage needs.

The index has every tensor of the model with its place and digest.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from coordinator.client.datasets import missing_shards
from coordinator.errors import InvalidError
from coordinator.services.artifacts.datasets import (
    CHUNK_BYTES,
    NAMELESS_WEIGHTS,
    StoredTensor,
    check_weights,
    read_safetensors,
)
from protocol.ids import Digest
from protocol.models.families import FAMILY
from protocol.models.model import STARTS_TIED, tensors_of
from protocol.models.tensor_names import HEAD, Part, way_in
from protocol.models.text_part import AROUND
from protocol.models.weights import MAX_INDEX_BYTES, IndexedTensor, WeightIndex

_INFINITE = {
    "F32": ("<u4", 0x7F800000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F64": ("<u8", 0x47EFFFFFF << 28),
}
"""Of the types that a model can start from: as unsigned integers, and from where on, without the sign, the float32 of training
is infinite or no number."""
_WIDE = {"F64": " in float32"}
_BUFFERS = re.compile(
    r"(?:^|\.)(?:rotary_emb\.inv_freq|position_ids|(?:attn|(?:cross)?attention)\.(?:masked_)?bias|_extra_state)$"
)
"""Of older versions and other programs: masks, tables of positions, notes. Nothing is computed from them today."""
SHOWN_NAMES = 3


def check_fit(config: Mapping[str, Any], files: Sequence[tuple[str, Path]]) -> str:
    """See that files hold every tensor of the model that a resolved config describes, in its shape, as floats.

    Args:
        files: what their owner calls each file of the model, and its place.
    Returns:
        What is doubtful, or "": tensors beside the model's, such as a vision tower, which transformers warns of, too.
    Raises:
        InvalidError: naming file, tensor, and the shape that it has and should have; tensors that belong into the model, but not
            into this config's; or as ``read_safetensors``.
    """
    found: dict[str, tuple[str, StoredTensor]] = {}
    for name, path in files:
        for key, tensor in check_weights(path, name).items():
            if key in found:
                first = found[key][0]
                where = f"in {first} and in {name}" if first != name else f"in two files of the same content, {name}"
                raise InvalidError(f"tensor {key[:80]!r} is {where}: give each shard once", "weights")
            found[key] = (name, tensor)
    taken: set[str] = set()
    for parameter, shape, parts in _stored(config, found):
        if parts is None:
            where = f"{files[0][0]} has no" if len(files) == 1 else f"none of the {len(files)} files of weights has a"
            example = next(iter(found), "")[:80]
            lacking = missing_shards([name for name, _ in files])
            others = f"{lacking[0]} among them" if lacking else "all that this config belongs to"
            way = f"upload all files of the model, {others}"
            if before := _wrapped(parameter, found):
                way = (
                    f"the names begin with {before!r}, as torch.compile, DistributedDataParallel and peft wrap a model; "
                    "save the one within, by its own save_pretrained"
                )
            raise InvalidError(
                f"{where} tensor {parameter} of shape {_shown(shape)}, which the config asks for (there is {example!r}, "
                f"for one): {way}",
                "weights",
            )
        for part in parts:
            _check_part(part, part.shape(shape), *found[part.key])
            taken.add(part.key)
    beside = [key for key in found if key not in taken and not _BUFFERS.search(key)]
    _check_foreign(config, beside, taken, found)
    if not beside:
        return ""
    hold, they = ("tensor", "it is") if len(beside) == 1 else ("tensors", "they are")
    what = f"the weights hold {len(beside):,} {hold} that this model has not, {_named(beside)}: {they} left out"
    return (
        f"{what} of training, and stay as they came"
        if AROUND in config
        else f"{what}, of training and of the finished folder"
    )


def _stored(
    config: Mapping[str, Any], names: Collection[str]
) -> Iterator[tuple[str, tuple[int, ...], tuple[Part, ...] | None]]:
    """Each parameter of a model with its shape, and the tensors that hold it of those that files have; None: they do not."""
    for parameter, shape in tensors_of(config).all().items():
        yield parameter, shape, way_in(names, parameter, shape, config, bool(config[STARTS_TIED]))


def _wrapped(parameter: str, names: Iterable[str]) -> str:
    """What stands before a parameter's name in files, where something does."""
    return next((name.removesuffix(parameter)[:80] for name in names if name.endswith(f".{parameter}")), "")


def _check_foreign(
    config: Mapping[str, Any],
    beside: Collection[str],
    taken: Collection[str],
    found: Mapping[str, tuple[str, StoredTensor]],
) -> None:
    """Refuse tensors that the model which they come from computes with: further layers, biases, experts.

    transformers leaves them out with a warning, and computes something else than that model.
    """
    family = FAMILY[str(config["model_type"])]
    layers = re.compile(rf"(?:{re.escape(family.prefix)})?{re.escape(family.layers)}(\d+)\.")
    modules = {key.rpartition(".")[0] for key in (*taken, HEAD)}
    foreign = [key for key in beside if layers.match(key) or key.rpartition(".")[0] in modules]
    if not foreign:
        return
    count = tensors_of(config).layers
    last = max((int(at[1]) for key in foreign if (at := layers.match(key)) and len(at[1]) < 9), default=0)
    more = f" (there is layer {last + 1:,}, and the config has {count:,})" if last >= count else ""
    raise InvalidError(
        f"{found[foreign[0]][0]} has tensors that belong to another model than the config's{more}, {_named(foreign)}: "
        "upload the config.json that was saved with the weights, or leave these tensors out",
        "weights",
    )


def _named(keys: Sequence[str]) -> str:
    """The first of them, as what a stranger wrote."""
    shown = ", ".join(repr(key[:80]) for key in keys[:SHOWN_NAMES])
    return f"{shown} and {len(keys) - SHOWN_NAMES:,} more" if len(keys) > SHOWN_NAMES else shown


def _check_part(part: Part, wanted: tuple[int, ...], file: str, tensor: StoredTensor) -> None:
    if tuple(tensor.shape) != wanted:
        raise InvalidError(
            f"tensor {part.key} of {file} has the shape {_shown(tensor.shape)}, the config makes it {_shown(wanted)}: "
            "upload the config.json and the weights of one model",
            "weights",
        )
    if tensor.dtype not in _INFINITE:
        raise InvalidError(
            f"tensor {part.key} of {file} has the type {tensor.dtype!r}, of shape {_shown(wanted)}: use F32, F16 or BF16",
            "weights",
        )


def _shown(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def index_weights(
    files: Sequence[tuple[str, Path]], config: Mapping[str, Any], called: Mapping[str, str] | None = None
) -> bytes:
    """Read a model's weights once and describe them, as a ``WeightIndex`` in JSON.

    What files hold beside the model is not in it, and not looked into: no node fetches that, whatever it is called and holds.

    Args:
        files: digest and place of each file of one model.
        config: the model's, resolved.
        called: what their owner calls the files, by digest, for messages.
    Raises:
        InvalidError: a header does not describe its file, two files have a tensor of the same name, or one is not finite.
    """
    called = called or {}
    parts = [
        _IndexedFile(number, path, called.get(digest) or NAMELESS_WEIGHTS)
        for number, (digest, path) in enumerate(files)
    ]
    return _index([digest for digest, _ in files], parts, config)


def index_archive(archive: Digest, path: Path, weights: Iterable[tuple[int, int]], config: Mapping[str, Any]) -> bytes:
    """The same of weights that lie within an archive, whose bytes the index names: one file, whatever is packed in it.

    Args:
        archive: its digest.
        path: its place.
        weights: first byte and size of each safetensors file in it.
        config: the model's, resolved.
    Raises:
        InvalidError: as ``index_weights``.
    """
    return _index([archive], [_IndexedFile(0, path, NAMELESS_WEIGHTS, within) for within in weights], config)


class _IndexedFile(NamedTuple):
    """A safetensors file: its number in the index, where it lies, and what its owner calls it."""

    number: int
    path: Path
    called: str
    within: tuple[int, int] | None = None


def _index(digests: Sequence[Digest], files: Sequence[_IndexedFile], config: Mapping[str, Any]) -> bytes:
    headers = [read_safetensors(one.path, one.called, one.within) for one in files]
    names = Counter(name for _, found in headers for name in found)
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise InvalidError(f"tensor {twice[:80]!r} is in two of the files: give each shard once", "weights")
    wanted = {part.key for _, _, parts in _stored(config, names) for part in parts or ()}
    tensors: dict[str, IndexedTensor] = {}
    for one, (begins, found) in zip(files, headers, strict=True):
        with one.path.open("rb") as file:
            for name in sorted(found.keys() & wanted, key=lambda name: found[name].data_offsets):
                tensor = found[name]
                begin, end = (begins + offset for offset in tensor.data_offsets)
                file.seek(begin)
                told = _digest(file, end - begin, tensor, f"tensor {name} of {one.called}")
                tensors[name] = IndexedTensor(one.number, begin, end, tensor.dtype, tuple(tensor.shape), told)
    made = msgspec.json.encode(WeightIndex(tuple(digests), tensors))
    if len(made) > MAX_INDEX_BYTES:
        raise InvalidError(
            f"{len(tensors):,} tensors: an index of at most {MAX_INDEX_BYTES:,} bytes is kept", "weights"
        )
    return made


def _digest(file: BinaryIO, size: int, tensor: StoredTensor, what: str) -> str:
    """The SHA-256 of a tensor's bytes; InvalidError where a number in it is NaN or infinite, or so in the float32 of training."""
    hasher = hashlib.sha256()
    unsigned, infinite = _INFINITE.get(tensor.dtype, ("u1", 0))
    magnitude = (1 << (8 * np.dtype(unsigned).itemsize - 1)) - 1
    while size > 0 and (chunk := file.read(min(size, CHUNK_BYTES))):
        hasher.update(chunk)
        if infinite and bool(np.any(np.frombuffer(chunk, unsigned) & magnitude >= infinite)):
            raise InvalidError(
                f"{what}, of shape {_shown(tensor.shape)}, holds values that are NaN or infinite{_WIDE.get(tensor.dtype, '')}: "
                "repair the file",
                "weights",
            )
        size -= len(chunk)
    return hasher.hexdigest()
