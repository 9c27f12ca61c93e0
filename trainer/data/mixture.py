"""Several datasets as one: how often the rows of each are taken, and which are held out. Free of torch.

A weight is passes over a file. The first one holds out every k-th row, and takes the others, or a share of them; each further
one takes those again. A dataset that is held out is read once, and what stands in it is left out of the others.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Literal

from protocol.job.job import TOKENISED
from trainer.data.text import first_talk
from trainer.errors import DataError
from trainer.formats.source import Dataset
from trainer.formats.talk import Preference, Said

Taken = Literal["train", "heldout"]
_HANDFUL = 5
_SHORT = 8  # Bytes of a digest: two of a billion rows are alike by chance once in forty.


def is_held_out(number: int, heldout: float) -> bool:
    """Whether a document is held out, by how many come before it: one of each ``1 / heldout``, of a handful the sixth."""
    every = max(2, round(1 / heldout))
    return number % every == min(every // 2, _HANDFUL)


@dataclass
class Pass:
    """One reading of a dataset.

    Attributes:
        heldout: the share of its rows that is held out; 0: none, 1: all.
        share: how many of the others are taken, at most 1.
        again: it was read before: what is held out was taken then.
        known: digests of rows that are held out by themselves.
    """

    dataset: Dataset
    heldout: float
    share: float
    again: bool
    known: set[bytes]
    _rows: int = field(default=0, init=False)
    _others: int = field(default=0, init=False)

    def place(self, content: bytes) -> Taken | None:
        """What becomes of the next row, by what is in it; None: it is not taken."""
        number, self._rows = self._rows, self._rows + 1
        if self.heldout == 1:
            self.known.add(_short(content))
            return "heldout"
        if self.known and _short(content) in self.known:
            return None
        if self.heldout and is_held_out(number, self.heldout):
            return None if self.again else "heldout"
        before, self._others = self._others, self._others + 1
        return "train" if floor(self._others * self.share) > floor(before * self.share) else None


class Mixture:
    """The datasets of a job."""

    def __init__(self, trained: Sequence[Dataset], heldout: float, judged: Dataset | None = None) -> None:
        """``judged``: what is held out; None: a share ``heldout`` of each of the others.

        Raises:
            DataError: one cannot be read, or two of them have different kinds of rows.
        """
        self.trained = tuple(trained)
        self.judged = judged
        self._heldout = heldout if judged is None else 0.0
        self.talk: Said | None = None
        self.tokenised = False
        kinds: list[tuple[str, str]] = []
        for one in (*self.trained, *([judged] if judged else [])):
            self.tokenised = one.format(one.look()) in TOKENISED
            self.talk = first_talk(one)
            kinds.append((one.name, _kind(self.talk, self.tokenised)))
        first, kind = kinds[0]
        for name, other in kinds[1:]:
            if other != kind:
                raise DataError(
                    "mixed-datasets",
                    f"{first} has {kind}, and {name} has {other}: one job learns from rows of one kind",
                )

    def passes(self) -> Iterator[Pass]:
        """All readings, in order."""
        known: set[bytes] = set()
        if self.judged is not None:
            yield Pass(self.judged, 1, 0, False, known)
        for one in self.trained:
            weight = one.spec.weight
            for number in range(ceil(weight)):
                yield Pass(one, self._heldout, min(1.0, weight - number), number > 0, known)


def _kind(talk: Said | None, tokenised: bool) -> str:
    if tokenised:
        return "token ids"
    if talk is None:
        return "texts"
    return "two answers to each prompt" if isinstance(talk, Preference) else "conversations"


def _short(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SHORT).digest()
