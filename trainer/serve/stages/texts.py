"""Requests for embeddings at the first stage: each text goes through the stages by itself, and its vector comes back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from protocol.serving import AnsweredReport, EmbeddedReport, EngineReport, RefusedReport
from trainer.serve.embeddings import REPORT_BYTES


@dataclass
class LedTexts:
    """One request.

    Attributes:
        rows: its texts as tokens.
        vectors: those that are there, by place. ``told``: how many were said, in order.
    """

    request: str
    rows: Sequence[Sequence[int]]
    say: Callable[[EngineReport], None]
    vectors: dict[int, bytes] = field(default_factory=dict)
    told: int = 0
    over: bool = False

    def take(self, place: int, vector: Tensor) -> bool:
        """The vector ``[d]`` of one text; what is there without a gap is said. True: it was the last one."""
        if self.over:
            return True
        self.vectors[place] = vector.numpy().astype("<f4").tobytes()
        most = max(1, REPORT_BYTES // len(self.vectors[place]))
        while self.told in self.vectors:
            upto = self.told
            while upto in self.vectors and upto - self.told < most:
                upto += 1
            places = range(self.told, upto)
            counts = tuple(len(self.rows[one]) for one in places)
            self.say(EmbeddedReport(self.request, counts, tuple(self.vectors.pop(one) for one in places)))
            self.told = upto
        self.over = self.told == len(self.rows)
        if self.over:
            self.say(AnsweredReport(self.request, "stop", sum(map(len, self.rows)), 0))
        return self.over

    def fail(self, detail: str) -> None:
        """It cannot be done; said once."""
        if not self.over:
            self.over = True
            self.say(RefusedReport(self.request, "failed", detail))
