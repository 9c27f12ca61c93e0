"""One worker's door: everything that it hears and says goes over its Unix socket and through here.

A worker is not trusted. What it says is decoded with bounds; what it wants to send is bounded in bytes and may go only to the
places of its own job's plan; anything that no worker may say ends its task (``WorkerProtocolError``), never the agent.
"""

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from desktop.agent.base.budget import ByteBudget
from desktop.agent.base.exception_groups import main_error
from desktop.agent.base.log import LOG
from desktop.agent.errors import ArtifactError, PeerStateError, UnwantedError, WorkerError, WorkerProtocolError
from desktop.agent.jobs.crash_records import RoundStart, RoundStarts
from desktop.agent.jobs.routing import Plans, RoutingVerdict
from desktop.agent.jobs.weights import StageWeights
from protocol.artifacts import anchor_answer, audit_answer, inputs_answer, state_answer
from protocol.audit import InputsAnswer
from protocol.codec import MessageError
from protocol.job.job import JobSpec
from protocol.node import Assign
from protocol.task import (
    AuditReport,
    BeginRound,
    BisectAnswer,
    BisectQuery,
    KeptState,
    OpeningMade,
    Progress,
    ReplayAcross,
    ReplayOuter,
    ReplayStep,
    RoundApplied,
    RoundCommit,
    StepOpened,
    StopTask,
    TaskCommand,
    TaskReport,
    Traffic,
    WorkerLog,
)
from protocol.worker import (
    AgentMessage,
    PeerDeliver,
    PeerHeader,
    PeerSend,
    RecordPart,
    RestoredPart,
    Setup,
    WorkerCommand,
    WorkerMessage,
    WorkerReport,
    read_frame,
    write_frame,
)

MAX_PEER_PAYLOAD = 512 << 20  # What transport carries in one message.
UNSENT = (512 << 20, 1024)  # Bytes and messages on their way to peers; then the worker's next send waits in the socket.
UNDELIVERED = (512 << 20, 4096)  # The same towards the worker: what a busy worker has not read yet.
# Payloads of an epoch whose plan has not arrived: a second's worth; then the sender tries again.
EARLY = (128 << 20, 1024)
UNREPORTED = (1 << 30, 64)  # Reports and checkpoints on their way to the coordinator.
MAX_COMMANDS = 256  # The coordinator sends a command again if it has no effect; a worker that reads none is stuck.
DELIVERY_WAIT_S = 20.0  # A peer's message waits so long for a busy worker, then the peer keeps it and tries again.


Reports = asyncio.Queue[tuple[TaskReport | RecordPart, bytes, int]]
"""A report or a record, what it carries, and where that is split."""
Restored = Sequence[tuple[RestoredPart, Callable[[], bytes]]]
"""What another worker is given of one that died; what is to be read takes a thread."""


class WorkerBusyError(WorkerError):
    """The worker cannot take a peer's payload now; the peer tries again."""


@dataclass
class TaskTraffic:
    """What a lease has exchanged since it began, in bytes; messages to this same node are in none of it."""

    activations: int = 0
    bulk: int = 0
    wire: int = 0
    naive: int = 0
    artifacts: int = 0

    def report(self) -> Traffic:
        """As the coordinator wants it."""
        return Traffic(self.activations, self.bulk, self.wire, self.naive, self.artifacts)


@dataclass(frozen=True)
class Outside:
    """What a bridge needs of the agent.

    Attributes:
        send_peer: carries a payload to a place of the job until it is there or its epoch is over.
        upload: stores an artifact with the coordinator under the digest, as the answer (``protocol.artifacts``) to what was
            asked under the lease; the last word: whether a round's end waits for it.
        fetch: the bytes of an artifact, checked.
        fetch_state: a stage's state from the peers that keep it.
        keep: puts a stage's state, or (True) its optimizer's moments, where peers can have it; returns its manifest's digest.
        report: passes a report on; False: it may get lost.
        record: keeps what a round can be opened from after a crash, and what that began with. None: such records are not kept.
    """

    send_peer: Callable[["Bridge", PeerSend, bytes], Awaitable[None]]
    upload: Callable[[bytes, str, str, bool], Awaitable[None]]
    fetch: Callable[[str], Awaitable[bytes]]
    fetch_state: Callable[[KeptState], Awaitable[bytes]]
    keep: Callable[[bytes, bool], Awaitable[str]]
    report: Callable[[TaskReport, bool], Awaitable[None]]
    record: Callable[[RecordPart, RoundStart, bytes], Awaitable[None]] | None = None


