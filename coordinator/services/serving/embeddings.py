"""Embeddings that nodes make: which texts go next, what came of them, and what is looked at of it again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from coordinator.domain.serving import NodeUsage
from protocol.serving import CheckEmbeddingsCommand, EmbedCommand, EmbeddedReport, EngineReport

PORTION = 32  # Texts that a node is asked for at a time.
PORTION_BYTES = 128 << 10  # Of them; one longer text goes by itself.
CHECKED_TEXTS = 4  # Of a portion that is drawn, so many are computed again.


@dataclass
class EmbeddingsUnderWay:
    """A request for embeddings under way.

    Attributes:
        context: tokens that a text may have.
        counts, vectors: of the texts that are done, in order.
        nodes: names of those that made them. ``tried``: leases that failed at it, ``failures`` times; ``crowded``: had no room.
    """

    command: EmbedCommand
    context: int
    counts: list[int] = field(default_factory=list)
    vectors: list[bytes] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    failures: int = 0
    crowded: int = 0
    _until: int = 0

    @property
    def done(self) -> int:
        """Texts whose embeddings are there."""
        return len(self.vectors)

    @property
    def limit(self) -> int:
        """Embeddings that a node may make at a time."""
        return PORTION

    @property
    def tokens(self) -> int:
        """Of an answer; embeddings have none."""
        return 0

    @property
    def prompt(self) -> int:
        """Tokens of all texts."""
        return sum(self.counts)

    def asks(self, request: str) -> EmbedCommand:
        """What the next node is asked: the next texts."""
        texts = self.command.texts[self.done : self.done + PORTION]
        size = 0
        for number, text in enumerate(texts):
            size += len(msgspec.msgpack.encode(text))
            if number and size > PORTION_BYTES:
                texts = texts[:number]
                break
        self._until = self.done + len(texts)
        return EmbedCommand(request, texts, self.command.adapter)

    def takes(self, report: EngineReport) -> bool:
        """Take a piece; False: no model says so."""
        if not isinstance(report, EmbeddedReport) or not 0 < len(report.tokens) == len(report.vectors):
            return False
        if self.done + len(report.vectors) > self._until or any(count > self.context for count in report.tokens):
            return False
        self.counts += report.tokens
        self.vectors += report.vectors
        return len({len(vector) for vector in self.vectors}) <= 1

    def ends(self) -> bool | None:
        """At the end of what a node was asked: whether all is there; None: the node has made fewer than it was asked for."""
        return None if self.done < self._until else self.done == len(self.command.texts)

    def check(self, request: str, first: int, *_: Any) -> CheckEmbeddingsCommand:
        """The question whether a node's part, from the ``first`` text on, is right."""
        asked = EmbedCommand(request, self.command.texts[first : self.done], self.command.adapter)
        return CheckEmbeddingsCommand(request, asked, tuple(self.counts[first:]), tuple(self.vectors[first:]))

    def usage(self, first: int, _prompt: int | None) -> NodeUsage:
        """What a node's part counts as: its texts are read, as a prompt is."""
        return NodeUsage(1, sum(self.counts[first:]), 0)


def some_of(check: CheckEmbeddingsCommand, entropy: Callable[[int], bytes]) -> CheckEmbeddingsCommand:
    """The same of some of its texts, by lot: which ones nobody foresaw."""
    lots = sorted((entropy(4), number) for number in range(len(check.vectors)))
    chosen = sorted(number for _, number in lots[:CHECKED_TEXTS])

    def of(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[number] for number in chosen)

    asked = msgspec.structs.replace(check.asked, texts=of(check.asked.texts))
    return CheckEmbeddingsCommand(check.id, asked, of(check.tokens), of(check.vectors))
