"""Streaming DiLoCo: a part of the layers at a time, so that a transfer is short and can hide behind computing.

The parameters are cut into fragments; round ``r`` exchanges fragment ``r mod P``, each with its own anchor and momentum. The
other fragments go on from where the replica is. When a fragment's step arrives, the replica mixes it with its own parameters:
``mixing`` of what it has by then, the rest from the new anchor. With an exchange that is applied while the next round already
computes, 0.5 keeps what was learnt meanwhile.

A whole outer update that arrives one round late, with momentum, diverges; fragments do not, since each is corrected against
its own anchor, whose age the momentum knows.

Source: Streaming DiLoCo, arXiv 2501.18512, algorithm 2 (fragments, strided; overlap with mixing alpha).
"""

import re
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trainer.codecs import Codec, CodecName, Parts, decode, encode, encoded_size
from trainer.outer.checks import PLAIN, Combining
from trainer.outer.method import Contribution, FromContributions, Layout, Local, OuterState, alone_step, nesterov
from trainer.outer.shards import Shards
from trainer.stage.short import ShortValues
from trainer.stage.storage import Slot
from trainer.transfer import fetched

PARAMETERS = "parameters"
_LAYER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True)
class Streaming(FromContributions):
    """An ``OuterMethod`` that exchanges one of ``count`` fragments a round."""

    layout: Layout
    codec: CodecName | Codec
    learning_rate: float
    momentum: float
    count: int
    mixing: float = 0.0
    name: str = "streaming"
    combining: Combining = PLAIN
    starts_from_local: bool = True

    @cached_property
    def fragments(self) -> tuple[tuple[slice, ...], ...]:
        """Spans of each fragment."""
        return tuple(tuple(self.layout.spans(slots)) for slots in cut_fragments(self.layout.slots, self.count))

    def fragment(self, round_index: int) -> tuple[slice, ...]:
        """Spans that a round exchanges."""
        return self.fragments[round_index % len(self.fragments)]

    def fresh(self, state: OuterState) -> Local:
        """As ``OuterMethod.fresh``."""
        return {PARAMETERS: state.anchor.to(torch.float32, copy=True)}

    def start(self, state: OuterState, local: Local, round_index: int) -> Tensor:
        """As ``OuterMethod.start``: the replica's own parameters, mixed where the round before exchanged."""
        if round_index == 0:
            return state.anchor
        return self.merge(local[PARAMETERS], state.anchor, round_index - 1)

    def merge(self, parameters: Tensor, anchor: Tensor, round_index: int) -> Tensor:
        """A replica's parameters after the outer step of a round became known to it, at once or some steps later."""
        merged = parameters.clone()
        for span in self.fragment(round_index):
            merged[span] = merged[span].mul_(self.mixing).add_(anchor[span].float().mul(1 - self.mixing))
        return merged

    def contribution(
        self, anchor: Tensor, parameters: Tensor | ShortValues, local: Local, round_index: int, count: int = 1
    ) -> Contribution:
        """As ``OuterMethod.contribution``."""
        values = parameters.values() if isinstance(parameters, ShortValues) else parameters
        own = fetched(values) if values is parameters or values is anchor else values
        update = _gather(anchor, self.fragment(round_index)) - _gather(own, self.fragment(round_index))
        return Contribution(self.shards(round_index, count).encode(update), {PARAMETERS: own})

    def shards(self, round_index: int, count: int) -> Shards:
        """As ``OuterMethod.shards``."""
        return Shards(self._size(round_index), count, self.codec)

    def free(self, round_index: int) -> Tensor:
        """As ``OuterMethod.free``."""
        return _gather(self.layout.padding, self.fragment(round_index))

    def limit(self, round_index: int) -> int:
        """As ``OuterMethod.limit``."""
        return encoded_size((self._size(round_index),), self.codec)

    def encode_update(self, update: Tensor, round_index: int) -> bytes:
        """As ``OuterMethod.encode_update``."""
        return encode(update, self.codec)

    def decode_update(self, data: bytes, round_index: int) -> Tensor:
        """As ``OuterMethod.decode_update``."""
        update = decode(data, (self._size(round_index),), self.codec)
        return update.masked_fill_(self.free(round_index), 0.0)

    def step(
        self, state: OuterState, mean: Tensor | Parts, left_out: tuple[int, ...], round_index: int, alone: bool = False
    ) -> OuterState:
        """As ``OuterMethod.step``."""
        spans = self.fragment(round_index)
        anchor, momentum = (_gather(vector, spans) for vector in (state.anchor, state.momentum))
        if alone:
            moved = alone_step(anchor, momentum, mean, round_index)
            return OuterState(_scatter(state.anchor, spans, moved), state.momentum, left_out)
        part = nesterov(anchor, momentum, mean, self.learning_rate, self.momentum, round_index)
        return OuterState(_scatter(state.anchor, spans, part[0]), _scatter(state.momentum, spans, part[1]), left_out)

    def _size(self, round_index: int) -> int:
        return sum(span.stop - span.start for span in self.fragment(round_index))


def cut_fragments(slots: tuple[Slot, ...], count: int) -> list[list[Slot]]:
    """At most ``count`` fragments, none empty: layers in turn (strided), then what is in no layer to the smallest.

    Source: arXiv 2501.18512, section 3.1: strided fragments learn a little better than runs of layers.
    """
    fragments: list[list[Slot]] = [[] for _ in range(count)]
    layers = sorted({int(found[1]) for slot in slots if (found := _LAYER.search(slot.name))})
    turn = {layer: index % count for index, layer in enumerate(layers)}
    others = []
    for slot in slots:
        found = _LAYER.search(slot.name)
        if found:
            fragments[turn[int(found[1])]].append(slot)
        else:
            others.append(slot)
    for slot in sorted(others, key=lambda slot: (-slot.count, slot.start)):
        min(fragments, key=lambda fragment: sum(other.count for other in fragment)).append(slot)
    return [fragment for fragment in fragments if fragment]


def _gather(vector: Tensor, spans: tuple[slice, ...]) -> Tensor:
    return torch.cat([vector[span] for span in spans])


def _scatter(vector: Tensor, spans: tuple[slice, ...], part: Tensor) -> Tensor:
    result, at = vector.clone(), 0
    for span in spans:
        length = span.stop - span.start
        result[span] = part[at : at + length]
        at += length
    return result
