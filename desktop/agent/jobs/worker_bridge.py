"""One worker's door: everything that it hears and says goes over its Unix socket and through here.

A worker is not trusted. What it says is decoded with bounds; what it wants to send is bounded in bytes and may go only to the
places of its own job's plan; anything that no worker may say ends its task (``WorkerProtocolError``), never the agent.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from desktop.agent.base.budget import ByteBudget
from desktop.agent.base.exception_groups import main_error
from desktop.agent.base.log import LOG
from desktop.agent.base.payloads import Payload, SmallPayload, pieces_of
from desktop.agent.errors import ArtifactError, PeerStateError, UnwantedError, WorkerError, WorkerProtocolError
from desktop.agent.federated.summing import OwnersSums
from desktop.agent.jobs.crash_records import RecalledPart, RoundStart, RoundStarts
from desktop.agent.jobs.handed_over import HandedOver
from desktop.agent.jobs.model_words import ModelReports
from desktop.agent.jobs.outside import Outside, TaskTraffic
from desktop.agent.jobs.round_traces import RoundTraces
from desktop.agent.jobs.routing import Plans, RoutingVerdict
from desktop.agent.jobs.spool import digest_of
from desktop.agent.jobs.weights import StageWeights, asks_for_weights
from protocol.artifacts import anchor_answer, audit_answer, inputs_answer, state_answer
from protocol.audit import InputsAnswer
from protocol.codec import MessageError, encode
from protocol.models.config_values import ModelConfigError
from protocol.models.handed_bytes import HandedBytes, handed_bytes
from protocol.models.model import ModelShape
from protocol.node import Assign
from protocol.serving import RefusedReport
from protocol.task import (
    ApplyRound,
    AskModel,
    AuditReport,
    BeginRound,
    BisectAnswer,
    BisectQuery,
    JoinStages,
    ModelSaid,
    OpeningMade,
    Progress,
    ReplayAcross,
    ReplayOuter,
    ReplayStep,
    RoundApplied,
    RoundCommit,
    StepOpened,
    StopTask,
    SumSaid,
    SumStep,
    TaskCommand,
    TaskReady,
    TaskReport,
    Traffic,
    WorkerLog,
)
from protocol.worker import (
    RETURNED_AT_ONCE,
    AgentMessage,
    PeerDeliver,
    PeerHeader,
    PeerSend,
    RecordKept,
    RecordPart,
    RecordRecall,
    RecordReturned,
    RestoredPart,
    Setup,
    SumVector,
    WorkerCommand,
    WorkerMessage,
    WorkerReport,
    read_exactly,
    read_head,
    write_frame,
    write_stream,
)

MAX_PEER_PAYLOAD = 512 << 20  # What transport carries in one message.
UNSENT = (512 << 20, 1024)  # Bytes and messages on their way to peers; then the worker's next send waits in the socket.
UNDELIVERED = (512 << 20, 4096)  # The same towards the worker: what a busy worker has not read yet.
# Payloads of an epoch whose plan has not arrived: a second's worth; then the sender tries again.
EARLY = (128 << 20, 1024)
MAX_RECALLS = 64  # A worker asks once for each round and kind that audits wait for.
ASKED = (16 << 20, 256)  # The same of requests to a model: whoever is asked too much says so, and another node answers.
MAX_COMMANDS = 256  # The coordinator sends a command again if it has no effect; a worker that reads none is stuck.
DELIVERY_WAIT_S = 20.0  # A peer's message waits so long for a busy worker, then the peer keeps it and tries again.


Parts = tuple[Payload, ...]
"""What comes with a message: nothing, one payload, or a state and its moments."""
Restored = Sequence[tuple[RestoredPart, Payload]]
"""What another worker is given of one that died."""


class WorkerBusyError(WorkerError):
    """The worker cannot take a peer's payload now; the peer tries again."""


