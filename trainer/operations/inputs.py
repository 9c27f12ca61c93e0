"""One operation with all that it read, as one safetensors file: who has it can run the operation and needs to believe nobody.

``record`` is the operation's record; ``source.K`` are whole outputs of earlier operations, told apart by their SHA-256, which the
record names for each piece that it reads.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from protocol.audit import MAX_RECORD_BYTES, OperationRecord
from protocol.codec import MessageError
from protocol.codec import decode as decode_message
from trainer.errors import OperationError
from trainer.operations.tracer import Source, record_of

MAX_INPUT_BYTES = 2 << 30  # AdamW over a stage of 128 million parameters reads three vectors of 512 MB.


def sources_of(leaf: bytes) -> set[Source]:
    """Outputs of earlier operations that an operation reads."""
    return {(piece.operation, piece.output) for read in record_of(leaf).reads for piece in read.pieces}


def write_inputs(leaf: bytes, caught: Mapping[Source, bytes]) -> bytes:
    """The file of an operation; ``caught``: what ``sources_of`` names.

    Raises:
        OperationError: more than ``MAX_INPUT_BYTES``.
    """
    size = sum(len(data) for data in caught.values())
    if size > MAX_INPUT_BYTES:
        raise OperationError(
            f"the inputs of this operation have {size:,} bytes: at most {MAX_INPUT_BYTES:,} can be shown"
        )
    tensors = {"record": _tensor(leaf)}
    tensors |= {f"source.{number}": _tensor(caught[source]) for number, source in enumerate(sorted(caught))}
    return save(tensors)


def read_inputs(data: bytes) -> tuple[OperationRecord, dict[bytes, memoryview]]:
    """The record of an operation, and sources by SHA-256.

    Raises:
        OperationError: the bytes are no such file.
    """
    if len(data) > MAX_INPUT_BYTES + 2 * MAX_RECORD_BYTES:
        raise OperationError(f"{len(data):,} bytes of inputs: at most {MAX_INPUT_BYTES:,} are taken")
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise OperationError(f"no safetensors file: {error}") from error
    blobs = {name: _blob(name, tensor) for name, tensor in tensors.items()}
    try:
        record = decode_message(blobs.pop("record", memoryview(b"")), OperationRecord, MAX_RECORD_BYTES)
    except MessageError as error:
        raise OperationError(f"the record is malformed: {error}") from error
    return record, {hashlib.sha256(blob).digest(): blob for blob in blobs.values()}


def _blob(name: str, tensor: Tensor) -> memoryview:
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise OperationError(f"{name[:40]!r} is not bytes")
    return tensor.numpy().data


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))
