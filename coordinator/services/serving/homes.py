"""Requests go to replicas of their model; an answer whose node is gone, or silent, goes on at another one.

The coordinator has every token that was said, so the next one gets them (``GenerateCommand.begun``) and draws what comes behind.
Each is paid for the tokens that it drew itself, also of an answer that somebody stopped listening to. Of a replica that several
nodes hold together the first stage is asked; it takes requests while all its seats are held, joined and connected.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from dataclasses import replace
from hashlib import sha256
from itertools import count

import msgspec

from coordinator.domain import serving as rules
from coordinator.domain.job import Job, Wish
from coordinator.domain.lease import Lease
from coordinator.domain.serving import CountedPeriod, NodeUsage, Replica
from coordinator.errors import (
    ConflictError,
    InvalidError,
    TookTooLongError,
    TooManyError,
    UnableError,
    UnavailableError,
)
from coordinator.metrics import Gauges
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import PeriodCounted
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.period_jobs import AT_WORK
from coordinator.services.serving.answers import AnsweringReplica, AnswerPart, AnswerUnderWay, DrawnAnswer
from coordinator.services.serving.embeddings import EmbeddingsUnderWay, some_of
from coordinator.services.serving.presence import SeatPresence
from coordinator.services.serving.refusals import closed, error_of
from coordinator.services.serving.requests import AskedOfHomes, request_of
from coordinator.services.serving.sketches import AnswerSketches
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
    EmbeddedReport,
    EndReason,
    EngineReport,
    FunctionCall,
    GenerateCommand,
    PongReport,
    RefusedReport,
    Sampling,
    SketchReport,
    TextReport,
)
from protocol.task import AskModel, ModelSaid

WATCH_S = 5.0
MAX_TRIES = 4  # Nodes that a request may fail at; then it may be the request's fault.
MAX_UNCHECKED = 256  # Answers that wait to be drawn again; more are not drawn for it.
ROOM = 8  # Reports of an answer beside those of its tokens.
PROBE_TOKENS = 8
MAX_FAILURES = 3
MAX_NAMES = 16  # Of nodes, in an answer's end: those that answered last.
SILENT_S = 300.0


class Homes:
    """Which node answers which request, and what each has done since it was counted.

    Attributes:
        presence: of the seats of replicas that several nodes hold together.
    """

    def __init__(self, context: Context, desk: JobDesk, nodes: Nodes) -> None:
        self._context, self._nodes = context, nodes
        self._homes: dict[str, AnsweringReplica] = {}  # By name.
        self._leads: dict[str, AnsweringReplica] = {}  # By the lease that is asked.
        self._sketches = AnswerSketches(context.clock)
        self.presence = SeatPresence(context, nodes)
        self._parts: dict[tuple[str, str], AnswerPart] = {}
        self._waiting: dict[str, deque[asyncio.Event]] = defaultdict(deque)
        self._freed: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=rules.FREED))
        self._process, self._numbers = "", count(1)
        self._periods: dict[str, int] = {}  # Of deployments that are at work, the number of the one that is not over.
        self._asked: dict[str, float] = {}  # When a deployment was asked last, or went to work.
        self._unchecked: Counter[tuple[str, int]] = Counter()  # By seat and period, answers that are to be drawn again;
        self._to_check = 0  # and all of them.
        self.drawn: asyncio.Queue[DrawnAnswer] = asyncio.Queue()
        desk.on_stored(self._notice)
        desk.on(PeriodCounted, lambda _work, event: self._counted(event))
        context.metrics.watch(self.gauges)

    def gauges(self) -> Gauges:
        """For whoever watches the coordinator."""
        return {
            ("answers_under_way",): len(self._parts),
            ("answers_waiting",): sum(map(len, self._waiting.values())),
            ("answers_to_check",): self._to_check,
        }

    # --- requests ---------------------------------------------------------------------------------------------------------

    async def generate(self, job: Job, command: AskCommand, seconds: float) -> AsyncGenerator[AnswerReport]:
        """Pieces of an answer as they come, and its end. Whoever stops listening ends it.

        Args:
            seconds: for all of it, waiting for a node among it.
        Raises:
            NotFoundError: the deployment is over. ConflictError: it rests. TooManyError: too many wait for it.
            InvalidError: the model cannot read the request. TookTooLongError, UnavailableError: nobody answers in time.
            UnableError: nodes have tried, and failed.
        """
        if job.id not in self._periods or job.spec.serve is None:
            raise closed(job.id, job.state)
        answer = request_of(command, job.spec.serve.context or LONGEST)
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
                raise _in_vain(answer, f"{answer.failures} nodes could not answer this request")

    async def _said_by(self, part: AnswerPart, answer: AskedOfHomes, until: float) -> AsyncIterator[AnswerReport]:
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
                    answer.crowded += code == "busy"
                    self._failed(part, answer)
                    return
                case RefusedReport():
                    raise error_of(report)
                case _:
                    pass

    def _failed(self, part: AnswerPart, answer: AskedOfHomes) -> None:
        """A node cannot do it, or says what no model says."""
        answer.tried.add(part.home.name)
        answer.failures += 1
        part.home.failures += 1
        self._context.metrics.count("answers_failed_total")

    async def _next(self, part: AnswerPart, answer: AskedOfHomes, until: float) -> EngineReport | None:
        """The next report; None: another node has to go on, since this one is gone, or silent while another could."""
        clock = self._context.clock
        while True:
            begun = part.heard and isinstance(answer, AnswerUnderWay)  # Each batch of embeddings is computed anew.
            patience = rules.SILENCE_S if begun else rules.FIRST_SILENCE_S
            left = until - clock.now()
            try:
                report = await self.presence.next_report(part, max(0.0, min(patience, left)), self._missed)
            except TimeoutError:
                if left <= patience:
                    late = "the model's nodes took longer than there is time for"
                    raise TookTooLongError(f"{late}: ask for fewer tokens, or deploy more replicas", "tokens") from None
                others = answer.tried | {part.home.name}
                self._is_silent(part.home)
                if self._chosen(part.home.lease.job, others) is None:
                    continue
                self._context.metrics.count("answers_moved_total")
                return None
            part.heard = True
            if report is None:
                self._context.metrics.count("answers_moved_total")
            return report

    def _ended(self, part: AnswerPart, answer: AskedOfHomes, report: AnsweredReport) -> AnsweredReport | None:
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
        return msgspec.structs.replace(report, prompt=prompt, tokens=tokens, nodes=tuple(answer.nodes[-MAX_NAMES:]))

    def _count(
        self,
        part: AnswerPart,
        answer: AskedOfHomes,
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
        self._draw(part, check)

    def _draw(self, part: AnswerPart, check: AnswerCheck) -> None:
        home, lot = part.home, int.from_bytes(self._context.entropy(4))
        if not rules.is_drawn(home.checked, lot) or self._to_check >= MAX_UNCHECKED:
            return
        part.drawn, home.checked, self._to_check = True, home.checked + 1, self._to_check + 1
        period = self._periods.get(home.lease.job, 0)
        self._unchecked.update((seat.id, period) for seat in home.seats)
        check = some_of(check, self._context.entropy) if isinstance(check, CheckEmbeddingsCommand) else check
        until = self._context.clock.now() + (rules.SKETCH_S if home.staged else 0.0)
        self.drawn.put_nowait(DrawnAnswer(home.lease.job, home.seats, home.layers, period, check, until))

    async def with_sketches(self, drawn: DrawnAnswer) -> DrawnAnswer:
        """The same with what its stages say of it, once they have, or it is too late."""
        if len(drawn.seats) == 1 or not isinstance(drawn.check, CheckCommand) or drawn.check.boundaries:
            return drawn
        found, silent = await self._sketches.boundaries(drawn.check.id, drawn.layers, drawn.until)
        check = msgspec.structs.replace(drawn.check, boundaries=found)
        if len(msgspec.json.encode(check)) > MAX_LINE:
            return drawn
        return replace(drawn, check=check, silent=silent)

    # --- who answers ------------------------------------------------------------------------------------------------------

    async def _taken(self, job: str, answer: AskedOfHomes, until: float) -> AnsweringReplica:
        """A node that has room, the longest waiting first."""
        queue, turn = self._waiting[job], asyncio.Event()
        if len(queue) >= rules.MAX_WAITING:
            way = "deploy more replicas" if self._of(job) else "no node holds its model yet"
            again = rules.again_in(len(queue), self._freed[job], self._context.clock.now())
            raise TooManyError(f"{len(queue)} requests wait for this deployment already: {way}", again)
        queue.append(turn)
        try:
            while queue[0] is not turn or (name := self._chosen(job, answer.tried)) is None:
                if (here := {home.name for home in self._of(job)}) and answer.tried >= here:
                    raise _in_vain(answer, "no node of this deployment could answer")
                if job not in self._periods:
                    raise closed(job)
                turn.clear()
                async with self._context.clock.timeout(max(0.0, until - self._context.clock.now())):
                    await turn.wait()
        except TimeoutError:
            why = "was free in time" if self._of(job) else "holds its model yet"
            raise UnavailableError(f"no node of deployment {job} {why}: try again") from None
        finally:
            queue.remove(turn)
            self._wake(job)  # Of a deployment that is over the next one is awake already.
        home = self._homes[name]
        home.answering += 1
        return home

    def _of(self, job: str) -> list[AnsweringReplica]:
        return [home for home in self._homes.values() if home.lease.job == job and home.here]

    def _chosen(self, job: str, tried: set[str]) -> str | None:
        missing = self.presence.missing
        able = [
            Replica(home.name, home.answering, home.silent is not None or bool(missing(home.seats)), home.name in tried)
            for home in self._of(job)
            if all(self._nodes.session(seat.node) is not None for seat in home.seats)
        ]
        return rules.chosen(able)

    # --- private sessions -------------------------------------------------------------------------------------------------

    def for_session(self, job: Job, avoid: Collection[str], only: str | None) -> AnsweringReplica:
        """A replica whose first stage is to talk with a client: who was named least often.

        Args:
            avoid: nodes that it shall not be with. ``only``: the only one that it may be with.
        Raises:
            ConflictError: the deployment takes no requests, or nobody of these answers. NotFoundError: it is over.
            UnavailableError: no node is ready yet.
        """
        if job.id not in self._periods:
            raise closed(job.id, job.state)
        self._asked[job.id] = self._context.clock.now()
        connected = self._nodes.session
        here = [one for one in self._of(job.id) if all(connected(seat.node) is not None for seat in one.seats)]
        if not here:
            raise UnavailableError(f"no node of deployment {job.id} holds its model yet: try again")
        able = [one for one in here if one.lease.node not in avoid and only in (None, one.lease.node)]
        if not able and only not in (None, *(one.lease.node for one in here)):
            raise ConflictError(f"no node that answers for this deployment has the address {only}", "node")
        if not able:
            raise ConflictError("no other node of this deployment answers now: try again, or deploy more replicas")
        chosen = min(able, key=lambda one: (one.silent is not None, one.sessions, one.name))
        chosen.sessions += 1
        return chosen

    def add_private(self, job: str, name: str, lease: str, usage: NodeUsage, leaf: bytes) -> bool:
        """Count what a client has signed for; False: neither the replica nor one that its lease leads is known any more."""
        home = self._homes.get(name) or self._leads.get(lease)
        if home is None:
            return False
        home.usage += usage
        home.leaves.append(leaf)
        self._asked[job] = self._context.clock.now()
        return True

    def _wake(self, job: str) -> None:
        """Somebody may have room: who waits longest looks."""
        if self._waiting.get(job):
            self._waiting[job][0].set()

    def _begin(self, home: AnsweringReplica, answer: AskedOfHomes) -> AnswerPart:
        # Of another process than the one before, whose requests nodes may still be at.
        self._process = self._process or self._context.entropy(4).hex()
        request = f"{self._process}-{next(self._numbers)}"
        part = AnswerPart(home, request, answer.done, answer.limit + ROOM)
        self._parts[home.lease.id, part.request] = part
        if home.staged:
            self._sketches.expect(request, home.seats, home.keys, answer.context)
        command = answer.asks(part.request)
        home.asked = self._context.clock.now()
        session = self._nodes.session(home.lease.node)
        if session is None:
            part.reports.put_nowait(None)
        else:
            answer.nodes += [name for name in self._names(home) if name not in answer.nodes]
            session.send(Command(home.lease.id, home.lease.fence, AskModel(command)))
        return part

    def _names(self, home: AnsweringReplica) -> list[str]:
        """What the nodes of a replica are called, by stage."""
        sessions = [self._nodes.session(seat.node) for seat in home.seats]
        return [session.profile.name for session in sessions if session is not None]

    def _over(self, part: AnswerPart, answer: AskedOfHomes) -> None:
        """This node's part is over; it need not go on."""
        home = part.home
        home.answering -= 1
        if home.lease.job in self._periods:
            self._freed[home.lease.job].append(self._context.clock.now())
        if not part.counted:
            self._count(part, answer)
        if not part.drawn:
            self._sketches.drop(part.request)
        if self._parts.pop((home.lease.id, part.request), None) is not None and home.here:
            self._cancel(part)
        self._put_away(home)
        self._wake(home.lease.job)

    def _cancel(self, part: AnswerPart) -> None:
        lease = part.home.lease
        session = self._nodes.session(lease.node)
        if session is not None:
            session.send(Command(lease.id, lease.fence, AskModel(CancelCommand(part.request))))

    # --- what nodes say ---------------------------------------------------------------------------------------------------

    def said(self, lease: Lease, body: ModelSaid) -> None:
        """A node has spoken."""
        self.presence.heard(lease.id, body.reports)
        for report in body.reports:
            if isinstance(report, SketchReport):
                self._sketches.take(lease.id, report)
        home = self._leads.get(lease.id) or self._with(lease)
        if home is None:
            return
        self._speaks(home, lease, body)
        for report in body.reports if home.lease.id == lease.id else ():
            part = self._parts.get((lease.id, getattr(report, "id", "")))
            if part is None or isinstance(report, SketchReport | PongReport):
                continue
            taken = part.has_room(report)
            part.reports.put_nowait(
                report if taken else RefusedReport(part.request, "flood", "more than was asked for")
            )
            if not taken or isinstance(report, AnsweredReport | RefusedReport):
                del self._parts[lease.id, part.request]

    def _with(self, lease: Lease) -> AnsweringReplica | None:
        return next((one for one in self._of(lease.job) if lease.id in {seat.id for seat in one.seats}), None)

    def _speaks(self, home: AnsweringReplica, lease: Lease, body: ModelSaid) -> None:
        """One of its seats has spoken. It can answer again once what was missing is there, or it goes on with an answer."""
        answers = any(not isinstance(one, PongReport | SketchReport) for one in body.reports)
        if home.lease.id == lease.id and answers:
            home.heard = self._context.clock.now()
        elif home.silent is None or not home.missed or self.presence.missing(home.seats):
            return
        if home.silent is not None:
            home.counted += self._context.clock.now() - max(home.silent, home.counted)  # Silent, it was not ready.
            home.silent, home.missed = None, False
            self._wake(lease.job)

    def left(self, node: str) -> None:
        """A node's connection is gone, and what it was about to say with it. A replica of several nodes answers with all of
        them only: what it was at goes on elsewhere, or there once the node is back."""
        self.presence.lost(node)
        for home in list(self._homes.values()):
            if any(seat.node == node for seat in home.seats):
                self._interrupt(home)

    def back(self, node: str) -> None:
        """A node has come, or come again: whoever waits for a replica with it may be answered."""
        for job in {home.lease.job for home in self._homes.values() if any(seat.node == node for seat in home.seats)}:
            self._wake(job)

    def _missed(self, home: AnsweringReplica) -> None:
        self._is_silent(home, missed=True)
        self._interrupt(home)

    def _is_silent(self, home: AnsweringReplica, missed: bool = False) -> None:
        home.missed = home.missed or missed
        home.silent = self._context.clock.now() if home.silent is None else home.silent

    def _interrupt(self, home: AnsweringReplica) -> None:
        for key in [key for key, part in self._parts.items() if part.home is home]:
            part = self._parts.pop(key)
            part.reports.put_nowait(None)
            if home.staged:  # The one that is asked may be there, and go on for nobody.
                self._cancel(part)

    def _notice(self, work: UnitOfWork) -> None:
        if work.job.spec.serve is None:
            return
        self._periods[work.job.id] = work.job.rounds_done
        whole = {} if work.run is None else rules.answering(work.run.layers, work.run.joins, work.leases)
        for home in self._of(work.job.id):
            if home.name not in whole:
                self._leave(home)
        for name, seats in whole.items():
            if name not in self._homes and work.run is not None:
                now = self._context.clock.now()
                keys = tuple(rules.sketch_key(work.run.secret, seat.id) for seat in seats)
                home = AnsweringReplica(name, seats, work.run.layers, keys, now, now - rules.PROBE_S, now)
                self._homes[name] = self._leads[home.lease.id] = home
                self._wake(work.job.id)
        if work.job.state not in AT_WORK or work.job.wish is not Wish.NONE:
            self._periods.pop(work.job.id, None)
            self._asked.pop(work.job.id, None)
            self._freed.pop(work.job.id, None)
            for turn in self._waiting.pop(work.job.id, ()):
                turn.set()

    def _leave(self, home: AnsweringReplica) -> None:
        """A replica does not answer any more in this form."""
        home.here = False
        self.presence.forget(home.seats)
        if self._leads.get(home.lease.id) is home:
            del self._leads[home.lease.id]
        self._interrupt(home)
        self._put_away(home)

    def _put_away(self, home: AnsweringReplica) -> None:
        """Forget one that answers no more, once nothing of it is to be counted."""
        if not home.here and not home.answering and not home.leaves:
            self._homes.pop(home.name, None)

    # --- counting ---------------------------------------------------------------------------------------------------------

    def periods(self, job: str) -> list[CountedPeriod]:
        """What each replica of a job has done since it was counted; one that has answered nobody was not ready."""
        now, found = self._context.clock.now(), []
        for home in self._homes.values():
            if home.lease.job == job and home.leaves:
                until = now if home.here and home.silent is None else home.heard
                usage = msgspec.structs.replace(home.usage, ready=max(0.0, until - home.counted))
                unpaid = frozenset(home.unpaid)
                found.append(CountedPeriod(home.name, home.seats, usage, tuple(home.leaves), now, unpaid))
        return found

    def away(self, job: str) -> list[tuple[str, str]]:
        """Leases of replicas of several nodes whose holders do not say that they are there, though they were asked, and why."""
        return [found for home in self._of(job) if home.staged for found in self.presence.away(home.seats)]

    def broken(self, job: str) -> list[tuple[str, str]]:
        """Replicas that cannot answer, or do not any more, by the lease that is asked, and why."""
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
            home = self._homes.get(counted.home)
            if home is None:
                continue
            home.usage, home.leaves = home.usage - counted.usage, home.leaves[len(counted.leaves) :]
            home.counted = counted.until
            home.unpaid -= counted.unpaid
            self._put_away(home)

    def forget(self, leases: Collection[str]) -> None:
        """What these did since they were counted is not paid: an answer of theirs was wrong."""
        for home in list(self._homes.values()):
            home.unpaid |= {seat.id for seat in home.seats if seat.id in leases}
            if home.unpaid >= {seat.id for seat in home.seats}:
                home.usage, home.leaves, home.unpaid = NodeUsage(), [], set()

    def waits(self, lease: str, period: int) -> bool:
        """Whether an answer of a seat of this period, or one before, is still to be checked."""
        return any(number and key[0] == lease and key[1] <= period for key, number in self._unchecked.items())

    def checked(self, drawn: DrawnAnswer) -> None:
        """One was checked, or could not be."""
        self._unchecked -= Counter((seat.id, drawn.period) for seat in drawn.seats)
        self._to_check -= 1

    def uncounted(self, job: str) -> Mapping[str, NodeUsage]:
        """What each node has done since it was counted."""
        found: dict[str, NodeUsage] = {}
        for home in self._homes.values():
            for seat in home.seats if home.lease.job == job else ():
                found[seat.node] = found.get(seat.node, NodeUsage()) + home.usage
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

    async def _probe(self, home: AnsweringReplica, seconds: float) -> None:
        """A short request that a program might make; its answer counts like any other."""
        text = f"Note {self._context.entropy(6).hex()}:"
        seed = int.from_bytes(self._context.entropy(7))
        answer = AnswerUnderWay(GenerateCommand("1", text, tokens=PROBE_TOKENS, sampling=Sampling(seed=seed)), LONGEST)
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


def _in_vain(answer: AskedOfHomes, why: str) -> UnavailableError:
    """That nobody could answer. Where one had no room, it may later."""
    return UnavailableError(f"{why}: try again") if answer.crowded else UnableError(f"{why}: change it, or try again")
