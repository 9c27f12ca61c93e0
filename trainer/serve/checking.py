"""Whether this model, asked so, says this: all its tokens in one pass, and each drawn again with the same seed.

Whoever answered computed the same in other batches, so logits differ by rounding. A token may therefore be a little behind the
one that comes out here; which of two that are as good as equal it was, nobody can say.
"""

import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from protocol.serving import CheckCommand, CheckedReport, Sampling
from trainer.serve.adapters import adapted, whole_pass
from trainer.serve.loading import LoadedModel
from trainer.serve.requests import AskedAnswer
from trainer.serve.sampling import times
from trainer.serve.stages.blame import BoundaryWatch

TOLERANCE = 0.05  # Nats that rounding may put a token behind the one that is drawn here.
SLACK = 1e-3  # Of probability, at the border of ``top_p``.
MOST = 1000.0  # Nats: a token that cannot be drawn is no further away.
MAX_WRONG = 500
LOGITS = 1 << 24  # That are in memory at a time.
STEP = 512  # Tokens that are computed at a time.


def wrong(request: str, detail: str, worst: float = 0.0, stages: tuple[int, ...] = ()) -> CheckedReport:
    """What is not as the model says it. ``stages``: who of several can have done it."""
    return CheckedReport(request, detail[:MAX_WRONG], worst, stages)


def leads_fault(command: CheckCommand, detail: str) -> CheckedReport:
    """What is not as the model says it, and needs no pass to be seen: of several stages the first one says such things."""
    return wrong(command.id, detail, stages=(0,) if command.boundaries else ())


class AnswerPasses:
    """A model's logits behind each token of an answer, which is read like a prompt.

    Attributes:
        model: with the parameters of the loaded one.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        """Before anything changes how the model attends."""
        self.model, self._config = loaded.twin(), loaded.config
        self._step = max(16, min(STEP, LOGITS // loaded.vocabulary))
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Give up what is under way."""
        self._stopped.set()

    @torch.no_grad()
    def rows(self, tokens: Sequence[int], first: int) -> Iterator[Tensor]:
        """The logits ``[vocabulary]`` behind each token from the one at ``first`` on, of a few at a time."""
        device = self.model.device
        cache = DynamicCache(config=self._config)
        for begin in range(0, len(tokens), self._step):
            if self._stopped.is_set():
                raise InterruptedError("the check was given up")
            part = tokens[begin : begin + self._step]
            kept = min(len(part), begin + len(part) - first)
            logits = self.model(
                input_ids=torch.tensor([part], device=device),
                position_ids=torch.arange(begin, begin + len(part), device=device)[None],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=max(kept, 1),
            ).logits
            if kept > 0:
                yield from logits[0, -kept:].float().cpu()


class AnswerChecker:
    """Looks at answers, beside an engine that draws others with the same parameters."""

    def __init__(self, loaded: LoadedModel) -> None:
        """Before anything changes how the model attends."""
        self._passes = AnswerPasses(loaded)

    def stop(self) -> None:
        """Give up what is under way."""
        self._passes.stop()

    def check(self, command: CheckCommand, asked: AskedAnswer) -> CheckedReport:
        """Look at one answer. ``asked``: its request, of which nothing was answered yet."""
        if found := told(command, asked):
            return leads_fault(command, found)
        watch = BoundaryWatch(self._passes.model, command.asked.id, command.boundaries)
        with watch.watching(), adapted(whole_pass(command.asked.adapter)):
            found, worst = self._drawn(command, asked)
        return wrong(command.id, found, worst, watch.stages() if found and command.boundaries else ())

    def _drawn(self, command: CheckCommand, asked: AskedAnswer) -> tuple[str, float]:
        """What is wrong with an answer's tokens, in words, and how far the worst is behind its draw."""
        before, tokens, sampling = [*asked.prompt, *command.asked.begun], command.tokens, command.asked.sampling
        whole = [*before, *tokens]
        found, worst = "", 0.0
        for at, row in enumerate(self._passes.rows(whole[:-1], len(before) - 1)):
            called = f"token {at + 1:,} of {len(tokens):,}"
            token, place = tokens[at], len(before) + at
            if asked.form is not None:
                asked.form.restrict(row[None], whole[:place])
                if row[token] == float("-inf"):
                    return found or f"{called} does not keep to the schema", MOST
            behind, inside = distance(row, sampling, place, token)
            worst = max(worst, behind)
            if not found and not inside:
                found = f"{called} is not among the likeliest, of which one is drawn (top_k, top_p)"
            elif not found and behind > TOLERANCE:
                found = f"{called} is {behind:,.2f} nats behind the one that this model draws"
        return found, worst


