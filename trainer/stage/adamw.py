"""AdamW on a part of a stage: operation by operation, or in one kernel where a card's compiler gives the same bits."""

import functools
import logging
import math
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from trainer.stage.fused import Kernel, Numbers
from trainer.stage.storage import LeanStorage, Slot, StagePart, Storage

LOG = logging.getLogger(__name__)
BETAS = (0.9, 0.95)
EPSILON = 1e-8
_TRIED = 1 << 14
"""Values on which a kernel is compared with operations."""


@dataclass(frozen=True)
class AdamW:
    """What the updates of one step have in common.

    Attributes:
        number: of the step, from 1 on; the corrections of bias follow from it.
        kernel: what does lean parts at once, if anything.
    """

    number: int
    learning_rate: float
    weight_decay: float
    kernel: Kernel | None = None

    @classmethod
    def of(cls, number: int, learning_rate: float, weight_decay: float, device: torch.device) -> "AdamW":
        """For a step on ``device``; where operations are recorded, they do it."""
        found = None if is_in_torch_dispatch_mode() else kernel(device)
        return cls(number, learning_rate, weight_decay, found)

    def step(self, storage: Storage, slot: Slot | None, span: slice) -> None:
        """Update what ``storage`` keeps of a part: of one parameter where ``slot`` says which."""
        if self.kernel is not None and slot is not None and isinstance(storage, LeanStorage):
            keep = 1 - self.learning_rate * self.weight_decay if len(slot.shape) > 1 else 1.0
            self.kernel.step(storage.kept(slot, span), self._numbers(keep))
            return
        part = storage.read(slot, span)
        self.decay(slot, part)
        if isinstance(storage, LeanStorage):
            self._rounded(part)
        else:
            self._contracted(part)
        storage.write(slot, span, part, self.number)

    def _contracted(self, part: StagePart) -> None:
        """In as few operations as torch has: how they round in between is its own affair, and a processor's."""
        beta_1, beta_2 = BETAS
        part.first.lerp_(part.gradients, 1 - beta_1)
        part.second.mul_(beta_2).addcmul_(part.gradients, part.gradients, value=1 - beta_2)
        denominator = part.second.sqrt().div_(math.sqrt(1 - beta_2**self.number)).add_(EPSILON)
        part.values.addcdiv_(part.first, denominator, value=-self.learning_rate / (1 - beta_1**self.number))

    def _rounded(self, part: StagePart) -> None:
        """The same, rounded after each operation as IEEE 754 has it, so that a kernel can come to the same bits."""
        numbers = self._numbers(1.0)
        part.first.mul_(numbers.beta_1).add_(part.gradients.mul(numbers.more_1))
        part.second.mul_(numbers.beta_2).add_(part.gradients.square().mul_(numbers.more_2))
        denominator = part.second.sqrt().mul_(numbers.root).add_(numbers.epsilon)
        part.values.add_(part.first.div(denominator).mul_(numbers.rate))

    def decay(self, slot: Slot | None, part: StagePart) -> None:
        """Weight decay of a matrix; where parts are of several parameters, the stage has done it for all."""
        if slot is not None and len(slot.shape) > 1:
            part.values.mul_(1 - self.learning_rate * self.weight_decay)

    def _numbers(self, keep: float) -> Numbers:
        (beta_1, beta_2), number = BETAS, self.number
        root, rate = 1 / math.sqrt(1 - beta_2**number), -self.learning_rate / (1 - beta_1**number)
        return Numbers(number, keep, beta_1, 1 - beta_1, beta_2, 1 - beta_2, root, EPSILON, rate)


@functools.cache
def kernel(device: torch.device) -> Kernel | None:
    """A card's kernel; None where there is none, it cannot be compiled, or its bits are not those of the operations."""
    if device.type != "cuda":
        return None
    try:
        found = Kernel(device)
    except (ImportError, RuntimeError, OSError) as error:
        LOG.info("lean steps are done operation by operation: %s", error)
        return None
    if _tried(None, device) != _tried(found, device):
        LOG.warning("lean steps are done operation by operation: the kernel's bits are others")
        return None
    return found


def _tried(kernel: Kernel | None, device: torch.device) -> list[bytes]:
    """All bits of a small matrix after three steps."""
    slot = Slot("tried", (_TRIED // 64, 64), 0, _TRIED)
    storage, chance = LeanStorage([slot], _TRIED, device), torch.Generator().manual_seed(1)
    whole = slice(0, _TRIED)
    storage.load(whole, torch.randn(_TRIED, generator=chance).mul_(0.02).to(device))
    for number in range(1, 4):
        gradients = torch.randn(_TRIED, generator=chance).mul_(1e-3 * 10.0**number)
        gradients[: 2 * 64 * number] = 0.0
        storage.gradients.copy_(gradients)
        AdamW(number, 1e-3, 0.1, kernel).step(storage, slot, whole)
    vectors = (storage.parameters, storage.first_moment, storage.second_moment)
    return [vector.cpu().numpy().tobytes() for vector in vectors]
