"""One pipeline stage in memory: parameters, gradients and AdamW moments, each one flat float32 vector.

Flat vectors make the state one thing to hash, snapshot, compress and send. Each parameter begins at a multiple of 64
values: blocks of the int8 codec never span two tensors, and matrix kernels see the same alignment in every process,
without which the same product may round differently. The padding is zero and stays zero.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from protocol.job.job import TrainingSpec
from protocol.models.boundary_bytes import check_subspace
from trainer.errors import CodecError, NonFiniteError
from trainer.files.inputs import InputFolder
from trainer.files.tensors import bytes_of
from trainer.stage.background import Aside
from trainer.stage.boundary_codec import Crossing
from trainer.stage.lora import adapt
from trainer.stage.model import Cut, build_module, forward, full_name, initial_values, is_of_a_layer, layers_of
from trainer.stage.moe_balance import Balance
from trainer.stage.muon import direction
from trainer.stage.precision import computing, scaled
from trainer.stage.recompute import recompute_layers
from trainer.stage.split_backward import LateWeights
from trainer.stage.subspace import Subspace

ALIGNMENT = 64
BETAS = (0.9, 0.95)
EPSILON = 1e-8
CACHED = 1 << 18  # Values: four vectors of them stay in a processor's cache, and temporary ones of them in the heap.


@dataclass(frozen=True)
class Slot:
    """Place of one parameter in the flat vectors."""

    name: str
    shape: tuple[int, ...]
    start: int
    count: int


@dataclass(frozen=True)
class StageState:
    """What an inner step changes: parameters and moments, flat ``[n]`` float32 on the CPU, and steps since they were zero."""

    parameters: Tensor
    first_moment: Tensor
    second_moment: Tensor
    adam_steps: int

    def digest(self) -> str:
        """SHA-256 over all of it."""
        hasher = hashlib.sha256(self.adam_steps.to_bytes(8, "little"))
        for vector in (self.parameters, self.first_moment, self.second_moment):
            hasher.update(bytes_of(vector))
        return hasher.hexdigest()


class Stage:
    """Layers of a model with their training state.

    ``parameters``, ``gradients`` and the moments are flat ``[n]`` float32 vectors on ``device``; ``slots`` says where
    each named parameter lies in them.
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
    ) -> None:
        """Build the stage.

        Args:
            initialise: False leaves what learns zero, for a stage whose state is loaded next.
            beside: one of the same cut, whose frozen parameters it shares.
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
        self.slots = _layout(self.module, cut)
        size = self.slots[-1].start + _padded(self.slots[-1].count)
        self.parameters = torch.zeros(size, device=self.device)
        self.gradients = torch.zeros(size, device=self.device)
        self.first_moment = torch.zeros(size, device=self.device)
        self.second_moment = torch.zeros(size, device=self.device)
        self.adam_steps = 0
        self._decay = torch.zeros(size, device=self.device)
        given = initialise or training.lora is not None
        values = {} if beside is None else beside.frozen()
        if given and beside is None:
            values = initial_values(self.module, cut, config, training, weights)
        self._bind(values)
        self._muon_slots = tuple(slot for slot in self.slots if training.optimizer == "muon" and is_hidden_matrix(slot))
        self._adam_spans = _between(self._muon_slots, size)
        self._subspace = Subspace.of(config, self.shape, self.slots, size, training, self.device)
        if self._subspace is not None:
            self._decay.mul_(self._subspace.learnt)
        self.crossing = Crossing(training, self.shape.hidden, self._subspace.fixed if self._subspace else None)
        self._balance = Balance(self.module, self.shape.layers)
        self.aside: Aside | None = Aside()
        if training.recompute:
            recompute_layers(layers_of(self.module))
        if training.schedule == "zero-bubble":
            self.late_weights = LateWeights(self.module)
        if initialise:
            self.load_named(values)
            self.constrain(self.parameters)

    def frozen(self) -> dict[str, Tensor]:
        """The parameters that never change, by full name."""
        return {full_name(n, self.cut): v.data for n, v in self.module.named_parameters() if not v.requires_grad}

    @property
    def parameter_count(self) -> int:
        """Scalars of the stage that learn, padding not counted."""
        return sum(slot.count for slot in self.slots)

    @property
    def operations_per_token(self) -> int:
        """Of a step: six for each scalar that learns; what is frozen needs no gradient of its own, so four."""
        frozen = sum(value.numel() for value in self.module.parameters() if not value.requires_grad)
        return 6 * self.parameter_count + 4 * frozen

    def _bind(self, values: Mapping[str, Tensor]) -> None:
        """Make every parameter that learns a view into the flat vectors; frozen ones take their values for good."""
        owners, slots = dict(self.module.named_modules()), iter(self.slots)
        for local, declared in list(self.module.named_parameters()):
            owner, _, leaf = local.rpartition(".")
            if not declared.requires_grad:
                value = values[full_name(local, self.cut)].to(self.device)
                setattr(owners[owner], leaf, nn.Parameter(value, requires_grad=False))
                continue
            slot = next(slots)
            span = slice(slot.start, slot.start + slot.count)
            parameter = nn.Parameter(self.parameters[span].view(slot.shape))
            parameter.grad = self.gradients[span].view(slot.shape)
            setattr(owners[owner], leaf, parameter)
            if len(slot.shape) > 1:
                self._decay[span] = self.training.weight_decay  # Norms and biases are not decayed.
        self.module.to(self.device).train()

    def load_named(self, values: Mapping[str, Tensor]) -> None:
        """Copy values by full parameter name."""
        for slot in self.slots:
            self.parameters[slot.start : slot.start + slot.count] = values[slot.name].reshape(-1).to(self.device)

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the stage: token ids or hidden states in, hidden states or logits out."""
        with computing(self.training, self.device):
            return forward(self.module, self.cut, inputs.to(self.device)).float()

    def weigh(self, share: float) -> None:
        """What comes next, forward or backward, is of a micro-batch that is such a part of the tokens of the step's gradient."""
        self._balance.weight = share * (self.training.loss_scale if self.training.precision == "fp16" else 1.0)

    def backward(self, outputs: Tensor, gradients: Tensor | None = None) -> None:
        """Add the gradients of what a forward pass gave: of a scalar, or weighted with ``gradients`` of its shape."""
        torch.autograd.backward(outputs, gradients)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Sum of the cross-entropy, in nats, of ``[b, t, v]`` logits against ``[b, t]`` token ids."""
        return functional.cross_entropy(
            scaled(logits, self.training).flatten(0, 1), labels.to(self.device).flatten(), reduction="sum"
        )

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
        self.decay_parameters(learning_rate)
        for span in self._adam_spans:
            self._adam(span, learning_rate)
        for slot in self._muon_slots:
            values, gradient, momentum = (
                vector[slot.start : slot.start + slot.count].view(slot.shape)
                for vector in (self.parameters, self.gradients, self.first_moment)
            )
            values.sub_(direction(gradient, momentum), alpha=learning_rate)
        self.gradients.zero_()

    def parts(self, span: slice) -> Iterator[slice]:
        """A span of the vectors in parts of which several stay in a processor's cache; a GPU takes it whole."""
        most = CACHED if self.device.type == "cpu" else max(1, span.stop - span.start)
        for start in range(span.start, span.stop, most):
            yield slice(start, min(start + most, span.stop))

    def _adam(self, span: slice, learning_rate: float) -> None:
        beta_1, beta_2 = BETAS
        for part in self.parts(span):
            gradients, first, second = self.gradients[part], self.first_moment[part], self.second_moment[part]
            first.lerp_(gradients, 1 - beta_1)
            second.mul_(beta_2).addcmul_(gradients, gradients, value=1 - beta_2)
            denominator = second.sqrt().div_(math.sqrt(1 - beta_2**self.adam_steps)).add_(EPSILON)
            self.parameters[part].addcdiv_(first, denominator, value=-learning_rate / (1 - beta_1**self.adam_steps))

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
        vectors = (self.parameters, self.first_moment, self.second_moment)
        if into is not None:
            for old, vector in zip((into.parameters, into.first_moment, into.second_moment), vectors, strict=True):
                old.copy_(vector.detach())
            return replace(into, adam_steps=self.adam_steps)
        parameters, first, second = (vector.detach().to("cpu", copy=True) for vector in vectors)
        return StageState(parameters, first, second, self.adam_steps)

    def own_state(self) -> StageState:
        """The training state itself, without a copy where the stage is on the CPU: it changes with the stage."""
        vectors = (self.parameters, self.first_moment, self.second_moment)
        parameters, first, second = (vector.detach().cpu() for vector in vectors)
        return StageState(parameters, first, second, self.adam_steps)

    def state_digest(self) -> str:
        """``state().digest()`` without the copy."""
        return self.own_state().digest()

    def restore(self, state: StageState) -> None:
        """Continue from a state; gradients begin at zero.

        Raises:
            CodecError: the vectors have another length.
        """
        if state.parameters.numel() != self.parameters.numel():
            raise CodecError(
                f"a state of {state.parameters.numel():,} values for a stage of {self.parameters.numel():,}"
            )
        self.parameters.copy_(state.parameters)
        self.first_moment.copy_(state.first_moment)
        self.second_moment.copy_(state.second_moment)
        self.adam_steps = state.adam_steps
        self.gradients.zero_()


def is_hidden_matrix(slot: Slot) -> bool:
    """Whether a parameter is a matrix (or a stack of them) of a layer's attention or feed-forward part; a router is not."""
    return len(slot.shape) > 1 and is_of_a_layer(slot.name) and not slot.name.endswith(".mlp.gate.weight")


def vector_digest(vector: Tensor) -> str:
    """SHA-256 of a flat float32 vector's little-endian bytes."""
    return hashlib.sha256(bytes_of(vector.cpu())).hexdigest()


def _padded(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _between(slots: Sequence[Slot], size: int) -> tuple[slice, ...]:
    """What is left of ``[size]`` without ``slots``, in order."""
    edges = [0, *(edge for slot in slots for edge in (slot.start, slot.start + _padded(slot.count))), size]
    return tuple(slice(first, last) for first, last in zip(edges[::2], edges[1::2], strict=True) if first < last)


def _layout(module: nn.Module, cut: Cut) -> tuple[Slot, ...]:
    slots, start = [], 0
    for local, value in module.named_parameters():
        if not value.requires_grad:
            continue
        slots.append(Slot(full_name(local, cut), tuple(value.shape), start, value.numel()))
        start += _padded(value.numel())
    return tuple(slots)
