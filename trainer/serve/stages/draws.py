"""The last stage's part: the next tokens of each request, by its own temperature, seed and form."""

from dataclasses import dataclass

import torch
from torch import Tensor

from protocol.codec import MessageError
from protocol.serving import Sampling
from trainer.errors import DataError
from trainer.serve.grammar import AnswerForm, AnswerForms
from trainer.serve.likelihoods import LEAST, noted_of
from trainer.serve.sampling import drawn
from trainer.serve.stages.passes import DrawnRow, NotedToken, OpenedRequest, PassHeader, PassRow
from trainer.serve.stages.share import ModelShare
from trainer.transfer import HostCopy, whole_numbers


@dataclass
class DrawingRequest:
    """A request whose tokens are drawn here.

    Attributes:
        said: tokens of its answer that its ``form`` has to know.
        states: of a text that is embedded the sum of its hidden states so far, ``[d]``, and of how many tokens.
    """

    opened: OpenedRequest
    form: AnswerForm | None
    said: list[int]
    states: tuple[Tensor, int] | None = None


class TokenDraws:
    """Draws for all requests that are open."""

    def __init__(self, share: ModelShare) -> None:
        """``share``: the last one."""
        self._share, known = share, share.tokens
        self._forms = AnswerForms(known.tokenizer, known.vocabulary, known.ends)
        self._requests: dict[int, DrawingRequest] = {}

    def forget(self) -> None:
        """No request is open any more."""
        self._requests.clear()

    def follow(self, header: PassHeader) -> None:
        """Close and open what a pass says; raises MessageError where that cannot be."""
        if header.reset:
            self.forget()
        for closed in header.closed:
            self._requests.pop(closed.number, None)
        for opened in header.opened:
            try:
                form = None if opened.grammar is None else self._forms.of(opened.grammar, 0)
                if form is not None:
                    form.begin(opened.begun)
            except (DataError, ValueError, TypeError, RecursionError) as error:
                raise MessageError(f"request {opened.number} has a form that cannot be: {error}"[:400]) from error
            self._requests[opened.number] = DrawingRequest(opened, form, list(opened.begun))

    @torch.inference_mode()
    def draw(self, header: PassHeader, hidden: Tensor) -> tuple[tuple[DrawnRow, ...], Tensor | None]:
        """What comes of a pass's rows that draw, and vectors ``[n, d]`` of texts that end here; None: none does.

        Args:
            hidden: ``[t, d]`` of all rows.
        """
        drawing: list[PassRow] = []
        kept: list[int] = []
        vectors: list[Tensor] = []
        begin = 0
        for row in header.rows:
            begin += row.count
            if row.number in self._requests and self._requests[row.number].opened.embeds:
                vectors += self._embedded(row, hidden[begin - row.count : begin])
            elif row.draws:
                kept += range(begin - 1 - len(row.drafts), begin)
            if row.draws:
                drawing.append(row)
        logits = HostCopy(self._logits(hidden, kept)).arrived() if kept else hidden[:0]
        rows, begin = [], 0
        for row in drawing:
            if self._requests[row.number].opened.embeds:
                rows.append(DrawnRow(row.number))
                continue
            end = begin + 1 + len(row.drafts)
            rows.append(self._draw(row, logits[begin:end]))
            begin = end
        return tuple(rows), torch.stack(vectors) if vectors else None

    def _logits(self, hidden: Tensor, kept: list[int]) -> Tensor:
        return self._share.logits(hidden[whole_numbers(kept, hidden.device)])

    def _embedded(self, row: PassRow, states: Tensor) -> list[Tensor]:
        """The vector of a text that ends with these hidden states ``[t, d]``; nothing while it goes on."""
        one = self._requests[row.number]
        total, count = one.states or (torch.zeros_like(states[0], dtype=torch.float32), 0)
        total, count = total + states.float().sum(0), count + len(states)
        one.states = (total, count)
        return [mean_vector(total / count)] if row.draws else []

    def _draw(self, row: PassRow, logits: Tensor) -> DrawnRow:
        """Tokens up to the first that is another one than its draft. ``logits``: ``[1 + drafts, vocabulary]``."""
        one, tokens, noted = self._requests[row.number], list[int](), list[NotedToken]()
        first = row.first + row.count - len(row.drafts)
        for step, scores in enumerate(logits):
            own = None if one.opened.likeliest is None else scores.clone()
            if one.form is not None:
                one.form.restrict(scores[None], one.said)
            tokens.append(_next(scores, one.opened.sampling, first + step))
            if one.form is not None:
                one.said.append(tokens[-1])
            if own is not None:
                noted.append(_noted(own, tokens[-1], one.opened.likeliest or 0))
            if tokens[-1] in self._share.tokens.ends or tokens[-1] != (*row.drafts, -1)[step]:
                break
        return DrawnRow(row.number, tuple(tokens), tuple(noted))


def mean_vector(mean: Tensor) -> Tensor:
    """A mean of hidden states ``[d]`` of length 1; raises MessageError where it has none."""
    made: Tensor = mean / mean.norm()
    if not bool(made.isfinite().all()):
        raise MessageError("the model's hidden states are no numbers, or all zero")
    return made


def _next(scores: Tensor, sampling: Sampling, place: int) -> int:
    return drawn(scores, sampling, place) if sampling.temperature > 0 else int(scores.argmax())


def _noted(logits: Tensor, token: int, likeliest: int) -> NotedToken:
    own, best = noted_of(logits, token, likeliest)
    return NotedToken((own[0], max(own[1], LEAST)), tuple((one, max(nats, LEAST)) for one, nats in best))
