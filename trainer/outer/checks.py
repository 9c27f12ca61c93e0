"""Pseudo-gradients that do not fit in with the others: left out, or kept from pulling far. Nobody is accused by it.

An attack may be honest arithmetic on poisoned data, which no re-run finds. So each update is held against the others before it
is applied: its norm against their median, its direction against their mean. Where a job asks for it, the mean itself is one that
few outliers cannot move: coordinate-wise trimmed, or with differences clipped.

An update weighs by the inner steps of which it is the sum: what few steps came to says less of where to go. Its norm grows with
their square root, so lengths are compared by that. Means that few outliers cannot move weigh nobody more: who is quick would else
have the say of many.

All replicas decide alike, to the last bit: sums are made by halving in float64 with additions of single values, which every
processor rounds alike, never by a library's own reduction.

Source: centred clipping, arXiv 2012.10333, algorithm 1; trimmed mean, arXiv 1803.01498.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from trainer.codecs import Parts
from trainer.errors import CodecError, RoundError

Aggregation = Literal["mean", "trimmed", "clipped"]
ALIKE: Mapping[int, int] = MappingProxyType({})
"""Weights of replicas that have done as many inner steps as each other."""

MOST_NORM = 6.0  # Of the median: while rates warm up, four times the steps came to 4.8 times by the root of a step.
LEAST_NORM = 0.01  # Below, an update brings nothing, and makes the mean smaller.
# To the others' sum. Those of honest updates are above zero, 0.03 in a noisy run, 0.5 in a quiet one.
LEAST_COSINE = -0.02
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

    def combine(
        self, updates: Mapping[int, Tensor], weights: Mapping[int, int] = ALIKE
    ) -> tuple[Tensor, tuple[int, ...]]:
        """One update of all, and the replicas that were left out.

        Args:
            updates: by replica, flat ``[n]`` float32, finite; the order of the mapping does not matter.
            weights: inner steps of each replica, which the mean and the checks go by; none: all have done as many.
        Raises:
            RoundError: there are none, or one has no weight. CodecError: they differ in length.
        """
        _see_weights(updates, weights)
        if not self.looks_at_each(len(updates)):
            return mean_update((updates[p] for p in sorted(updates)), [weights.get(p, 1) for p in sorted(updates)]), ()
        ordered = dict(zip(sorted(updates), _of_one_length([updates[p] for p in sorted(updates)]), strict=True))
        left_out = odd_ones(ordered, weights) if self.checked else ()
        kept = [update for replica, update in ordered.items() if replica not in left_out]
        match self.aggregation:
            case "trimmed" if len(kept) >= QUORUM:
                return trimmed_mean(kept), left_out
            case "clipped" if len(kept) >= QUORUM:
                return clipped_mean(kept), left_out
            case _:
                return mean_update(kept, [weights.get(p, 1) for p in ordered if p not in left_out]), left_out

    def looks_at_each(self, count: int) -> bool:
        """Whether single ones of so many updates are looked at."""
        return count >= QUORUM and (self.aggregation != "mean" or self.checked)

    def of_parts(self, updates: Mapping[int, Parts], weights: Mapping[int, int] = ALIKE) -> Parts:
        """As ``combine``, of updates that are there in parts, none of which is looked at by itself."""
        _see_weights(updates, weights)
        ordered = sorted(updates)
        shares = [weights.get(replica, 1) for replica in ordered]
        return lambda span: mean_update((updates[replica](span) for replica in ordered), shares)


PLAIN = Combining()
"""The mean of all updates."""


class Decoded(Mapping[int, Tensor]):
    """Updates by replica that are decoded when they are asked for, so that where one is enough no more are there."""

    def __init__(self, encoded: Mapping[int, bytes], decode: Callable[[bytes], Tensor]) -> None:
        """Of contributions ``encoded``."""
        self._encoded, self._decode = encoded, decode

    def __getitem__(self, replica: int) -> Tensor:
        """An update, decoded anew."""
        return self._decode(self._encoded[replica])

    def __iter__(self) -> Iterator[int]:
        """The replicas."""
        return iter(self._encoded)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._encoded)


def _see_weights(updates: Mapping[int, object], weights: Mapping[int, int]) -> None:
    if weights and not updates.keys() <= weights.keys():
        raise RoundError(f"weights of replicas {sorted(weights)} for updates of {sorted(updates)}")


def mean_update(updates: Iterable[Tensor], weights: Sequence[int] = ()) -> Tensor:
    """The mean of at least one update, added in order, of which one at a time is needed.

    Weights are divided by what all have in common, so equal ones are the plain sum. Else each product is rounded, then each sum.
    """
    total, shares = None, [weight // math.gcd(*weights) for weight in weights]
    count = 0
    for update in updates:
        if total is None:
            total = torch.zeros_like(update)
        update, share = _as_long(update, total), shares[count] if shares else 1
        for start in range(0, update.numel(), _CHUNK) if share > 1 else ():
            # Never with ``alpha``: product and sum may then be rounded once or twice.
            total[start : start + _CHUNK].add_(update[start : start + _CHUNK] * float(share))
        if share == 1:
            total.add_(update)
        count += 1
        del update  # The next one is made before it would be let go.
    if total is None:
        raise RoundError("an outer step without any contribution: at least one replica must be whole")
    return total.div_(float(sum(shares) or count))


def odd_ones(updates: Mapping[int, Tensor], weights: Mapping[int, int] = ALIKE) -> tuple[int, ...]:
    """Replicas whose update has an odd norm or direction, fewer than half of them; with fewer than ``QUORUM`` none.

    One at a time, the oddest first, since an odd one spoils what the others are held against. ``weights``: their inner steps.
    """
    if len(updates) < QUORUM:
        return ()
    norms = {replica: math.sqrt(dot(update, update)) for replica, update in updates.items()}
    apart = {replica: norm / math.sqrt(weights.get(replica, 1)) for replica, norm in norms.items()}
    median = sorted(apart.values())[(len(apart) - 1) // 2]
    odd = [r for r, norm in apart.items() if norm > MOST_NORM * median or norm < LEAST_NORM * median]
    most = (len(updates) - 1) // 2
    odd = sorted(odd, key=lambda replica: (-apart[replica], replica))[:most]
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


def _of_one_length(updates: Sequence[Tensor]) -> Sequence[Tensor]:
    return [_as_long(update, updates[0]) for update in updates]


def _as_long(update: Tensor, first: Tensor) -> Tensor:
    if update.shape != first.shape:
        raise CodecError(f"an update of {update.numel():,} values where {first.numel():,} are due")
    return update