def told(command: CheckCommand, asked: AskedAnswer) -> str:
    """What is wrong with an answer that a model need not be asked for."""
    if command.prompt not in (None, len(asked.prompt)):
        return f"the prompt has {len(asked.prompt):,} tokens, not {command.prompt:,}"
    said, whole = asked.text, len(command.asked.begun) + len(command.tokens)
    said.add(command.asked.begun)
    text = said.add(command.tokens)
    if said.reason is None and command.reason is not None:
        return f"the answer was ended before its end: nothing ends it after {whole:,} tokens"
    if said.count < whole:
        return f"the answer goes on behind its end: it ends with token {said.count:,} of {whole:,}"
    if said.reason != command.reason is not None:
        return f"the answer ended for another reason: {said.reason}, not {command.reason}"
    if said.calls != command.calls and command.reason is not None:
        return "the functions that it asks for are not what its tokens say"
    return "" if text == command.text else "the text is not what its tokens say"


def distance(logits: Tensor, sampling: Sampling, place: int, token: int) -> tuple[float, bool]:
    """How many nats a token is behind the one that is drawn, and whether it may be drawn at all; where not, ``MOST`` nats.

    Args:
        logits: ``[vocabulary]``, float32, of which ``-inf`` cannot be drawn.
        place: of the sequence.
    """
    scores = scores_of(logits, sampling, place)
    if _all_are_drawn(sampling, len(scores)):
        return _bounded(scores.max() - scores[token]), True
    sure, inside = _inside(logits / sampling.temperature, sampling, token, TOLERANCE)
    if not inside:
        return MOST, False
    return _bounded(scores[sure].max() - scores[token]) if len(sure) else 0.0, True


def scores_of(logits: Tensor, sampling: Sampling, place: int) -> Tensor:
    """Of the tokens that may be drawn the one with the highest of these ``[vocabulary]``, in nats, is."""
    if sampling.temperature == 0:
        return logits
    return logits / sampling.temperature - times(sampling.seed, place, len(logits)).log()


def surely_drawn(logits: Tensor, sampling: Sampling, tolerance: float) -> Tensor:
    """Which tokens ``[vocabulary]`` may be drawn for sure, though each logit be so many nats off."""
    if _all_are_drawn(sampling, len(logits)):
        return torch.ones(len(logits), dtype=torch.bool)
    sure, _ = _inside(logits / sampling.temperature, sampling, 0, tolerance)
    return torch.zeros(len(logits), dtype=torch.bool).index_fill_(0, sure, True)


def _all_are_drawn(sampling: Sampling, vocabulary: int) -> bool:
    return sampling.temperature == 0 or (not 0 < sampling.top_k < vocabulary and sampling.top_p >= 1)


def _inside(scaled: Tensor, sampling: Sampling, token: int, tolerance: float) -> tuple[Tensor, bool]:
    """The tokens that are among the likeliest whatever the rounding; whether ``token`` may be."""
    count = min(sampling.top_k, len(scaled)) or len(scaled)
    best = torch.topk(scaled, min(count + 1, len(scaled)))
    values = best.values[:count]
    beyond = best.values[count] if count < len(scaled) else torch.tensor(-MOST)
    # The probability of all that are likelier than each, by more than rounding, or for sure.
    masses = torch.cat([torch.zeros(1), values.softmax(0).cumsum(0)])
    rising = -values
    most = masses[torch.searchsorted(rising, rising + tolerance, right=True)] - values.softmax(0)
    sure = (most + SLACK < sampling.top_p) & (values > beyond + tolerance)
    least = float(masses[int(torch.searchsorted(rising, -scaled[token] - tolerance))])
    inside = bool(scaled[token] >= values[-1] - tolerance) and least - SLACK < sampling.top_p
    return best.indices[:count][sure], inside


def _bounded(nats: Tensor) -> float:
    value = max(float(nats), 0.0)
    return value if value < MOST else MOST  # Also of what is no number.
