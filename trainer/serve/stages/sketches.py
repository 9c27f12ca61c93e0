"""What crossed a boundary between two stages, in four numbers a token: enough to see later who computed otherwise.

A sketch is a hidden state's product with vectors that hang on the request's id, and on a key that only this stage has. Its
numbers are about as large as the state's own, and off by about as much as the state is: by a share of its length.
"""

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protocol.serving import SKETCH_BYTES

NUMBERS = 4
_HALF = "<f2"
_GROWN = 64

Sketched = npt.NDArray[np.float16]


def sketch_vectors(request: str, hidden: int, key: bytes) -> Tensor:
    """``[hidden, NUMBERS]``, float32, the same on every machine: even numbers with a variance of ``1 / hidden``.

    Args:
        key: of the stage that sketches. Who does not have it cannot make a state that differs where no sketch sees it.

    Source: Philox (Salmon and others, 2011), of which NumPy promises that its numbers stay.
    """
    seed = hashlib.blake2b(f"sketch:{request}".encode(), key=key, digest_size=16).digest()
    raw = np.random.Philox(key=int.from_bytes(seed)).random_raw(hidden * NUMBERS)
    evenly = ((raw >> np.uint64(11)) + 0.5) * 2.0**-52 - 1.0
    return torch.from_numpy((evenly * np.sqrt(3.0 / hidden)).astype(np.float32).reshape(hidden, NUMBERS))


class SketchBook:
    """Sketches of one request at one side of a stage, by place. A place that is computed again is written over."""

    def __init__(self) -> None:
        self._values: Sketched = np.zeros((_GROWN, NUMBERS), _HALF)
        self._length = 0

    def note(self, first: int, sketched: Tensor) -> None:
        """Those of the places from ``first`` on, ``[t, NUMBERS]``."""
        end = first + len(sketched)
        if end > len(self._values):
            grown = np.zeros((max(end, 2 * len(self._values)), NUMBERS), _HALF)
            grown[: len(self._values)] = self._values
            self._values = grown
        with np.errstate(over="ignore"):  # What no half holds becomes infinite, on either side.
            self._values[first:end] = sketched.numpy()
        self._length = end

    def told(self, length: int | None = None) -> bytes:
        """``SKETCH_BYTES`` of each of the first ``length`` places; None: of all that were computed."""
        data = self._values[: self._length if length is None else min(length, self._length)].tobytes()
        assert len(data) % SKETCH_BYTES == 0
        return data


def read_sketches(told: bytes) -> npt.NDArray[np.float32]:
    """``[places, NUMBERS]`` of what a stage told; a part of a place at the end is left out."""
    whole = len(told) // SKETCH_BYTES * SKETCH_BYTES
    return np.frombuffer(told[:whole], _HALF).astype(np.float32).reshape(-1, NUMBERS)
