"""What an operation changed: fresh results, arguments that were written to, single numbers. Views change nothing."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.operations.memory import raw, span

Value = Tensor | bool | int | float

_UNFILLED = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"})


def effects(
    operation: Any, arguments: Sequence[Any], named: dict[str, Any], result: Any, before: set[int]
) -> list[Value]:
    """All that the operation wrote, in order: arguments first, then results.

    Memory that was given out but not filled is zero afterwards, so that two runs see the same in it.

    Args:
        before: ``_cdata`` of the allocations that were there before the operation.
    """
    written: list[Value] = list(_mutated(operation, arguments, named))
    fill = operation._schema.name.removeprefix("aten::") in _UNFILLED
    for value in _flat(result):
        if not isinstance(value, Tensor):
            written.append(value)
        elif value.untyped_storage()._cdata not in before:
            _tidy(value, fill)
            written.append(value)
    return [value for value in written if not isinstance(value, Tensor) or value.numel()]


def digest_of(value: Value) -> bytes:
    """SHA-256 of all bytes of a tensor's span, or of a single number."""
    if not isinstance(value, Tensor):
        spelled = value.hex() if isinstance(value, float) else str(value)
        return hashlib.sha256(f"{type(value).__name__} {spelled}".encode()).digest()
    return hashlib.sha256(span_bytes(value)).digest()


def span_bytes(tensor: Tensor) -> memoryview:
    """All bytes of a tensor's span."""
    return raw(tensor, *span(tensor)).cpu().numpy().data


def allocations(arguments: Sequence[Any], named: dict[str, Any]) -> set[int]:
    """``_cdata`` of the allocations of all tensors among arguments."""
    return {tensor.untyped_storage()._cdata for tensor in tensors_in([*arguments, *named.values()])}


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors in nested lists."""
    return (value for value in _flat(values) if isinstance(value, Tensor))


def _mutated(operation: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Iterator[Tensor]:
    for place, declared in enumerate(operation._schema.arguments):
        if declared.alias_info is not None and declared.alias_info.is_write:
            given = arguments[place] if place < len(arguments) else named.get(declared.name)
            yield from tensors_in([given])


def _flat(values: Any) -> Iterator[Any]:
    if isinstance(values, list | tuple):
        for value in values:
            yield from _flat(value)
    elif values is not None:
        yield values


def _tidy(fresh: Tensor, fill: bool) -> None:
    """Leave nothing in a fresh result's span that depends on what was in memory before."""
    whole = raw(fresh, *span(fresh)) if fresh.numel() else None
    if whole is None:
        return
    if fill:
        whole.zero_()
    elif whole.numel() > fresh.numel() * fresh.element_size():
        values = fresh.clone(memory_format=torch.contiguous_format)
        whole.zero_()
        fresh.copy_(values)
