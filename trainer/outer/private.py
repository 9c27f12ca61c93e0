"""An owner's update before it leaves its machine: clipped, with noise of the operating system's randomness on it.

::

    anchor - parameters --> clip to an L2 norm --> + Gaussian noise --> anchor - what came of it --> an OuterMethod, as always
                                                  |
                                                  +-- from here on nothing knows the update itself

What a method encodes, and what its error feedback carries into the next round, is made of the noised parameters and of what
everybody knows. So codecs, residues and outer steps are post-processing: they tell no more than the noised update does.

The norm is of all parameters that learn, of the one stage that a federated owner holds; with LoRA these are the adapter's alone,
and noise is added to so many values less.

Noise is drawn from the ChaCha20 stream of a key that the operating system gives, anew each time: never from the job's seed,
with which whoever runs the round again could take it off. Each value is half the sum of four normal ones, in float64: the low
bits of a single one, rounded to float32, would tell which update it was added to.

Sources: DP-FedAvg, arXiv 1710.06963; adaptive clipping, arXiv 1905.03871; sums of normals against low bits, Holohan and Braghin,
arXiv 2107.10138 (as opacus' ``secure_mode`` has it), after Mironov, ACM CCS 2012.
"""

import logging
import math
import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

from protocol.job.federated import PrivacySpec
from trainer.errors import RoundError
from trainer.outer.method import Layout
from trainer.stage.short import ShortValues, in_main_memory, spans

LOG = logging.getLogger("cottage.private")  # That of the worker goes to who submitted the job.
_DRAWN = 1 << 18  # Normal values at a time: 8 MiB of the stream.
_BELOW = 1 + 1e-6  # A scaled float32 vector may be longer by its rounding; then the clip would not hold.
MOST_TOLD = 1e6  # Of a told bit or loss: what the message takes.


@dataclass(frozen=True)
class PrivacyTerms:
    """How an owner's update is made private in a round.

    Attributes:
        clip: L2 norm that it is scaled down to.
        noise: standard deviation of the noise on it, in clips.
        bit_noise: that on the word whether it was within the clip; None: that is not told.
    """

    clip: float
    noise: float
    bit_noise: float | None = None

    @classmethod
    def of(cls, spec: PrivacySpec, clip: float | None) -> "PrivacyTerms":
        """Those of a job's document, and of a round where the clip follows the updates.

        Whoever chooses the clip cannot take from the noise: that is in clips.

        Raises:
            RoundError: the document names no noise; the coordinator fills it in when it quotes the job.
        """
        if spec.noise_multiplier is None:
            raise RoundError("federated.privacy.noise_multiplier is not settled, and no update leaves without noise")
        noise = spec.update_noise
        if spec.adaptive is None:
            return cls(spec.clip, noise)
        return cls(spec.clip if clip is None else clip, noise, spec.adaptive.bit_noise)


class NoiseSource(Protocol):
    """Where noise comes from."""

    def normal(self, count: int) -> Tensor:
        """Standard normal values ``[count]``, float64, independent of all before."""


class SystemNoise:
    """Of the operating system's randomness; nobody can ask for the same again."""

    def normal(self, count: int) -> Tensor:
        """As ``NoiseSource.normal``."""
        stream = Cipher(ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()
        drawn = np.empty(count)
        for start in range(0, count, _DRAWN):
            part = drawn[start : start + _DRAWN]
            words = np.frombuffer(stream.update(bytes(32 * len(part))), dtype="<u8").reshape(4, len(part))
            part[:] = _halved_sum(words)
        return torch.from_numpy(drawn)


@dataclass(frozen=True)
class ProtectedUpdate:
    """What may leave.

    Attributes:
        parameters: flat ``[n]`` float32, to which the noised update leads from the anchor.
        unclipped: 1 where the update was within the clip, else 0, plus noise; None where that is not asked for.
    """

    parameters: Tensor
    unclipped: float | None


def protect(
    anchor: Tensor, parameters: Tensor | ShortValues, layout: Layout, terms: PrivacyTerms, noise: NoiseSource
) -> ProtectedUpdate:
    """Clip the way from ``anchor`` to ``parameters`` and put noise on it.

    An update that is not finite leaves as noise alone: a refusal would tell of the data.

    Args:
        anchor: flat ``[n]`` float32 on the CPU. parameters: after the round's steps, on any device.
        layout: where noise belongs; padding stays zero.
    """
    update, within = clipped(anchor, parameters, layout, terms.clip)
    scale = terms.noise * terms.clip
    for span in spans(update.numel()):
        noised = update[span].double().add_(noise.normal(span.stop - span.start), alpha=scale)
        update[span] = noised.float()
    layout.clear(update)
    return ProtectedUpdate(torch.sub(anchor, update, out=update), told_bit(within, terms, noise))


def clipped(anchor: Tensor, parameters: Tensor | ShortValues, layout: Layout, clip: float) -> tuple[Tensor, bool]:
    """The way from ``parameters`` to ``anchor``, scaled down to a norm of ``clip``, and whether it was within that.

    One that is not finite is zero: a refusal would tell of the data. Shapes: as ``protect``.
    """
    update = torch.empty(anchor.numel())
    for span, own in in_main_memory(parameters):
        update[span] = anchor[span] - own
    layout.clear(update)
    norm = shorten(update, clip)
    if not math.isfinite(norm):
        LOG.warning("this round's update is not finite: noise alone leaves, and the others' updates count")
    return update, norm <= clip


def shorten(vector: Tensor, clip: float) -> float:
    """Scale a vector down to an L2 norm of ``clip``, in place, to zero where it is not finite; returns its norm before."""
    norm = update_norm(vector)
    if not math.isfinite(norm):
        vector.zero_()
    elif norm > clip:
        vector.mul_(clip / (norm * _BELOW))
        if update_norm(vector) > clip:  # Float32 has no such small numbers but rough ones.
            vector.zero_()
    return norm


def told_bit(within: bool, terms: PrivacyTerms, noise: NoiseSource) -> float | None:
    """What is told of whether an update was within the clip; None where that is not asked for."""
    if terms.bit_noise is None:
        return None
    told = float(within) + terms.bit_noise * float(noise.normal(1))
    return max(-MOST_TOLD, min(MOST_TOLD, told))


def update_norm(update: Tensor) -> float:
    """The L2 norm of a flat vector, in float64; infinite where it holds anything that is not finite."""
    square = math.fsum(
        float(torch.linalg.vector_norm(update[span], dtype=torch.float64)) ** 2 for span in spans(update.numel())
    )
    return math.sqrt(square) if math.isfinite(square) else math.inf


def _halved_sum(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Half the sum of four standard normal values of uniform 64-bit words ``[4, n]``: Box and Muller, twice."""
    uniform = ((words >> np.uint64(11)) + np.uint64(1)) * 2.0**-53  # In (0, 1].
    first, second = np.sqrt(-2 * np.log(uniform[:2])), 2 * np.pi * uniform[2:]
    summed: npt.NDArray[np.float64] = (first * (np.cos(second) + np.sin(second))).sum(0)
    return summed / 2
