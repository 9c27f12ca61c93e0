"""What is known of replicas that answer, and of answers under way."""

import asyncio
from dataclasses import dataclass, field

from coordinator.domain.lease import Lease
from coordinator.domain.serving import NodeUsage
from protocol.serving import CheckCommand, EngineReport, GenerateCommand, TextReport
from protocol.task import Layers

MOST_TEXT = 256  # Characters of a token, on average: more are none of a model.


@dataclass
class AnsweringReplica:
    """Nodes that hold a model together, or one that holds all of it.

    Attributes:
        name: another one whenever its seats change. ``seats``: its leases by stage; the first one is asked, and says what comes.
        counted: until when it was counted. ``usage``, ``leaves``: since then; the digests of its answers.
        unpaid: leases that get nothing for what was not counted yet.
        silent: since when it has let an answer wait and said nothing. ``heard``: when it said something last.
        asked: when it was asked last. ``failures``: requests in a row that it could not answer.
        here: all its leases are live.
    """

    name: str
    seats: tuple[Lease, ...]
    layers: tuple[Layers, ...]
    counted: float
    asked: float
    heard: float
    answering: int = 0
    silent: float | None = None
    checked: int = 0
    usage: NodeUsage = field(default_factory=NodeUsage)
    leaves: list[bytes] = field(default_factory=list)
    unpaid: set[str] = field(default_factory=set)
    here: bool = True
    failures: int = 0

    @property
    def lease(self) -> Lease:
        """The one that is asked."""
        return self.seats[0]

    @property
    def staged(self) -> bool:
        """Whether several nodes hold it together."""
        return len(self.seats) > 1


@dataclass
class AnswerUnderWay:
    """What was said so far, and by whom."""

    command: GenerateCommand
    context: int
    tokens: list[int] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    failures: int = 0

    @property
    def limit(self) -> int:
        """Tokens that it may have."""
        return min(self.command.tokens or self.context, self.context)


@dataclass
class AnswerPart:
    """One replica's part of an answer.

    Attributes:
        first: the answer's tokens that came before. ``most``: reports that it can have.
        drawn: it is to be drawn again.
    """

    home: AnsweringReplica
    request: str
    first: int
    most: int
    reports: asyncio.Queue[EngineReport | None] = field(default_factory=asyncio.Queue)
    text: str = ""
    heard: bool = False
    counted: bool = False
    drawn: bool = False
    said: int = 0
    characters: int = 0
    tokens: int = 0

    def takes(self, report: EngineReport) -> bool:
        """Whether there may be one more report; who listens may be slow, and what waits for it is in memory."""
        self.said += 1
        if isinstance(report, TextReport):
            self.characters, self.tokens = self.characters + len(report.text), self.tokens + len(report.tokens)
        return self.said <= self.most and self.tokens <= self.most and self.characters <= MOST_TEXT * (self.tokens + 4)


@dataclass(frozen=True)
class DrawnAnswer:
    """An answer that is to be drawn again.

    Attributes:
        seats: who made it, by stage. ``layers``: what each of them holds.
        until: on the coordinator's clock; what stages say of it later than that does not count.
        silent: stages that have not said all of what crossed between them and their neighbours.
    """

    job: str
    seats: tuple[Lease, ...]
    layers: tuple[Layers, ...]
    period: int
    check: CheckCommand
    until: float = 0.0
    silent: tuple[int, ...] = ()
