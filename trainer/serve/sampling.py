"""The next token of each request of a batch, by its own temperature and seed."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from protocol.serving import Sampling
from trainer.serve.grammar import AnswerForm

SAMPLING, FORM = "sampling", "form"
_GREEDY = Sampling(temperature=0)


class SeededSampler(ContinuousBatchingLogitsProcessor):
    """Leaves one token of each row of logits, so that the likeliest one is the one that was drawn; of forms what may follow.

    What is drawn hangs on the request's seed and the token's place alone, not on what else is in the batch. A draw is the least
    of exponential times over probabilities (the Gumbel-max trick).
    """

    def __init__(self) -> None:
        self.supported_kwargs: dict[str, type] = {SAMPLING: Sampling, FORM: AnswerForm}
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
            # A request that gave way for want of cache has begun again, with its own tokens as its prompt.
            if (form := state.logit_processor_kwargs.get(FORM)) is not None:
                form.restrict(scores[row : row + 1], [*state.initial_tokens, *state.generated_tokens])
            if sampling.temperature > 0:
                place = len(state.initial_tokens) + len(state.generated_tokens)
                token = drawn(scores[row], sampling, place)
                scores[row] = float("-inf")
                scores[row, token] = 0.0
        return scores


def drawn(logits: Tensor, sampling: Sampling, place: int) -> int:
    """The token at a place of a sequence, of logits ``[vocabulary]``."""
    count = min(sampling.top_k, len(logits)) or len(logits)
    best = torch.topk(logits.float().cpu() / sampling.temperature, count)
    shares = best.values.softmax(0)
    before = shares.cumsum(0) - shares
    shares = torch.where(before < sampling.top_p, shares, 0.0)
    seed = hashlib.blake2b(f"{sampling.seed}:{place}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(seed) >> 1)
    times = torch.empty(count).exponential_(generator=generator)
    return int(best.indices[(shares / times).argmax()])
