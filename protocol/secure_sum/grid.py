"""Numbers that are summed: real values as steps of a grid, modulo 2^32."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol.federated.sum_messages import MODULUS

Vector = npt.NDArray[np.uint32]
FAR = 16.0  # Standard deviations of noise that a grid has room for.


@dataclass(frozen=True)
class SumGrid:
    """Real values as steps of a grid, so that sums are exact: at most ``most`` steps from zero, of ``owners`` vectors.

    Attributes:
        step: length of one, in units of the values.
    """

    step: float
    owners: int

    @property
    def most(self) -> int:
        """Steps that a value may be away from zero; beyond, it is cut off. Sums of all owners' stay within half the modulus."""
        return (MODULUS // 2 - 1) // self.owners

    @classmethod
    def over(cls, clip: float, deviation: float, owners: int) -> "SumGrid":
        """The finest one that has room for vectors of so many owners: no longer than ``clip``, with normal noise on each value.

        A value is cut off where its noise is beyond ``FAR`` standard deviations, which is less likely than 1e-50.
        """
        return cls((clip + FAR * deviation) / ((MODULUS // 2 - 1) // owners), owners)

    def whole(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
        """Whole steps of finite values ``[n]``, towards zero: no vector becomes longer by it."""
        return np.trunc(np.asarray(values, dtype=np.float64) / self.step).astype(np.int64)

    def vector(self, whole: npt.NDArray[np.int64]) -> Vector:
        """Whole steps ``[n]``, modulo 2^32."""
        return np.clip(whole, -self.most, self.most).astype(np.uint32)

    def values(self, total: Vector) -> npt.NDArray[np.float64]:
        """What a sum of steps stands for, ``[n]``."""
        return total.view(np.int32).astype(np.float64) * self.step
