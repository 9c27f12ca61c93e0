"""Tokens as text, in pieces that nothing later changes, up to a text that ends the answer."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class TextStream:
    """One answer as it comes."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        """``stops``: texts that end it, of which nothing is shown."""
        self._tokenizer, self._stops = tokenizer, stops
        self._stream = DecodeStream(skip_special_tokens=True)
        self._waiting = ""
        self.stopped = False

    def add(self, tokens: Sequence[int]) -> str:
        """What can be shown after these tokens. A part of a character waits for the rest, what may begin a stop for its end."""
        for token in tokens:
            if self.stopped:
                break
            self._waiting += self._stream.step(self._tokenizer, token) or ""
            found = [at for stop in self._stops if (at := self._waiting.find(stop)) >= 0]
            if found:
                self._waiting, self.stopped = self._waiting[: min(found)], True
        return self._shown(0 if self.stopped else max((_begun(self._waiting, stop) for stop in self._stops), default=0))

    def end(self) -> str:
        """What waited for more that did not come."""
        return self._shown(0)

    def _shown(self, kept: int) -> str:
        cut = len(self._waiting) - kept
        shown, self._waiting = self._waiting[:cut], self._waiting[cut:]
        return shown


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of a text may be the beginning of a stop."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
