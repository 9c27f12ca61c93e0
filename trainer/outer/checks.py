"""Pseudo-gradients that do not fit in with the others: left out, or kept from pulling far. Nobody is accused by it.

An attack may be honest arithmetic on poisoned data, which no re-run finds. So each update is held against the others before it
is applied: its norm against their median, its direction against their mean. Where a job asks for it, the mean itself is one that
few outliers cannot move: coordinate-wise trimmed, or with differences clipped.

All replicas decide alike, to the last bit: sums are made by halving in float64 with additions of single values, which every
processor rounds alike, never by a library's own reduction.

Source: centred clipping, arXiv 2012.10333, algorithm 1; trimmed mean, arXiv 1803.01498.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trainer.errors import CodecError, RoundError

Aggregation = Literal["mean", "trimmed", "clipped"]

MOST_NORM = 6.0  # Of the median: a fast replica of a round in time does several times a slow one's steps.
LEAST_NORM = 0.01  # Below, an update brings nothing, and makes the mean smaller.
LEAST_COSINE = (
    -0.02
)  # To the others' sum. Those of honest updates are above zero, 0.03 in a noisy run, 0.5 in a quiet one.
CHANCE = 6.0  # Standard deviations of the cosine of two updates that have nothing in common.
QUORUM = 3  # Of two that differ nobody can tell which is odd.
TRIMMED_SHARE = 4  # One in so many, at least one, is cut off at each end of each coordinate.
CLIP_ROUNDS = 3  # The centre moves by less than a percent after that.
_CHUNK = 1 << 20  # Values of all updates that are sorted at a time.


@dataclass(frozen=True)
class Combining:
    """How updates become one. ``checked``: odd ones are left out first."""

    aggregation: Aggregation = "mean"
    checked: bool = False

    def combine(self, updates: Mapping[int, Tensor]) -> tuple[Tensor, tuple[int, ...]]:
        """One update of all, and the replicas that were left out.

        Args:
            updates: by replica, flat ``[n]`` float32, finite; the order of the mapping does not matter.
        Raises:
            RoundError: there are none. CodecError: they differ in length.
        """
        ordered = {replica: updates[replica] for replica in sorted(updates)}
        _check_lengths(list(ordered.values()))
        left_out = odd_ones(ordered) if self.checked else ()
        kept = [update for replica, update in ordered.items() if replica not in left_out]
        match self.aggregation:
            case "trimmed" if len(kept) >= QUORUM:
                return trimmed_mean(kept), left_out
            case "clipped" if len(kept) >= QUORUM:
                return clipped_mean(kept), left_out
            case _:
                return mean_update(kept), left_out


PLAIN = Combining()
"""The mean of all updates."""


def mean_update(updates: Sequence[Tensor]) -> Tensor:
    """The uniform mean of at least one update, added in order.

    Weighting by tokens did worse where replicas differ in speed (1.580 against 1.577 nats).
    """
    _check_lengths(updates)
    total = torch.zeros_like(updates[0])
    for update in updates:
        total.add_(update)
    return total.div_(float(len(updates)))


def odd_ones(updates: Mapping[int, Tensor]) -> tuple[int, ...]:
    """Replicas whose update has an odd norm or direction, fewer than half of them; with fewer than ``QUORUM`` none.

    One at a time, the oddest first, since an odd one spoils what the others are held against.
    """
    if len(updates) < QUORUM:
        return ()
    norms = {replica: math.sqrt(dot(update, update)) for replica, update in updates.items()}
    median = sorted(norms.values())[(len(norms) - 1) // 2]
    odd = [r for r, norm in norms.items() if norm > MOST_NORM * median or norm < LEAST_NORM * median]
    most = (len(updates) - 1) // 2
    odd = sorted(odd, key=lambda replica: (-norms[replica], replica))[:most]
    while len(odd) < most:
        kept = {replica: update for replica, update in updates.items() if replica not in odd}
        if len(kept) < QUORUM:
            break
        cosines = _cosines(kept, norms)
        lowest = min(cosines, key=lambda replica: (cosines[replica], replica))
        usual = sorted(cosines.values())[len(cosines) // 2]
        size = max(1, kept[lowest].numel())
        if cosines[lowest] >= -max(usual, -LEAST_COSINE, CHANCE / math.sqrt(size)):
            break  # Against the others, and as much so as those agree.
        odd.append(lowest)
    return tuple(sorted(odd))


def _cosines(updates: Mapping[int, Tensor], norms: Mapping[int, float]) -> dict[int, float]:
    """Of each update with the sum of the others; 0 where one of them is zero."""
    total = torch.zeros_like(next(iter(updates.values())), dtype=torch.float64)
    for update in updates.values():
        total.add_(update)
    found = {}
    for replica, update in updates.items():
        others = total - update
        length = norms[replica] * math.sqrt(dot(others, others))
        found[replica] = dot(update, others) / length if length > 0 else 0.0
    return found


def trimmed_mean(updates: Sequence[Tensor]) -> Tensor:
    """The mean of each coordinate without its largest and smallest values."""
    cut = max(1, len(updates) // TRIMMED_SHARE)
    cut = min(cut, (len(updates) - 1) // 2)
    return _sorted_mean(updates, cut, len(updates) - cut)


def clipped_mean(updates: Sequence[Tensor]) -> Tensor:
    """Centred clipping: what is further from the centre than half of the updates pulls no harder than they do.

    The first centre is the median of each coordinate, which no minority moves far.
    """
    middle = (len(updates) - 1) // 2
    centre = _sorted_mean(updates, middle, len(updates) - middle)
    for _ in range(CLIP_ROUNDS):
        apart = [update - centre for update in updates]
        lengths = [math.sqrt(dot(difference, difference)) for difference in apart]
        radius = sorted(lengths)[len(lengths) // 2]
        pull = torch.zeros_like(centre)
        for difference, length in zip(apart, lengths, strict=True):
            pull.add_(difference if length <= radius else difference.mul_(radius / length))
        centre = centre.add_(pull.div_(float(len(updates))))
    return centre


def dot(left: Tensor, right: Tensor) -> float:
    """The sum of products of two flat vectors, the same bits on every machine."""
    products = left.double() * right.double()  # Never in place: a float64 is its own double.
    while products.numel() > 1:
        half = products.numel() // 2
        paired = products[:half].add_(products[half : 2 * half])
        products = paired if products.numel() % 2 == 0 else torch.cat((paired, products[2 * half :]))
    return float(products[0]) if products.numel() else 0.0


def _sorted_mean(updates: Sequence[Tensor], low: int, high: int) -> Tensor:
    """The mean of each coordinate's values from the ``low``-th to before the ``high``-th, in order of size."""
    mean = torch.empty_like(updates[0])
    step = max(1, _CHUNK // len(updates))
    for start in range(0, mean.numel(), step):
        values = torch.stack([update[start : start + step] for update in updates]).sort(dim=0).values
        mean[start : start + step] = mean_update(list(values[low:high]))
    return mean


def _check_lengths(updates: Sequence[Tensor]) -> None:
    if not updates:
        raise RoundError("an outer step without any contribution: at least one replica must be whole")
    for update in updates:
        if update.shape != updates[0].shape:
            raise CodecError(f"an update of {update.numel():,} values where {updates[0].numel():,} are due")
