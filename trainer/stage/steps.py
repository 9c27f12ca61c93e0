"""One inner step of a stage: forward and backward over its micro-batches, payloads through a ``Boundary``.

The worker, the replay of an auditor and the single process all run this same code. Payloads are encoded and decoded by a
second thread while this one computes; sums are made by this thread alone, in the order of the micro-batches.
"""

import hashlib
import math
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal, Protocol

import torch
from torch import Tensor

from protocol.boundary import Kind, PayloadKey, Position
from protocol.ids import MAX_LOSS
from trainer.data.data import Windows, micro_batches
from trainer.errors import CodecError, NonFiniteError, RoundError
from trainer.stage.activation_cache import DIGEST_BYTES, ActivationCache, Caches, digest
from trainer.stage.aqsgd import pack_entries, read_visit, unpack_entries, wanted_entries, window_names, write_visit
from trainer.stage.micro_batch import MicroBatch
from trainer.stage.objective import counted, loss_of, margins, parted, passed_on, summed
from trainer.stage.schedule import PipelineAction, schedule_of
from trainer.stage.stage import Stage
from trainer.transfer import HostCopy, numbers, to_device

Side = Literal["behind", "ahead"]
ASIDE_TOKENS = 512  # Below, handing a micro-batch to another thread takes as long as encoding it.


class Boundary(Protocol):
    """Where a stage's payloads come from and go to."""

    def arrived(self, kind: Kind, micro: int) -> bool:
        """Whether ``receive`` would not wait."""

    def receive(self, kind: Kind, micro: int) -> bytes:
        """Wait for the neighbour's payload; raises ``AbandonedError`` when the round is given up."""

    def send(self, kind: Kind, micro: int, payload: bytes, naive: int) -> None:
        """Hand over a payload, from whatever thread; ``naive`` is its size in float32."""


class ActivationMemory(Protocol):
    """Where entries of ``trainer.stage.activation_cache`` come from and go to; only jobs with ``aq4`` use it."""

    def offer(self, windows: list[bytes]) -> bytes:
        """As ``ActivationCache.offer`` of the boundary behind."""

    def recall(self, side: Side, micro: int, windows: list[bytes], wanted: list[bytes]) -> bytes:
        """As ``ActivationCache.recall``, packed with ``trainer.stage.aqsgd.pack_entries``."""

    def remember(self, side: Side, windows: list[bytes], entries: list[bytes]) -> None:
        """As ``ActivationCache.remember``."""


class StepBoundary(Boundary, ActivationMemory, Protocol):
    """All that a step needs from outside."""


@dataclass
class Recorder:
    """A boundary that keeps what came and what went, for the commitment.

    Attributes:
        caches: of the stage; None where cached entries come from ``inner`` too, as in a replay.
    """

    inner: Boundary
    caches: Caches | None = None
    received: dict[PayloadKey, bytes] = field(default_factory=dict)
    sent: dict[PayloadKey, bytes] = field(default_factory=dict)

    def arrived(self, kind: Kind, micro: int) -> bool:
        """As ``Boundary.arrived``."""
        return self.inner.arrived(kind, micro)

    def receive(self, kind: Kind, micro: int) -> bytes:
        """As ``Boundary.receive``."""
        payload = self.inner.receive(kind, micro)
        self.received[kind, micro] = payload
        return payload

    def send(self, kind: Kind, micro: int, payload: bytes, naive: int) -> None:
        """As ``Boundary.send``."""
        self.sent[kind, micro] = payload
        self.inner.send(kind, micro, payload, naive)

    def offer(self, windows: list[bytes]) -> bytes:
        """As ``ActivationMemory.offer``."""
        return b"" if self.caches is None else self.caches.behind.offer(windows)

    def recall(self, side: Side, micro: int, windows: list[bytes], wanted: list[bytes]) -> bytes:
        """As ``ActivationMemory.recall``."""
        if self.caches is None:
            return self.receive(side, micro)
        record = pack_entries(self._cache(self.caches, side).recall(windows, wanted))
        self.received[side, micro] = record
        return record

    def remember(self, side: Side, windows: list[bytes], entries: list[bytes]) -> None:
        """As ``ActivationMemory.remember``."""
        if self.caches is not None:
            for window, entry in zip(windows, entries, strict=True):
                self._cache(self.caches, side).remember(window, entry)

    @staticmethod
    def _cache(caches: Caches, side: Side) -> ActivationCache:
        return caches.behind if side == "behind" else caches.ahead


