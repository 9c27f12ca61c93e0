"""Pseudo-gradients of whole rounds: DiLoCo, plain averaging and SparseLoCo differ in codec, momentum and error feedback.

After a round of inner steps each replica of a stage has moved from the common *anchor* to its own parameters. It encodes
``anchor - parameters``, with error feedback after adding what earlier contributions could not carry, and everybody takes one
Nesterov step with the mean.

* ``diloco``: Nesterov steps with 8- or 4-bit blocks. DiLoCo, arXiv 2311.08105.
* ``averaging``: the mean itself, no momentum. Local SGD, arXiv 1805.09767.
* ``sparseloco``: chunked top-k with 2-bit values and error feedback, no momentum. SparseLoCo, arXiv 2508.15706.

Measured on a warm start (H=50, equal tokens): momentum is worth 2.8 % of loss over averaging; top-k error feedback together with
outer momentum ends worse than one replica alone (+15 %), which is why ``TrainingSpec`` refuses it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.codecs import Codec, CodecName, decode, encode, encoded_size
from trainer.outer.checks import PLAIN, Combining
from trainer.outer.method import Contribution, Layout, Local, OuterState, nesterov
from trainer.outer.shards import Shards, loses
from trainer.stage.eight_bits import BLOCK, chance
from trainer.stage.short import shortened, way

RESIDUAL = "residual"
CODES, UNITS = "residual.codes", "residual.units"
_KEY = -(1 << 40)  # Of the chance by which a round's residual is rounded: no step of an optimizer has it.


@dataclass(frozen=True)
class DiLoCo:
    """An ``OuterMethod`` that exchanges the whole pseudo-gradient once a round.

    Attributes:
        feedback: what a residual is multiplied with before a round's pseudo-gradient is added; ``None``: none is kept.
        short: the residual is kept in whole units, as ``trainer.stage.short`` has it, in 1 byte a value and not in 4.
    """

    name: str
    layout: Layout
    codec: CodecName | Codec
    learning_rate: float
    momentum: float
    feedback: float | None = None
    combining: Combining = PLAIN
    starts_from_local: bool = False
    short: bool = False

    def fresh(self, state: OuterState) -> Local:
        """As ``OuterMethod.fresh``."""
        if self.feedback is None:
            return {}
        if not self.short:
            return {RESIDUAL: torch.zeros_like(state.anchor)}
        size = self.layout.size
        return {CODES: torch.zeros(size, dtype=torch.int8), UNITS: torch.zeros(size // BLOCK, dtype=torch.bfloat16)}

    def start(self, state: OuterState, local: Local, round_index: int) -> Tensor:
        """As ``OuterMethod.start``: the anchor."""
        return state.anchor

    def contribution(
        self, anchor: Tensor, parameters: Tensor, local: Local, round_index: int, count: int = 1
    ) -> Contribution:
        """As ``OuterMethod.contribution``."""
        update, shards = anchor - parameters.detach().cpu(), self.shards(round_index, count)
        if self.feedback is None:
            return Contribution(shards.encode(update))
        wanted = (way(local[CODES], local[UNITS].float()) if self.short else local[RESIDUAL]).mul(self.feedback)
        pieces = shards.encode(wanted.add_(update))
        sent = shards.join([shards.decode(data, shard) for shard, data in enumerate(pieces)])
        residual = wanted.sub_(sent.masked_fill_(self.layout.padding, 0.0))
        if not self.short:
            return Contribution(pieces, {RESIDUAL: residual})
        drawn = chance(0, residual.numel(), _KEY - round_index, residual.device)
        codes, units = shortened(residual, torch.zeros(()), drawn)
        return Contribution(pieces, {CODES: codes, UNITS: units.bfloat16()})

    def shards(self, round_index: int, count: int) -> Shards:
        """As ``OuterMethod.shards``."""
        return Shards(self.layout.size, count, self.codec, loses(self.codec))

    def free(self, round_index: int) -> Tensor:
        """As ``OuterMethod.free``."""
        return self.layout.padding

    def limit(self, round_index: int) -> int:
        """As ``OuterMethod.limit``."""
        return encoded_size((self.layout.size,), self.codec)

    def encode_update(self, update: Tensor, round_index: int) -> bytes:
        """As ``OuterMethod.encode_update``."""
        return encode(update, self.codec)

    def decode_update(self, data: bytes, round_index: int) -> Tensor:
        """As ``OuterMethod.decode_update``."""
        return decode(data, (self.layout.size,), self.codec).masked_fill_(self.layout.padding, 0.0)

    def apply(self, state: OuterState, contributions: Mapping[int, bytes], round_index: int) -> OuterState:
        """As ``OuterMethod.apply``."""
        updates = {replica: self.decode_update(data, round_index) for replica, data in contributions.items()}
        return self.step(state, *self.combining.combine(updates), round_index)

    def step(self, state: OuterState, mean: Tensor, left_out: tuple[int, ...], round_index: int) -> OuterState:
        """As ``OuterMethod.step``."""
        return OuterState(*nesterov(state.anchor, state.momentum, mean, self.learning_rate, self.momentum), left_out)
