"""A coordinator on a bench with a model that is done, and nodes that answer as they are told to."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from coordinator.assembly import assemble
from coordinator.domain.job import Job, JobState
from coordinator.domain.rounds.run import Base, Run, RunPoint
from coordinator.domain.serving import ServedFiles
from coordinator.errors import UnavailableError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.nodes import NodeSession
from protocol.job.job import JobSpec, ModelSpec, ServedWeights, ServeSpec
from protocol.node import Assign, Command, CoordinatorMessage, HeldLease, Report
from protocol.rest.api import NewJob
from protocol.serving import (
    AnswerCheck,
    AnsweredReport,
    AskCommand,
    CancelCommand,
    CheckCommand,
    CheckedReport,
    CheckEmbeddingsCommand,
    EmbedCommand,
    EmbeddedReport,
    EmbeddedText,
    EngineCommand,
    EngineReport,
    GenerateCommand,
    PingCommand,
    PongReport,
    ProveCommand,
    ProvenReport,
    RefusedReport,
    Sampling,
    SketchReport,
    TextReport,
)
from protocol.task import AskModel, AwaitStages, JoinStages, Layers, ModelSaid, Plan, StopTask, TaskReady, TaskReport
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import BUDGET, COORDINATOR, WALLET, AllDelivered, FakeArtifacts, FakeModels, digest, spec
from tests.support.clock import VirtualClock

MB = 8_000
HALF_MB = 1_150  # Holds half of the model, and not all of it.


def truth(command: GenerateCommand, place: int) -> int:
    """The token that the model draws at a place of an answer."""
    return int(digest(command.prompt, command.sampling.seed, place)[:6], 16)


def vector_of(text: EmbeddedText) -> bytes:
    """The embedding that the model makes."""
    return bytes.fromhex(digest(text))


def text_of(token: int) -> str:
    return f"{token} "


@dataclass
class Home:
    """A node. ``pace``: seconds a token; ``lie``: what it says of a place and its token; ``telling``: in place of their text.

    Of a replica of several nodes the first one says what comes, as long as all of them are there, and each says at an answer's
    end what crossed (``sketch``: its bytes for a token; None: it says nothing), ``late`` seconds later. One that is ``frozen``
    neither hears nor says anything; one that is ``hung`` says that it is there, at a pass for ``computing`` seconds.
    """

    bench: "Deployed"
    session: NodeSession
    pace: float = 0.1
    lie: Callable[[int, int], int] = lambda _place, token: token
    mute: bool = False
    telling: str = ""
    refusing: str = ""
    asked: list[EngineCommand] = field(default_factory=list)
    lease: Assign | None = None
    answering: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    told: list[asyncio.Task[None]] = field(default_factory=list)
    seq: int = 0
    plan: Plan | None = None
    epochs: list[int] = field(default_factory=list)
    waits: bool = False
    sketch: bytes | None = b"honestly"
    late: float = 0.0
    hung: bool = False
    frozen: bool = False
    computing: float = 0.0
    env_class: str = "cpu"
    looks: bool = True  # At what others are accused of.
    vouches: bool = False  # For whoever is accused; it says other bits than were computed.
    gone: bool = False
    unheard: list[CoordinatorMessage] = field(default_factory=list)

    @property
    def node(self) -> str:
        return self.session.node

    async def say(self, body: TaskReport, reliable: bool = False) -> None:
        if self.lease is None or self.bench.parts.nodes.session(self.node) is not self.session:
            return
        self.seq += reliable
        report = Report(self.lease.lease, self.lease.fence, self.seq if reliable else 0, body)
        await self.bench.parts.conversation.receive(self.session, report)

    async def hear(self, message: CoordinatorMessage) -> None:
        if self.frozen:
            self.unheard.append(message)
            return
        match message:
            case Assign():
                self.lease, self.seq, self.plan = message, 0, None
                await self.say(TaskReady(self.env_class, 1), reliable=True)
            case Command(body=StopTask()):
                self.silence()
                self.lease = None
            case Command(body=AwaitStages()):
                self.waits = True
            case Command(body=JoinStages(plan=plan)) if self.plan is None or plan.epoch > self.plan.epoch:
                under_way = list(self.answering)
                self.silence()
                self.plan, self.waits = plan, False
                self.epochs.append(plan.epoch)
                for request in under_way:
                    await self._told(RefusedReport(request, "failed", "its nodes are others now"))
            case Command(body=AskModel(body=command)):
                self.asked.append(command)
                if isinstance(command, GenerateCommand):
                    self.answering[command.id] = asyncio.create_task(self._answer(command))
                elif isinstance(command, EmbedCommand):
                    self.answering[command.id] = asyncio.create_task(self._embed(command))
                else:
                    await self._also(command)

    async def _also(self, command: EngineCommand) -> None:
        if isinstance(command, ProveCommand) and not self.looks:
            return
        if isinstance(command, ProveCommand):
            wrong = "" if self.vouches else self.bench.checker.explained(command)
            await self._told(ProvenReport(command.id, wrong, digest(command.seed, wrong), self.env_class))
        elif isinstance(command, PingCommand):
            await self._told(PongReport(command.id, self.computing))
        elif isinstance(command, CancelCommand) and command.id in self.answering:
            self.answering.pop(command.id).cancel()

    async def thaw(self) -> None:
        """It goes on where it was, and hears what was said meanwhile."""
        self.frozen, waiting, self.unheard = False, self.unheard, []
        for message in waiting:
            await self.hear(message)

    def silence(self) -> None:
        for task in self.answering.values():
            task.cancel()
        self.answering.clear()

    async def _answer(self, command: GenerateCommand) -> None:
        if self.refusing:
            await self._told(RefusedReport(command.id, self.refusing, "it cannot"))
            return
        if self.lease is not None and len(self.lease.plan.layers) > 1 and self.plan is None:
            await self._told(RefusedReport(command.id, "failed", "it has not been joined"))
            return
        most = command.tokens or 4
        try:
            await self._draw(command, most)
        finally:
            self._sketched(command.id, most)

    async def _draw(self, command: GenerateCommand, most: int) -> None:
        for place in range(len(command.begun), most):
            await self.bench.time.sleep(self.pace)
            while not all(
                home.lease is not None and not (home.hung or home.frozen or home.gone) for home in self._team()
            ):
                await self.bench.time.sleep(0.1)
            token = self.lie(place, truth(command, place))
            await self._told(TextReport(command.id, self.telling or text_of(token), (token,)))
        await self._told(AnsweredReport(command.id, "length", 3, most))

    async def _embed(self, command: EmbedCommand) -> None:
        if self.refusing:
            await self._told(RefusedReport(command.id, self.refusing, "it cannot"))
            return
        for place, text in enumerate(command.texts):
            await self.bench.time.sleep(self.pace)
            vector = vector_of(text) if not self.lie(place, 0) else vector_of(f"not {text!r}")
            await self._told(EmbeddedReport(command.id, (len(text),), (vector,)))
        await self._told(AnsweredReport(command.id, "stop", 1, 0))

    def _team(self) -> list["Home"]:
        nodes = [] if self.plan is None else [member.node for member in self.plan.members]
        return [self.bench.homes[node] for node in nodes]

    def _sketched(self, request: str, tokens: int) -> None:
        for stage, home in enumerate(self._team()):
            said = [
                side for side, is_there in (("got", stage > 0), ("sent", stage + 1 < len(self._team()))) if is_there
            ]
            home.told = [asyncio.create_task(home.say_sketch(request, side, tokens)) for side in said]

    async def say_sketch(self, request: str, side: str, tokens: int) -> None:
        if self.sketch is None or self.gone or self.frozen or self.hung:
            return
        await self.bench.time.sleep(self.late)
        await self.say(ModelSaid((SketchReport(request, side, 0, self.sketch * tokens),)))

    async def _told(self, report: EngineReport) -> None:
        if not self.mute:
            await self.say(ModelSaid((report,)))

    async def vanish(self) -> None:
        """Its machine is gone, without a word."""
        self.silence()
        self.gone = True
        self.bench.parts.conversation.left(self.session)


class TruthTeller:
    """Checks answers by drawing them again."""

    def __init__(self) -> None:
        self.checked: list[AnswerCheck] = []
        self.held: list[ServedFiles] = []
        self.able = self.proves = True
        self.names: tuple[int, ...] = ()
        self.proved: list[ProveCommand] = []
        self.env_class = "cpu"
        self.rounding = False  # Explains what it found.

    def before(self, _archive: str) -> int:
        return 0

    async def check(self, held: ServedFiles, command: AnswerCheck, _seconds: float) -> CheckedReport:
        self.checked.append(command)
        self.held.append(held)
        if not self.able:
            raise UnavailableError("no model here")
        if isinstance(command, CheckEmbeddingsCommand):
            right = command.vectors == tuple(map(vector_of, command.asked.texts))
            return CheckedReport(command.id, "" if right else "an embedding is another", 0.0)
        wrong = self._wrong(command)
        return CheckedReport(command.id, wrong, 0.0, self.names if wrong and command.boundaries else ())

    @staticmethod
    def _wrong(command: CheckCommand) -> str:
        first = len(command.asked.begun)
        drawn = [truth(command.asked, first + place) for place in range(len(command.tokens))]
        false = next((place for place, token in enumerate(command.tokens) if token != drawn[place]), None)
        wrong = "" if false is None else f"token {false + 1} is another"
        if not wrong and command.text != "".join(map(text_of, command.tokens)):
            wrong = "its text is another"
        return wrong

    def explained(self, command: ProveCommand) -> str:
        """What no rounding explains of an answer."""
        return "" if self.rounding else self._wrong(command.check)

    async def prove(self, _held: ServedFiles, command: ProveCommand, _seconds: float) -> ProvenReport:
        self.proved.append(command)
        if not (self.able and self.proves):
            raise UnavailableError("no model here")
        wrong = self.explained(command)
        return ProvenReport(command.id, wrong, digest(command.seed, wrong), self.env_class)


class Deployed(Bench):
    """A bench on virtual time, with everything running that deployments need."""

    def __init__(self, checker: TruthTeller | None = None) -> None:
        self.time = VirtualClock()
        self.checker = checker or TruthTeller()
        super().__init__(CONFIG, clock=self.time, generator=self.checker)
        self.homes: dict[str, Home] = {}
        self._heard: dict[str, int] = {}
        self._entered: dict[str, tuple[int, dict[str, Any]]] = {}

    async def come(self, number: int, **fields: Any) -> Home:
        """A node that can hold the model."""
        fields = {"memory_mb": MB, **fields}
        session = await self.enter(number, **fields)
        home = self.homes[session.node] = Home(self, session)
        self._entered[session.node] = (number, fields)
        return home

    async def restart(self) -> None:
        """The coordinator begins anew with what is stored, and its nodes come back with the leases that they hold."""
        before = self.parts
        self.parts = assemble(
            CONFIG,
            self.time,
            self.store,
            self.fake,
            cast(ModelWorkshop, FakeModels()),
            cast(ArtifactStore, FakeArtifacts()),
            COORDINATOR,
            WALLET,
            generator=self.checker,
            deliveries=AllDelivered(self.store, self.time),
        )
        assert self.parts is not before
        await self.parts.recover()
        for node, home in self.homes.items():
            number, fields = self._entered[node]
            held = () if home.lease is None else (HeldLease(home.lease.lease, home.lease.fence),)
            home.session = await self.enter(number, held, **fields)

    async def trained(self) -> str:
        """A job that is done, with a model."""
        job = await self.job(spec(1, 1), nodes=0)
        async with self.desk(job) as work:
            run = Run((Layers(0, 4),), 1, 4, 2, (), points=(RunPoint(Base(2, 2), (digest("state"),)),))
            work.run = msgspec.structs.replace(run, checkpoints=(digest("state"),), base=Base(2, 2))
            work.job = msgspec.structs.replace(
                work.job, state=JobState.SETTLED, model=digest("model", job), rounds_done=2
            )
        return job

    def desk(self, job: str) -> AbstractAsyncContextManager[UnitOfWork]:
        """Its job, opened."""
        return self.parts.desk.open(job)

    async def deploy(
        self,
        replicas: int = 1,
        budget: int = BUDGET,
        hours: float = 8.0,
        idle: int | None = None,
        stages: int | None = None,
        alone: bool = False,
        weights: ServedWeights = "float32",
    ) -> str:
        """A deployment with its money in escrow. ``alone``: all nodes leave before."""
        trained = await self.trained()
        document = JobSpec(
            "moo at homes",
            ModelSpec(from_job=trained),
            budget,
            deadline_hours=hours,
            serve=ServeSpec(replicas, idle_minutes=idle, stages=stages, weights=weights),
        )
        job = (await self.parts.jobs.create(NewJob(document))).id
        for home in self.homes.values() if alone else ():
            await home.vanish()
        await self.while_time_moves(self.fund(job))
        await self.turn(job)
        return job

    async def turn(self, job: str, times: int = 3) -> None:
        """Let everybody hear and act."""
        for _ in range(times):
            async with self.desk(job) as work:
                await self.parts.runs.advance(work)
            await self.hear()
            await self.while_time_moves(self.parts.lanes.drain())

    async def while_time_moves(self, what: Coroutine[Any, Any, object]) -> None:
        """Do something that waits for the clock."""
        task = asyncio.create_task(what)
        while not task.done():
            await self.hear()
            await self.time.advance(0.05)
        await task

    async def hear(self) -> None:
        for node, home in self.homes.items():
            sent = self.sent[node]
            while self._heard.get(node, 0) < len(sent):
                place = self._heard.get(node, 0)
                self._heard[node] = place + 1
                await home.hear(sent[place])

    async def pass_time(self, seconds: float, step: float = 0.05) -> None:
        """Let time pass, with what is said in it heard."""
        for _ in range(round(seconds / step)):
            await self.hear()
            await self.time.advance(step)
        await self.hear()

    def ask(self, job: Job, prompt: str = "moo", tokens: int = 8, seed: int = 7) -> "Asked":
        """Begin a request."""
        command = GenerateCommand("1", prompt, tokens=tokens, sampling=Sampling(seed=seed))
        return Asked(self, job, command)

    def embed(self, job: Job, *texts: EmbeddedText) -> "Asked":
        """Begin a request for embeddings."""
        return Asked(self, job, EmbedCommand("1", texts))

    @asynccontextmanager
    async def checking(self) -> AsyncIterator[None]:
        """Answers are drawn again meanwhile."""
        loops = (self.parts.answer_checks.run(), self.parts.answer_proofs.run())
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class Asked:
    """A request under way."""

    def __init__(self, bench: Deployed, job: Job, command: AskCommand) -> None:
        self.command = command
        self.texts: list[TextReport] = []
        self.vectors: list[bytes] = []
        self.end: AnsweredReport | None = None
        self._reports = bench.parts.homes.generate(job, command, 600.0)
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for report in self._reports:
            if isinstance(report, TextReport):
                self.texts.append(report)
            elif isinstance(report, EmbeddedReport):
                self.vectors += report.vectors
            else:
                self.end = report

    async def leave(self) -> None:
        """Listen no more."""
        self.task.cancel()
        await asyncio.wait([self.task])
        await self._reports.aclose()

    @property
    def tokens(self) -> list[int]:
        return [token for report in self.texts for token in report.tokens]

    @property
    def right(self) -> list[int]:
        assert isinstance(self.command, GenerateCommand)
        return [truth(self.command, place) for place in range(self.command.tokens or 4)]
