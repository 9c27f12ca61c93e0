"""What a federated round's secure sum stands for: its grid, and what it has beside the sum of updates. Needs NumPy."""

from collections.abc import Mapping

import numpy as np

from protocol.job.federated import FederatedSpec
from protocol.secure_sum.grid import SumGrid


def sum_grid(spec: FederatedSpec, clip: float) -> SumGrid:
    """The same for all owners: with room for updates of this ``clip`` and what stands beside them, and for their noise."""
    longest = clip * max(1.0, *spec.beside.values()) if spec.beside else clip
    return SumGrid.over(longest, spec.own_noise * clip, len(spec.owners))


def beside_of(total: bytes | memoryview, spec: FederatedSpec, clip: float, summands: int) -> Mapping[str, float]:
    """The means of what owners have told beside their updates, in [-1, 1] but for noise.

    Args:
        total: little-endian uint32 of the sum, of so many ``summands``, in a round with this ``clip``.
    """
    if not spec.beside:
        return {}
    last = np.frombuffer(total[-4 * len(spec.beside) :], dtype="<u4").astype(np.uint32)
    values = sum_grid(spec, clip).values(last) / summands
    return {name: float(one) / far / clip for (name, far), one in zip(spec.beside.items(), values, strict=True)}
