"""Marks on the tokens of conversations: where a document begins, and what nobody learns to say. Free of torch.

They are the two highest bits of a token in its file, so whoever has the tokens has the marks: samples, audits and disputes
are of both. A file without marks is one long text.
"""

import numpy as np
from numpy.typing import NDArray

BEGINS, UNLEARNT = 1 << 30, 1 << 31
"""A document begins with this token; it is context only, and no target of the loss."""
IGNORED = -100  # What torch's cross-entropy leaves out.
_IDS = BEGINS - 1

_Windows = NDArray[np.int64]  # ``trainer.data.data`` says what they are.


def ids_of(windows: _Windows) -> _Windows:
    """The tokens without their marks."""
    return windows & _IDS


def targets_of(windows: _Windows) -> NDArray[np.int64]:
    """What each input is followed by, ``[b, sequence]``; ``IGNORED`` where it is not learnt."""
    labels = windows[:, 1:]
    return np.where(labels & UNLEARNT, IGNORED, labels & _IDS)


def learnt(windows: _Windows) -> int:
    """How many targets are learnt."""
    return int(windows[:, 1:].size - np.count_nonzero(windows[:, 1:] & UNLEARNT))


def pairs(windows: _Windows) -> int:
    """How many pairs of answers windows have: documents stand there two by two, and what fills a window is one more."""
    return int(_pairs(windows).sum())


def answers_of(windows: _Windows) -> NDArray[np.int64]:
    """The number of the answer that each target ``[b, sequence]`` is of, counted through all windows.

    Even ones are chosen, the one after each is rejected; what is not learnt has the number behind the last.
    """
    own = _pairs(windows)
    documents = np.cumsum((windows & BEGINS) != 0, axis=1)[:, 1:] - 1
    first = 2 * (np.cumsum(own) - own)[:, None]
    taught = ((windows[:, 1:] & UNLEARNT) == 0) & (documents < 2 * own[:, None])
    found: NDArray[np.int64] = np.where(taught, first + documents, 2 * own.sum())
    return found


def _pairs(windows: _Windows) -> NDArray[np.int64]:
    begun: NDArray[np.int64] = ((windows[:, :-1] & BEGINS) != 0).sum(axis=1, dtype=np.int64)
    return begun // 2


def positions_of(windows: _Windows) -> NDArray[np.int64] | None:
    """The place of each input within its document, ``[b, sequence]``; None where windows are of one long text."""
    if not windows[0, 0] & BEGINS:
        return None
    places = np.broadcast_to(np.arange(windows.shape[1] - 1), windows[:, :-1].shape)
    begins = np.where(windows[:, :-1] & BEGINS, places, 0)
    return places - np.maximum.accumulate(begins, axis=1)


def useful(windows: _Windows) -> NDArray[np.bool_]:
    """Inputs ``[b, sequence]`` that a learnt target of their own document follows: no others get a gradient."""
    if not windows[0, 0] & BEGINS:
        return np.ones(windows[:, 1:].shape, dtype=bool)
    documents = np.cumsum((windows & BEGINS) != 0, axis=1)
    teaches = (windows[:, 1:] & UNLEARNT) == 0
    last = np.where(teaches, documents[:, 1:], 0)
    last = np.where(last == 0, np.iinfo(np.int64).max, last)
    nearest = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    found: NDArray[np.bool_] = nearest == documents[:, :-1]
    return found
