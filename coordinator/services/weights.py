"""The index of a job's weights: every tensor with its place and digest, so that nodes fetch only what their stage needs."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from coordinator.errors import InvalidError
from coordinator.services.datasets import CHUNK_BYTES, read_safetensors
from transport.wire.weights import MAX_INDEX_BYTES, IndexedTensor, WeightIndex


def index_weights(files: Sequence[tuple[str, Path]]) -> bytes:
    """Read weights once and describe them, as a ``WeightIndex`` in JSON.

    Args:
        files: digest and place of each file of one model.
    Raises:
        InvalidError: a header does not describe its file, or two files have a tensor of the same name.
    """
    tensors: dict[str, IndexedTensor] = {}
    for number, (_, path) in enumerate(files):
        begins, found = read_safetensors(path)
        with path.open("rb") as file:
            for name, tensor in found.items():
                if name in tensors:
                    raise InvalidError(f"tensor {name[:80]!r} is in two of the files: give each shard once", "weights")
                begin, end = (begins + offset for offset in tensor.data_offsets)
                file.seek(begin)
                tensors[name] = IndexedTensor(
                    number, begin, end, tensor.dtype, tuple(tensor.shape), _digest(file, end - begin)
                )
    made = msgspec.json.encode(WeightIndex(tuple(digest for digest, _ in files), tensors))
    if len(made) > MAX_INDEX_BYTES:
        raise InvalidError(
            f"{len(tensors):,} tensors: an index of at most {MAX_INDEX_BYTES:,} bytes is kept", "weights"
        )
    return made


def _digest(file: BinaryIO, size: int) -> str:
    hasher = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(size, CHUNK_BYTES))):
        hasher.update(chunk)
        size -= len(chunk)
    return hasher.hexdigest()
