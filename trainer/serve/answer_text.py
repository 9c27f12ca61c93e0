"""What an answer's tokens say, and where they end it: the same for who draws them and for who checks them."""

from collections.abc import Collection, Iterable

from tokenizers import Tokenizer

from protocol.serving import EndReason, FunctionCall, GenerateCommand
from trainer.serve.calls import END, CallsApart
from trainer.serve.texts import TextStream


class AnswerText:
    """One answer as its tokens come.

    Attributes:
        count: tokens until now, one that ends the answer among them.
        reason: why it has ended; None: it goes on.
        calls: of functions, once it has ended.
    """

    def __init__(self, tokenizer: Tokenizer, asked: GenerateCommand, ends: Collection[int], most: int) -> None:
        """``ends``: tokens that end an answer, and have no text; ``most``: how many tokens it may have."""
        self._ends, self._most = ends, most
        # One call ends where its mark does.
        ends_call = (END,) if asked.tools and not asked.choice.several else ()
        self._stream = TextStream(tokenizer, (*asked.stops, *ends_call))
        self._apart = CallsApart() if asked.tools else None
        self.count = 0
        self.reason: EndReason | None = None
        self.calls: tuple[FunctionCall, ...] = ()

    def add(self, tokens: Iterable[int]) -> str:
        """What can be shown after these tokens. Those behind the end are not read."""
        text = ""
        for token in tokens:
            if self.reason is not None:
                break
            self.count += 1
            if token not in self._ends:
                text += self._stream.add([token])
            if token in self._ends or self._stream.stopped:
                text += self._end("stop")
            elif self.count >= self._most:
                text += self._end("length")
        if self._apart is None:
            return text
        text = self._apart.add(text)
        if self.reason is not None:
            left, self.calls = self._apart.end()
            self._apart = None
            text += left
        return text

    def _end(self, reason: EndReason) -> str:
        self.reason = reason
        return self._stream.end()
