"""Tokens that an answer may go on with: what followed the same words before, in its prompt or in itself.

Source: prompt lookup decoding (Saxena, 2023), as vLLM's and transformers' n-gram speculation.
"""

from collections.abc import Sequence

from trainer.serve.stages.passes import DRAFTS

GRAMS = (4, 3, 2)  # Tokens that must be alike; longer ones are better grounds.
FIRST_GUESS = 3  # Drafts before any was tried: a pass of four rows costs a processor little more than one of two.


class DraftedAnswer:
    """One sequence of tokens, and where its words were seen before. Guesses grow while they come true."""

    def __init__(self, tokens: Sequence[int]) -> None:
        """``tokens``: of the prompt, and of the answer where it has begun."""
        self.tokens: list[int] = []
        self._seen: dict[tuple[int, ...], int] = {}
        self._most, self._shortest = min(FIRST_GUESS, DRAFTS), GRAMS[-1]
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """These follow."""
        for token in tokens:
            end = len(self.tokens)
            for size in GRAMS:  # Only once something follows it, or a sequence's end would be its own forerunner.
                if end >= size:
                    self._seen[tuple(self.tokens[end - size : end])] = end
            self.tokens.append(token)

    def drafts(self, most: int) -> tuple[int, ...]:
        """What may follow, ``most`` tokens at most."""
        count = min(most, self._most)
        sizes = (size for size in GRAMS if self._shortest <= size <= len(self.tokens))
        found = (self._seen.get(tuple(self.tokens[-size:])) for size in sizes)
        at = next((one for one in found if one is not None), None)
        if at is None or count < 1:
            return ()
        period = len(self.tokens) - at
        return tuple(self.tokens[at + step % period] for step in range(count))

    def learn(self, drafted: int, agreed: int) -> None:
        """How many of the last drafts came true. Where none did, the next ones need better grounds."""
        if drafted:
            self._shortest = GRAMS[-1] if agreed else GRAMS[0]
            self._most = min(2 * max(agreed, 1), DRAFTS) if agreed < drafted else min(2 * self._most, DRAFTS)
