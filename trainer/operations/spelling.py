"""Arguments of an operation as text, and back. Floats are hexadecimal: not a bit is lost, and equal bits are equal text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from trainer.errors import OperationError

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
}
MAX_DEPTH = 4  # Lists of lists are as deep as any schema of torch's goes.


def spell(arguments: Sequence[Any], named: Mapping[str, Any], take: Callable[[Tensor], int]) -> str:
    """Canonical JSON of an operation's arguments; ``take`` gives the number of the read that a tensor is.

    Raises:
        OperationError: an argument that no operation of training has.
    """
    spelled = [[_spell(value, take) for value in arguments], {key: _spell(named[key], take) for key in sorted(named)}]
    return msgspec.json.encode(spelled).decode()


def read(text: str, tensors: Sequence[Tensor]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of ``spell``; a tensor is one of ``tensors``, by number.

    Raises:
        OperationError: anything else.
    """
    try:
        arguments, named = msgspec.json.decode(text, type=tuple[list[Any], dict[str, Any]])
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise OperationError(f"these are no arguments: {error}") from error
    return [_read(value, tensors, 0) for value in arguments], {
        key: _read(value, tensors, 0) for key, value in named.items()
    }


def dtype_of(name: str) -> torch.dtype:
    """The type of values by name; raises ``OperationError``."""
    if name not in _DTYPES:
        raise OperationError(f"{name!r} is no type of values that training has")
    return _DTYPES[name]


def _spell(value: Any, take: Callable[[Tensor], int]) -> Any:
    match value:
        case Tensor():
            return {"tensor": take(value)}
        case None | bool() | int() | str():
            return value
        case float():
            return {"float": value.hex()}
        case list() | tuple():
            return [_spell(part, take) for part in value]
        case torch.dtype():
            return {"dtype": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": value.type}
        case torch.layout() if value is torch.strided:
            return {"layout": "strided"}
        case torch.memory_format():
            return {"format": str(value).removeprefix("torch.")}
        case _:
            raise OperationError(f"an argument of type {type(value).__name__} has no spelling")


def _read(value: Any, tensors: Sequence[Tensor], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise OperationError(f"arguments nested deeper than {MAX_DEPTH}")
    match value:
        case None | bool() | str():
            return value
        case int() if abs(value) < 2**63:
            return value
        case list():
            return [_read(part, tensors, depth + 1) for part in value]
        case {"tensor": int(number)} if len(value) == 1 and 0 <= number < len(tensors):
            return tensors[number]
        case {"float": str(text)} if len(value) == 1:
            return _read_float(text)
        case {"dtype": str(name)} if len(value) == 1:
            return dtype_of(name)
        case {"device": "cpu" | "cuda" as name} if len(value) == 1:
            return torch.device(name)
        case {"layout": "strided"} if len(value) == 1:
            return torch.strided
        case {"format": str(name)} if len(value) == 1 and name in _FORMATS:
            return _FORMATS[name]
        case _:
            raise OperationError("an argument that no operation of training has")


def _read_float(text: str) -> float:
    try:
        return float.fromhex(text)
    except (ValueError, OverflowError) as error:
        raise OperationError(f"{text[:40]!r} is no number") from error
