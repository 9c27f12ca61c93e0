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

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.codecs import Codec, CodecName, Parts, decode, decode_parts, encode, encoded_size
from trainer.outer.checks import ALIKE, PLAIN, Combining
from trainer.outer.method import Contribution, FromContributions, Layout, Local, OuterState, alone_step, nesterov
from trainer.outer.shards import Shards, loses, results_in_parts
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
            return {RESIDUAL: torch.zeros(self.layout.size)}
        codes, units = self._nothing()
        return {CODES: codes, UNITS: units}

    def start(self, state: OuterState, local: Local, round_index: int) -> Tensor:
        """As ``OuterMethod.start``: the anchor."""
        return state.anchor

    def contribution(
        self, anchor: Tensor, parameters: Tensor | ShortValues, local: Local, round_index: int, count: int = 1
    ) -> Contribution:
        """As ``OuterMethod.contribution``. Two vectors are made, and parts; of what is said in short parts alone."""
        if self.short and isinstance(parameters, ShortValues):
            return self._in_parts(WantedUpdate(anchor, parameters, local, self.feedback), round_index, count)
        shards, wanted = self.shards(round_index, count), torch.empty(self.layout.size)
        for span, own in in_main_memory(parameters):
            wanted[span] = anchor[span] - own
            if self.feedback is not None:
                wanted[span] = self._residual(local, span).mul(self.feedback).add_(wanted[span])
        pieces = shards.encode(wanted)
        if self.feedback is None:
            return Contribution(pieces)
        for shard, data in enumerate(pieces):
            shards.subtract(wanted, shard, shards.decode(data, shard))
        if not self.short:
            return Contribution(pieces, {RESIDUAL: self.layout.clear(wanted)})
        return Contribution(pieces, self._carried(wanted.__getitem__, round_index))

    def _in_parts(self, given: "WantedUpdate", round_index: int, count: int) -> Contribution:
        """A contribution whose update is never there as a whole."""
        shards = self.shards(round_index, count)
        pieces = shards.encode_parts(given.shard(shards, shard) for shard in range(count))
        if self.feedback is None:
            return Contribution(pieces)
        sent = shards.decode_parts(pieces)
        return Contribution(pieces, self._carried(lambda span: given(span).sub_(sent(span)), round_index))

    def _carried(self, residual: Parts, round_index: int) -> Local:
        """A residual in short form."""
        codes, units = self._nothing()
        for span in spans(self.layout.size):
            left = self.layout.clear(residual(span), span.start)
            drawn = chance(span.start, span.stop - span.start, _KEY - round_index, left.device)
            codes[span], units[_blocks(span)] = shortened(left, torch.zeros(()), drawn)
        return {CODES: codes, UNITS: units}

    def _residual(self, local: Local, span: slice) -> Tensor:
        return _short_residual(local, span) if self.short else local[RESIDUAL][span]

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

    def check_update(self, data: bytes, round_index: int) -> None:
        """As ``OuterMethod.check_update``."""
        decode_parts(data, self.layout.size, self.codec)

    def decode_update(self, data: bytes, round_index: int) -> Tensor:
        """As ``OuterMethod.decode_update``."""
        return self.layout.clear(decode(data, (self.layout.size,), self.codec))

    def apply(
        self,
        state: OuterState,
        contributions: Mapping[int, bytes],
        round_index: int,
        weights: Mapping[int, int] = ALIKE,
    ) -> OuterState:
        """As ``OuterMethod.apply``; beside a lean stage in parts, where no update is looked at by itself."""
        if not self.short or self.combining.looks_at_each(len(contributions)):
            return super().apply(state, contributions, round_index, weights)
        size = self.layout.size
        updates = {replica: decode_parts(data, size, self.codec) for replica, data in contributions.items()}
        mean = self.combining.of_parts(updates, weights)
        return self.step(state, self._cleared(mean), (), round_index, len(updates) == 1)

    def apply_results(
        self, state: OuterState, results: Mapping[int, bytes], round_index: int, alone: bool
    ) -> OuterState:
        """As ``OuterMethod.apply_results``; beside a lean stage in parts."""
        if not self.short:
            return super().apply_results(state, results, round_index, alone)
        mean, left_out = results_in_parts(self.shards(round_index, len(results)), results)
        return self.step(state, self._cleared(mean), left_out, round_index, alone)

    def _cleared(self, update: Parts) -> Parts:
        return lambda span: self.layout.clear(update(span), span.start)

    def step(
        self, state: OuterState, mean: Tensor | Parts, left_out: tuple[int, ...], round_index: int, alone: bool = False
    ) -> OuterState:
        """As ``OuterMethod.step``."""
        if alone:
            return OuterState(alone_step(state.anchor, state.momentum, mean, round_index), state.momentum, left_out)
        moved = nesterov(state.anchor, state.momentum, mean, self.learning_rate, self.momentum, round_index)
        return OuterState(*moved, left_out)


@dataclass(frozen=True)
class WantedUpdate:
    """What a replica would like to send, in parts: the way from ``parameters`` to the anchor, and what earlier ones lacked."""

    anchor: Tensor
    parameters: ShortValues
    local: Local
    feedback: float | None

    def __call__(self, span: slice) -> Tensor:
        """Some of it: whole blocks."""
        wanted = self.anchor[span] - self.parameters.part(span)
        if self.feedback is None:
            return wanted
        return _short_residual(self.local, span).mul(self.feedback).add_(wanted)

    def shard(self, shards: Shards, shard: int) -> Parts:
        """The same of one shard."""
        if shards.count == 1:
            return self
        said, codes, units = self.parameters, self.parameters.codes, self.parameters.units
        anchor = shards.take(self.anchor, shard)
        base = anchor if said.base is self.anchor else shards.take(said.base, shard)
        if codes is not None and units is not None:
            codes, units = shards.take(codes, shard), shards.take_blocks(units, shard)
        local = {name: _taken(shards, shard, name, vector) for name, vector in self.local.items()}
        return WantedUpdate(anchor, ShortValues(base, codes, units), local, self.feedback)


def _taken(shards: Shards, shard: int, name: str, vector: Tensor) -> Tensor:
    return shards.take_blocks(vector, shard) if name == UNITS else shards.take(vector, shard)


def _short_residual(local: Local, span: slice) -> Tensor:
    return way(local[CODES][span], local[UNITS][_blocks(span)].float())


def _blocks(span: slice) -> slice:
    """Of a span of values, which units are theirs."""
    return slice(span.start // BLOCK, span.stop // BLOCK)
