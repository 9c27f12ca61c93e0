"""A small model at the first stage that says what an answer may go on with, before the whole model is asked.

It draws as the last stage does: by the request's own seed and the token's place. The more alike two models are, the more of their
draws agree, though neither hears of the other's.

Source: speculative decoding (Leviathan and others, arXiv 2211.17192), with draws that share their chance (Daliri, Musco and
Suresh, arXiv 2408.07978) in the place of rejections.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from protocol.models.model import inspect_config
from protocol.serving import Sampling, draft_tokens
from trainer.errors import WeightsError
from trainer.serve.sampling import drawn
from trainer.serve.stages.pages import LayerCache, NoPagesError, pages_of
from trainer.serve.stages.passes import DRAFTS
from trainer.serve.stages.share import ModelShare, finished_config
from trainer.stage.model import Cut

PIECE = 64  # Tokens of a prompt that are read at a time: whatever else the stage has to do waits no longer.
TIMED = 3  # Passes of one token when it is loaded; the shortest says how long one takes.
_FLOAT32 = 4


LOG = logging.getLogger("cottage.worker")


class DraftModel:
    """The whole of a small model, with keys and values of its own. All on one thread.

    Attributes:
        vocabulary: tokens that it knows.
        longest: of a sequence that it can read.
        pass_s: seconds that a pass of one token took when it was loaded.
    """

    def __init__(self, folder: Path, weights: Mapping[str, Any], device: str, context: int | None = None) -> None:
        """Load a model.

        Args:
            folder: of its small files. weights: by name, see ``ModelShare``.
            context: tokens of a prompt with its answer; None: as many as it reads.
        Raises:
            WeightsError: it is no model of a family that is known, or is not whole.
        """
        try:
            layers = inspect_config(finished_config(folder)).layers
        except ValueError as error:
            raise WeightsError("bad-model", f"the draft model cannot be read: {error}") from error
        self._share = ModelShare(folder, Cut(0, layers, True, True), weights, device)
        shape = self._share.shape
        self.vocabulary = self._share.tokens.vocabulary
        self.longest = min(shape.max_positions, context or shape.max_positions)
        token = 2 * shape.layers * shape.kv_heads * shape.head_dim * _FLOAT32
        self._pages = pages_of(draft_tokens(token, self.longest)) + 1
        self._cache = LayerCache(layers, self._pages, shape.kv_heads, shape.head_dim, self._share.device)
        self._read: dict[int, list[int]] = {}
        """Of each sequence the tokens whose keys and values are there; the one that was used last is the last."""
        self._room: dict[int, int] = {}
        """Pages that are each sequence's own, the oldest one first."""
        self.pass_s = self._timed()

    @property
    def parameters(self) -> int:
        """How many it has."""
        return self._share.parameters

    def behind(self, sequence: int, tokens: Sequence[int]) -> int:
        """How many tokens of a sequence are still to be read; the last one always is, since what follows it is asked."""
        return len(tokens) - self._agreed(sequence, tokens)

    def has_room(self, sequence: int, count: int) -> bool:
        """Whether a sequence of ``count`` tokens with its drafts has room; one that has keeps it, unless an older one grows.

        Two that put each other out would be read without end.
        """
        if count > self.longest:
            self.forget(sequence)
            return False
        self._room[sequence] = pages_of(min(count + DRAFTS, self.longest))
        while sum(self._room.values()) > self._pages:
            youngest = next(reversed(self._room))
            self.forget(youngest)
            if youngest == sequence:
                return False
        return True

    def read(self, sequence: int, tokens: Sequence[int]) -> None:
        """Read up to ``PIECE`` further tokens of a sequence, all but its last one."""
        first = self._agreed(sequence, tokens)
        if some := tokens[first : min(first + PIECE, len(tokens) - 1)]:
            self._pass(sequence, first, some)

    def propose(self, sequence: int, tokens: Sequence[int], sampling: Sampling, count: int) -> tuple[int, ...]:
        """The next ``count`` tokens as this model draws them; fewer where a sequence would be longer than it reads."""
        first = self._agreed(sequence, tokens)
        pending, drafts = list(tokens[first:]), list[int]()
        while len(drafts) < count and len(tokens) + len(drafts) <= self.longest:
            hidden = self._pass(sequence, first, pending)
            logits = self._share.logits(hidden[-1:])[0]
            place = len(tokens) + len(drafts)
            drafts.append(drawn(logits, sampling, place) if sampling.temperature > 0 else int(logits.argmax()))
            first, pending = first + len(pending), drafts[-1:]
        return tuple(drafts)

    def forget(self, sequence: int) -> None:
        """A sequence is over."""
        self._read.pop(sequence, None)
        self._room.pop(sequence, None)
        self._cache.tables.release(sequence)

    def _agreed(self, sequence: int, tokens: Sequence[int]) -> int:
        """How many tokens at a sequence's beginning were read. What was read behind them was a draft that did not come true."""
        there = self._read.get(sequence, [])
        count = min(len(there), len(tokens) - 1)
        while there[:count] != list(tokens[:count]):
            count -= 1
        del there[count:]
        return count

    def _pass(self, sequence: int, first: int, tokens: Sequence[int]) -> torch.Tensor:
        """Hidden states ``[t, d]`` of tokens from place ``first`` on; sequences that nobody asked for lately make room."""
        there = self._read.pop(sequence, [])
        self._read[sequence] = there
        while True:
            try:
                places = self._cache.places([(sequence, first, len(tokens))])
                break
            except NoPagesError:
                if (oldest := next(iter(self._read))) == sequence:
                    raise
                self.forget(oldest)
        there += tokens
        return self._share.run(torch.tensor(tokens, device=self._share.device), places)

    def _timed(self) -> float:
        """Seconds of a pass of one token with its draw."""
        found = []
        for _ in range(TIMED):
            began = time.perf_counter()
            self.propose(0, (0,), Sampling(), 1)
            found.append(time.perf_counter() - began)
        self.forget(0)
        return min(found)


def fitting(draft: DraftModel | None, vocabulary: int) -> DraftModel | None:
    """A draft model that knows the same tokens as the model whose answers it drafts; None: it does not, which is logged."""
    if draft is None or draft.vocabulary == vocabulary:
        return draft
    LOG.warning(
        "the draft model knows %s tokens and the model %s: answers go on without it",
        f"{draft.vocabulary:,}",
        f"{vocabulary:,}",
    )
    return None
