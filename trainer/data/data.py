"""Token files and which tokens a step reads; free of torch, so that preparing data starts quickly.

A token file is a plain array of little-endian uint32. One of conversations is marked (``trainer.data.marks``): windows of
whole documents lie side by side in it. What step ``t`` of replica ``p`` reads follows from (seed, t, p) and the job's settings
alone: it does not depend on how many replicas live, on the cut into stages or on the machine.
"""

import hashlib
import itertools
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from common.encrypted_files import SealedFile
from common.errors import SealedFileError
from protocol.boundary import micro_count
from protocol.job.job import TrainingSpec
from trainer.data.marks import BEGINS, ids_of
from trainer.errors import DataError
from trainer.files.inputs import InputFile

TOKEN_BYTES = 4
MAX_HELDOUT_TOKENS = 16_384  # Enough for a standard error of 0.02 nats; a validation stays far shorter than a round.

Windows = NDArray[np.int64]
"""Token windows ``[b, sequence + 1]``, with their marks: inputs are all but the last column, labels all but the first."""


class TokenFile:
    """A file of token ids, of which only what is asked for is read."""

    def __init__(self, file: InputFile, sequence: int, vocabulary: int) -> None:
        """Open a file that holds at least one window.

        Raises:
            DataError: missing, of an impossible length, or shorter than ``sequence + 1`` tokens.
        """
        try:
            size = file.size if isinstance(file, SealedFile) else file.stat().st_size
        except OSError as error:
            raise DataError("missing-file", f"{file.name} cannot be read: {error.strerror}") from error
        if size % TOKEN_BYTES or size < (sequence + 1) * TOKEN_BYTES:
            raise DataError(
                "too-short",
                f"{file.name} holds {size / TOKEN_BYTES:g} tokens: sequences of {sequence} need at least {sequence + 1}; "
                "bring more text or choose shorter sequences",
            )
        self._name = file.name
        self._length = size // TOKEN_BYTES
        self._source = file if isinstance(file, SealedFile) else np.memmap(file, dtype="<u4", mode="r")
        self._sequence = sequence
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return self._length

    def sample(
        self,
        seed: int,
        step: int,
        replica: int,
        batch: int,
        sampling: Literal["random", "epochs"] = "random",
        shares: int | None = None,
    ) -> tuple[Windows, str]:
        """Windows of one inner step of one replica, and the digest of where they lie.

        Args:
            sampling: ``random``, anywhere in a text, or any window of whole documents; ``epochs``, see ``epoch_starts``.
            shares: ``epochs``: parts that the windows are dealt in, one a replica; None: every replica reads them all.
        Raises:
            DataError: a token id beyond the vocabulary, or the file was changed.
        """
        if sampling == "epochs":
            starts = epoch_starts(seed, step, replica, batch, self._side_by_side, shares or 1) * self._sequence
        elif self._packed:
            starts = sample_starts(seed, step, replica, batch, self._side_by_side) * self._sequence
        else:
            starts = sample_starts(seed, step, replica, batch, len(self) - self._sequence)
        return self._windows(starts), hashlib.sha256(starts.astype("<u8").tobytes()).hexdigest()

    def heldout(self) -> Windows:
        """Windows spread evenly over the file, at most ``MAX_HELDOUT_TOKENS`` tokens, the same on every machine."""
        available = self._side_by_side
        wanted = max(1, min(available, MAX_HELDOUT_TOKENS // self._sequence))
        starts = np.array([i * available // wanted * self._sequence for i in range(wanted)], dtype=np.int64)
        return self._windows(starts)

    @cached_property
    def _packed(self) -> bool:
        """Whether it has windows of whole documents."""
        return bool(self._read(0, 1)[0] & BEGINS)

    @property
    def _side_by_side(self) -> int:
        """Windows of the file that have no input in common."""
        return (len(self) - 1) // self._sequence

    def _windows(self, starts: NDArray[np.int64]) -> Windows:
        return self._checked(
            np.stack([self._read(at, at + self._sequence + 1) for at in starts.tolist()]).astype(np.int64)
        )

    def _checked(self, windows: Windows) -> Windows:
        if (largest := int(ids_of(windows).max(initial=0))) >= self._vocabulary:
            raise DataError("bad-token", f"{self._name} holds token {largest}, the vocabulary has {self._vocabulary:,}")
        return windows

    def _read(self, first: int, last: int) -> NDArray[np.uint32]:
        if not isinstance(self._source, SealedFile):
            return self._source[first:last]
        try:
            return np.frombuffer(self._source.read(first * TOKEN_BYTES, last * TOKEN_BYTES), dtype="<u4")
        except (SealedFileError, OSError) as error:
            raise DataError("changed-file", str(error)) from error


def sample_starts(seed: int, step: int, replica: int, batch: int, positions: int) -> NDArray[np.int64]:
    """Where the ``batch`` windows of a step begin, each in ``0 <= start < positions``; from SHAKE-256 of (seed, step, replica).

    The remainder of 64 random bits favours some positions by at most one in 2**64 / positions.
    """
    name = f"cottage-samples\0{seed}\0{step}\0{replica}".encode()
    words = np.frombuffer(hashlib.shake_256(name).digest(8 * batch), dtype="<u8")
    return (words % np.uint64(positions)).astype(np.int64)


def epoch_starts(seed: int, step: int, replica: int, batch: int, windows: int, shares: int = 1) -> NDArray[np.int64]:
    """Which of ``windows`` windows side by side a step reads: each once an epoch.

    Windows are dealt to ``shares`` replicas once, in an order that follows from the seed, so that all of them together read each
    once. The order of a replica's own is another one in each epoch. They stay its own, and come again, epoch after epoch.
    """
    shares = min(shares, windows)
    place, every = replica % shares, windows
    windows = len(range(place, every, shares))
    places = np.arange(step * batch, (step + 1) * batch, dtype=np.int64)
    found = np.empty(batch, dtype=np.int64)
    for epoch in np.unique(places // windows):
        here = places // windows == epoch
        found[here] = _shuffled(places[here] % windows, windows, f"cottage-epoch\0{seed}\0{replica}\0{epoch}")
    return found if shares == 1 else _shuffled(place + shares * found, every, f"cottage-shares\0{seed}")


def _shuffled(places: NDArray[np.int64], count: int, name: str) -> NDArray[np.int64]:
    """Where a permutation of ``range(count)`` takes these places, without making all of it.

    A Feistel network of four rounds over the next power of four, walked until it comes back below ``count``.
    Source: Black and Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002.
    """
    half = np.uint64(max(1, -(-(count - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    keys = np.frombuffer(hashlib.shake_256(name.encode()).digest(32), dtype="<u8")
    values = places.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left, right = values[outside] >> half, values[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        values[outside] = (left << half) | right
        outside = values >= np.uint64(count)
    return values.astype(np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the input reaches every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def micro_batches(training: TrainingSpec) -> list[slice]:
    """How a step's ``batch`` windows are cut: near-equal parts, none empty."""
    parts = micro_count(training)
    edges = [i * training.batch // parts for i in range(parts + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(edges)]


def heldout_parts(file: TokenFile, training: TrainingSpec) -> list[Windows]:
    """The held-out windows in parts of a micro-batch's size."""
    windows = file.heldout()
    rows = max(1, training.batch // training.micro_batches)
    return [windows[at : at + rows] for at in range(0, len(windows), rows)]