@dataclass
class WorkerBridge:
    """The door of the worker of one lease. Create it when the lease is assigned; ``serve`` it when the worker connects."""

    assign: Assign
    outside: Outside
    plans: Plans = field(init=False)
    weights: StageWeights | None = None
    shape: ModelShape | None = None
    traffic: TaskTraffic = field(default_factory=TaskTraffic)
    dropped: Counter[RoutingVerdict] = field(default_factory=Counter)
    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Prepare the queues."""
        self.plans = Plans(self.assign.plan, ring=self.assign.spec.serve is not None)
        self.traces = RoundTraces(self.assign.job, self.assign.stage)
        self._commands: asyncio.Queue[TaskCommand] = asyncio.Queue(MAX_COMMANDS)
        self._to_worker: asyncio.Queue[tuple[AgentMessage, Parts, int]] = asyncio.Queue()
        self._early: deque[tuple[str, PeerHeader, bytes]] = deque()
        self._early_bytes = 0
        self._reports: asyncio.Queue[tuple[TaskReport | RecordPart, Parts]] = asyncio.Queue()
        self._starts = RoundStarts()
        self._newest = (-1, -1)
        self._superseded = asyncio.Event()
        self._dispute = ""
        self._of_records = asyncio.Lock()
        self._recalls = 0
        self._unsent = ByteBudget(*UNSENT)
        self._undelivered = ByteBudget(*UNDELIVERED)
        self._asked = ByteBudget(*ASKED)
        self.words = ModelReports(self.outside.report)
        self._handed = HandedOver(self.outside.spool, self._bounds)

    def neighbours(self) -> set[str]:
        """The nodes that this lease exchanges messages with, under the plan in force."""
        return self.plans.neighbours(self.assign.stage, self.assign.replica)

    def _bounds(self) -> HandedBytes | None:
        """What the worker can have to hand over, where the model is known."""
        if self.shape is None:
            return None
        assign = self.assign
        try:
            return handed_bytes(self.shape, assign.spec, assign.plan, assign.stage, self.plans.replicas)
        except ModelConfigError:  # The plan is none of this model; that is for the worker to say.
            return None

    # --- from the coordinator -------------------------------------------------------------------------------------------

    def command(self, body: TaskCommand) -> bool:
        """Queue a command for the worker; a ``BeginRound``'s plan is in force at once. False: the queue is full."""
        if isinstance(body, BeginRound):
            self.plans.learn(body.plan)
            self._admit_early()
            if (key := (body.plan.epoch, body.round)) > self._newest:
                self._newest = key
                self._superseded.set()  # Whatever is being fetched for an older round is of no use any more.
                self._superseded = asyncio.Event()
                if self.outside.sums is not None:
                    self.outside.sums.begins(*key)
        try:
            self._commands.put_nowait(body)
        except asyncio.QueueFull:
            return False
        return True

    def join(self, body: JoinStages) -> None:
        """Take over who holds this replica together. The worker hears of it once, before what peers and programs say then."""
        if body.plan.epoch > self.plans.newest.epoch:
            self._put_command(body)
            self.plans.learn(body.plan)
            self._admit_early()

    def ask(self, body: AskModel) -> None:
        """Pass a request on to the worker's model; one that has no room is refused at once, so that another node is asked."""
        size = len(encode(body))
        if self._asked.try_take(size):
            self._to_worker.put_nowait((WorkerCommand(body), (), size))
        else:
            self.words.say(RefusedReport(body.body.id, "busy", "this node's model has too many requests"))

    # --- from peers -----------------------------------------------------------------------------------------------------

    async def deliver(self, sender: str, header: PeerHeader, payload: bytes) -> None:
        """Take a peer's payload for the worker; one that the plan forbids is counted and dropped.

        Raises:
            WorkerBusyError: no room now; the sender keeps it and tries again.
        """
        verdict = self.plans.judge(sender, header)
        if verdict is RoutingVerdict.EARLY:
            self._keep_early(sender, header, payload)
        elif verdict is RoutingVerdict.TAKE:
            try:
                async with asyncio.timeout(DELIVERY_WAIT_S):
                    await self._undelivered.take(len(payload))
            except TimeoutError:
                raise WorkerBusyError("the worker has not read its messages for a while") from None
            self._put_delivery(header, payload)
        else:
            self.dropped[verdict] += 1

    def _keep_early(self, sender: str, header: PeerHeader, payload: bytes) -> None:
        limit, count = EARLY
        if len(self._early) >= count or self._early_bytes + len(payload) > limit:
            raise WorkerBusyError(f"the plan of epoch {header.name.epoch} has not arrived here yet")
        self._early.append((sender, header, payload))
        self._early_bytes += len(payload)

    def _admit_early(self) -> None:
        """Judge again what waited for a plan. It is held in memory already, so it passes without asking the budget."""
        waiting, self._early, self._early_bytes = self._early, deque(), 0
        for sender, header, payload in waiting:
            verdict = self.plans.judge(sender, header)
            if verdict is RoutingVerdict.EARLY:
                self._keep_early(sender, header, payload)
            elif verdict is RoutingVerdict.TAKE:
                self._undelivered.force(len(payload))
                self._put_delivery(header, payload)
            else:
                self.dropped[verdict] += 1

    def _put_delivery(self, header: PeerHeader, payload: bytes) -> None:
        message = PeerDeliver(header.from_stage, header.from_replica, header.name)
        self._to_worker.put_nowait((message, (SmallPayload(payload),), len(payload)))

    # --- the socket -----------------------------------------------------------------------------------------------------

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, setup: Setup, restored: Restored = ()
    ) -> None:
        """Talk with the connected worker until it closes its socket; ``restored`` follows the ``Setup``.

        Raises:
            EOFError: the worker closed its socket.
            WorkerProtocolError: it said something that no worker may say.
            ArtifactError: something that it needs or made cannot be transferred.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(writer, setup, restored), name="to-worker")
                group.create_task(self._pass_commands(), name="commands")
                group.create_task(self._pass_reports(), name="reports")
                group.create_task(self.words.run(), name="words")
                group.create_task(self._read(reader, group), name="from-worker")
        except BaseExceptionGroup as errors:
            raise main_error(errors, EOFError) from None
        finally:
            self._handed.close()

    async def _write(self, writer: asyncio.StreamWriter, setup: Setup, restored: Restored) -> None:
        try:
            await write_frame(writer, setup)
            for part, payload in restored:
                await _write(writer, part, (payload,))
            while True:
                message, parts, held = await self._to_worker.get()
                await _write(writer, message, parts)
                del parts  # A file that nobody else has is deleted.
                if isinstance(message, WorkerCommand) and isinstance(message.body, AskModel):
                    self._asked.give(held)
                elif held:
                    self._undelivered.give(held)
        except ConnectionError as error:
            raise EOFError("the worker closed its socket") from error

    async def _pass_commands(self) -> None:
        """Fetch what a command needs, in order, and hand it on."""
        while True:
            body = await self._commands.get()
            if isinstance(body, StopTask):
                continue  # The task ends the worker itself.
            match body:
                case BeginRound(replaces_state=True):
                    parts = await self._state_for(body)
                    if parts is not None:
                        self._put_command(body, *parts)
                        await self._keep_start(body.round, *parts)
                        del parts
                case SumStep():
                    if self.outside.sums is not None:
                        await self.outside.sums.step(body)
                case ApplyRound(total=str() as total):
                    self._put_command(body, await self.outside.fetch(total))
                case ReplayStep() | ReplayAcross() | ReplayOuter() | BisectQuery():
                    try:
                        await self._pass_opened(body)
                    except ArtifactError as error:  # Of somebody else's: it is no reason to give up one's own work.
                        LOG.warning("an opening cannot be had, so nothing is said of it: %s", error)
                case _:
                    self._put_command(body)

    async def _pass_opened(self, body: ReplayStep | ReplayAcross | ReplayOuter | BisectQuery) -> None:
        """A command with the opening that it is about."""
        match body:
            case (ReplayStep() as replay) | ReplayAcross(replay=replay):
                if self.weights is not None and asks_for_weights(replay, self.assign.spec):
                    await self.weights.lay_out(replay.plan, replay.stage)
                await self._put_opened(body, replay)
            case ReplayOuter(opening=opening):
                self._put_command(body, await self.outside.fetch(opening))
            case BisectQuery(dispute=dispute, replay=replay):
                await self._pass_query(body, dispute, replay)

    async def _pass_query(self, body: BisectQuery, dispute: str, replay: ReplayStep) -> None:
        """A question of a dispute; the opening goes with the first one only, since the worker keeps the newest dispute's."""
        if dispute == self._dispute:
            self._put_command(body)
            return
        if self.weights is not None and asks_for_weights(replay, self.assign.spec):
            await self.weights.lay_out(replay.plan, replay.stage)
        await self._put_opened(body, replay)
        self._dispute = dispute

    async def _put_opened(self, body: TaskCommand, replay: ReplayStep) -> None:
        """A command with an opening, and the anchor of that, where it is an artifact of its own."""
        parts = [await self.outside.fetch(replay.opening)]
        if replay.anchor_in == "artifact" and replay.anchor is not None:
            parts.append(await self.outside.fetch(replay.anchor))
        self._put_command(body, *parts)

    def _put_command(self, body: TaskCommand, *parts: Payload) -> None:
        split = parts[0].size if len(parts) > 1 else 0
        self._to_worker.put_nowait((WorkerCommand(body, split, self.traces.handed(body)), parts, 0))

    async def _state_for(self, begin: BeginRound) -> Parts | None:
        """The state that a round begins from, and the seat's moments; None where a newer round began meanwhile."""
        if (begin.plan.epoch, begin.round) < self._newest:
            return None
        fetching = asyncio.ensure_future(self._fetch_state(begin))
        newer = asyncio.ensure_future(self._superseded.wait())
        try:
            await asyncio.wait((fetching, newer), return_when=asyncio.FIRST_COMPLETED)
            return fetching.result() if fetching.done() else None
        finally:
            for future in (fetching, newer):
                future.cancel()
            await asyncio.gather(fetching, newer, return_exceptions=True)

    async def _fetch_state(self, begin: BeginRound) -> Parts:
        """From peers where they keep it, else from the coordinator where it is stored; moments only from who keeps them."""
        state: Payload | None = None
        own: Payload | None = None
        if begin.moments is not None:
            try:
                own = self._handed.watch(await self.outside.fetch_state(begin.moments))
            except PeerStateError as error:
                LOG.info("%s; the optimizer's moments of this seat begin at zero", error)
        if begin.kept is not None:
            try:
                state = self._handed.watch(await self.outside.fetch_state(begin.kept))
            except PeerStateError as error:
                if begin.state is None:
                    raise
                LOG.info("%s; the coordinator has it", error)
        if state is None:
            assert begin.state is not None
            state = await self.outside.fetch(begin.state)
        return (state,) if own is None else (state, own)

    async def _keep_start(self, round_index: int, state: Payload, own: Payload | None = None) -> None:
        """Have what a round begins with here, too, where it came from others: a record of the round needs it."""
        self._starts.set(round_index, None)
        if self.outside.record is None:
            return
        try:
            kept = await self.outside.keep(state, False)
            moments = await self.outside.keep(own, True) if own else None
        except OSError as error:
            LOG.warning("what round %d begins with is not kept, nor is its record: %s", round_index + 1, error)
        else:
            self._starts.set(round_index, RoundStart(kept, moments))

    async def _read(self, reader: asyncio.StreamReader, group: asyncio.TaskGroup) -> None:
        while True:
            try:
                message, length = await read_head(reader, WorkerMessage)
            except MessageError as error:
                raise WorkerProtocolError(f"the worker broke the protocol: {error}") from error
            match message:
                case PeerSend():
                    await self._start_send(message, reader, length, group)
                case RecordPart() | SumVector():
                    await self._take_part(message, reader, length, group)
                case RecordRecall():
                    _see_nothing_comes(length)
                    if self._recalls >= MAX_RECALLS:
                        raise WorkerProtocolError("the worker asks for more records than audits can be about")
                    self._recalls += 1
                    group.create_task(self._return_record(message), name="recall")
                case WorkerReport(body=(Progress() | WorkerLog()) as said):
                    _see_nothing_comes(length)
                    if isinstance(said, Progress):
                        self.progress = said
                    await self.outside.report(said, False)
                case WorkerReport(body=ModelSaid() as words):
                    _see_nothing_comes(length)
                    await self.words.put(words)
                case WorkerReport(body=body, took=took):
                    self.traces.worked(body, took)
                    parts = await self._handed.take(reader, message, length)
                    assert parts is not None
                    await self._take_report(body, parts if length else (), group)
            parts = None  # Whoever has them now lets them go.

    async def _take_part(
        self, message: RecordPart | SumVector, reader: asyncio.StreamReader, length: int, group: asyncio.TaskGroup
    ) -> None:
        """A record for the disk, or an update for a sum."""
        sums = self.outside.sums
        if isinstance(message, SumVector) and sums is None:
            raise WorkerProtocolError("the worker has an update for a sum, and its job makes none")
        parts = await self._handed.take(reader, message, length)
        if parts is None:
            return
        if isinstance(message, SumVector) and sums is not None:
            group.create_task(self._sum(sums, message, parts[0]), name="sum")
        elif isinstance(message, RecordPart):
            self._reports.put_nowait((message, parts))

    async def _sum(self, sums: OwnersSums, message: SumVector, update: Payload) -> None:
        """Have the update of a round masked and stored; it waits for the other owners meanwhile."""
        try:
            await sums.vector(message, update)
            self.traffic.artifacts += update.size
        finally:
            self._handed.give(update.size)

    async def _take_report(self, body: TaskReport, parts: Parts, group: asyncio.TaskGroup) -> None:
        if isinstance(body, StepOpened) and parts and body.opening is not None:
            await self.outside.report(OpeningMade(body.audit, body.opening, parts[0].size), True)
        if isinstance(body, StepOpened | BisectAnswer) or (parts and isinstance(body, AuditReport)):
            # What an audit asks for may take a minute of a home's upload: neither a round's end nor what another
            # audit asks for, which is due at the same time, waits behind it.
            group.create_task(self._pass_report(body, parts), name="answer")
        else:
            self._reports.put_nowait((body, parts))

    async def _start_send(
        self, message: PeerSend, reader: asyncio.StreamReader, length: int, group: asyncio.TaskGroup
    ) -> None:
        if not 1 <= length <= MAX_PEER_PAYLOAD:
            raise WorkerProtocolError(f"a payload of {length:,} bytes for a peer: 1 to {MAX_PEER_PAYLOAD:,} can go")
        if self.assign.stage is None or self.assign.replica is None:
            raise WorkerProtocolError("a spare has no peers to send to")
        await self._unsent.take(length)
        payload = await read_exactly(reader, length)
        group.create_task(self._send(message, payload), name=f"send-{message.name.kind}")

    async def _send(self, message: PeerSend, payload: bytes) -> None:
        try:
            await self.outside.send_peer(self, message, payload)
        finally:
            self._unsent.give(len(payload))

    async def _pass_reports(self) -> None:
        """Hand reports on in order."""
        while True:
            body, parts = await self._reports.get()
            if isinstance(body, RecordPart):
                await self._keep_record(body, parts[0])
            else:
                await self._pass_report(body, parts)
            del parts

    async def _keep_record(self, part: RecordPart, payload: Payload) -> None:
        """Have a record on the disk before it is said that its round, or outer step, is done; without one, all else goes on."""
        try:
            if self.outside.record is None:
                return
            if part.kind == "state":
                self._starts.set(part.round, RoundStart(await self.outside.keep(payload, False)))
            elif (start := self._starts.of(part.round)) is not None:
                async with self._of_records:  # What a newer record makes room by deleting may be wanted back just now.
                    kept = await self.outside.record(part, start, payload)
                if kept and start.state is not None:
                    self._to_worker.put_nowait((RecordKept(part.epoch, part.round, part.kind), (), 0))
        except OSError as error:
            LOG.warning(
                "round %d is not kept on the disk: a crash would cost it, should it be looked at: %s",
                part.round + 1,
                error,
            )
        finally:
            self._handed.give(payload.size)

    async def _return_record(self, recall: RecordRecall) -> None:
        """Give the worker a round back that it has let go; nothing where the disk has lost it."""
        async with self._of_records:
            try:
                parts = [] if self.outside.recall is None else await self.outside.recall(recall)
            except OSError as error:
                LOG.warning("round %d cannot be read from the disk any more: %s", recall.round + 1, error)
                parts = []
            sizes = {part.kind: part.payload.size for part in parts}
            self._to_worker.put_nowait((RecordReturned(recall, sizes), (), 0))
            for part in parts:
                if not await self._return_part(recall, part):
                    LOG.warning("round %d cannot be read from the disk any more", recall.round + 1)
                    self._to_worker.put_nowait((RecordReturned(recall, {}), (), 0))
                    break
        self._recalls -= 1

    async def _return_part(self, recall: RecordRecall, part: RecalledPart) -> bool:
        """Hand over one part, a little at a time; False where the disk has not got all of it."""
        message = RestoredPart(recall.epoch, recall.round, part.kind)
        whole = part.payload.size
        for start in range(0, whole, RETURNED_AT_ONCE):
            size = min(RETURNED_AT_ONCE, whole - start)
            data = await asyncio.to_thread(part.payload.read, start, start + size)
            if len(data) != size:
                return False
            await self._undelivered.take(size)
            self._to_worker.put_nowait((message, (SmallPayload(data),), size))
        return True

    async def _pass_report(self, body: TaskReport, parts: Parts) -> None:
        """Store what a report carries, and hand it on; an answer that nobody waits for any more goes no further."""
        size = sum(part.size for part in parts)
        stored = await self._store(body, *parts) if parts else body
        if stored is not None:
            if isinstance(stored, Traffic | SumSaid):
                raise WorkerProtocolError(f"the worker says {type(stored).__name__}: only the agent does")
            if isinstance(stored, RoundApplied) and not parts and (stored.kept or stored.moments):
                raise WorkerProtocolError("the worker names a state that it has not handed over")
            await self.outside.report(stored, True)
            if isinstance(stored, TaskReady):
                self.words.begin()
            if isinstance(stored, RoundCommit | RoundApplied):
                await self.outside.report(self.traffic.report(), False)
        self._handed.give(size)

    async def _store(self, body: TaskReport, payload: Payload, moments: Payload | None = None) -> TaskReport | None:
        if isinstance(body, RoundApplied):
            own = None if moments is None else await self.outside.keep(moments, True)
            body = msgspec.structs.replace(body, kept=await self.outside.keep(payload, False), moments=own)
            self._starts.set(body.round + 1, RoundStart(body.kept, own))
            if body.checkpoint is None:
                return body
        digest = await asyncio.to_thread(digest_of, payload)
        match body:
            case StepOpened(audit=audit, opening=named):
                body, answers = msgspec.structs.replace(body, opening=digest), audit_answer(audit)
                _check_name(named or digest, digest)
            case RoundApplied(epoch=epoch, round=number, checkpoint=named):
                answers = state_answer(epoch, number)
                _check_name(named, digest)
            case AuditReport(audit=audit, anchor=named):
                answers = anchor_answer(audit)
                _check_name(named, digest)
            case BisectAnswer(dispute=dispute, answer=InputsAnswer(artifact=named)):
                answers = inputs_answer(dispute)
                _check_name(named, digest)
            case _:
                raise WorkerProtocolError(f"a {type(body).__name__} carries no artifact")
        try:
            await self.outside.upload(payload, digest, answers, isinstance(body, RoundApplied))
        except UnwantedError as error:
            LOG.info("%s", error)
            if isinstance(body, AuditReport):
                return msgspec.structs.replace(body, anchor=None)
            return msgspec.structs.replace(body, checkpoint=None) if isinstance(body, RoundApplied) else None
        self.traffic.artifacts += payload.size
        return body


async def _write(writer: asyncio.StreamWriter, message: AgentMessage, parts: Parts) -> None:
    """One frame, in which what is on the disk goes through memory piece by piece."""
    if all(isinstance(part, SmallPayload) for part in parts):
        await write_frame(writer, message, b"".join(part.read() for part in parts))
    else:
        await write_stream(writer, message, sum(part.size for part in parts), pieces_of(*parts))


def _see_nothing_comes(length: int) -> None:
    if length:
        raise WorkerProtocolError(f"the worker sends {length:,} bytes with a message that carries none")


def _check_name(named: str | None, digest: str) -> None:
    if named != digest:
        raise WorkerProtocolError(f"the worker names the artifact {named}, but its bytes are {digest}")
