"""A graphics card that is none: tensors on a device of their own, computed on the processor.

What it does as CUDA does, so that a test finds here what would go wrong there:

* what torch dispatches must have all its tensors there, single numbers apart;
* what makes the processor wait for the card is written down with the function of ours that asked for it: reading a number,
  a shape that depends on values, a copy that is not ``non_blocking``, whichever way it goes;
* a copy that is ``non_blocking`` arrives in main memory when somebody waits for its event: until then there is rubbish. Where it
  runs on a stream of its own, it reads the card's memory that late too, so that whoever writes there meanwhile is found;
* kernels of which CUDA has only such whose results depend on the order of threads are refused;
* autocast narrows products as on a card.

The device is registered by torch's own means for backends that are written in Python. Source: what waits, and what is not
deterministic, as in torch's notes on CUDA semantics and in the documentation of ``torch.use_deterministic_algorithms``.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

import trainer

NAME = "card"
WAITS = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::nonzero",
        "aten::equal",
        "aten::masked_select",
        "aten::_unique2",
        "aten::unique_dim",
        "aten::unique_consecutive",
        "aten::bincount",
        "aten::repeat_interleave.Tensor",
        "aten::is_nonzero",
    }
)
"""Their answer, or its shape, depends on values."""
UNSTEADY = frozenset(
    {
        "aten::bincount",
        "aten::histc",
        "aten::kthvalue",
        "aten::median.dim",
        "aten::nanmedian.dim",
        "aten::put_",
        "aten::nll_loss2d_forward",
        "aten::nll_loss2d_backward",
        "aten::_ctc_loss_backward",
        "aten::_scaled_dot_product_efficient_attention_backward",
        "aten::_scaled_dot_product_cudnn_attention_backward",
        "aten::_embedding_bag_dense_backward",
    }
)
"""Kernels of CUDA whose results may differ from run to run, for which torch has no others."""
_NARROW = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention", "conv1d")
_WIDE = ("layer_norm", "softmax.int", "log_softmax.int", "cross_entropy_loss", "nll_loss")
_MIXED = frozenset({"aten::index.Tensor"})
_ROOT = Path(trainer.__file__).parent.parent
_OUR_ROOMS = (str(Path(trainer.__file__).parent),)


class Seen(Counter[str]):
    """``copied``: how often between the devices. ``waited``: how often the processor for the card.

    Attributes:
        waits: the same by who asked, such as ``trainer/stage/stage.py:adam_step``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def clear(self) -> None:
        super().clear()
        self.waits.clear()

    def wait(self) -> None:
        self["waited"] += 1
        self.waits[_asker()] += 1


@dataclass
class Order:
    """A copy into main memory. ``read``: what it found on the card, once the stream has come to it."""

    stream: int
    source: Tensor
    into: Tensor
    read: Tensor | None = None


class Late:
    """Copies into main memory that have been ordered and have not arrived, by the stream that does them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._orders: list[Order] = []

    def order(self, stream: int, source: Tensor, into: Tensor) -> None:
        with self._lock:
            self._orders.append(Order(stream, source, into))
            if not stream:  # It computes in the same order.
                self.done(stream)

    def done(self, stream: int) -> None:
        """Whatever the card does next comes behind all of a stream; the processor need not know yet."""
        with self._lock:
            for order in self._orders:
                if order.stream == stream and order.read is None:
                    order.read = order.source.clone()

    def arrive(self, stream: int | None = None) -> None:
        """The processor has waited for all of a stream, or of every one."""
        with self._lock:
            due = [order for order in self._orders if stream in (None, order.stream)]
            self._orders = [order for order in self._orders if stream not in (None, order.stream)]
            with torch.inference_mode():  # Whoever waits may have ordered nothing of this, and compute otherwise.
                for order in due:
                    order.into.copy_(order.source if order.read is None else order.read)

    def forget(self) -> None:
        with self._lock:
            self._orders.clear()


_seen, _late, _local = Seen(), Late(), threading.local()


class CardStream:
    """As ``torch.cuda.Stream``; number 0 is the one on which everything is computed."""

    _made = 0

    def __init__(self, device: object = None, number: int | None = None) -> None:
        if number is None:
            CardStream._made += 1
        self.number = CardStream._made if number is None else number

    def wait_stream(self, other: "CardStream") -> None:
        _late.done(other.number)

    def wait_event(self, event: "CardEvent") -> None:
        _late.done(event.number)

    def synchronize(self) -> None:
        _seen.wait()
        _late.arrive(self.number)


class CardEvent:
    """As ``torch.cuda.Event``."""

    number = 0

    def record(self, stream: CardStream | None = None) -> None:
        self.number = (stream or _now()).number

    def synchronize(self) -> None:
        _seen["awaited"] += 1
        _late.arrive(self.number)


def _now() -> CardStream:
    found: CardStream | None = getattr(_local, "stream", None)
    return found or CardStream(number=0)


class _CardBackend(backend_registration._DummyBackendModule):
    """What torch asks a backend for; that autocast may be switched off there, too."""

    __name__ = "torch.card_on_cpu"
    """What is no graphics card for transformers, which looks at how this ends."""
    Stream, Event = CardStream, CardEvent

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def current_stream(self, device: object = None) -> CardStream:
        return _now()

    @contextmanager
    def stream(self, stream: CardStream) -> Iterator[None]:
        before, _local.stream = _now(), stream
        try:
            yield
        finally:
            _local.stream = before

    def synchronize(self, device: object = None) -> None:
        _seen.wait()
        _late.arrive()


backend_registration._setup_privateuseone_for_python_backend(NAME, _CardBackend())


class OnCard(Tensor):
    """A tensor on the card: ``inner`` has its values, and is a view of what its base has."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnCard":
        with torch.inference_mode(False):  # What it views may have been made outside of that.
            made: OnCard = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls, inner.shape, strides=inner.stride(), storage_offset=0, dtype=inner.dtype, device=f"{NAME}:0"
            )
        made.inner = inner
        return made

    def tolist(self) -> Any:  # type: ignore[override]
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


