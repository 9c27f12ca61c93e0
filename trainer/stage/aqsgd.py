"""Payloads of AQ-SGD: each window of a micro-batch in full at its first visit, and as a difference at later ones.

::

    flags u8 x rows | digest of the entry x differences | full windows, int8 a token | differences, 4 bits

The side that sends reads its own payload as the other one will, so both keep the same entries.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainer.codecs import CodecName, decode, encode, encoded_size
from trainer.errors import CodecError
from trainer.stage.activation_cache import DIGEST_BYTES, NOTHING, digest

_ENTRY: CodecName = "int8-token"
_FULL: CodecName = "int8-token"  # As good as in full: eight bits lose nothing at a boundary.
_DIFFERENCE: CodecName = "int4-token"

Entries = list[bytes | None]


def window_names(windows: Tensor) -> list[bytes]:
    """What each row of ``[b, sequence + 1]`` token ids is called: its own tokens, so equal windows have one entry."""
    return [digest(np.ascontiguousarray(row, dtype="<i8").tobytes()) for row in windows.numpy()]


def write_visit(values: Tensor, entries: Entries) -> bytes:
    """Payload of hidden states ``[b, t, c]``; ``entries``: of each window, None to send it in full.

    Raises:
        NonFiniteError: NaN or Inf in the values.
    """
    known = [index for index, entry in enumerate(entries) if entry is not None]
    new = [index for index, entry in enumerate(entries) if entry is None]
    shape = tuple(values.shape[1:])
    payload = bytes(entry is not None for entry in entries)
    payload += b"".join(digest(entry) for entry in entries if entry is not None)
    if new:
        payload += encode(values[new], _FULL)
    if known:
        bases = torch.stack([_base(entry, shape) for entry in entries if entry is not None])
        payload += encode(values[known] - bases, _DIFFERENCE)
    return payload


def wanted_entries(payload: bytes, rows: int) -> list[bytes]:
    """The digest of the entry that each window of a payload builds on, ``NOTHING`` for one in full; raises ``CodecError``."""
    flags = payload[:rows]
    if len(flags) != rows or any(flag > 1 for flag in flags):
        raise CodecError(f"a payload of {len(payload):,} bytes does not begin with {rows} flags")
    digests = payload[rows : rows + DIGEST_BYTES * sum(flags)]
    if len(digests) != DIGEST_BYTES * sum(flags):
        raise CodecError(f"a payload of {len(payload):,} bytes ends within the digests of {sum(flags)} entries")
    named = iter(digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES))
    return [next(named) if flag else NOTHING for flag in flags]


def read_visit(payload: bytes, shape: tuple[int, ...], entries: Entries) -> tuple[Tensor, list[bytes]]:
    """Hidden states ``[b, t, c]`` of a payload, and every window's new entry.

    Args:
        entries: those that ``wanted_entries`` names.
    Raises:
        CodecError: an entry is missing or another one, or the bytes are no such payload.
    """
    wanted = wanted_entries(payload, shape[0])
    for name, entry in zip(wanted, entries, strict=True):
        if name != (NOTHING if entry is None else digest(entry)):
            raise CodecError(
                f"a difference to the entry {name.hex()}, which is not held: only what was offered may be used"
            )
    known = [index for index, name in enumerate(wanted) if name != NOTHING]
    new = [index for index, name in enumerate(wanted) if name == NOTHING]
    at = shape[0] + DIGEST_BYTES * len(known)
    middle = at + (encoded_size((len(new), *shape[1:]), _FULL) if new else 0)
    values = torch.empty(shape)
    if new:
        values[new] = decode(payload[at:middle], (len(new), *shape[1:]), _FULL)
    if known:
        bases = torch.stack([_base(entry, shape[1:]) for entry in entries if entry is not None])
        values[known] = bases + decode(payload[middle:], (len(known), *shape[1:]), _DIFFERENCE)
    elif len(payload) != middle:
        raise CodecError(f"{len(payload) - middle:,} bytes behind the last window")
    return values, [encode(row, _ENTRY) for row in values]


def pack_entries(entries: Entries) -> bytes:
    """Entries as one record, for replays."""
    return bytes(entry is not None for entry in entries) + b"".join(entry or b"" for entry in entries)


def unpack_entries(record: bytes, rows: int, shape: Sequence[int]) -> Entries:
    """What ``pack_entries`` packed, ``shape`` ``[t, c]``; raises ``CodecError`` for anything else."""
    size, flags = encoded_size(tuple(shape), _ENTRY), record[:rows]
    if len(flags) != rows or any(flag > 1 for flag in flags) or len(record) != rows + size * sum(flags):
        raise CodecError(f"{len(record):,} bytes are no record of {rows} entries of {size:,}")
    kept = iter(record[at : at + size] for at in range(rows, len(record), size))
    return [next(kept) if flag else None for flag in flags]


def _base(entry: bytes, shape: tuple[int, ...]) -> Tensor:
    return decode(entry, shape, _ENTRY)
