"""One pipeline stage in memory: parameters, gradients and AdamW moments, each one flat float32 vector.

Flat vectors make the state one thing to hash, snapshot, compress and send. Each parameter begins at a multiple of 64
values: blocks of the int8 codec never span two tensors, and matrix kernels see the same alignment in every process,
without which the same product may round differently. The padding is zero and stays zero.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.errors import CodecError, NonFiniteError
from trainer.model import Cut, build_module, forward, full_name, initial_values
from transport.wire.job import TrainingSpec

ALIGNMENT = 64
BETAS = (0.9, 0.95)
EPSILON = 1e-8
LEARNING_RATE_FLOOR = 0.1  # The cosine ends at a tenth of its peak, as is usual for language models.


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
            hasher.update(_bytes(vector))
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
        weights: Path | None = None,
        device: str = "cpu",
        initialise: bool = True,
    ) -> None:
        """Build the stage.

        Args:
            initialise: False leaves all parameters zero, for a stage whose state is loaded next.
        Raises:
            ModelConfigError: see ``build_module``. WeightsError: see ``initial_values``.
        """
        self.cut = cut
        self.training = training
        self.device = torch.device(device)
        self.module, self.shape = build_module(config, cut)
        self.slots = _layout(self.module, cut)
        size = self.slots[-1].start + _padded(self.slots[-1].count)
        self.parameters = torch.zeros(size, device=self.device)
        self.gradients = torch.zeros(size, device=self.device)
        self.first_moment = torch.zeros(size, device=self.device)
        self.second_moment = torch.zeros(size, device=self.device)
        self.adam_steps = 0
        self._decay = torch.zeros(size, device=self.device)
        self._bind()
        if initialise:
            self.load_named(initial_values(self.module, cut, config, training.seed, weights))

    @property
    def parameter_count(self) -> int:
        """Scalars of the stage, padding not counted."""
        return sum(slot.count for slot in self.slots)

    def _bind(self) -> None:
        """Make every parameter of the module a view into the flat vectors."""
        owners = dict(self.module.named_modules())
        for (local, _), slot in zip(list(self.module.named_parameters()), self.slots, strict=True):
            owner, _, leaf = local.rpartition(".")
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
        return forward(self.module, self.cut, inputs.to(self.device))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Sum of the cross-entropy, in nats, of ``[b, t, v]`` logits against ``[b, t]`` token ids."""
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.to(self.device).flatten(), reduction="sum")

    def adam_step(self, learning_rate: float) -> None:
        """One AdamW update (decoupled weight decay) from ``gradients``, which are zeroed.

        Raises:
            NonFiniteError: the gradients are not finite; nothing was changed.
        Source: arXiv 1711.05101, algorithm 2.
        """
        if not math.isfinite(float(self.gradients.sum())):
            raise NonFiniteError(
                f"gradients became NaN or infinite at learning rate {learning_rate:g}: lower training.learning_rate"
            )
        self.adam_steps += 1
        beta_1, beta_2 = BETAS
        self.first_moment.lerp_(self.gradients, 1 - beta_1)
        self.second_moment.mul_(beta_2).addcmul_(self.gradients, self.gradients, value=1 - beta_2)
        scale = math.sqrt(1 - beta_2**self.adam_steps)
        denominator = self.second_moment.sqrt().div_(scale).add_(EPSILON)
        self.parameters.addcmul_(self.parameters, self._decay, value=-learning_rate)
        self.parameters.addcdiv_(self.first_moment, denominator, value=-learning_rate / (1 - beta_1**self.adam_steps))
        self.gradients.zero_()

    def reset_moments(self) -> None:
        """Forget the AdamW moments, and gradients of a step that did not end."""
        for vector in (self.first_moment, self.second_moment, self.gradients):
            vector.zero_()
        self.adam_steps = 0

    def state(self) -> StageState:
        """A copy of the training state on the CPU."""
        vectors = (self.parameters, self.first_moment, self.second_moment)
        parameters, first, second = (vector.detach().to("cpu", copy=True) for vector in vectors)
        return StageState(parameters, first, second, self.adam_steps)

    def state_digest(self) -> str:
        """``state().digest()`` without the copy."""
        vectors = (self.parameters, self.first_moment, self.second_moment)
        parameters, first, second = (vector.detach().cpu() for vector in vectors)
        return StageState(parameters, first, second, self.adam_steps).digest()

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


def learning_rate(training: TrainingSpec, step: int, total_steps: int) -> float:
    """Linear warm-up, then a cosine to ``LEARNING_RATE_FLOOR`` of the peak; ``step`` is the global index, from 0."""
    warmup = min(training.warmup_steps, max(1, total_steps // 2))
    if step < warmup:
        return training.learning_rate * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return training.learning_rate * (LEARNING_RATE_FLOOR + (1 - LEARNING_RATE_FLOOR) * cosine)


def vector_digest(vector: Tensor) -> str:
    """SHA-256 of a flat float32 vector's little-endian bytes."""
    return hashlib.sha256(_bytes(vector.detach().cpu())).hexdigest()


def _bytes(vector: Tensor) -> memoryview:
    return vector.contiguous().numpy().data.cast("B")


def _padded(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _layout(module: nn.Module, cut: Cut) -> tuple[Slot, ...]:
    slots, start = [], 0
    for local, value in module.named_parameters():
        slots.append(Slot(full_name(local, cut), tuple(value.shape), start, value.numel()))
        start += _padded(value.numel())
    return tuple(slots)
