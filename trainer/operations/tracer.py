"""Recording a step: every operation that torch dispatches in this thread, in order, with the hash of what it wrote.

Nothing but hashes and where they came from is kept, so memory stays that of the step. A second run of the same step can
catch what chosen operations wrote, for ``trainer.operations.inputs``.

Source: dispute by bisection over a trace of operations, arXiv 2510.16028; the referee re-runs one.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from protocol.audit import (
    FIRST,
    MAX_OPERATIONS,
    MAX_RECORD_BYTES,
    RESULT,
    MemoryRegion,
    OperationRecord,
    Piece,
    Read,
    Write,
    chain,
)
from protocol.codec import encode as encode_message
from trainer.codecs.framing import Codec
from trainer.codecs.watch import watched
from trainer.errors import OperationError
from trainer.operations.effects import Value, allocations, digest_of, effects, span_bytes
from trainer.operations.memory import BYTES, SCALAR, TraceMemory, raw, region, span
from trainer.operations.spelling import spell

GIVEN, ENCODE, DECODE, STATE = "cottage.given", "cottage.encode", "cottage.decode", "cottage.state"
Source = tuple[int, int]
"""Of which operation what output."""


class TraceEndedError(OperationError):
    """The operation after which the trace was to end was recorded."""


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The trace of one step; a dispatch mode for the thread that computes it."""

    def __init__(self, catch: Collection[Source] = (), last: int | None = None) -> None:
        """Trace a step from its beginning.

        Args:
            catch: outputs whose bytes are kept in ``caught``.
            last: the operation after which ``TraceEndedError`` is raised.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.leaves: list[bytes] = []
        self.caught: dict[Source, bytes] = {}
        self._catch = frozenset(catch)
        self._last = last
        self._memory = TraceMemory()
        self._named: dict[int, str] = {}
        self._payloads: dict[bytes, tuple[int, Piece]] = {}
        self._before = FIRST
        self._paused = False
        self._modules: list[str] = []
        self._forward: dict[int, str] = {}

    @contextmanager
    def recording(self, module: nn.Module, named: Mapping[str, Tensor]) -> Iterator[None]:
        """Record what this thread computes.

        Args:
            module: whose parts' names go into the records.
            named: tensors that are there before the step.
        """
        self._named = {tensor.untyped_storage()._cdata: name for name, tensor in named.items()}
        hooks = []
        for name, part in module.named_modules():
            hooks.append(part.register_forward_pre_hook(self._entering(name)))
            hooks.append(part.register_forward_hook(self._leaving, always_call=True))
        try:
            with watched(self), self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    # --- what torch dispatches ----------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and record it, unless it only looks at memory in another way."""
        named = kwargs or {}
        if self._paused:
            return func(*args, **named)
        module = self._module()
        reads: list[Read] = []
        arguments = spell(args, named, lambda tensor: self._read(tensor, reads))
        before = allocations(args, named)
        result = func(*args, **named)
        written = effects(func, args, named, result, before)
        if written:
            self.record(str(func), module, arguments, reads, written)
        return result

    def _module(self) -> str:
        """Where in the model: a backward operation belongs where the forward one was."""
        node: Any = torch._C._current_autograd_node()
        if node is not None:
            return self._forward.get(node._sequence_nr(), "")
        path = self._modules[-1] if self._modules else ""
        if torch.is_grad_enabled():
            self._forward.setdefault(torch.autograd._get_sequence_nr() - 1, path)  # type: ignore[attr-defined]
        return path

    def _entering(self, name: str) -> Callable[..., None]:
        return lambda *_: self._modules.append(name)

    def _leaving(self, *_: object) -> None:
        self._modules.pop()

    # --- what is not torch's ------------------------------------------------------------------------------------------

    def encoding(self, tensor: Tensor, codec: Codec, work: Callable[[], bytes]) -> bytes:
        """As ``Watcher.encoding``."""
        with self._pause():
            reads: list[Read] = []
            arguments = spell([tensor, codec.name], {}, lambda value: self._read(value, reads))
            payload = work()
            self.record(ENCODE, self._module(), arguments, reads, [self._add_payload(payload)])
            return payload

    def decoding(self, data: bytes, shape: tuple[int, ...], codec: Codec, work: Callable[[], Tensor]) -> Tensor:
        """As ``Watcher.decoding``."""
        with self._pause():
            read = self._read_payload(data)
            values = work()
            self.record(DECODE, self._module(), spell([shape, codec.name], {}, _no_tensor), [read], [values])
            return values

    def finish(self, steps: int, vectors: Sequence[Tensor], digest: str, sent: str, loss: float | None) -> None:
        """End the trace with what came of the step.

        Args:
            steps, vectors: what ``digest`` is of: ``StageState``.
        """
        with self._pause():
            reads: list[Read] = []
            arguments = spell([steps, list(vectors)], {}, lambda tensor: self._read(tensor, reads))
            self._add(STATE, "", arguments, reads, [Write(MemoryRegion(0, 0, SCALAR, (), ()), digest)])
            self._add(RESULT, "", spell([digest, sent, loss], {}, _no_tensor), [], [])

    def finish_impossible(self, digest: str, sent: str) -> None:
        """End the trace of a step that cannot be done with what it received."""
        self._add(RESULT, "", spell([digest, sent, None], {}, _no_tensor), [], [])

    # --- records ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _pause(self) -> Iterator[None]:
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def record(
        self, name: str, module: str, arguments: str, reads: list[Read], written: Sequence[Value | bytes]
    ) -> None:
        """Add the record of an operation that was just done."""
        writes = [self._write(output, value) for output, value in enumerate(written)]
        self._add(name, module, arguments, reads, writes)

    def _add(self, name: str, module: str, arguments: str, reads: list[Read], writes: list[Write]) -> None:
        index = len(self.leaves)
        leaf = encode_message(
            OperationRecord(index, self._before, name, module, arguments, tuple(reads), tuple(writes))
        )
        if index >= MAX_OPERATIONS or len(leaf) > MAX_RECORD_BYTES:
            raise OperationError(
                f"operation {index} ({name}) takes {len(leaf):,} bytes to record: at most {MAX_OPERATIONS:,} operations of "
                f"{MAX_RECORD_BYTES:,} bytes are recorded"
            )
        self.leaves.append(leaf)
        self._before = chain(self._before, leaf)
        if index == self._last:
            raise TraceEndedError(f"operation {index} is recorded")

    def _write(self, output: int, value: Value | bytes) -> Write:
        index = len(self.leaves)
        if isinstance(value, bytes):
            memory, piece = self._payloads[hashlib.sha256(value).digest()]
            if (index, output) in self._catch:
                self.caught[index, output] = value
            return Write(MemoryRegion(memory, 0, BYTES, (len(value),), (1,)), piece.digest.hex())
        digest = digest_of(value)
        if not isinstance(value, Tensor):
            return Write(MemoryRegion(0, 0, SCALAR, (), ()), digest.hex())
        if (index, output) in self._catch:
            self.caught[index, output] = bytes(span_bytes(value))
        memory = self._memory.number(value) or self._memory.add(value)
        self._memory.write(memory, *span(value), index, output, digest)
        return Write(region(value, memory), digest.hex())

    # --- where bytes come from ----------------------------------------------------------------------------------------

    def _read(self, tensor: Tensor, reads: list[Read]) -> int:
        """Note a read; bytes that nothing wrote are recorded as given first."""
        start, stop = span(tensor)
        memory = self._memory.number(tensor) or self._memory.add(tensor)
        for low, high in self._memory.unwritten(memory, start, stop):
            self._give(memory, tensor, low, high)
        reads.append(Read(region(tensor, memory), self._memory.pieces(memory, start, stop)))
        return len(reads) - 1

    def _give(self, memory: int, tensor: Tensor, start: int, stop: int) -> None:
        index, name = len(self.leaves), self._named.get(tensor.untyped_storage()._cdata, "")
        with self._pause():
            content = raw(tensor, start, stop).cpu().numpy().data
            digest = hashlib.sha256(content).digest()
            if (index, 0) in self._catch:
                self.caught[index, 0] = bytes(content)
        self._memory.write(memory, start, stop, index, 0, digest)
        place = MemoryRegion(memory, start, BYTES, (stop - start,), (1,))
        self._add(GIVEN, "", spell([name], {}, _no_tensor), [], [Write(place, digest.hex())])

    def _read_payload(self, data: bytes) -> Read:
        digest = hashlib.sha256(data).digest()
        if digest not in self._payloads:
            index = len(self.leaves)
            self._add_payload(data)
            if (index, 0) in self._catch:
                self.caught[index, 0] = data
            place = MemoryRegion(self._payloads[digest][0], 0, BYTES, (len(data),), (1,))
            self._add(GIVEN, "", spell(["payload"], {}, _no_tensor), [], [Write(place, digest.hex())])
        memory, piece = self._payloads[digest]
        return Read(MemoryRegion(memory, 0, BYTES, (len(data),), (1,)), (piece,))

    def _add_payload(self, data: bytes) -> bytes:
        """Number a payload that the next record writes."""
        digest = hashlib.sha256(data).digest()
        piece = Piece(0, len(data), len(self.leaves), 0, 0, digest)
        self._payloads[digest] = (self._memory.add_bytes(), piece)
        return data


def record_of(leaf: bytes) -> OperationRecord:
    """The record of a leaf that this process made."""
    return msgspec.msgpack.decode(leaf, type=OperationRecord)


def _no_tensor(_: Tensor) -> int:
    raise OperationError("a tensor where none belongs")
