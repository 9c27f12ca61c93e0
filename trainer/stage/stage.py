"""One pipeline stage in memory: parameters, gradients and AdamW moments, each one flat vector (``trainer.stage.storage``).

Flat vectors make the state one thing to hash, snapshot, compress and send. Each parameter begins at a multiple of 64
values: blocks of the int8 codec never span two tensors, and matrix kernels see the same alignment in every process,
without which the same product may round differently. The padding is zero and stays zero.
"""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from protocol.job.job import TrainingSpec
from protocol.models.boundary_bytes import check_subspace
from protocol.models.model import LEAN_LOGITS, LEAN_PART, keeps_embedding
from trainer.errors import CodecError, NonFiniteError
from trainer.files.inputs import InputFolder
from trainer.files.tensors import bytes_of
from trainer.stage.adamw import AdamW
from trainer.stage.background import BackgroundWork
from trainer.stage.boundary_codec import BoundaryCodec
from trainer.stage.lora import adapt
from trainer.stage.micro_batch import MicroBatch
from trainer.stage.model import (
    Cut,
    build_module,
    forward,
    full_name,
    head,
    hidden_states,
    initial_values,
    is_of_a_layer,
    keep_embedding,
    layers_of,
)
from trainer.stage.moe_balance import Balance
from trainer.stage.muon import direction
from trainer.stage.precision import compute_wide, computing, scaled
from trainer.stage.quantized import QuantizedMatrix, hold, matrices, quantized, takes
from trainer.stage.recompute import recompute_layers, summed_in_parts
from trainer.stage.short import ShortValues, spans
from trainer.stage.split_backward import LateWeights
from trainer.stage.storage import (
    ALIGNMENT,
    Float32Storage,
    LeanStorage,
    Slot,
    StateLayout,
    Storage,
    check_moments,
    halves,
    joined,
    lean_parameters,
)
from trainer.stage.subspace import Subspace
from trainer.transfer import HostCopy, arriving, fetched, fill, to_device

CACHED = 1 << 18  # Values: four vectors of them stay in a processor's cache, and temporary ones of them in the heap.


@dataclass(frozen=True)
class StageState:
    """What an inner step changes: parameters and moments on the CPU, as the stage keeps them, and steps since they were zero."""

    said: Tensor | ShortValues
    first_moment: Tensor
    second_moment: Tensor
    adam_steps: int

    @property
    def parameters(self) -> Tensor:
        """As the stage keeps them: a new vector, where they are said in short."""
        return lean_parameters(self.said.values()) if isinstance(self.said, ShortValues) else self.said

    def values(self) -> Tensor:
        """The parameters, flat ``[n]`` float32."""
        return self.said.values() if isinstance(self.said, ShortValues) else joined(self.said)

    def without_base(self) -> "StageState":
        """Where it is said in short, without what it is said from, which is let go."""
        return (
            replace(self, said=replace(self.said, base=torch.empty(0))) if isinstance(self.said, ShortValues) else self
        )

    def moments_alone(self) -> "StageState":
        """Where it is said in short, the moments, to take their memory: how it is said is let go."""
        return replace(self, said=ShortValues(torch.empty(0))) if isinstance(self.said, ShortValues) else self

    def without_moments(self) -> "StageState":
        """The same with moments of no length, whose memory is let go."""
        return replace(self, first_moment=torch.empty(0), second_moment=torch.empty(0))

    def values_digest(self) -> str:
        """``values_digest`` of the parameters, of which no vector is made where they are said in short."""
        if not isinstance(self.said, ShortValues):
            return values_digest(self.values())
        hasher = hashlib.sha256()
        for part in self.said.parts():
            hasher.update(bytes_of(part))
        return hasher.hexdigest()

    def digest(self) -> str:
        """SHA-256 over all of it."""
        hasher = hashlib.sha256(self.adam_steps.to_bytes(8, "little"))
        _hash_said(hasher, self.said)
        for vector in (self.first_moment, self.second_moment):
            hasher.update(bytes_of(vector))
        return hasher.hexdigest()