@dataclass
class Recorded:
    """A boundary that plays back what was received once; what is sent goes nowhere."""

    payloads: dict[PayloadKey, bytes]

    def arrived(self, kind: Kind, micro: int) -> bool:
        """Everything is here already."""
        return (kind, micro) in self.payloads

    def receive(self, kind: Kind, micro: int) -> bytes:
        """The payload of then."""
        try:
            return self.payloads[kind, micro]
        except KeyError as error:
            raise RoundError(f"no {kind} of micro-batch {micro} was recorded") from error

    def send(self, kind: Kind, micro: int, payload: bytes, naive: int) -> None:
        """Do nothing: nobody listens."""

    def offer(self, windows: list[bytes]) -> bytes:
        """Nothing: whatever was offered then shows in what came."""
        return b""

    def recall(self, side: Side, micro: int, windows: list[bytes], wanted: list[bytes]) -> bytes:
        """The entries of then."""
        return self.receive(side, micro)

    def remember(self, side: Side, windows: list[bytes], entries: list[bytes]) -> None:
        """Do nothing: the next step's entries are recorded too."""


def accumulate(
    stage: Stage, position: Position, windows: Windows, boundary: StepBoundary, share: int = 1
) -> float | None:
    """Add one batch's gradients to the stage's.

    Args:
        windows: the whole batch ``[b, sequence + 1]``. The gradient is of the mean over all its learnt targets, or pairs of
            answers, however many of them each micro-batch has.
        share: over how many such batches the gradient is averaged.
    Returns:
        The mean loss on the last stage, of cross-entropy in nats a learnt token; ``None`` on the others.
    Raises:
        NonFiniteError: the loss is NaN or infinite. CodecError: a neighbour's payload is not what belongs here.
    """
    parts = [MicroBatch.of(windows[part]) for part in micro_batches(stage.training)]
    count = max(1, counted(stage, windows))
    step = _Passes(stage, position, parts, boundary, count * share, int(windows[:, 1:].size) * share)
    schedule = schedule_of(stage.training.schedule)
    try:
        step.run(schedule(position.stage, position.stages, len(parts), stage.training.lookahead))
    finally:
        step.end()
    stage.mask_gradients()
    if not stage.cut.is_last:
        return None
    return _mean(sum(numbers(step.losses)), count)


def _mean(total: float, tokens: int) -> float:
    """A mean loss that can be reported; raises ``NonFiniteError`` for any other."""
    if not abs(total / tokens) <= MAX_LOSS:
        raise NonFiniteError(
            f"the loss became {total / tokens:g}: lower training.learning_rate, or look at the weights that it starts from"
        )
    return total / tokens


def heldout_loss(
    stage: Stage,
    parts: list[Windows],
    boundary: Boundary,
    sums: list[float] | None = None,
    rewarded: list[float] | None = None,
) -> float | None:
    """The mean loss of held-out windows as ``accumulate`` has it, forward only, never quantised; ``None`` before the last stage.

    Args:
        sums: takes the sum of each part's losses, on the last stage.
        rewarded: takes each pair's margin (``objective.margins``) there, where preferences are learnt.
    Raises:
        NonFiniteError: the loss is NaN, infinite, or too large to be reported.
    """
    found: list[Tensor] = []
    rewards: list[Tensor] = []
    count = 0
    for micro, windows in enumerate(parts):
        batch = MicroBatch.of(windows)
        inputs = reference = ids = batch.ids
        if not stage.cut.is_first:
            # Outside no_grad: while this waits, the thread may re-run a step for an audit, with gradients.
            crossed = stage.crossing.activations(boundary.receive("activation", micro), ids, "exact")
            inputs, reference = parted(stage, crossed)
        with torch.no_grad():
            if stage.cut.is_last and stage.training.preference is not None:
                gained = margins(stage, inputs, reference, batch)
                outputs = loss_of(gained)
                rewards.append(gained)
            elif stage.cut.is_last:
                outputs = summed(stage, inputs, reference, batch)
            else:
                _, outputs = passed_on(stage, inputs, reference, batch)
        if stage.cut.is_last:
            found.append(outputs)
            count += counted(stage, windows)
        else:
            payload = stage.crossing.encode(outputs, "exact")
            boundary.send("activation", micro, payload, stage.crossing.naive("activation", ids))
    if not stage.cut.is_last:
        return None
    losses = numbers(found)  # Each reading waits for a card, so all are read at once.
    if sums is not None:
        sums += losses
    if rewarded is not None and rewards:
        rewarded += torch.cat(rewards).cpu().tolist()
    return _mean(sum(losses), max(1, count))


