"""Which drafts an answer's next pass has, and how many: those that were seen before, a draft model's, or none.

What was seen before costs nothing. A draft model's pass costs time, and is worth it while its draft is likely enough to come
true. So many are drafted as make the most tokens a second: by how often drafts of this answer came true, how long a turn around
the stages takes, and how long a pass of the draft model does. Times decide how many are drafted, and never what is drawn.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Literal, Protocol, TypeVar

from protocol.serving import Sampling
from trainer.serve.stages.ngrams import DraftedAnswer
from trainer.serve.stages.passes import DRAFTS

SEEN_CHANCE, MODEL_CHANCE = 0.5, 0.5  # Of a draft to come true, before any was tried.
WEIGHT = 0.1  # Of the newest draft in a mean.
REST, LONGEST_REST = 16, 1024  # Turns without a draft of the model, where none is worth it; then one is tried again.
LATE = 16  # Tokens that the draft model may read before it drafts; more of them are read while the stage waits.

LOG = logging.getLogger("cottage.worker")

Source = Literal["seen", "model"]
T = TypeVar("T")


class Drafter(Protocol):
    """A draft model, as ``trainer.serve.stages.draft_model`` has it."""

    longest: int
    pass_s: float

    def behind(self, sequence: int, tokens: Sequence[int]) -> int: ...

    def has_room(self, sequence: int, count: int) -> bool: ...

    def read(self, sequence: int, tokens: Sequence[int]) -> None: ...

    def propose(self, sequence: int, tokens: Sequence[int], sampling: Sampling, count: int) -> tuple[int, ...]: ...

    def forget(self, sequence: int) -> None: ...


@dataclass(eq=False)
class AnswerDrafts:
    """Drafts of one answer.

    Attributes:
        so_far: its tokens, and where its words were seen before.
        number: the draft model's name for it.
        chances: of a draft to come true, if those before it did.
        seen: what was seen behind the same words. ``asked``: whether the draft model's drafts went out in its place.
        idle: turns since the draft model was last asked. ``rest``: how many it is left alone for, if it is.
    """

    so_far: DraftedAnswer
    sampling: Sampling
    number: int
    chances: dict[Source, float]
    seen: tuple[int, ...] = ()
    asked: bool = False
    idle: int = 0
    rest: int = REST


@dataclass
class Drafting:
    """Drafts for the answers that a first stage leads. All on one thread.

    Attributes:
        model: None: there is none, or it has failed.
        clock: seconds.
        proposed, agreed: how many drafts of each source went out, and came true.
    """

    model: Drafter | None = None
    clock: Callable[[], float] = time.perf_counter
    proposed: dict[Source, int] = field(default_factory=lambda: {"seen": 0, "model": 0})
    agreed: dict[Source, int] = field(default_factory=lambda: {"seen": 0, "model": 0})
    _chances: dict[Source, float] = field(default_factory=lambda: {"seen": SEEN_CHANCE, "model": MODEL_CHANCE})
    _turn_s: float | None = None
    _pass_s: float | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def begin(self, tokens: Sequence[int], sampling: Sampling) -> AnswerDrafts:
        """An answer, with the tokens of its prompt and those that it has begun with."""
        return AnswerDrafts(DraftedAnswer(tokens), sampling, next(self._numbers), dict(self._chances))

    def end(self, answer: AnswerDrafts) -> None:
        """An answer is over."""
        if self.model is not None:
            self._tried(partial(self.model.forget, answer.number))

    def drafts(self, answer: AnswerDrafts, most: int) -> tuple[int, ...]:
        """What an answer may go on with, ``most`` tokens at most."""
        answer.seen = seen = answer.so_far.drafts(most)
        answer.asked = False
        if self.model is None or most < 1:
            return seen
        wanted, rate = self._wanted(answer, min(most, DRAFTS))
        if seen and _expected(answer.chances["seen"], len(seen)) >= rate:
            return seen
        answer.idle += 1
        made = self._proposed(answer, wanted) if wanted else ()
        answer.asked = bool(made)
        return made or seen

    def learn(self, answer: AnswerDrafts, drafts: Sequence[int], tokens: Sequence[int]) -> None:
        """What was drawn behind an answer's last drafts; it also tells what those were worth that did not go out."""
        source: Source = "model" if answer.asked else "seen"
        self.proposed[source] += len(drafts)
        self.agreed[source] += _agreed(drafts, tokens)
        if drafts and answer.asked:
            self._note(answer, "model", drafts, tokens)
            if tokens[0] == drafts[0]:
                answer.rest = REST
        if answer.seen:
            self._note(answer, "seen", answer.seen, tokens)
            told = _agreed(answer.seen, tokens)
            wrong = told < min(len(answer.seen), len(tokens))
            answer.so_far.learn(len(answer.seen) if wrong else told, told)
        answer.seen, answer.asked = (), False
        answer.so_far.extend(tokens)

    def _note(self, answer: AnswerDrafts, source: Source, drafts: Sequence[int], tokens: Sequence[int]) -> None:
        told = _agreed(drafts, tokens)
        wrong = told < min(len(drafts), len(tokens))
        for truth in [1.0] * told + [0.0] * wrong:
            for chances in (answer.chances, self._chances):
                chances[source] += WEIGHT * (truth - chances[source])

    def turned(self, seconds: float) -> None:
        """A turn around the stages with a row of one token and its drafts took so long."""
        self._turn_s = seconds if self._turn_s is None else self._turn_s + WEIGHT * (seconds - self._turn_s)

    def read_on(self, answers: Sequence[AnswerDrafts]) -> bool:
        """Have the draft model read a piece of what it has not read yet; False: there is nothing, or it is not worth it.

        Args:
            answers: those under way that may have drafts.
        """
        for answer in answers:
            wanted = self.model is not None and self._wanted(answer, 1)[0]
            if wanted and self._tried(partial(self._read, answer)):
                return True
        return False

    def _read(self, answer: AnswerDrafts) -> bool:
        """Read a piece; False without room, or where only few tokens are left, which are read with the next draft."""
        assert self.model is not None
        tokens = answer.so_far.tokens
        if not self.model.has_room(answer.number, len(tokens)) or self.model.behind(answer.number, tokens) <= LATE:
            return False
        self.model.read(answer.number, tokens)
        return True

    def _wanted(self, answer: AnswerDrafts, most: int) -> tuple[int, float]:
        """How many drafts of the model make the most tokens in a turn's time, and how many tokens that are."""
        assert self.model is not None
        if self._turn_s is None:
            return 1, 1.0
        chance, cost = answer.chances["model"], (self._pass_s or self.model.pass_s) / self._turn_s
        rates = [_expected(chance, drafts) / (1 + drafts * cost) for drafts in range(most + 1)]
        best = max(range(most + 1), key=rates.__getitem__)
        # Where none is worth it, one is tried now and then: the text may have become easier, or the machine calmer.
        return (1, 1.0) if not best and answer.idle >= answer.rest else (best, rates[best])

    def _proposed(self, answer: AnswerDrafts, wanted: int) -> tuple[int, ...]:
        return self._tried(partial(self._propose, answer, wanted)) or ()

    def _propose(self, answer: AnswerDrafts, wanted: int) -> tuple[int, ...]:
        """Drafts of the model; none while it has much to read or no room, or where the sequence is too long for it."""
        assert self.model is not None
        tokens = answer.so_far.tokens
        if len(tokens) >= self.model.longest or not self.model.has_room(answer.number, len(tokens)):
            return ()
        if self.model.behind(answer.number, tokens) > LATE:
            return ()
        began = self.clock()
        made = self.model.propose(answer.number, tokens, answer.sampling, wanted)
        if made:
            if answer.idle > answer.rest:
                answer.rest = min(2 * answer.rest, LONGEST_REST)
            answer.idle = 0
            before = self._pass_s or self.model.pass_s
            self._pass_s = before + WEIGHT * ((self.clock() - began) / len(made) - before)
        return made

    def _tried(self, what: Callable[[], T]) -> T | None:
        """What comes of asking the draft model; None where it fails, and it is not asked again."""
        try:
            return what()
        except Exception as error:  # noqa: BLE001 - whatever it is: answers go on without drafts
            LOG.warning("the draft model has failed, and answers go on without it: %s", error)
            self.model = None
            return None


def _agreed(drafts: Sequence[int], tokens: Sequence[int]) -> int:
    """How many drafts came true."""
    pairs = zip(drafts, tokens, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(drafts), len(tokens)))


def _expected(chance: float, drafts: int) -> float:
    """Tokens that a turn brings with so many drafts, each of which comes true with this chance."""
    return sum(chance**place for place in range(drafts + 1))
