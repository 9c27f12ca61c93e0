"""Re-running one operation from shown inputs. Everything in the file may be hostile: no more is run than the operations listed.

The bytes of a read are laid out where they lay: at the same place within 64 bytes, with the same strides, and arguments that
shared memory share it, since a matrix kernel may round differently otherwise. Equal environment classes then give equal bits.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from protocol.audit import OperationRecord, Read
from protocol.codec import encode as encode_message
from trainer.codecs import CODECS, Codec, decode, encode
from trainer.errors import CodecError, OperationError
from trainer.operations.effects import Value, allocations, digest_of, effects
from trainer.operations.inputs import MAX_INPUT_BYTES, read_inputs
from trainer.operations.memory import BYTES, SCALAR, region
from trainer.operations.spelling import dtype_of, read
from trainer.operations.tracer import DECODE, ENCODE, STATE
from trainer.stage.stage import StageState

ALIGNED = 64  # Bytes; torch's allocations begin at multiples of it, and kernels look no further.
_ALLOWED = """
_local_scalar_dense _log_softmax _log_softmax_backward_data _scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward _softmax _softmax_backward_data _to_copy abs add add_
addcdiv_ addcmul_ addmm all amax amin aminmax any arange baddbmm bitwise_and bitwise_and_ bitwise_left_shift
bitwise_left_shift_ bitwise_not bitwise_or bitwise_or_ bitwise_right_shift bitwise_right_shift_ bitwise_xor_ bmm cat
clamp clamp_ clamp_min clone constant_pad_nd copy_ cos cumsum div div_ embedding embedding_dense_backward empty
empty_like empty_strided eq erf exp fill_ floor_ full full_like ge gelu gelu_backward gt index index_add_ index_put
index_put_ index_select le lerp lerp_ linalg_vector_norm log_sigmoid_backward
log_sigmoid_forward logical_and logical_not logical_or lt masked_fill
masked_fill_ max maximum mean min minimum mm mul mul_ native_layer_norm native_layer_norm_backward ne neg
new_empty new_full new_ones new_zeros nll_loss_backward nll_loss_forward nonzero ones ones_like pow pow_ reciprocal
round rsqrt rsub scalar_tensor scatter scatter_ scatter_add scatter_add_ select_backward sigmoid
sigmoid_backward sign silu silu_backward sin slice_backward sort sqrt sqrt_ stack sub sub_ sum tanh tanh_backward topk
tril triu var_mean where zero_ zeros zeros_like
"""
ALLOWED = frozenset(_ALLOWED.split())
"""Of the ``aten`` namespace, in all overloads: what models and optimizers are made of; nothing that draws or touches files."""


_CODECS: Mapping[str, Codec] = {str(name): codec for name, codec in CODECS.items()}


@dataclass(frozen=True)
class WriteOutcome:
    """One thing that an operation wrote: as in ``protocol.audit.Write``, without where."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class Judgement:
    """What an operation gives; ``agrees``: whether the record that came with the inputs, of SHA-256 ``record``, says so too."""

    name: str
    outcomes: tuple[WriteOutcome, ...]
    agrees: bool
    record: str


def judge(data: bytes) -> Judgement:
    """Run the operation of a file of ``trainer.operations.inputs``.

    Raises:
        OperationError: the file is malformed, its sources are not those that the record names, or the operation is not one
            that is run by itself.
    """
    record, sources = read_inputs(data)
    try:
        outcomes = tuple(_run(record, sources))
    except (RuntimeError, ValueError, TypeError, IndexError, OverflowError, MemoryError, CodecError) as error:
        raise OperationError(f"{record.name} cannot be done with these inputs: {str(error)[:300]}") from error
    said = tuple(WriteOutcome(w.region.dtype, w.region.shape, w.region.stride, w.digest) for w in record.writes)
    shown = hashlib.sha256(encode_message(record)).hexdigest()
    return Judgement(record.name, outcomes, said == outcomes, shown)


def _run(record: OperationRecord, sources: Mapping[bytes, memoryview]) -> list[WriteOutcome]:
    buffers = _Buffers(record.reads, sources)
    if record.name == DECODE:
        return [_decode(record, buffers)]
    tensors = [buffers.tensor(each) for each in record.reads]
    arguments, named = read(record.arguments, tensors)
    match record.name:
        case "cottage.encode":
            return [_encode(arguments)]
        case "cottage.state":
            return [_state(arguments)]
    operation = _operation(record.name)
    before = allocations(arguments, named)
    with torch.no_grad():
        result = operation(*arguments, **named)
        return [_outcome(value) for value in effects(operation, arguments, named, result, before)]


def _operation(name: str) -> Any:
    space, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    if space != "aten" or packet not in ALLOWED:
        raise OperationError(
            f"{name[:100]!r} is not run by itself: whether it belongs there shows a re-run of the step"
        )
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise OperationError(f"torch has no operation {name[:100]!r}")
    return found