def digests(payloads: dict[PayloadKey, bytes], keys: list[PayloadKey]) -> tuple[str, ...]:
    """SHA-256 of each payload, in the order of ``keys``."""
    return tuple(hashlib.sha256(payloads[key]).hexdigest() for key in keys)


class _Passes:
    """The passes of one step over its micro-batches."""

    def __init__(
        self,
        stage: Stage,
        position: Position,
        parts: list[MicroBatch],
        boundary: StepBoundary,
        averaged_over: int,
        tokens: int,
    ) -> None:
        self._stage = stage
        self._position = position
        self._parts = parts
        self._boundary = boundary
        self._averaged_over = averaged_over
        self._tokens = tokens
        self._open: dict[int, tuple[Tensor, Tensor]] = {}
        self._aside = stage.aside if position.stages > 1 and parts[0].ids.numel() >= ASIDE_TOKENS else None
        self._leaving: list[Future[None]] = []
        self._arriving: dict[PayloadKey, Future[Tensor]] = {}
        self._names = [window_names(part.rows) for part in parts] if position.cached and position.stages > 1 else []
        self._offered: list[bytes] = []
        self.losses: list[Tensor] = []  # Read once the step is over: each reading waits for a card.

    def run(self, actions: tuple[PipelineAction, ...]) -> None:
        """Do one action after the other; what has come for the next one is decoded meanwhile."""
        self._exchange_offers()
        for action, following in zip_longest(actions, actions[1:]):
            if following is not None:
                self._expect(following)
            match action.kind:
                case "forward":
                    self._forward(action.micro)
                case "backward":
                    self._backward(action.micro)
                case "inputs":
                    with self._stage.late_weights.put_off(action.micro):
                        self._backward(action.micro)
                case "weights":
                    self._stage.late_weights.add(action.micro)
        for future in self._leaving:
            future.result()

    def end(self) -> None:
        """Leave nothing behind, however the step ended: no thread at work, and no half of a backward pass."""
        wait(self._leaving)
        wait(self._arriving.values())
        if self._stage.training.schedule == "zero-bubble":
            self._stage.late_weights.forget()

    def _forward(self, micro: int) -> None:
        stage, part = self._stage, self._parts[micro]
        inputs = reference = part.ids
        stage.weigh(inputs.numel() / self._tokens)
        if not stage.cut.is_first:
            inputs, reference = parted(stage, to_device(self._receive("activation", micro), stage.device))
            inputs.requires_grad_()
        if stage.cut.is_last:
            loss = summed(stage, inputs, reference, part)
            self.losses.append(loss.detach())
            outputs = loss / self._averaged_over
        else:
            outputs, crossing = passed_on(stage, inputs, reference, part)
            self._send("activation", micro, crossing)
        self._open[micro] = (inputs, outputs)

    def _backward(self, micro: int) -> None:
        inputs, outputs = self._open.pop(micro)
        self._stage.weigh(self._parts[micro].ids.numel() / self._tokens)
        if self._stage.cut.is_last:
            self._stage.backward(outputs)
        else:
            self._stage.backward(outputs, to_device(self._receive("gradient", micro), outputs.device))
        if not self._stage.cut.is_first:
            assert inputs.grad is not None
            self._send("gradient", micro, self._finite(inputs))

    def _finite(self, inputs: Tensor) -> Tensor:
        """The gradient of a micro-batch's inputs. Where half floats overflowed, the inputs themselves.

        What crosses must be numbers, and as unlike as a step's are; the stage's gradients say that all leave the step out.
        """
        assert inputs.grad is not None
        if self._stage.training.precision != "fp16":
            return inputs.grad
        fine, first = torch.isfinite(inputs.grad).all(), self._stage.gradients[0]
        first.copy_(torch.where(fine, first, math.inf))
        return torch.where(fine, inputs.grad, inputs.detach())

    def _send(self, kind: Kind, micro: int, values: Tensor) -> None:
        if kind == "activation" and self._names:
            self._await_offer()  # Whoever waits may serve audits, which belongs into this thread.
        leaving = self._stage.crossing.leaving(values)
        if self._aside is None:
            self._encode(kind, micro, leaving)
        else:
            self._leaving.append(self._aside.submit(self._encode, kind, micro, leaving))

    def _encode(self, kind: Kind, micro: int, leaving: HostCopy) -> None:
        crossing, values = self._stage.crossing, leaving.arrived()
        if kind == "activation" and self._names:
            payload = self._visit(micro, values)
        else:
            payload = crossing.encode(values, "forward" if kind == "activation" else "backward")
        self._boundary.send(kind, micro, payload, crossing.naive(kind, self._parts[micro].ids))

    def _expect(self, action: PipelineAction) -> None:
        key = self._key(action)
        if self._aside is None or key is None or (key[0] == "activation" and self._names):
            return  # Visits are read in the order of the micro-batches: the same window may come twice in a batch.
        if self._boundary.arrived(*key):
            payload = self._boundary.receive(*key)
            self._arriving[key] = self._aside.submit(self._decode, *key, payload)

    def _receive(self, kind: Kind, micro: int) -> Tensor:
        decoding = self._arriving.pop((kind, micro), None)
        if decoding is not None:
            return decoding.result()
        return self._decode(kind, micro, self._boundary.receive(kind, micro))

    def _decode(self, kind: Kind, micro: int, payload: bytes) -> Tensor:
        ids = self._parts[micro].ids
        if kind == "activation" and self._names:
            return self._stage.crossing.complete(self._revisit(micro, payload), ids)
        if kind == "activation":
            return self._stage.crossing.activations(payload, ids, "forward")
        return self._stage.crossing.gradients(payload, ids)

    def _key(self, action: PipelineAction) -> PayloadKey | None:
        if action.kind == "forward":
            return None if self._stage.cut.is_first else ("activation", action.micro)
        return None if self._stage.cut.is_last or action.kind == "weights" else ("gradient", action.micro)

    # --- repeated samples ----------------------------------------------------------------------------------------------

    def _exchange_offers(self) -> None:
        if self._names and not self._stage.cut.is_first:
            everything = [name for names in self._names for name in names]
            self._boundary.send("offer", 0, self._boundary.offer(everything), 0)

    def _await_offer(self) -> None:
        """Learn what the next stage could build on, once a step."""
        if self._offered:
            return
        rows = sum(len(names) for names in self._names)
        payload = self._boundary.receive("offer", 0)
        if len(payload) != DIGEST_BYTES * rows:
            raise CodecError(f"an offer of {len(payload)} bytes for {rows} windows of {DIGEST_BYTES} each")
        self._offered = [payload[at : at + DIGEST_BYTES] for at in range(0, len(payload), DIGEST_BYTES)]

    def _visit(self, micro: int, values: Tensor) -> bytes:
        names, shape = self._names[micro], tuple(values.shape)
        first = sum(len(earlier) for earlier in self._names[:micro])
        offer = self._offered[first : first + len(names)]
        record = self._boundary.recall("ahead", micro, names, offer)
        entries = unpack_entries(record, len(names), shape[1:])
        for entry, offered in zip(entries, offer, strict=True):
            if entry is not None and digest(entry) != offered:
                raise CodecError(f"the entry {digest(entry).hex()} is not the one that was offered")
        payload = write_visit(values, entries)
        self._boundary.remember("ahead", names, read_visit(payload, shape, entries)[1])
        return payload

    def _revisit(self, micro: int, payload: bytes) -> Tensor:
        names, shape = self._names[micro], self._stage.crossing.shape(self._parts[micro].ids)
        record = self._boundary.recall("behind", micro, names, wanted_entries(payload, len(names)))
        values, entries = read_visit(payload, shape, unpack_entries(record, len(names), shape[1:]))
        self._boundary.remember("behind", names, entries)
        return values
