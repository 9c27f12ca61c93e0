"""The next token of each request of a batch, by its own temperature and seed."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from protocol.serving import Sampling
from trainer.serve.grammar import AnswerForm
from trainer.serve.likelihoods import TokenLikelihoods

SAMPLING, FORM, LIKELIHOODS, ADAPTER = "sampling", "form", "likelihoods", "adapter"
SORTED = 512
_GREEDY = Sampling(temperature=0)


class SeededSampler(ContinuousBatchingLogitsProcessor):
    """Leaves one token of each row of logits, so that the likeliest one is the one that was drawn; of forms what may follow.

    What is drawn hangs on the request's seed and the token's place alone, not on what else is in the batch. A draw is the least
    of exponential times over probabilities (the Gumbel-max trick).
    """

    def __init__(self) -> None:
        self.supported_kwargs: dict[str, type] = {
            SAMPLING: Sampling,
            FORM: AnswerForm,
            LIKELIHOODS: TokenLikelihoods,
            ADAPTER: int,
        }
        self.ignored_kwargs: tuple[str, ...] = ()
        self._states: list[Any] = []

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """Nothing of a request lies in tensors."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> Tensor:
        """Remember whose rows come next."""
        self._states = [one.state for one in requests_with_new_token]
        return torch.zeros(len(self._states), dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """``scores`` [rows, vocabulary]: of rows that are drawn, all but one become -inf."""
        for row, state in enumerate(self._states[: scores.size(0)]):
            sampling = state.logit_processor_kwargs.get(SAMPLING, _GREEDY)
            told = state.logit_processor_kwargs.get(LIKELIHOODS)
            own = scores[row].clone() if told is not None else None
            # A request that gave way for want of cache has begun again, with its own tokens as its prompt.
            if (form := state.logit_processor_kwargs.get(FORM)) is not None:
                form.restrict(scores[row : row + 1], [*state.initial_tokens, *state.generated_tokens])
            if sampling.temperature > 0:
                place = len(state.initial_tokens) + len(state.generated_tokens)
                token = drawn(scores[row], sampling, place)
                scores[row] = float("-inf")
                scores[row, token] = 0.0
            if told is not None and own is not None:
                told.note(own, int(scores[row].argmax()))
        return scores


def drawn(logits: Tensor, sampling: Sampling, place: int) -> int:
    """The token at a place of a sequence, of logits ``[vocabulary]``."""
    scaled = logits.float().cpu() / sampling.temperature
    noise = times(sampling.seed, place, len(scaled))
    count = min(sampling.top_k, len(scaled)) or len(scaled)
    if count == len(scaled) and sampling.top_p >= 1:
        return int((scaled.softmax(0) / noise).argmax())
    shares, indices = _likeliest(scaled, count, sampling.top_p)
    before = shares.cumsum(0) - shares
    shares = torch.where(before < sampling.top_p, shares, 0.0)
    return int(indices[(shares / noise[indices]).argmax()])


def _likeliest(scaled: Tensor, count: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Probabilities and tokens of the ``count`` likeliest, likeliest first: of all no more than ``top_p`` needs.

    Sorting a whole vocabulary takes 6 ms, and few tokens have most of the probability.
    """
    if count == len(scaled) > SORTED:
        some = torch.topk(scaled, SORTED)
        shares = scaled.softmax(0)[some.indices]
        if float(shares.sum()) >= top_p:
            return shares, some.indices
    best = torch.topk(scaled, count)
    return best.values.softmax(0), best.indices


def times(seed: int, place: int, vocabulary: int) -> Tensor:
    """Exponential times ``[vocabulary]`` of the tokens at a place: the same on every machine, whatever the logits are.

    A token has its own, whatever its rank, so where rounding swaps two tokens nothing else changes. Source: Philox (Salmon and
    others, 2011), of which NumPy promises that its numbers stay; those of torch differ with how it was built.
    """
    key = hashlib.blake2b(f"{seed}:{place}".encode(), digest_size=16).digest()
    numbers = np.random.Philox(key=int.from_bytes(key)).random_raw(vocabulary)
    evenly = ((numbers >> np.uint64(11)) + 0.5) * 2.0**-53
    return torch.from_numpy(-np.log(evenly).astype(np.float32))
