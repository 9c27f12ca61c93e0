"""Requests go to nodes that hold their model; an answer whose node is gone, or silent, goes on at another one.

The coordinator has every token that was said, so the next node gets them (``GenerateCommand.begun``) and draws what comes behind.
Each is paid for the tokens that it drew itself, also of an answer that somebody stopped listening to.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count

import msgspec

from coordinator.domain import serving as rules
from coordinator.domain.job import Job, JobState, Wish
from coordinator.domain.lease import Lease
from coordinator.domain.serving import CountedPeriod, NodeUsage, Replica
from coordinator.errors import ConflictError, InvalidError, TookTooLongError, TooManyError, UnavailableError
from coordinator.metrics import Gauges
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import PeriodCounted
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.services.serving.embeddings import EmbeddingsUnderWay, some_of
from coordinator.services.serving.refusals import error_of
from protocol.codec import MAX_MESSAGE
from protocol.node import Command
from protocol.serving import (
    LONGEST,
    MAX_LINE,
    AnswerCheck,
    AnsweredReport,
    AnswerReport,
    AskCommand,
    CancelCommand,
    CheckCommand,
    CheckEmbeddingsCommand,
    EmbedCommand,
    EmbeddedReport,
    EndReason,
    EngineReport,
    FunctionCall,
    GenerateCommand,
    RefusedReport,
    Sampling,
    TextReport,
)
from protocol.task import AskModel, ModelSaid

WATCH_S = 5.0
RETRY_S = 5.0
MAX_TRIES = 4  # Nodes that a request may fail at; then it may be the request's fault.
MAX_UNCHECKED = 256  # Answers that wait to be drawn again; more are not drawn for it.
MOST_TEXT = 256  # Characters of a token, on average: more are none of a model.
ROOM = 8  # Reports of an answer beside those of its tokens.
PROBE_TOKENS = 8
MAX_FAILURES = 3
SILENT_S = 300.0
_MESSAGE_ROOM = MAX_MESSAGE // 2
_AT_WORK = frozenset({JobState.FUNDED, JobState.PLANNED, JobState.RUNNING})


@dataclass
class _Home:
    """A node that holds a model.

    Attributes:
        counted: until when it was counted. ``usage``, ``leaves``: since then; the digests of its answers.
        silent: since when it has let an answer wait and said nothing. ``heard``: when it said something last.
        asked: when it was asked last. ``failures``: requests in a row that it could not answer.
        here: its lease is live.
    """

    lease: Lease
    counted: float
    asked: float
    heard: float
    answering: int = 0
    silent: float | None = None
    checked: int = 0
    usage: NodeUsage = field(default_factory=NodeUsage)
    leaves: list[bytes] = field(default_factory=list)
    here: bool = True
    failures: int = 0


@dataclass
class _Answer:
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


_Asked = _Answer | EmbeddingsUnderWay


@dataclass
class _Part:
    """One node's part of an answer. ``first``: tokens of the answer, or embeddings, that came before; ``most``: reports that it
    can have."""

    home: _Home
    request: str
    first: int
    most: int
    reports: asyncio.Queue[EngineReport | None] = field(default_factory=asyncio.Queue)
    text: str = ""
    heard: bool = False
    counted: bool = False
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
    """An answer that is to be drawn again."""

    job: str
    lease: str
    node: str
    period: int
    check: AnswerCheck


class Homes:
    """Which node answers which request, and what each has done since it was counted."""

    def __init__(self, context: Context, desk: JobDesk, nodes: Nodes) -> None:
        self._context, self._nodes = context, nodes
        self._homes: dict[str, _Home] = {}
        self._parts: dict[tuple[str, str], _Part] = {}
        self._waiting: dict[str, deque[asyncio.Event]] = defaultdict(deque)
        self._process, self._numbers = "", count(1)
        self._periods: dict[str, int] = {}  # Of deployments that are at work, the number of the one that is not over.
        self._asked: dict[str, float] = {}  # When a deployment was asked last, or went to work.
        self._unchecked: Counter[tuple[str, int]] = Counter()
        self.drawn: asyncio.Queue[DrawnAnswer] = asyncio.Queue()
        desk.on_stored(self._notice)
        desk.on(PeriodCounted, lambda _work, event: self._counted(event))
        context.metrics.watch(self.gauges)

    def gauges(self) -> Gauges:
        """For whoever watches the coordinator."""
        return {
            ("answers_under_way",): len(self._parts),
            ("answers_waiting",): sum(map(len, self._waiting.values())),
            ("answers_to_check",): self._unchecked.total(),
        }

    # --- requests ---------------------------------------------------------------------------------------------------------

    async def generate(self, job: Job, command: AskCommand, seconds: float) -> AsyncGenerator[AnswerReport]:
        """Pieces of an answer as they come, and its end. Whoever stops listening ends it.

        Args:
            seconds: for all of it, waiting for a node among it.
        Raises:
            ConflictError: the deployment has ended, or rests. TooManyError: too many wait for it.
            InvalidError: the model cannot read the request. TookTooLongError, UnavailableError: nobody answers in time.
        """
        if job.id not in self._periods or job.spec.serve is None:
            raise _closed(job.id, job.state)
        answer = _asked(command, job.spec.serve.context or LONGEST)
        self._asked[job.id] = self._context.clock.now()
        until = self._context.clock.now() + seconds
        while True:
            home = await self._taken(job.id, answer, until)
            part = self._begin(home, answer)
            try:
                async for report in self._said_by(part, answer, until):
                    yield report
                    if isinstance(report, AnsweredReport):
                        return
            finally:
                self._over(part, answer)
            if answer.failures >= MAX_TRIES:
                raise UnavailableError(
                    f"{answer.failures} nodes could not answer this request: change it, or try again"
                )

    async def _said_by(self, part: _Part, answer: _Asked, until: float) -> AsyncIterator[AnswerReport]:
        """What a node says of an answer; it ends without an end where another one has to go on."""
        while (report := await self._next(part, answer, until)) is not None:
            match report:
                case TextReport() | EmbeddedReport():
                    if not answer.takes(report):
                        part.counted = True  # No model says so.
                        self._failed(part, answer)
                        return
                    part.text += report.text if isinstance(report, TextReport) else ""
                    yield report
                case AnsweredReport():
                    if (end := self._ended(part, answer, report)) is not None:
                        yield end
                    return
                case RefusedReport(code="failed" | "busy" | "bad-begun" | "unknown-token" | "flood" as code):
                    part.counted = code == "flood"
                    self._failed(part, answer)
                    return
                case RefusedReport():
                    raise error_of(report)
                case _:
                    pass

    def _failed(self, part: _Part, answer: _Asked) -> None:
        """A node cannot do it, or says what no model says."""
        answer.tried.add(part.home.lease.id)
        answer.failures += 1
        part.home.failures += 1
        self._context.metrics.count("answers_failed_total")

    async def _next(self, part: _Part, answer: _Asked, until: float) -> EngineReport | None:
        """The next report; None: another node has to go on, since this one is gone, or silent while another could."""
        clock = self._context.clock
        while True:
            begun = part.heard and isinstance(answer, _Answer)  # Each batch of embeddings is computed anew.
            patience = rules.SILENCE_S if begun else rules.FIRST_SILENCE_S
            left = until - clock.now()
            try:
                async with clock.timeout(max(0.0, min(patience, left))):
                    report = await part.reports.get()
            except TimeoutError:
                if left <= patience:
                    late = "the model's nodes took longer than there is time for"
                    raise TookTooLongError(f"{late}: ask for fewer tokens, or deploy more replicas", "tokens") from None
                others = answer.tried | {part.home.lease.id}
                self._is_silent(part.home)
                if self._chosen(part.home.lease.job, others) is None:
                    continue
                self._context.metrics.count("answers_moved_total")
                return None
            part.heard = True
            if report is None:
                self._context.metrics.count("answers_moved_total")
            return report

    def _ended(self, part: _Part, answer: _Asked, report: AnsweredReport) -> AnsweredReport | None:
        """Count what has ended, and have it drawn again where the lot falls on it; None: another node goes on with the rest."""
        tokens, prompt = answer.done, min(report.prompt, answer.context)
        if isinstance(answer, EmbeddingsUnderWay):
            if answer.ends() is None:
                self._failed(part, answer)
                return None
            tokens, prompt = 0, answer.prompt
        part.home.failures = 0
        self._context.metrics.count("answers_total")
        self._count(part, answer, report.reason, prompt, report.calls)
        if isinstance(answer, EmbeddingsUnderWay) and not answer.ends():
            return None
        return msgspec.structs.replace(report, prompt=prompt, tokens=tokens, nodes=tuple(answer.nodes))

    def _count(
        self,
        part: _Part,
        answer: _Asked,
        reason: EndReason | None = None,
        prompt: int | None = None,
        calls: tuple[FunctionCall, ...] = (),
    ) -> None:
        """Count what a node drew itself; without a ``reason`` it was cut off, and has said nothing of the prompt."""
        part.counted, home = True, part.home
        if reason is None and answer.done == part.first:
            return
        check = answer.check(part.request, part.first, part.text, reason, prompt, calls)
        if len(said := msgspec.json.encode(check)) > MAX_LINE:
            return  # Nobody could draw it again, so nobody is paid for it; no model says so much.
        home.usage += answer.usage(part.first, prompt)
        home.leaves.append(sha256(said).digest())
        self._draw(home, check)

    def _draw(self, home: _Home, check: AnswerCheck) -> None:
        lot = int.from_bytes(self._context.entropy(4))
        if not rules.is_drawn(home.checked, lot) or self._unchecked.total() >= MAX_UNCHECKED:
            return
        home.checked += 1
        period = self._periods.get(home.lease.job, 0)
        self._unchecked[home.lease.id, period] += 1
        check = some_of(check, self._context.entropy) if isinstance(check, CheckEmbeddingsCommand) else check
        self.drawn.put_nowait(DrawnAnswer(home.lease.job, home.lease.id, home.lease.node, period, check))

    # --- who answers ------------------------------------------------------------------------------------------------------

    async def _taken(self, job: str, answer: _Asked, until: float) -> _Home:
        """A node that has room, the longest waiting first."""
        queue, turn = self._waiting[job], asyncio.Event()
        if len(queue) >= rules.MAX_WAITING:
            raise TooManyError(f"{len(queue)} requests wait for this deployment already: deploy more replicas", RETRY_S)
        queue.append(turn)
        try:
            while queue[0] is not turn or (lease := self._chosen(job, answer.tried)) is None:
                if answer.tried and answer.tried >= {home.lease.id for home in self._of(job)}:
                    raise UnavailableError("no node of this deployment could answer: change the request, or try again")
                if job not in self._periods:
                    raise _closed(job)
                turn.clear()
                async with self._context.clock.timeout(max(0.0, until - self._context.clock.now())):
                    await turn.wait()
        except TimeoutError:
            raise UnavailableError(f"no node of deployment {job} was free in time: try again") from None
        finally:
            queue.remove(turn)
            self._wake(job)  # Of a deployment that is over the next one is awake already.
        home = self._homes[lease]
        home.answering += 1
        return home

    def _of(self, job: str) -> list[_Home]:
        return [home for home in self._homes.values() if home.lease.job == job and home.here]

    def _chosen(self, job: str, tried: set[str]) -> str | None:
        able = [
            Replica(home.lease.id, home.answering, home.silent is not None, home.lease.id in tried)
            for home in self._of(job)
            if self._nodes.session(home.lease.node) is not None
        ]
        return rules.chosen(able)

    def _wake(self, job: str) -> None:
        """Somebody may have room: who waits longest looks."""
        if self._waiting.get(job):
            self._waiting[job][0].set()

    def _begin(self, home: _Home, answer: _Asked) -> _Part:
        # Of another process than the one before, whose requests nodes may still be at.
        self._process = self._process or self._context.entropy(4).hex()
        request = f"{self._process}-{next(self._numbers)}"
        part = _Part(home, request, answer.done, answer.limit + ROOM)
        self._parts[home.lease.id, part.request] = part
        command = answer.asks(part.request)
        home.asked = self._context.clock.now()
        session = self._nodes.session(home.lease.node)
        if session is None:
            part.reports.put_nowait(None)
        else:
            if session.profile.name not in answer.nodes:
                answer.nodes.append(session.profile.name)
            session.send(Command(home.lease.id, home.lease.fence, AskModel(command)))
        return part

    def _over(self, part: _Part, answer: _Asked) -> None:
        """This node's part is over; it need not go on."""
        home = part.home
        home.answering -= 1
        if not part.counted:
            self._count(part, answer)
        if self._parts.pop((home.lease.id, part.request), None) is not None:
            session = self._nodes.session(home.lease.node) if home.here else None
            if session is not None:
                session.send(Command(home.lease.id, home.lease.fence, AskModel(CancelCommand(part.request))))
        self._wake(home.lease.job)

    # --- what nodes say ---------------------------------------------------------------------------------------------------

    def said(self, lease: Lease, body: ModelSaid) -> None:
        """A node has spoken."""
        home = self._homes.get(lease.id)
        if home is None:
            return
        home.heard = self._context.clock.now()
        if home.silent is not None:
            home.counted += home.heard - max(home.silent, home.counted)  # Silent, it was not ready.
            home.silent = None
            self._wake(lease.job)
        for report in body.reports:
            part = self._parts.get((lease.id, getattr(report, "id", "")))
            if part is None:
                continue
            taken = part.has_room(report)
            part.reports.put_nowait(
                report if taken else RefusedReport(part.request, "flood", "more than was asked for")
            )
            if not taken or isinstance(report, AnsweredReport | RefusedReport):
                del self._parts[lease.id, part.request]

    def left(self, node: str) -> None:
        """A node's connection is gone, and what it was about to say with it."""
        for home in [home for home in self._homes.values() if home.lease.node == node]:
            self._interrupt(home)

    def _is_silent(self, home: _Home) -> None:
        home.silent = self._context.clock.now() if home.silent is None else home.silent

    def _interrupt(self, home: _Home) -> None:
        for key in [key for key in self._parts if key[0] == home.lease.id]:
            self._parts.pop(key).reports.put_nowait(None)

    def _notice(self, work: UnitOfWork) -> None:
        if work.job.spec.serve is None:
            return
        self._periods[work.job.id] = work.job.rounds_done
        for lease in work.leases.values():
            if lease.state == "ready" and lease.id not in self._homes:
                now = self._context.clock.now()
                self._homes[lease.id] = _Home(lease, now, now - rules.PROBE_S, now)
                self._wake(work.job.id)
        for lease in work.ended:
            if (home := self._homes.get(lease.id)) is not None:
                home.here = False
                self._interrupt(home)
                if not home.leaves:
                    del self._homes[lease.id]
        if work.job.state not in _AT_WORK or work.job.wish is not Wish.NONE:
            self._periods.pop(work.job.id, None)
            self._asked.pop(work.job.id, None)
            for turn in self._waiting.pop(work.job.id, ()):
                turn.set()

    # --- counting ---------------------------------------------------------------------------------------------------------

    def periods(self, job: str) -> list[CountedPeriod]:
        """What each node of a job has done since it was counted; who has answered nobody was not ready."""
        now, found = self._context.clock.now(), []
        for home in self._homes.values():
            if home.lease.job == job and home.leaves:
                until = now if home.here and home.silent is None else home.heard
                usage = msgspec.structs.replace(home.usage, ready=max(0.0, until - home.counted))
                found.append(CountedPeriod(home.lease, usage, tuple(home.leaves), now))
        return found

    def broken(self, job: str) -> list[tuple[str, str]]:
        """Leases whose nodes cannot answer, or do not any more, and why."""
        now, found = self._context.clock.now(), []
        for home in self._of(job):
            if home.failures >= MAX_FAILURES:
                found.append((home.lease.id, f"it could not answer {home.failures} requests in a row"))
            elif home.silent is not None and now - home.silent > SILENT_S:
                found.append((home.lease.id, f"it has said nothing for {SILENT_S:g} s, though it was asked"))
        return found

    def _counted(self, event: PeriodCounted) -> None:
        """A period was stored: what it counted is no longer owed. Answers may have ended meanwhile."""
        for counted in event.counted:
            home = self._homes.get(counted.lease.id)
            if home is None:
                continue
            home.usage, home.leaves = home.usage - counted.usage, home.leaves[len(counted.leaves) :]
            home.counted = counted.until
            if not home.here and not home.leaves:
                del self._homes[counted.lease.id]

    def forget(self, lease: str) -> None:
        """What a node did since it was counted is not paid: an answer of it was wrong."""
        if (home := self._homes.get(lease)) is not None:
            home.usage, home.leaves = NodeUsage(), []

    def waits(self, lease: str, period: int) -> bool:
        """Whether an answer of a node of this period, or one before, is still to be checked."""
        return any(number and key[0] == lease and key[1] <= period for key, number in self._unchecked.items())

    def checked(self, drawn: DrawnAnswer) -> None:
        """One was checked, or could not be."""
        self._unchecked -= Counter({(drawn.lease, drawn.period): 1})

    def uncounted(self, job: str) -> Mapping[str, NodeUsage]:
        """What each node has done since it was counted."""
        found: dict[str, NodeUsage] = {}
        for home in self._homes.values():
            if home.lease.job == job:
                found[home.lease.node] = found.get(home.lease.node, NodeUsage()) + home.usage
        return found

    def idle(self, job: str) -> float:
        """For how many seconds nobody has asked, or waited for an answer."""
        under_way, waiting, _ = self.now(job)
        now = self._context.clock.now()
        if under_way or waiting:
            self._asked[job] = now
        return now - self._asked.setdefault(job, now)

    def now(self, job: str) -> tuple[int, int, NodeUsage]:
        """Answers under way, requests that wait, and what was not counted yet."""
        under_way = sum(part.home.lease.job == job for part in self._parts.values())
        usage = sum((home.usage for home in self._homes.values() if home.lease.job == job), NodeUsage())
        return under_way, len(self._waiting.get(job, ())), usage

    # --- nodes that nobody asks -------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """For ever: ask nodes that nobody has asked whether they answer."""
        while True:
            await self._context.clock.sleep(WATCH_S)
            await self.watch_once()

    async def watch_once(self) -> None:
        """Ask those that nobody has asked for a while, and those that fell silent whether they speak again, side by side."""
        now = self._context.clock.now()
        here = [one for one in self._homes.values() if one.here and not one.answering]
        async with asyncio.TaskGroup() as group:
            for home in here:
                if home.silent is not None:
                    group.create_task(self._probe(home, WATCH_S), name="probe")
                elif now - home.asked >= rules.PROBE_S:
                    group.create_task(self._probe(home, rules.FIRST_SILENCE_S), name="probe")

    async def _probe(self, home: _Home, seconds: float) -> None:
        """A short request that a program might make; its answer counts like any other."""
        text = f"Note {self._context.entropy(6).hex()}:"
        seed = int.from_bytes(self._context.entropy(7))
        answer = _Answer(GenerateCommand("1", text, tokens=PROBE_TOKENS, sampling=Sampling(seed=seed)), LONGEST)
        home.answering += 1
        part = self._begin(home, answer)
        try:
            until = self._context.clock.now() + seconds
            async for _ in self._said_by(part, answer, until):
                pass
        except (TookTooLongError, InvalidError):
            self._is_silent(home)
        finally:
            self._over(part, answer)


def _asked(command: AskCommand, context: int) -> _Asked:
    """A request that has not begun; raises InvalidError where no message holds it."""
    longest = max(command.texts, key=len) if isinstance(command, EmbedCommand) else command
    if len(msgspec.msgpack.encode(longest)) > _MESSAGE_ROOM:
        field = "input" if isinstance(command, EmbedCommand) else "messages"
        raise InvalidError(f"the request has more than {_MESSAGE_ROOM:,} bytes: shorten it", field)
    return EmbeddingsUnderWay(command, context) if isinstance(command, EmbedCommand) else _Answer(command, context)


def _closed(job: str, state: JobState | None = None) -> ConflictError:
    """Why a deployment takes no requests, and what to do; ``state`` None: it has just stopped taking any."""
    match state:
        case JobState.CREATED:
            why = "waits for its escrow: fund it first"
        case JobState.PAUSED:
            why = "is paused: resume it first"
        case JobState.SETTLED | JobState.CANCELLED | JobState.FAILED | JobState.VERIFYING:
            why = f"is over ({state}): deploy the model again"
        case _:
            why = "takes no requests any more: it is being paused or stopped"
    return ConflictError(f"deployment {job} {why}", "model")
