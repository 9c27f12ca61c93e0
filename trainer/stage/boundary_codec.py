"""How a stage's tensors become payloads and back: codec, subspace, and the caches of repeated samples.

::

    activations   forward        backward                        of naive bytes (width 768)
    fp32          float32        float32                         100 %
    int8          int8 a token   int8 a token, or 4 bits         25 %
    int4          4 bits         int8 a token, or 4 bits         14 % at most / 25 %
    aq4           4 bits of the difference to the sample's last visit (``trainer.stage.activation_cache``), else as int4
    + subspace    the first channels only, in any of these

Source: four bits, see ``trainer.codecs.activations``; AQ-SGD, arXiv 2206.01299; ``trainer.stage.subspace``.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from protocol.boundary import Kind
from protocol.job.job import TrainingSpec
from trainer.codecs import CodecName, decode, encode
from trainer.transfer import HostCopy

_FORWARD: dict[str, CodecName] = {
    "auto": "int8-token",
    "int8": "int8-token",
    "int4": "int4-token",
    "aq4": "int4-token",
    "fp32": "fp32",
}
_BACKWARD: dict[str, CodecName] = {"int8": "int8-token", "int4": "int4-token", "fp32": "fp32"}
_FLOAT32 = 4
_SMALLER: frozenset[CodecName] = frozenset({"int4-token"})  # To half in envelopes; 8 bits by 5 %, at the same cost.


def wrapped_kinds(training: TrainingSpec) -> frozenset[Literal["activation", "gradient"]]:
    """Which payloads of a job cross links in zstd envelopes (``trainer.codecs.envelope``)."""
    crossing = BoundaryCodec(training, 0)
    ways: dict[Literal["activation", "gradient"], CodecName] = {
        "activation": crossing.forward_codec,
        "gradient": crossing.backward_codec,
    }
    return frozenset(kind for kind, codec in ways.items() if codec in _SMALLER)


@dataclass(frozen=True)
class BoundaryCodec:
    """What crosses the boundaries of the stages of one job.

    Attributes:
        width: of the hidden states; ``channels`` of it cross.
        fixed: ``[v, width - channels]``, the channels of each token's embedding that do not cross; None where all do.
    """

    training: TrainingSpec
    width: int
    fixed: Tensor | None = None

    @property
    def channels(self) -> int:
        """How many channels of a hidden state cross."""
        return self.width if self.fixed is None else self.width - self.fixed.shape[1]

    @property
    def forward_codec(self) -> CodecName:
        """Of activations."""
        return _FORWARD[self.training.activations]

    @property
    def backward_codec(self) -> CodecName:
        """Of gradients of activations."""
        chosen = self.training.boundary_gradients
        if chosen == "auto":
            chosen = "fp32" if self.training.activations == "fp32" else "int8"
        return _BACKWARD[chosen]

    def shape(self, tokens: Tensor) -> tuple[int, ...]:
        """Of the activations that cross for ``[b, t]`` token ids."""
        return (self.training.forward_passes * tokens.shape[0], *tokens.shape[1:], self.channels)

    def encode(self, values: Tensor, way: Literal["forward", "backward", "exact"]) -> bytes:
        """Payload of hidden states or their gradients ``[b, t, width]``; waits for them, where they are on a card.

        Raises:
            NonFiniteError: NaN or Inf in what crosses.
        """
        return encode(self.leaving(values).arrived(), self._codec(way))

    def leaving(self, values: Tensor) -> HostCopy:
        """The channels that cross, on their way into main memory in float32: ``[b, t, channels]``."""
        return HostCopy(values.detach()[..., : self.channels], torch.float32)

    def activations(self, payload: bytes, tokens: Tensor, way: Literal["forward", "exact"]) -> Tensor:
        """Hidden states of token ids ``[b, t]``, ``[b, t, width]`` of each pass one after the other; raises ``CodecError``."""
        return self.complete(decode(payload, self.shape(tokens), self._codec(way)), tokens)

    def complete(self, crossed: Tensor, tokens: Tensor) -> Tensor:
        """Hidden states of what crossed, ``[b, t, channels]``, and the tokens that it belongs to."""
        return crossed if self.fixed is None else torch.cat((crossed, self.fixed[tokens]), dim=-1)

    def gradients(self, payload: bytes, tokens: Tensor) -> Tensor:
        """Gradients of hidden states ``[b, t, width]``; zero for channels that nothing before here can change."""
        crossed = decode(payload, (*tokens.shape, self.channels), self.backward_codec)
        return torch.nn.functional.pad(crossed, (0, self.width - self.channels))

    def naive(self, kind: Kind, tokens: Tensor) -> int:
        """Bytes of the same in float32, all channels."""
        return _FLOAT32 * tokens.numel() * self.width * (self.training.forward_passes if kind == "activation" else 1)

    def _codec(self, way: Literal["forward", "backward", "exact"]) -> CodecName:
        match way:
            case "forward":
                return self.forward_codec
            case "backward":
                return self.backward_codec
            case "exact":
                return "fp32"
