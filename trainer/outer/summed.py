"""An owner's update for a secure sum (``protocol.secure_sum``): clipped, in whole steps of a grid, with its part of the noise.

::

    anchor - parameters --> clip --> whole steps, towards zero --> + noise, rounded to whole steps --> masked by the agent
                                                                                                           |
       next state <-- an OuterMethod's step <-- the mean <-- the sum of all, modulo 2^32 <-----------------+

The order is what makes the sum as private as its noise says. Of ``h`` owners whose noise nobody knows each adds a part of
deviation ``s``; the promise counts one Gaussian of ``s * sqrt(h)`` on the sum.

1. Steps are cut off towards zero, so a clipped update stays within the clip, and is whole. So ``round(update + noise)`` is
   ``update + round(noise)``: what rounding does is a matter of the noise alone, and of its fraction of a step.
2. Tell, beside the sum of all unrounded noise and updates, each owner's fractions. These do not depend on data. Given them, the
   sum of whole parts is one of ``h`` discrete normals, each on steps of its own offset. It is within a factor of
   ``exp(5 h exp(-pi^2 s^2))`` a value (``s`` in steps) of the one discrete normal that the unrounded sum has, given its own
   fraction (Kairouz et al., arXiv 2102.06387, section 3; offsets change nothing, by Poisson's summation). ``s`` has 100,000
   steps and more, so that is 1 to all digits that there are.
3. So what is seen can be made of the unrounded sum, which is the Gaussian mechanism that ``coordinator.domain.privacy`` counts.

Whole numbers also have no low bits that would tell which update they were added to.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protocol.federated.sum_values import sum_grid
from protocol.job.federated import FederatedSpec
from protocol.secure_sum.grid import SumGrid, Vector
from trainer.errors import RoundError
from trainer.outer.method import Layout
from trainer.outer.private import NoiseSource, PrivacyTerms, clipped
from trainer.stage.short import ShortValues


@dataclass(frozen=True)
class SummedTerms:
    """How an owner's update is made for a round's sum.

    Attributes:
        privacy: the clip and, as ``noise``, this owner's part of it. grid: of the sum, the same for all owners.
        beside: what stands behind the update, and how far from zero at most, in clips (``FederatedSpec.beside``).
    """

    privacy: PrivacyTerms
    grid: SumGrid
    beside: Mapping[str, float]

    @classmethod
    def of(cls, spec: FederatedSpec, clip: float | None) -> "SummedTerms":
        """Those of a job's document, and of a round where the clip follows the updates; raises ``RoundError`` without privacy."""
        if spec.privacy is None:
            raise RoundError("a secure sum is of private updates, and federated.privacy is null")
        whole = PrivacyTerms.of(spec.privacy, clip)
        return cls(PrivacyTerms(whole.clip, spec.own_noise), sum_grid(spec, whole.clip), spec.beside)


def summand(
    anchor: Tensor,
    parameters: Tensor | ShortValues,
    layout: Layout,
    terms: SummedTerms,
    noise: NoiseSource,
    told: Mapping[str, float] = {},
) -> Vector:
    """Steps of the parameters that learn, in the order of their places, modulo 2^32, and what is told beside them.

    Args:
        anchor: flat ``[n]`` float32 on the CPU. parameters: after the round's steps, on any device.
        told: of ``terms.beside``, values in [-1, 1]; 0 of what is left out. ``unclipped`` is found here.
    Returns:
        uint32 ``[m]``, of ``m - len(terms.beside)`` scalars that learn.
    """
    update, within = clipped(anchor, parameters, layout, terms.privacy.clip)
    deviation = terms.privacy.noise * terms.privacy.clip / terms.grid.step

    def noised(values: npt.NDArray[np.floating]) -> Vector:
        drawn = np.rint(noise.normal(len(values)).numpy() * deviation).astype(np.int64)
        return terms.grid.vector(terms.grid.whole(values) + drawn)

    parts = [noised(update[slot.start : slot.start + slot.count].numpy()) for slot in layout.slots]
    if terms.beside:
        known = {"unclipped": 1.0 if within else -1.0, **told}
        beside = [known.get(name, 0.0) * far * terms.privacy.clip for name, far in terms.beside.items()]
        parts.append(noised(np.array(beside)))
    return np.concatenate(parts).astype("<u4")


def mean_of(total: bytes | bytearray, digest: str, layout: Layout, terms: SummedTerms, summands: int) -> Tensor:
    """The mean update that a sum stands for, flat ``[n]`` float32; all owners come to the same bits.

    Raises:
        RoundError: it is not the sum that was named, or of another length.
    """
    if hashlib.sha256(total).hexdigest() != digest:
        raise RoundError(f"the sum of this round is not the one that was named ({digest[:16]}...)")
    learn = sum(slot.count for slot in layout.slots)
    count = learn + len(terms.beside)
    if len(total) != 4 * count or summands < 1:
        raise RoundError(f"a sum of {len(total):,} bytes of {summands} owners, where {4 * count:,} bytes are due")
    values = terms.grid.values(np.frombuffer(total, dtype="<u4", count=learn).astype(np.uint32)) / summands
    return _placed(values, layout)


def _placed(values: npt.NDArray[np.float64], layout: Layout) -> Tensor:
    mean, at = torch.zeros(layout.size), 0
    for slot in layout.slots:
        mean[slot.start : slot.start + slot.count] = torch.from_numpy(values[at : at + slot.count].astype(np.float32))
        at += slot.count
    return mean