class _Buffers:
    """What was read, laid out as it lay."""

    def __init__(self, reads: Sequence[Read], sources: Mapping[bytes, memoryview]) -> None:
        self._areas: dict[int, list[tuple[int, int, Tensor]]] = {}
        spans: dict[int, list[tuple[int, int]]] = {}
        for each in reads:
            spans.setdefault(each.region.memory, []).append(_span(each))
        areas = {memory: _merged(parts) for memory, parts in spans.items()}
        total = sum(stop - start for parts in areas.values() for start, stop in parts)
        if total > MAX_INPUT_BYTES:
            raise OperationError(f"the operation reads {total:,} bytes: at most {MAX_INPUT_BYTES:,} are judged")
        for memory, parts in areas.items():
            self._areas[memory] = [(start, stop, _area(start, stop)) for start, stop in parts]
        for each in reads:
            self._fill(each, sources)

    def bytes_of(self, each: Read) -> Tensor:
        """The span of a read, uint8."""
        start, stop = _span(each)
        for low, high, area in self._areas[each.region.memory]:
            if low <= start and stop <= high:
                return area[start - low : stop - low]
        raise OperationError("a read that lies nowhere")

    def tensor(self, each: Read) -> Tensor:
        """The tensor of a read."""
        place = each.region
        kind = dtype_of(place.dtype)
        if place.start % kind.itemsize:
            raise OperationError(f"a tensor of {place.dtype} cannot begin at byte {place.start}")
        if not _values(each):
            return torch.empty_strided(place.shape, place.stride, dtype=kind)
        return self.bytes_of(each).view(kind).as_strided(place.shape, place.stride)

    def _fill(self, each: Read, sources: Mapping[bytes, memoryview]) -> None:
        target, filled = self.bytes_of(each) if _values(each) else torch.empty(0, dtype=torch.uint8), 0
        for piece in each.pieces:
            source = sources.get(piece.digest)
            if source is None or piece.offset + piece.length > len(source):
                raise OperationError(f"bytes of operation {piece.operation} that the record reads are not shown")
            if piece.start != filled or piece.start + piece.length > target.numel():
                raise OperationError("the pieces of a read do not make up its span")
            part = torch.frombuffer(source, dtype=torch.uint8, count=piece.length, offset=piece.offset)
            target[piece.start : piece.start + piece.length] = part
            filled += piece.length
        if filled != target.numel():
            raise OperationError("the pieces of a read do not make up its span")


def _values(each: Read) -> int:
    """How many values a read has; refuses absurd numbers before they are multiplied on."""
    count = 1
    for size in each.region.shape:
        count *= size
    if count > MAX_INPUT_BYTES:
        raise OperationError(f"a tensor of {count:,} values")
    return count


def _span(each: Read) -> tuple[int, int]:
    place = each.region
    if len(place.shape) != len(place.stride):
        raise OperationError("a tensor with more sizes than strides, or fewer")
    if not _values(each):
        return place.start, place.start
    width = 1 if place.dtype == BYTES else dtype_of(place.dtype).itemsize
    last = sum((size - 1) * stride for size, stride in zip(place.shape, place.stride, strict=True))
    return place.start, place.start + (last + 1) * width


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans that overlap made one: such arguments share memory."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _area(start: int, stop: int) -> Tensor:
    lead = start % ALIGNED
    return torch.zeros(lead + stop - start, dtype=torch.uint8)[lead:]


def _outcome(value: Value) -> WriteOutcome:
    digest = digest_of(value).hex()
    if not isinstance(value, Tensor):
        return WriteOutcome(SCALAR, (), (), digest)
    place = region(value, 0)
    return WriteOutcome(place.dtype, place.shape, place.stride, digest)


def _encode(arguments: list[Any]) -> WriteOutcome:
    match arguments:
        case [Tensor() as tensor, str(name)] if name in _CODECS:
            payload = encode(tensor, _CODECS[name])
            return WriteOutcome(BYTES, (len(payload),), (1,), hashlib.sha256(payload).hexdigest())
    raise OperationError(f"{ENCODE} of something else than a tensor by a codec with a name of its own")


def _decode(record: OperationRecord, buffers: _Buffers) -> WriteOutcome:
    match read(record.arguments, ()):
        case [list(shape), str(name)], _ if name in _CODECS and len(record.reads) == 1:
            if all(isinstance(size, int) and 0 <= size <= MAX_INPUT_BYTES for size in shape):
                payload = buffers.bytes_of(record.reads[0]).numpy().tobytes()
                return _outcome(decode(payload, tuple(shape), _CODECS[name]))
    raise OperationError(f"{DECODE} of something else than one payload by a codec with a name of its own")


def _state(arguments: list[Any]) -> WriteOutcome:
    match arguments:
        case [int(steps), [Tensor() as parameters, Tensor() as first, Tensor() as second]] if 0 <= steps < 2**63:
            return WriteOutcome(SCALAR, (), (), StageState(parameters, first, second, steps).digest())
    raise OperationError(f"{STATE} of something else than steps and three vectors")
