"""Pseudo-gradients of whole rounds: DiLoCo, plain averaging and SparseLoCo differ in codec, momentum and error feedback.

After a round of inner steps each replica of a stage has moved from the common *anchor* to its own parameters. It encodes
``anchor - parameters``, with error feedback after adding what earlier contributions could not carry, and everybody takes one
Nesterov step with the mean.

* ``diloco``: Nesterov steps with 8- or 4-bit blocks. DiLoCo, arXiv 2311.08105.
* ``averaging``: the mean itself, no momentum. Local SGD, arXiv 1805.09767.
* ``sparseloco``: chunked top-k with 2-bit values and error feedback, no momentum. SparseLoCo, arXiv 2508.15706.

A round that one replica made alone ends where its own steps have led, and leaves the momentum as it is: an outer step is for
what several have found, and a job for one node is plain training.

Measured on a warm start (H=50, equal tokens): momentum is worth 2.8 % of loss over averaging; top-k error feedback together with
outer momentum ends worse than one replica alone (+15 %), which is why ``TrainingSpec`` refuses it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.codecs import Codec, CodecName, decode, encode, encoded_size
from trainer.outer.checks import PLAIN, Combining
from trainer.outer.method import Contribution, FromContributions, Layout, Local, OuterState, nesterov
from trainer.outer.shards import Shards, loses
from trainer.stage.eight_bits import BLOCK, chance
from trainer.stage.short import ShortValues, in_main_memory, shortened, spans, way

RESIDUAL = "residual"
CODES, UNITS = "residual.codes", "residual.units"
_KEY = -(1 << 40)  # Of the chance by which a round's residual is rounded: no step of an optimizer has it.


@dataclass(frozen=True)
class DiLoCo(FromContributions):
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
        codes, units = self._nothing()
        return {CODES: codes, UNITS: units}

    def start(self, state: OuterState, local: Local, round_index: int) -> Tensor:
        """As ``OuterMethod.start``: the anchor."""
        return state.anchor

    def contribution(
        self, anchor: Tensor, parameters: Tensor | ShortValues, local: Local, round_index: int, count: int = 1
    ) -> Contribution:
        """As ``OuterMethod.contribution``. Two vectors are made, and parts."""
        shards, wanted = self.shards(round_index, count), torch.empty_like(anchor)
        for span, own in in_main_memory(parameters):
            wanted[span] = anchor[span] - own
            if self.feedback is not None:
                wanted[span] = self._residual(local, span).mul(self.feedback).add_(wanted[span])
        pieces = shards.encode(wanted)
        if self.feedback is None:
            return Contribution(pieces)
        for shard, data in enumerate(pieces):
            shards.subtract(wanted, shard, shards.decode(data, shard))
        residual = self.layout.clear(wanted)
        if not self.short:
            return Contribution(pieces, {RESIDUAL: residual})
        codes, units = self._nothing()
        for span in spans(residual.numel()):
            drawn = chance(span.start, span.stop - span.start, _KEY - round_index, residual.device)
            codes[span], units[_blocks(span)] = shortened(residual[span], torch.zeros(()), drawn)
        return Contribution(pieces, {CODES: codes, UNITS: units})

    def _residual(self, local: Local, span: slice) -> Tensor:
        return way(local[CODES][span], local[UNITS][_blocks(span)].float()) if self.short else local[RESIDUAL][span]

    def _nothing(self) -> tuple[Tensor, Tensor]:
        size = self.layout.size
        return torch.zeros(size, dtype=torch.int8), torch.zeros(size // BLOCK, dtype=torch.bfloat16)

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
        return self.layout.clear(decode(data, (self.layout.size,), self.codec))

    def step(
        self, state: OuterState, mean: Tensor, left_out: tuple[int, ...], round_index: int, alone: bool = False
    ) -> OuterState:
        """As ``OuterMethod.step``."""
        if alone:
            return OuterState(torch.sub(state.anchor, mean, out=mean), state.momentum, left_out)
        moved = nesterov(state.anchor, state.momentum, mean, self.learning_rate, self.momentum, round_index)
        return OuterState(*moved, left_out)


def _blocks(span: slice) -> slice:
    """Of a span of values, which units are theirs."""
    return slice(span.start // BLOCK, span.stop // BLOCK)