@dataclass
class Bridge:
    """The door of the worker of one lease. Create it when the lease is assigned; ``serve`` it when the worker connects."""

    assign: Assign
    outside: Outside
    plans: Plans = field(init=False)
    weights: StageWeights | None = None
    traffic: TaskTraffic = field(default_factory=TaskTraffic)
    dropped: Counter[RoutingVerdict] = field(default_factory=Counter)
    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Prepare the queues."""
        self.plans = Plans(self.assign.plan)
        self._commands: asyncio.Queue[TaskCommand] = asyncio.Queue(MAX_COMMANDS)
        self._to_worker: asyncio.Queue[tuple[AgentMessage, bytes, int]] = asyncio.Queue()
        self._early: deque[tuple[str, PeerHeader, bytes]] = deque()
        self._early_bytes = 0
        self._reports: Reports = asyncio.Queue()
        self._starts = RoundStarts()
        self._newest = (-1, -1)
        self._superseded = asyncio.Event()
        self._dispute = ""
        self._unsent = ByteBudget(*UNSENT)
        self._undelivered = ByteBudget(*UNDELIVERED)
        self._unreported = ByteBudget(*UNREPORTED)

    def neighbours(self) -> set[str]:
        """The nodes that this lease exchanges messages with, under the plan in force."""
        return self.plans.neighbours(self.assign.stage, self.assign.replica)

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
        try:
            self._commands.put_nowait(body)
        except asyncio.QueueFull:
            return False
        return True

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
        self._to_worker.put_nowait((message, payload, len(payload)))

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
                group.create_task(self._read(reader, group), name="from-worker")
        except BaseExceptionGroup as errors:
            raise main_error(errors, EOFError) from None

    async def _write(self, writer: asyncio.StreamWriter, setup: Setup, restored: Restored) -> None:
        try:
            await write_frame(writer, setup)
            for part, read in restored:
                await write_frame(writer, part, await asyncio.to_thread(read))
            while True:
                message, payload, held = await self._to_worker.get()
                await write_frame(writer, message, payload)
                if held:
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
                        self._put_command(body, b"".join(parts), len(parts[0]) if parts[1] else 0)
                        await self._keep_start(body.round, *parts)
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
                if self.weights is not None and _asks_for_weights(replay, self.assign.spec):
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
        if self.weights is not None and _asks_for_weights(replay, self.assign.spec):
            await self.weights.lay_out(replay.plan, replay.stage)
        await self._put_opened(body, replay)
        self._dispute = dispute

    async def _put_opened(self, body: TaskCommand, replay: ReplayStep) -> None:
        """A command with an opening, and the anchor of that, where it is an artifact of its own."""
        opening, anchor = await self.outside.fetch(replay.opening), b""
        if replay.anchor_in == "artifact" and replay.anchor is not None:
            anchor = await self.outside.fetch(replay.anchor)
        self._put_command(body, opening + anchor, len(opening) if anchor else 0)

    def _put_command(self, body: TaskCommand, payload: bytes = b"", split: int = 0) -> None:
        self._to_worker.put_nowait((WorkerCommand(body, split), payload, 0))

    async def _state_for(self, begin: BeginRound) -> tuple[bytes, bytes] | None:
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

    async def _fetch_state(self, begin: BeginRound) -> tuple[bytes, bytes]:
        """From peers where they keep it, else from the coordinator where it is stored; moments only from who keeps them."""
        state = own = b""
        if begin.moments is not None:
            try:
                own = await self.outside.fetch_state(begin.moments)
            except PeerStateError as error:
                LOG.info("%s; the optimizer's moments of this seat begin at zero", error)
        if begin.kept is not None:
            try:
                state = await self.outside.fetch_state(begin.kept)
            except PeerStateError as error:
                if begin.state is None:
                    raise
                LOG.info("%s; the coordinator has it", error)
        if not state:
            assert begin.state is not None
            state = await self.outside.fetch(begin.state)
        return state, own

    async def _keep_start(self, round_index: int, state: bytes, own: bytes) -> None:
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
                message, payload = await read_frame(reader, WorkerMessage)
            except MessageError as error:
                raise WorkerProtocolError(f"the worker broke the protocol: {error}") from error
            match message:
                case PeerSend():
                    await self._start_send(message, payload, group)
                case RecordPart():
                    await self._unreported.take(len(payload))
                    self._reports.put_nowait((message, payload, 0))
                case WorkerReport(body=Progress() as progress):
                    self.progress = progress
                    await self.outside.report(progress, False)
                case WorkerReport(body=WorkerLog() as said):
                    await self.outside.report(said, False)
                case WorkerReport(body=body, split=split):
                    await self._unreported.take(len(payload))
                    if isinstance(body, StepOpened) and payload and body.opening is not None:
                        await self.outside.report(OpeningMade(body.audit, body.opening, len(payload)), True)
                    if isinstance(body, StepOpened | BisectAnswer) or (payload and isinstance(body, AuditReport)):
                        # What an audit asks for may take a minute of a home's upload: neither a round's end nor what another
                        # audit asks for, which is due at the same time, waits behind it.
                        group.create_task(self._pass_report(body, payload, split), name="answer")
                    else:
                        self._reports.put_nowait((body, payload, split))

    async def _start_send(self, message: PeerSend, payload: bytes, group: asyncio.TaskGroup) -> None:
        if not 1 <= len(payload) <= MAX_PEER_PAYLOAD:
            raise WorkerProtocolError(
                f"a payload of {len(payload):,} bytes for a peer: 1 to {MAX_PEER_PAYLOAD:,} can go"
            )
        if self.assign.stage is None or self.assign.replica is None:
            raise WorkerProtocolError("a spare has no peers to send to")
        await self._unsent.take(len(payload))
        group.create_task(self._send(message, payload), name=f"send-{message.name.kind}")

    async def _send(self, message: PeerSend, payload: bytes) -> None:
        try:
            await self.outside.send_peer(self, message, payload)
        finally:
            self._unsent.give(len(payload))

    async def _pass_reports(self) -> None:
        """Hand reports on in order."""
        while True:
            body, payload, split = await self._reports.get()
            if isinstance(body, RecordPart):
                await self._keep_record(body, payload)
            else:
                await self._pass_report(body, payload, split)

    async def _keep_record(self, part: RecordPart, payload: bytes) -> None:
        """Have a record on the disk before it is said that its round, or outer step, is done; without one, all else goes on."""
        start = self._starts.of(part.round)
        try:
            if self.outside.record is not None and start is not None:
                await self.outside.record(part, start, payload)
        except OSError as error:
            LOG.warning(
                "round %d is not kept on the disk: a crash would cost it, should it be looked at: %s",
                part.round + 1,
                error,
            )
        finally:
            self._unreported.give(len(payload))

    async def _pass_report(self, body: TaskReport, payload: bytes, split: int) -> None:
        """Store what a report carries, and hand it on; an answer that nobody waits for any more goes no further."""
        stored = await self._store(body, payload, split) if payload else body
        if stored is None:
            self._unreported.give(len(payload))
            return
        body = stored
        if isinstance(body, Traffic):
            raise WorkerProtocolError("the worker reports traffic: only the agent counts it")
        if isinstance(body, RoundApplied) and not payload and (body.kept or body.moments):
            raise WorkerProtocolError("the worker names a state that it has not handed over")
        await self.outside.report(body, True)
        if isinstance(body, RoundCommit | RoundApplied):
            await self.outside.report(self.traffic.report(), False)
        self._unreported.give(len(payload))

    async def _store(self, body: TaskReport, payload: bytes, split: int) -> TaskReport | None:
        if isinstance(body, RoundApplied):
            own = await self.outside.keep(payload[split:], True) if 0 < split < len(payload) else None
            payload = payload[:split] if own else payload
            body = msgspec.structs.replace(body, kept=await self.outside.keep(payload, False), moments=own)
            self._starts.set(body.round + 1, RoundStart(body.kept, own))
            if body.checkpoint is None:
                return body
        digest = await asyncio.to_thread(lambda: hashlib.sha256(payload).hexdigest())
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
        self.traffic.artifacts += len(payload)
        return body


def _check_name(named: str | None, digest: str) -> None:
    if named != digest:
        raise WorkerProtocolError(f"the worker names the artifact {named}, but its bytes are {digest}")


def _asks_for_weights(audit: ReplayStep, spec: JobSpec) -> bool:
    """Whether an audit needs what the job began with: in its first round, and always where the model itself is frozen."""
    return audit.first_step == 0 or spec.training.lora is not None