class Stage:
    """Layers of a model with their training state.

    ``parameters``, ``gradients`` and the moments are flat vectors on ``device``, as ``storage`` keeps them; ``slots`` says where
    each of the ``size`` values of named parameters lies. ``lean``: whether it is kept so (``TrainingSpec.memory``).
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        cut: Cut,
        training: TrainingSpec,
        weights: Path | InputFolder | None = None,
        device: str = "cpu",
        initialise: bool = True,
        beside: "Stage | None" = None,
        runs: bool = True,
    ) -> None:
        """Build the stage.

        Args:
            initialise: False leaves what learns zero, for a stage whose state is loaded next.
            beside: one of the same cut, whose frozen parameters it shares.
            runs: False leaves out what is frozen, for a stage that is only asked what learns and where that lies.
        Raises:
            ModelConfigError: see ``build_module`` and ``adapt``. WeightsError: see ``initial_values``.
        """
        self.cut = cut
        self.training = training
        self.device = torch.device(device)
        self.module, self.shape = build_module(config, cut)
        check_subspace(self.shape, training, cut.last if not cut.is_last else None, weights is not None)
        if training.lora is not None:
            adapt(self.module, training.lora)
        elif keeps_embedding(config):
            keep_embedding(self.module)
        self.slots = _slots(self.module, cut, training)
        size = self.size = self.slots[-1].start + _padded(self.slots[-1].count)
        self.lean = training.memory == "lean"
        self._short: ShortValues | None = None
        self._learnt: list[tuple[Slot, nn.Parameter]] = []
        self._keep(LeanStorage(self.slots, size, self.device) if self.lean else Float32Storage(size, self.device))
        self.adam_steps = 0
        self._decay = torch.zeros(0 if self.lean else size, device=self.device)
        given = initialise or (runs and not all(value.requires_grad for value in self.module.parameters()))
        values: Mapping[str, Tensor] = {}
        if given and beside is None:
            values = initial_values(self.module, cut, config, training, weights)
        self._bind(values if beside is None else beside.frozen(), runs)
        self._muon_slots = tuple(slot for slot in self.slots if slot.orthogonal)
        self._adam_spans = _between(self._muon_slots, size)
        self._subspace = Subspace.of(config, self.shape, self.slots, size, training, self.device)
        if self._subspace is not None:
            self._decay.mul_(self._subspace.learnt)
        self.crossing = BoundaryCodec(training, self.shape.hidden, self._subspace.fixed if self._subspace else None)
        self._balance = Balance(self.module, self.shape.layers)
        self.aside: BackgroundWork | None = BackgroundWork()
        if training.recomputes:
            recompute_layers(layers_of(self.module))
        if training.schedule == "zero-bubble":
            self.late_weights = LateWeights(self.module)
        if initialise:
            self.load_named(values)
            if self._subspace is not None:
                self.constrain(self.parameters)

    def frozen(self) -> dict[str, Tensor | QuantizedMatrix]:
        """The parameters that never change, by full name."""
        whole = {full_name(n, self.cut): v.data for n, v in self.module.named_parameters() if not v.requires_grad}
        return whole | {full_name(name, self.cut): matrix for name, matrix in matrices(self.module)}

    @property
    def parameter_count(self) -> int:
        """Scalars of the stage that learn, padding not counted."""
        return sum(slot.count for slot in self.slots)

    @property
    def operations_per_token(self) -> int:
        """Of a step: six for each scalar that learns; what is frozen needs no gradient of its own, so four.

        Where answers are compared, what is frozen runs forward once more by itself.
        """
        frozen = sum(value.numel() for value in self.frozen().values())
        return 6 * self.parameter_count + (4 if self.training.preference is None else 6) * frozen

    def _bind(self, values: Mapping[str, Tensor | QuantizedMatrix], runs: bool) -> None:
        """Make every parameter that learns a view into the flat vectors; frozen ones take their values for good."""
        owners, slots = dict(self.module.named_modules()), iter(self.slots)
        for local, declared in list(self.module.named_parameters()):
            owner, _, leaf = local.rpartition(".")
            if not declared.requires_grad:
                if runs:
                    self._bind_frozen(owners[owner], full_name(local, self.cut), leaf, values)
                continue
            slot = next(slots)
            span = slice(slot.start, slot.start + slot.count)
            parameter = nn.Parameter(self.storage.weights[span].view(slot.shape))
            parameter.grad = self.gradients[span].view(slot.shape)
            setattr(owners[owner], leaf, parameter)
            self._learnt.append((slot, parameter))
            if len(slot.shape) > 1 and not self.lean:
                self._decay[span] = self.training.weight_decay  # Norms and biases are not decayed.
        if runs:
            self.module.to(self.device, non_blocking=True).train()
        if self.lean:
            compute_wide(self.module)

    def _bind_frozen(
        self, owner: nn.Module, name: str, leaf: str, values: Mapping[str, Tensor | QuantizedMatrix]
    ) -> None:
        lora = self.training.lora
        value, bits = values[name], takes(owner, name, "none" if lora is None else lora.quantize)
        if isinstance(value, Tensor) and bits is not None:
            value = quantized(value, bits, self.device)
        if isinstance(value, QuantizedMatrix):
            hold(owner, value.to(self.device))
        else:
            narrow = to_device(value.to(self.storage.weights.dtype), self.device)
            setattr(owner, leaf, nn.Parameter(narrow, requires_grad=False))

    def _keep(self, storage: Storage) -> None:
        """Train in this memory from now on: an empty one holds nothing."""
        self.storage, self.parameters, self.gradients = storage, storage.parameters, storage.gradients
        self.first_moment, self.second_moment = storage.first_moment, storage.second_moment
        for slot, parameter in self._learnt:
            span, shape = slice(slot.start, slot.start + slot.count), slot.shape if len(storage.weights) else (0,)
            parameter.grad = None
            parameter.data = storage.weights[span].view(shape)
            parameter.grad = storage.gradients[span].view(shape)

    def load_named(self, values: Mapping[str, Tensor]) -> None:
        """Copy values by full parameter name."""
        for slot in self.slots:
            given = values[slot.name].reshape(-1)
            for part in self.parts(slice(slot.start, slot.start + slot.count)):
                self.storage.load(part, to_device(given[part.start - slot.start : part.stop - slot.start], self.device))

    def values(self) -> Tensor:
        """The parameters, flat ``[size]`` float32, to be read only: the stage's own where it keeps them so."""
        return self.storage.values()

    def said(self) -> Tensor | ShortValues:
        """The same, as they are said: no vector is made of what is said in short."""
        return self._short or self.storage.values()

    def forget_said(self) -> None:
        """Say it in short no more: what that takes in main memory is let go."""
        self._short = None

    def load(self, values: Tensor) -> None:
        """Set all parameters from ``[size]``, float32 or bf16; gradients begin at zero. A lean stage goes on to read them."""
        self._load(ShortValues(values))

    def _load(self, values: ShortValues) -> None:
        for _, part in self._slot_parts():
            self.storage.load(part, to_device(values.part(part), self.device))
        self._short = values if self.lean and values.base.device.type == "cpu" else None
        self.gradients.zero_()

    def shorten(self, anchor: Tensor) -> None:
        """At the end of a segment: round a lean stage to what is said in short (``trainer.stage.short``).

        Args:
            anchor: that the round began with, flat ``[size]`` float32 or bf16 in main memory; nobody may change it any more.
        """
        if not isinstance(self.storage, LeanStorage):
            return
        codes = torch.empty(self.size, dtype=torch.int8)
        units = torch.empty(self.size // ALIGNMENT, dtype=torch.bfloat16)
        leaving: deque[tuple[slice, HostCopy, HostCopy]] = deque()
        for slot, part in self._slot_parts():
            base = to_device(anchor[part], self.device).float()
            code, unit = self.storage.shorten(slot, part, base, self.adam_steps)
            leaving.append((part, HostCopy(code), HostCopy(unit)))
            if len(leaving) > 1:
                _arrive(codes, units, *leaving.popleft())
        for departed in leaving:
            _arrive(codes, units, *departed)
        self._short = ShortValues(anchor, codes, units)

    def _slot_parts(self) -> Iterator[tuple[Slot, slice]]:
        for slot in self.slots:
            for part in self.parts(slice(slot.start, slot.start + _padded(slot.count))):
                yield slot, part

    def forward(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        """Run the stage: token ids or hidden states in, hidden states or logits out. ``positions``: ``MicroBatch.positions``."""
        with computing(self.training, self.device):
            return forward(self.module, self.cut, to_device(inputs, self.device), self._there(positions)).float()

    def _there(self, positions: Tensor | None) -> Tensor | None:
        return None if positions is None else to_device(positions, self.device)

    def weigh(self, share: float) -> None:
        """What comes next, forward or backward, is of a micro-batch that is such a part of the tokens of the step's gradient."""
        self._balance.weight = share * (self.training.loss_scale if self.training.precision == "fp16" else 1.0)

    def backward(self, outputs: Tensor, gradients: Tensor | None = None) -> None:
        """Add the gradients of what a forward pass gave: of a scalar, or weighted with ``gradients`` of its shape."""
        torch.autograd.backward(outputs, gradients)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Sum of the cross-entropy, in nats, of ``[b, t, v]`` logits against ``[b, t]`` token ids; without ``IGNORED`` ones."""
        return functional.cross_entropy(
            scaled(logits, self.training).flatten(0, 1), to_device(labels, self.device).flatten(), reduction="sum"
        )

    def summed_loss(self, inputs: Tensor, labels: Tensor, positions: Tensor | None = None) -> Tensor:
        """``loss`` of what ``forward`` gives on the last stage."""
        ids = to_device(labels, self.device).flatten()
        return self._measured(inputs, positions, lambda logits, span: self.loss(logits, ids[span]))

    def scores(self, inputs: Tensor, batch: MicroBatch) -> Tensor:
        """The log-probability of each answer of a micro-batch on the last stage, ``[2 * pairs]`` float64."""
        ids, answers = (to_device(each, self.device).flatten() for each in (batch.targets, batch.answers))
        count = 2 * batch.pairs

        def added(logits: Tensor, span: slice) -> Tensor:
            wide = scaled(logits, self.training).flatten(0, 1)
            losses = functional.cross_entropy(wide, ids[span], reduction="none").double()
            sums = torch.zeros(count + 1, dtype=torch.float64, device=self.device)
            return sums.index_add_(0, answers[span], losses.neg())

        return self._measured(inputs, batch.positions, added)[:count]

    def _measured(self, inputs: Tensor, positions: Tensor | None, measure: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """The sum of what ``measure`` makes of logits, and of their places among all; a lean stage never holds all at once."""
        if not self.lean:
            return measure(self.forward(inputs, positions), slice(None))
        with computing(self.training, self.device):
            hidden = hidden_states(
                self.module, self.cut, to_device(inputs, self.device), self._there(positions)
            ).float()

        def part(span: slice) -> Callable[[Tensor], Tensor]:
            def measured(states: Tensor) -> Tensor:
                with computing(self.training, self.device):
                    logits = head(self.module, states.unsqueeze(0))
                return measure(logits, span)

            return measured

        return summed_in_parts(part, hidden.flatten(0, 1), max(1, LEAN_LOGITS // self.shape.vocabulary))

    def constrain(self, vector: Tensor) -> None:
        """Put parameters ``[n]`` that are not learnt (``trainer.stage.subspace``) back to what they are for ever, in place."""
        if self._subspace is not None:
            self._subspace.hold(vector)

    def mask_gradients(self) -> None:
        """Set gradients of what is not learnt to zero."""
        if self._subspace is not None:
            self.gradients.mul_(self._subspace.learnt)

    def adam_step(self, learning_rate: float) -> None:
        """One update with decoupled weight decay from ``gradients``, which are zeroed: AdamW, or Muon for hidden matrices.

        Raises:
            NonFiniteError: the gradients are not finite; nothing was changed.
        Source: arXiv 1711.05101, algorithm 2; ``trainer.stage.muon``.
        """
        if not math.isfinite(float(self.gradients.sum())):
            raise NonFiniteError(
                f"gradients became NaN or infinite at learning rate {learning_rate:g}: lower training.learning_rate"
            )
        self.adam_steps += 1
        self._short = None
        if not self.lean:
            self.decay_parameters(learning_rate)
        adamw = AdamW.of(self.adam_steps, learning_rate, self.training.weight_decay, self.device)
        for slot, span in self._adam_parts():
            adamw.step(self.storage, slot, span)
        for slot in self._muon_slots:
            span = slice(slot.start, slot.start + _padded(slot.count))
            part = self.storage.read(slot, span)
            if self.lean:
                adamw.decay(slot, part)
            values, gradient, momentum = (
                vector[: slot.count].view(slot.shape) for vector in (part.values, part.gradients, part.first)
            )
            values.sub_(direction(gradient, momentum), alpha=learning_rate)
            self.storage.write(slot, span, part, self.adam_steps)
        self.gradients.zero_()

    def _adam_parts(self) -> Iterator[tuple[Slot | None, slice]]:
        """What AdamW goes over; what is kept lean parameter by parameter, of which each is converted in its own way."""
        if not self.lean:
            yield from ((None, part) for span in self._adam_spans for part in self.parts(span))
            return
        yield from ((slot, part) for slot, part in self._slot_parts() if not slot.orthogonal)

    def parts(self, span: slice) -> Iterator[slice]:
        """A span of the vectors in parts of which several stay in a processor's cache; a GPU takes it whole, or large parts."""
        most = LEAN_PART if self.lean else max(1, span.stop - span.start)
        if self.device.type == "cpu":
            most = CACHED
        for start in range(span.start, span.stop, most):
            yield slice(start, min(start + most, span.stop))

    def decay_parameters(self, learning_rate: float) -> None:
        """Decoupled weight decay alone, for optimizers that are not the stage's own."""
        self.parameters.addcmul_(self.parameters, self._decay, value=-learning_rate)

    def reset_moments(self) -> None:
        """Forget the AdamW moments, and gradients of a step that did not end."""
        for vector in (self.first_moment, self.second_moment, self.gradients):
            vector.zero_()
        self.adam_steps = 0

    def state(self, into: StageState | None = None) -> StageState:
        """A copy of the training state on the CPU; ``into``: one that is not needed any more, whose memory it takes."""
        moments = (self.first_moment, self.second_moment)
        if into is None:
            first, second = (fetched(vector) for vector in moments)
            return StageState(self._short or fetched(self.parameters), first, second, self.adam_steps)
        for old, vector in zip((into.first_moment, into.second_moment), moments, strict=True):
            fetched(vector, old)
        if self._short is None and isinstance(into.said, Tensor):
            return replace(into, said=fetched(self.parameters, into.said), adam_steps=self.adam_steps)
        return replace(into, said=self._short or fetched(self.parameters), adam_steps=self.adam_steps)

    def own_state(self) -> StageState:
        """The training state itself, without a copy where the stage is on the CPU: it changes with the stage."""
        if self.device.type != "cpu":
            return self.state()
        parameters, first, second = (vector.detach() for vector in self.vectors)
        return StageState(self._short or parameters, first, second, self.adam_steps)

    @property
    def vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What a state consists of, on the stage's device."""
        return self.parameters, self.first_moment, self.second_moment

    @property
    def layout(self) -> StateLayout:
        """Of a state."""
        return self.storage.layout

    def state_of(
        self, values: Tensor, first: Tensor | None = None, second: Tensor | None = None, adam_steps: int = 0
    ) -> StageState:
        """The state of a stage with such parameters, ``[size]``, float32 or bf16, and moments (as a state has them; None: zero).

        Raises:
            CodecError: no stage keeps such moments.
        """
        found = []
        for given, (dtype, length) in zip((first, second), self.layout.vectors[1:], strict=True):
            vector = torch.zeros(length, dtype=dtype) if given is None else given
            if vector.dtype != dtype or vector.shape != (length,):
                raise CodecError(f"a moment of {vector.numel():,} {vector.dtype}, this stage has {length:,} {dtype}")
            found.append(vector)
        check_moments(self.layout, *found)
        said = ShortValues(values) if self.lean else values.clone()
        return StageState(said, found[0], found[1], adam_steps)

    def decoded(self, state: StageState) -> tuple[Tensor, Tensor, Tensor]:
        """Parameters and moments of a state, ``[size]`` float32 each; second moments that are not kept are zero."""
        return self.storage.decoded(state.parameters, state.first_moment, state.second_moment)

    @property
    def makes_room(self) -> bool:
        """Whether another stage takes this one's place while a segment runs again: a lean card has no room for two."""
        return self.lean and self.device.type != "cpu"

    @contextmanager
    def away(self) -> Iterator[None]:
        """Meanwhile the stage's vectors are in main memory, where it ``makes_room``; only between steps."""
        if not self.makes_room:
            yield
            return
        kept = self.state()
        self.leave()
        try:
            yield
        finally:
            self.come_back()
            self.restore(kept)

    def leave(self) -> None:
        """Give the memory of all vectors back, where the stage ``makes_room``; what is in them is lost."""
        if self.makes_room:
            self._keep(LeanStorage((), 0, self.device))

    def come_back(self) -> None:
        """Take memory again after ``leave``, for ``restore`` to fill; nothing happens where it was not given back."""
        if self.makes_room:
            self._keep(LeanStorage(self.slots, self.size, self.device))

    def state_digest(self) -> str:
        """``state().digest()`` without the copy: of what is on a card, two parts at a time are in main memory.

        What is said in short is there already, and leaves the card no more.
        """
        hasher = hashlib.sha256(self.adam_steps.to_bytes(8, "little"))
        _hash_said(hasher, self._short or self.parameters)
        for vector in (self.first_moment, self.second_moment):
            _hash(hasher, vector)
        return hasher.hexdigest()

    def restore(self, state: StageState) -> None:
        """Continue from a state; gradients begin at zero.

        Raises:
            CodecError: the vectors have another length.
        """
        said = state.said
        if isinstance(said, ShortValues):
            if not self.lean or said.base.numel() != self.size:
                raise CodecError(f"a lean state of {said.base.numel():,} values for a stage of {self.size:,}")
            self._load(said)
        elif said.shape != self.parameters.shape or said.dtype != self.parameters.dtype:
            raise CodecError(f"a state of {said.numel():,} values for a stage of {self.parameters.numel():,}")
        else:
            fill(self.parameters, said)
            self._short = None
        fill(self.first_moment, state.first_moment)
        fill(self.second_moment, state.second_moment)
        self.adam_steps = state.adam_steps
        self.gradients.zero_()


def is_hidden_matrix(name: str, shape: Sequence[int]) -> bool:
    """Whether a parameter is a matrix (or a stack of them) of a layer's attention or feed-forward part; a router is not."""
    return len(shape) > 1 and is_of_a_layer(name) and not name.endswith(".mlp.gate.weight")


def vector_digest(vector: Tensor) -> str:
    """SHA-256 of a flat vector's little-endian bytes."""
    hasher = hashlib.sha256()
    _hash(hasher, vector)
    return hasher.hexdigest()


def values_digest(values: Tensor) -> str:
    """SHA-256 of the little-endian float32 of a flat vector, whether they are kept so or as bf16."""
    hasher = hashlib.sha256()
    for span in spans(values.numel()):
        hasher.update(bytes_of(values[span].float()))
    return hasher.hexdigest()


def _arrive(codes: Tensor, units: Tensor, part: slice, code: HostCopy, unit: HostCopy) -> None:
    codes[part], units[part.start // ALIGNMENT : part.stop // ALIGNMENT] = code.arrived(), unit.arrived()


def _hash(hasher: "hashlib._Hash", vector: Tensor) -> None:
    for _, part in arriving(vector.detach()):
        hasher.update(bytes_of(part))


def _hash_said(hasher: "hashlib._Hash", said: Tensor | ShortValues) -> None:
    """Parameters as a stage keeps them."""
    if not isinstance(said, ShortValues):
        _hash(hasher, said)
        return
    for half in (0, 1):
        for part in said.parts():
            hasher.update(bytes_of(halves(part)[half]))


def _padded(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _between(slots: Sequence[Slot], size: int) -> tuple[slice, ...]:
    """What is left of ``[size]`` without ``slots``, in order."""
    edges = [0, *(edge for slot in slots for edge in (slot.start, slot.start + _padded(slot.count))), size]
    return tuple(slice(first, last) for first, last in zip(edges[::2], edges[1::2], strict=True) if first < last)


def _slots(module: nn.Module, cut: Cut, training: TrainingSpec) -> tuple[Slot, ...]:
    slots, start = [], 0
    for local, value in module.named_parameters():
        if not value.requires_grad:
            continue
        name, shape = full_name(local, cut), tuple(value.shape)
        orthogonal = training.optimizer == "muon" and is_hidden_matrix(name, shape)
        slots.append(Slot(name, shape, start, value.numel(), orthogonal))
        start += _padded(value.numel())
    return tuple(slots)
