"""What is known of replicas that answer, and of answers under way."""

import asyncio
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec

from coordinator.domain.accusations import AccusedAnswer
from coordinator.domain.lease import Lease
from coordinator.domain.serving import NodeUsage
from protocol.serving import (
    AnswerCheck,
    CheckCommand,
    EmbeddedReport,
    EndReason,
    EngineReport,
    FunctionCall,
    GenerateCommand,
    TextReport,
)
from protocol.task import Layers

MOST_TEXT = 256  # Characters of a token, on average: more are none of a model.


@dataclass
class AnsweringReplica:
    """Nodes that hold a model together, or one that holds all of it.

    Attributes:
        name: another one whenever its seats change. ``seats``: its leases by stage; the first one is asked, and says what comes.
        keys: of their sketches, by stage.
        counted: until when it was counted. ``usage``, ``leaves``: since then; the digests of its answers.
        unpaid: leases that get nothing for what was not counted yet.
        silent: since when it has let an answer wait and said nothing. ``missed``: since one of its seats did not say that it is
            there. ``heard``: when it said something last.
        asked: when it was asked last. ``failures``: requests in a row that it could not answer.
        here: all its leases are live. ``sessions``: private ones that it was named for.
    """

    name: str
    seats: tuple[Lease, ...]
    layers: tuple[Layers, ...]
    keys: tuple[bytes, ...]
    counted: float
    asked: float
    heard: float
    answering: int = 0
    silent: float | None = None
    missed: bool = False
    checked: int = 0
    usage: NodeUsage = field(default_factory=NodeUsage)
    leaves: list[bytes] = field(default_factory=list)
    unpaid: set[str] = field(default_factory=set)
    here: bool = True
    failures: int = 0
    sessions: int = 0

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
    crowded: int = 0

    @property
    def limit(self) -> int:
        """Tokens that it may have."""
        return min(self.command.tokens or self.context, self.context)

    @property
    def done(self) -> int:
        """Tokens that it has."""
        return len(self.tokens)

    def asks(self, request: str) -> GenerateCommand:
        """What the next node is asked."""
        return msgspec.structs.replace(self.command, id=request, begun=tuple(self.tokens))

    def takes(self, report: EngineReport) -> bool:
        """Take a piece; False: no model says so."""
        if not isinstance(report, TextReport) or self.done + len(report.tokens) > self.limit:
            return False
        self.tokens += report.tokens
        return True

    def check(
        self,
        request: str,
        first: int,
        text: str,
        reason: EndReason | None,
        prompt: int | None,
        calls: tuple[FunctionCall, ...],
    ) -> CheckCommand:
        """The question whether a node's part, from the ``first`` token on, is right."""
        tokens = tuple(self.tokens)
        asked = msgspec.structs.replace(self.command, id=request, begun=tokens[:first])
        return CheckCommand(request, asked, tokens[first:], text, reason, prompt, calls, self.context)

    def usage(self, first: int, prompt: int | None) -> NodeUsage:
        """What a node's part counts as."""
        return NodeUsage(1, prompt or 0, self.done - first)


@dataclass
class AnswerPart:
    """One replica's part of an answer.

    Attributes:
        first: tokens of the answer, or embeddings, that came before. ``most``: reports that it can have.
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

    def has_room(self, report: EngineReport) -> bool:
        """Whether there may be one more report; who listens may be slow, and what waits for it is in memory."""
        self.said += 1
        if isinstance(report, TextReport):
            self.characters, self.tokens = self.characters + len(report.text), self.tokens + len(report.tokens)
        elif isinstance(report, EmbeddedReport):
            self.tokens += len(report.vectors)
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
    check: AnswerCheck
    until: float = 0.0
    silent: tuple[int, ...] = ()

    def accusation(self, name: str, seed: str, now: float) -> AccusedAnswer | None:
        """What is to be proven of it where it is wrong; None: nothing can be.

        Who of several nodes made it so is told by sketches, which are near and not equal; an embedding has no draw.

        Args:
            seed: of the lots with which it is drawn once more.
        """
        if len(self.seats) > 1 or not isinstance(self.check, CheckCommand):
            return None
        (seat,), said = self.seats, msgspec.json.encode(self.check)
        answer = sha256(said).hexdigest()
        return AccusedAnswer(name, self.job, seat.node, seat.payout, seat.env_class, said, answer, seed, now)