@contextmanager
def card() -> Iterator[Seen]:
    """The card is there; yields what was seen on it since."""
    _seen.clear()
    _late.forget()
    yield _seen


# --- what torch dispatches ------------------------------------------------------------------------------------------------


def _run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    name, target = func._schema.name, kwargs.get("device")
    full = f"{name}.{func._overloadname}".removesuffix(".default")
    if not {name, full}.isdisjoint(UNSTEADY) or (full == "aten::cumsum" and _inner(args[0]).is_floating_point()):
        raise RuntimeError(f"{func}: CUDA has no deterministic kernel for it")
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    there = [each for each in tensors if isinstance(each, OnCard)]
    if name == "aten::copy_":
        _copied(args[0], args[1], bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False)))
        return args[0]
    if name == "aten::_to_copy":
        return _moved(args[0], kwargs)
    strangers = [tuple(each.shape) for each in tensors if there and not isinstance(each, OnCard) and each.dim()]
    if strangers and str(func) not in _MIXED:
        raise RuntimeError(f"{func}: tensors {strangers} are in main memory, others on the card")
    if there and (not {name, full}.isdisjoint(WAITS) or _places_by_truth(full, args)):
        _seen.wait()
    if target is not None:
        kwargs = kwargs | {"device": "cpu"}
    result = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    known = {id(each.inner): each for each in there}  # What was written to in place is the tensor that it was.

    def wrapped(each: Any) -> Any:
        return known[id(each)] if id(each) in known else OnCard(each) if isinstance(each, Tensor) else each

    return tree_map(wrapped, result)


def _places_by_truth(full: str, args: Sequence[Any]) -> bool:
    """Whether it picks by a mask, which has to be counted first; writing one value into a mask's places has not."""
    if full not in ("aten::index.Tensor", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"):
        return False
    masks = any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
    return masks and (full == "aten::index.Tensor" or args[2].numel() > 1)


def _copied(into: Tensor, source: Tensor, non_blocking: bool) -> None:
    crosses = isinstance(into, OnCard) != isinstance(source, OnCard)
    _seen["copied"] += crosses
    if crosses and not non_blocking:
        _seen.wait()
    if not (crosses and non_blocking and isinstance(source, OnCard)):
        _inner(into).copy_(_inner(source))
        return
    _spoil(into)
    _late.order(_now().number, _inner(source), into)


def _moved(source: Tensor, kwargs: dict[str, Any]) -> Tensor:
    goes = source.device if kwargs.get("device") is None else torch.device(kwargs["device"])
    kind = kwargs.get("dtype") or source.dtype
    if goes.type == source.device.type:
        return OnCard(_inner(source).to(kind, copy=True))
    made = torch.empty_like(_inner(source), dtype=kind)
    result = OnCard(made) if goes.type == NAME else made
    _copied(result, source, bool(kwargs.get("non_blocking", False)))
    return result


def _spoil(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.fill_(float("nan") if tensor.is_floating_point() else 1 if tensor.dtype == torch.bool else 90)


def _inner(value: Any) -> Any:
    if isinstance(value, OnCard):
        return value.inner
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def _asker() -> str:
    """The innermost function of ours."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OUR_ROOMS):
            return f"{Path(frame.f_code.co_filename).relative_to(_ROOT).as_posix()}:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a test"


def asked(seen: Seen) -> Mapping[str, int]:
    """Who made the processor wait, and how often."""
    return dict(sorted(seen.waits.items()))


# --- what makes tensors out of nothing, in whatever thread; and autocast ----------------------------------------------------

_everywhere = torch.library.Library("_", "IMPL")
_everywhere.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
_made_here = torch.library.Library("aten", "IMPL")


def _empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return OnCard(torch.empty(size, dtype=dtype, device="cpu"))


def _empty_strided(size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return OnCard(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source: Tensor, into: Tensor, non_blocking: bool = False) -> Tensor:
    _copied(into, source, non_blocking)
    return into


_made_here.impl("empty.memory_format", _empty, "PrivateUse1")
_made_here.impl("empty_strided", _empty_strided, "PrivateUse1")
_made_here.impl("_copy_from", _copy_from, "PrivateUse1")


def _cast(operation: Any, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(*args: Any, **kwargs: Any) -> Any:
        def one(value: Any) -> Any:
            fits = isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64
            return value.to(dtype()) if fits and value.device.type == NAME else value

        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operation(*tree_map(one, args), **tree_map(one, kwargs))

    return cast


for _name in (*_NARROW, *_WIDE):
    _packet, _, _overload = _name.partition(".")
    _operation = getattr(getattr(torch.ops.aten, _packet), _overload or "default")
    _kind = (lambda: torch.get_autocast_dtype(NAME)) if _name in _NARROW else (lambda: torch.float32)
    _made_here.impl(_name, _cast(_operation, _kind), "AutocastPrivateUse1")
