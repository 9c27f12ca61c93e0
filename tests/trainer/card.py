"""A graphics card that is none: tensors on a device of their own, computed on the processor.

What torch dispatches on them must have all its tensors there; what moves between the devices, and what makes the processor wait
for the card, is counted. Autocast is not known of this device. The device is registered by torch's own means for backends that
are written in Python.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "card"
WAITS = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"})
_MIXED = frozenset({"aten::index.Tensor"})


class _CardBackend(backend_registration._DummyBackendModule):
    """What torch asks a backend for; that autocast may be switched off there, too."""

    __name__ = "torch.card_on_cpu"
    """What is no graphics card for transformers, which looks at how this ends."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


backend_registration._setup_privateuseone_for_python_backend(NAME, _CardBackend())


class OnCard(Tensor):
    """A tensor on the card: ``inner`` has its values, and is a view of what its base has."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnCard":
        made: OnCard = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), storage_offset=0, dtype=inner.dtype, device=f"{NAME}:0"
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Catches what makes tensors on the card out of nothing."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


_counted: Counter[str] = Counter()


@contextmanager
def card() -> Iterator[Counter[str]]:
    """The card is there; yields how often something was copied between the devices (``copied``), and waited for (``waited``)."""
    _counted.clear()
    with _Mode():  # type: ignore[no-untyped-call]
        yield _counted


def _run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    name, target = func._schema.name, kwargs.get("device")
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    there = [each for each in tensors if isinstance(each, OnCard)]
    if name == "aten::copy_":
        _counted["copied"] += isinstance(args[0], OnCard) != isinstance(args[1], OnCard)
        _inner(args[0]).copy_(_inner(args[1]))
        return args[0]
    if name == "aten::_to_copy":
        goes = args[0].device if target is None else torch.device(target)
        _counted["copied"] += goes.type != args[0].device.type
        moved = func(_inner(args[0]), **{key: value for key, value in kwargs.items() if key != "device"})
        return OnCard(moved) if goes.type == NAME else moved
    strangers = [tuple(each.shape) for each in tensors if there and not isinstance(each, OnCard) and each.dim()]
    if strangers and str(func) not in _MIXED:
        raise RuntimeError(f"{func}: tensors {strangers} are in main memory, others on the card")
    _counted["waited"] += bool(there) and name in WAITS
    to_card = bool(there) or (target is not None and torch.device(target).type == NAME)
    if to_card and target is not None:
        kwargs = kwargs | {"device": "cpu"}
    result = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if not to_card:
        return result
    known = {id(each.inner): each for each in there}  # What was written to in place is the tensor that it was.

    def wrapped(each: Any) -> Any:
        return known[id(each)] if id(each) in known else OnCard(each) if isinstance(each, Tensor) else each

    return tree_map(wrapped, result)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnCard) else value
