"""A micro-batch as tensors: windows of tokens, and what their marks say (``trainer.data.marks``)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.data.data import Windows
from trainer.data.marks import answers_of, ids_of, pairs, positions_of, targets_of


@dataclass(frozen=True)
class MicroBatch:
    """Windows ``[b, sequence + 1]``.

    Attributes:
        rows: as they lie in the file, marks and all: they are what a window is known by.
        ids: the inputs ``[b, sequence]``.
        targets: what follows each, ``IGNORED`` where it is not learnt.
        positions: of each input within its document; None where windows are of one long text.
    """

    rows: Tensor
    ids: Tensor
    targets: Tensor
    positions: Tensor | None

    @property
    def answers(self) -> Tensor:
        """Of which answer each target is, ``[b, sequence]``, where windows have pairs of them (``trainer.data.marks``)."""
        return torch.from_numpy(answers_of(self.rows.numpy()))

    @property
    def pairs(self) -> int:
        """How many pairs of answers there are."""
        return pairs(self.rows.numpy())

    @classmethod
    def of(cls, windows: Windows) -> "MicroBatch":
        """That of windows."""
        positions = positions_of(windows)
        return cls(
            torch.from_numpy(windows),
            torch.from_numpy(ids_of(windows[:, :-1])),
            torch.from_numpy(targets_of(windows)),
            None if positions is None else torch.from_numpy(positions),
        )
