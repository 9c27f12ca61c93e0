"""How likely the tokens of an answer were, for those who ask."""

from collections import deque

from tokenizers import Tokenizer
from torch import Tensor

from protocol.serving import TokenLogprob

LEAST = -9999.0  # Nats of what cannot be, as OpenAI's API has it: JSON has no infinity.


class TokenLikelihoods:
    """Of one answer. Whoever draws notes them, on its own thread; whoever tells takes them."""

    def __init__(self, likeliest: int) -> None:
        """``likeliest``: so many of each place are noted beside the token itself."""
        self._likeliest = likeliest
        self._noted: deque[tuple[tuple[int, float], list[tuple[int, float]]]] = deque()

    def __deepcopy__(self, _: object) -> "TokenLikelihoods":
        """Of a request that gives way for want of cache and begins again: the same answer."""
        return self

    def note(self, logits: Tensor, token: int) -> None:
        """Note a token that was drawn of the model's own logits ``[vocabulary]``, before any temperature or form."""
        self.add(*noted_of(logits, token, self._likeliest))

    def add(self, own: tuple[int, float], likeliest: list[tuple[int, float]]) -> None:
        """Take what somebody else noted of the next token: as ``noted_of`` gives it."""
        self._noted.append((own, likeliest))

    def take(self, number: int, tokenizer: Tokenizer) -> tuple[TokenLogprob, ...]:
        """Those of the next tokens."""
        taken = [self._noted.popleft() for _ in range(number)]
        return tuple(
            TokenLogprob(
                tokenizer.decode([token], skip_special_tokens=False),
                max(nats, LEAST),
                tuple((tokenizer.decode([one], skip_special_tokens=False), max(value, LEAST)) for one, value in others),
            )
            for (token, nats), others in taken
        )


def noted_of(logits: Tensor, token: int, likeliest: int) -> tuple[tuple[int, float], list[tuple[int, float]]]:
    """A token with its logarithm of probability, and so many of the likeliest with theirs."""
    nats = logits.float().log_softmax(0)
    best = nats.topk(min(likeliest, len(nats)))
    return (token, float(nats[token])), list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
