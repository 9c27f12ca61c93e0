"""The leases that this node holds: files, sandbox, worker, end.

::

    Assign -> fetching -> starting -> running -> ended
                 '------------'----------'---> failed   TaskFailed goes to the coordinator
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from common.clock import Clock
from common.untrusted_text import untrusted
from desktop.agent.base.log import LOG, printable
from desktop.agent.base.payloads import Payload
from desktop.agent.base.unixsocket import listen
from desktop.agent.coordinator.artifacts import Artifacts
from desktop.agent.coordinator.report_outbox import LOG_COST, ReportOutbox, ReportPace
from desktop.agent.errors import (
    AgentError,
    NotConnectedError,
    TamperedError,
    UnacceptedImageError,
    WorkerDiedError,
    WorkerError,
    WorkerProtocolError,
)
from desktop.agent.federated.federated_gate import FederatedGate
from desktop.agent.federated.memberships import Memberships
from desktop.agent.jobs.crash_records import CrashRecords, FoundLease, RecalledPart, RoundStart
from desktop.agent.jobs.handed_over import shape_in
from desktop.agent.jobs.outside import Outside
from desktop.agent.jobs.peer_audits import Accusation, PeerAudits
from desktop.agent.jobs.peer_router import Peers
from desktop.agent.jobs.state_replication import States
from desktop.agent.jobs.weight_exchange import Circle
from desktop.agent.jobs.weights import StageWeights
from desktop.agent.jobs.worker_bridge import WorkerBridge
from desktop.agent.sandbox.base import SOCKET_NAME, Exit, Sandbox, SandboxWorker
from protocol.job.elements import ArrayReady, DropElements, ElementsMoved, RunElements
from protocol.models.weights import WEIGHT_INDEX
from protocol.node import Assign, HeldLease, Report, WorkerKind
from protocol.private.sessions import MARK
from protocol.serving import CancelCommand, EngineReport, GenerateCommand
from protocol.task import (
    AskModel,
    AwaitStages,
    ExpectPeers,
    FailureCause,
    JoinStages,
    KeptState,
    LeafShown,
    ModelSaid,
    OpeningMade,
    OpenOuter,
    OpenStep,
    Progress,
    ShowLeaf,
    StepOpened,
    TaskCommand,
    TaskFailed,
    TaskReady,
    TaskReport,
    WorkerLog,
)
from protocol.worker import PeerSend, RecordPart, RecordRecall, Setup

CONNECT_S = 180.0  # A worker imports PyTorch before it connects: 5 s on an idle machine, a minute on a crowded one.
LOOK_S = 0.25  # How often to look whether a worker that has not connected yet is still alive.
LAST_WORDS_S = 5.0  # A worker that closed its socket ends within that, and then its exit code tells why.
ACKNOWLEDGE_S = 10.0  # To have it stored that somebody reached into a job, before the agent leaves.
STOP_GRACE_S = 2.0
READ_AHEAD = 4 << 20  # Of the worker's socket: a payload of megabytes is read in a few pieces, not in hundreds.
PROGRESS_S = 0.25  # A tiny model takes fifty steps a second; a picture of it four times a second is enough.

MAX_REASON = 1000
CONFIG = "config.json"  # Of a job's files: what the model is.
MAX_CONFIG_BYTES = 1 << 20

TaskState = Literal["fetching", "starting", "running", "ended", "failed"]


@dataclass(frozen=True)
class Tools:
    """What every task of this node shares."""

    sandbox: Sandbox
    artifacts: Artifacts
    states: States
    peers: Peers
    send: Callable[[Report], Awaitable[None]]
    folder: Path
    threads: int
    device: str
    clock: Clock
    accuse: Callable[[Accusation], None] | None = None
    """Puts a bond against what a re-run of a neighbour's step has found; None: nobody is doubted."""
    records: CrashRecords | None = None
    """Of rounds, for who comes after a crash; None: no seat is ever held."""
    federations: Memberships | None = None
    """Which federated jobs may read what; None: none may."""
    said: ReportPace = field(init=False)
    """Of what models say, of all leases together: the coordinator takes so much from a node."""

    def __post_init__(self) -> None:
        """One pace for all."""
        object.__setattr__(self, "said", ReportPace(self.clock))


@dataclass
class HeldTask:
    """One lease. ``run`` it once; ``stop`` ends it without a failure report.

    Attributes:
        restored: what is on the disk of it, where another worker, or agent, had it and died: all that is left to do is to open
            what is drawn of that.
        may_die: another worker opens what this one leaves on the disk, should its process end. ``died``: how it did.
        ready: called once a restored worker is here.
        waits: of a replica that several nodes hold together, the others are not all there.
        loads: its worker is not ready yet.
    """

    assign: Assign
    tools: Tools
    restored: FoundLease | None = None
    may_die: bool = False
    died: str = ""
    ready: Callable[[], None] = lambda: None
    state: TaskState = "fetching"
    reason: str = ""
    tampered: bool = False
    cause: FailureCause = "machine"
    waits: bool = False
    loads: bool = True
    by_system: bool = False  # Disk or sockets failed, which the machine's own test does not see.
    pid: int | None = None
    bridge: WorkerBridge = field(init=False)
    outbox: ReportOutbox = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the door, so that peers and commands can arrive before the worker does."""
        trains = self.assign.stage is not None and self.trains and self.assign.spec.federated is None
        seated = trains and self.restored is None and self.tools.records is not None
        self._owner: FederatedGate | None = None
        if self.assign.spec.federated is not None:
            self._owner = FederatedGate(self.assign, self.tools.federations)
        self._is_restored = False
        self.outbox = ReportOutbox(self.lease, goes_on=self.restored is not None)
        self.bridge = WorkerBridge(
            self.assign,
            Outside(
                self._send,
                self._upload,
                self.tools.artifacts.fetch_payload,
                self._fetch_state,
                self._keep,
                self.tools.states.spool,
                self.report,
                self._record if seated else None,
                self._recall if seated else None,
                None if self._owner is None else self._owner.sums(self._upload, self.report),
            ),
        )
        self._peer_audits: PeerAudits | None = None
        if (
            self.tools.accuse is not None
            and seated
            and self.assign.stage is not None
            and self.assign.replica is not None
        ):
            seat = (self.assign.stage, self.assign.replica)
            self._peer_audits = PeerAudits(self.bridge.plans, seat, secrets.randbelow)
        self._stopping = asyncio.Event()
        self._worker: SandboxWorker | None = None
        self._frozen = self._resting = self._held = False
        self._holding = asyncio.Lock()
        self._told_failure = False
        self._pace, self._log_pace = ReportPace(self.tools.clock), ReportPace(self.tools.clock)
        self._lines_dropped = 0
        self._last_progress = -PROGRESS_S
        self._folder = self.tools.folder / f"{self.assign.lease}-{self.assign.fence}"
        self._keys: dict[str, bytes] = {}

    @property
    def lease(self) -> HeldLease:
        """What the coordinator is told."""
        worker: WorkerKind = "lives"
        if self.restored is not None:
            worker = "restored" if self._is_restored else "restoring"
        return HeldLease(self.assign.lease, self.assign.fence, worker)

    @property
    def serves(self) -> bool:
        """Whether it answers with a model: it has no rounds to keep, and no work of others to doubt. With all of the model it
        exchanges nothing, either."""
        return self.assign.spec.serve is not None

    @property
    def trains(self) -> bool:
        """Whether it has rounds, and peers to exchange them with."""
        return not self.serves and self.assign.spec.array is None

    @property
    def staged(self) -> bool:
        """Whether it answers together with other nodes, each of which holds some layers."""
        return self.serves and len(self.assign.plan.layers) > 1

    @property
    def alive(self) -> bool:
        """Whether the lease is to be renewed."""
        return self.state in ("fetching", "starting", "running") and not self._stopping.is_set()

    def command(self, body: TaskCommand) -> bool:
        """Queue a command for the worker; False: the queue is full, or a restored worker has nothing to do with it."""
        if self.restored is not None and not isinstance(body, OpenStep | OpenOuter | ShowLeaf):
            return False
        if isinstance(body, ExpectPeers):
            self.bridge.plans.expect(body.nodes)
            return True
        if isinstance(body, JoinStages | AwaitStages):
            if self.staged:
                self.waits = isinstance(body, AwaitStages)
            if self.staged and isinstance(body, JoinStages):
                self.bridge.join(body)
            return True
        if isinstance(body, AskModel):
            # Else nothing is said, and another node is asked. Private requests are not the coordinator's.
            if self.serves and self.state == "running" and not body.body.id.startswith(MARK):
                self.bridge.ask(body)
            return True
        if isinstance(body, RunElements | DropElements):
            return False
        if self._peer_audits is not None:
            self._peer_audits.told(body)
        passed = body if self._owner is None else self._owner.passed(body)
        if passed is None and self._owner is not None and self._owner.refused:
            self.stop(self._owner.refused)
        return passed is None or self.bridge.command(passed)

    async def _send(self, bridge: WorkerBridge, message: PeerSend, payload: bytes) -> None:
        if self._owner is not None:
            self._owner.check_send(message)
        await self.tools.peers.send(bridge, message, payload)

    @property
    def talks(self) -> bool:
        """Whether its model can be asked now: it holds all of it, or the first stage."""
        return self.serves and self.state == "running" and self.assign.stage == 0 and not self.waits

    def ask_privately(self, command: GenerateCommand, listener: Callable[[EngineReport], None]) -> None:
        """Ask the model, and have ``listener`` hear what it says, until ``forget_private``."""
        self.bridge.words.private[command.id] = listener
        self.bridge.ask(AskModel(command))

    def forget_private(self, request: str) -> None:
        """Nobody listens any more; what is under way of it ends."""
        if self.bridge.words.private.pop(request, None) is not None and self.alive:
            self.bridge.ask(AskModel(CancelCommand(request)))

    async def _audit_peers(self, audits: PeerAudits, body: TaskReport) -> None:
        asked, found = audits.wonder(body), audits.accuse(body)
        if found is not None and self.tools.accuse is not None:
            self.tools.accuse(found)
        if asked is not None:
            await self.report(asked, True)

    def stop(self, reason: str) -> None:
        """The lease is over; ``run`` ends the worker and returns."""
        self.reason = self.reason or reason
        self._stopping.set()

    async def acknowledged(self) -> None:
        """Return when the coordinator has stored everything that was reported, or does not say so."""
        with contextlib.suppress(TimeoutError):
            async with self.tools.clock.timeout(ACKNOWLEDGE_S):
                while self.outbox:
                    await self.tools.clock.sleep(LOOK_S)

    @property
    def frozen(self) -> bool:
        """Whether the owner's rules hold it."""
        return self._frozen

    async def freeze(self, frozen: bool) -> None:
        """Hold the worker where it is, or let it go on; one that starts later is held from its start."""
        self._frozen = frozen
        await self._hold()

    async def rest(self, resting: bool) -> None:
        """The same for a moment; it goes on once neither asks to hold it."""
        self._resting = resting
        await self._hold()

    async def _hold(self) -> None:
        async with self._holding:  # The engine's answers come in any order.
            wanted = self._frozen or self._resting
            if self._worker is not None and wanted != self._held:
                await (self._worker.freeze() if wanted else self._worker.thaw())
                self._held = wanted

    async def _upload(self, payload: Payload, digest: str, answers: str, urgent: bool) -> None:
        if self._owner is not None:
            self._owner.check_upload(answers)
        await self.tools.artifacts.upload(payload, digest, self.assign.lease, answers, urgent)

    async def _fetch_state(self, kept: KeptState) -> Payload:
        await self.tools.peers.refresh()  # The plan that names these peers has just come.
        return await self.tools.states.fetch(kept)

    async def _keep(self, state: Payload, own: bool) -> str:
        if self._owner is not None and own:
            raise WorkerError("a federation's worker hands over its optimizer's moments, which are of its owner's data")
        owner = f"{self.assign.job}-{self.assign.stage}-{self.assign.replica}"
        return await self.tools.states.keep(f"{owner}-own" if own else owner, state)

    async def _record(self, part: RecordPart, start: RoundStart, data: Payload) -> bool:
        assert self.tools.records is not None
        return await asyncio.to_thread(self.tools.records.keep, self.assign, part, start, data)

    async def _recall(self, recall: RecordRecall) -> list[RecalledPart]:
        assert self.tools.records is not None
        return await asyncio.to_thread(self.tools.records.recalled, self.assign, recall)

    def _of_restored(self, body: TaskReport) -> TaskReport | None:
        """What a restored worker may say. It cannot show what is not on the disk: then it has left, as if it were not back."""
        match body:
            case TaskReady():
                LOG.info("%s: the worker is restored from the disk", self)
                self._is_restored = True
                self.ready()
                return None
            case StepOpened(opening=None, reason=reason):
                return TaskFailed(untrusted(f"the records on the disk do not show it: {reason}"[:MAX_REASON]))
            case OpeningMade() | StepOpened() | LeafShown() | TaskFailed():
                return body
            case _:
                return None

    async def report(self, body: TaskReport, reliable: bool) -> None:
        """Send a report; a reliable one is kept until the coordinator has it.

        Raises:
            WorkerProtocolError: far too many wait already.
        """
        if self._told_failure:
            return  # A worker that has given up has nothing more to say.
        if isinstance(body, ArrayReady | ElementsMoved) and self.assign.spec.array is None:
            raise WorkerProtocolError(f"the worker says {type(body).__name__}, and no element runs in it")
        said = self._of_restored(body) if self.restored is not None else self._in_time(body)
        if said is not None and self._owner is not None:
            said = self._owner.said(said)
        if said is None:
            return
        body = said
        if isinstance(body, ModelSaid):
            await self.tools.said.wait()
        if reliable:
            await self._pace.wait()
            if not isinstance(body, TaskFailed):  # The coordinator has not heard yet that this worker is here.
                await self.outbox.begins.wait()
        if isinstance(body, TaskFailed):
            self._told_failure = True
            self.state, self.reason, self.cause = "failed", printable(body.reason), body.cause
        if isinstance(body, TaskReady):
            LOG.info("%s: the worker is ready (%s parameters)", self, f"{body.parameters:,}")
            self.loads = False
        report = self.outbox.add(body, self.bridge.traces.said(body)) if reliable else self.outbox.lossy(body)
        with contextlib.suppress(NotConnectedError):  # Sent again after the reconnect, if it is reliable.
            await self.tools.send(report)
        if isinstance(body, TaskFailed):
            self._stopping.set()
        if self._peer_audits is not None:
            await self._audit_peers(self._peer_audits, body)

    def _in_time(self, body: TaskReport) -> TaskReport | None:
        """A report; None of those that may get lost where there were too many."""
        if isinstance(body, WorkerLog):
            return self._spared(body)
        return None if isinstance(body, Progress) and not self._is_time_for_progress() else body

    def _spared(self, lines: WorkerLog) -> WorkerLog | None:
        """Lines of the log, with how many were dropped before them; None where these are too many, too."""
        if not self._log_pace.spares(LOG_COST):
            self._lines_dropped += len(lines.lines) + lines.dropped
            return None
        dropped, self._lines_dropped = self._lines_dropped, 0
        return msgspec.structs.replace(lines, dropped=lines.dropped + dropped)

    def _is_time_for_progress(self) -> bool:
        now = self.tools.clock.now()
        due = now - self._last_progress >= PROGRESS_S
        if due:
            self._last_progress = now
        return due

    async def run(self) -> None:
        """Live through the whole task; whatever goes wrong in it ends here and is reported."""
        if self.restored is None and (self.staged or self.trains):  # Else it exchanges nothing with anybody.
            self.tools.peers.add(self.bridge)
        try:
            await self.tools.peers.refresh()
            await self._until_stopped()
            if self._owner is not None and self._owner.refused:
                raise WorkerError(self._owner.refused)
        except WorkerDiedError as error:
            if self.may_die and self.tools.records is not None and self.tools.records.has(self.assign):
                LOG.error("%s: %s", self, error)
                self.state, self.reason = "failed", printable(str(error))
                self.died = self.reason
            else:
                await self._fail(str(error))
        except AgentError as error:
            cause: FailureCause = "inputs" if isinstance(error, UnacceptedImageError) else "machine"
            await self._fail(str(error), isinstance(error, TamperedError), cause)
        except OSError as error:
            self.by_system = True
            await self._fail(f"the node's disk or sockets failed: {error}")
        except Exception:  # noqa: BLE001 - the boundary of one task: a defect in it must not end the other tasks of this node.
            LOG.exception("%s: a defect of the agent", self)
            await self._fail("a defect of the agent; its log has the details")
        finally:
            self.tools.peers.remove(self.bridge)
            await self.tools.peers.refresh()
            over = self._stopping.is_set() or self.state == "failed"  # Else the agent ends without meaning to.
            if over and not self.died and self.tools.records is not None:
                await asyncio.to_thread(self.tools.records.forget, self.assign)
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._folder.with_suffix(".log").unlink(missing_ok=True)
        if self.state != "failed":
            self.state = "ended"
            LOG.info("%s: ended%s", self, f": {self.reason}" if self.reason else "")

    async def _until_stopped(self) -> None:
        work = asyncio.create_task(self._work(), name=f"work-{self.assign.lease[:8]}")
        stopped = asyncio.create_task(self._stopping.wait(), name=f"stop-{self.assign.lease[:8]}")
        try:
            await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            work.cancel()
            await asyncio.wait((work,))
        error = None if work.cancelled() else work.exception()
        if error is not None and not self._stopping.is_set():
            raise error

    async def _work(self) -> None:
        if self._owner is not None:
            await asyncio.to_thread(self._owner.check_joined)  # Its owner's disk may sleep.
        LOG.info("%s: fetching %d files", self, len(self.assign.files))
        await self._lay_out_files()
        self.state = "starting"
        server = None
        if not self.tools.sandbox.stdio:
            # The sandbox's user is another; the folder above is closed.
            server = listen(self._folder / SOCKET_NAME, 0o666)
        try:
            data = None if self._owner is None else self._owner.data
            worker = await self.tools.sandbox.start(self.assign.lease, self._folder, data)
            self.pid, self._worker, self._held = worker.pid, worker, False
            try:
                await self._hold()
                await self._talk(worker, server)
            finally:
                self._worker = None
                await worker.stop(STOP_GRACE_S)
                self.pid = None
        finally:
            if server is not None:
                server.close()

    async def _lay_out_files(self) -> None:
        self._folder.mkdir(parents=True, mode=0o755)
        self._folder.chmod(0o755)
        weights = self.assign.files.get(WEIGHT_INDEX)
        if weights is not None:
            self.bridge.weights = StageWeights(self.tools.artifacts, weights, self._folder, self._circle())
            if self.assign.stage is not None:
                await self.bridge.weights.lay_out(self.assign.plan, self.assign.stage)
        for name, digest in self.assign.files.items():
            if Path(name).name != name or name in ("", ".", "..", SOCKET_NAME):
                raise WorkerError(f"{name!r} cannot be the name of a job's file")
            cached = await self.tools.artifacts.fetch(digest)
            await asyncio.to_thread(_place, cached.path, self._folder / name)
            self._keys[name] = cached.key
            if name == CONFIG and cached.path.stat().st_size <= MAX_CONFIG_BYTES:
                self.bridge.shape = shape_in(await asyncio.to_thread(cached.read))

    def _circle(self) -> Circle | None:
        """Who else may have this job's weights; None for a restored lease, which has no peers."""
        exchange = self.tools.peers.weights
        if exchange is None or self.restored is not None:
            return None
        return Circle(self.assign.job, self.tools.peers.address, exchange, self.bridge.neighbours)

    async def _talk(self, worker: SandboxWorker, server: socket.socket | None) -> None:
        connection = worker.connection if server is None else await self._accept(worker, server)
        reader, writer = await asyncio.open_connection(sock=connection, limit=READ_AHEAD)
        spec = self.assign
        records = self.tools.records if self.restored is not None else None
        parts = [] if records is None else await asyncio.to_thread(records.parts, spec)
        setup = Setup(
            spec.spec,
            spec.plan,
            spec.stage,
            spec.replica,
            self.tools.sandbox.inside(self._folder),
            self.tools.threads,
            self.tools.device,
            self._keys,
            self.bridge.weights.key if self.bridge.weights is not None else None,
            records=self.bridge.outside.record is not None,
            restored=len(parts),
            own=None if self._owner is None else self._owner.own_data(self.tools.sandbox),
        )
        self.state = "running"
        try:
            await self.bridge.serve(reader, writer, setup, parts)
        except EOFError:
            if not self._told_failure:
                raise await self._last_words(worker) from None
        finally:
            writer.close()

    async def _accept(self, worker: SandboxWorker, server: socket.socket) -> socket.socket:
        """The worker's one connection; the listening socket closes behind it."""
        loop = asyncio.get_running_loop()
        accepting = loop.create_task(loop.sock_accept(server), name=f"accept-{self.assign.lease[:8]}")
        deadline = self.tools.clock.now() + CONNECT_S
        try:
            while not accepting.done():
                await asyncio.wait((accepting,), timeout=LOOK_S)
                ended = await worker.ended() if not accepting.done() else None
                if ended is not None:
                    raise _error_of(ended)
                if not accepting.done() and self.tools.clock.now() > deadline:
                    raise WorkerError(f"the worker has not connected within {CONNECT_S:.0f} s")
            connection, _ = accepting.result()
        finally:
            accepting.cancel()
        server.close()
        connection.setblocking(False)
        return connection

    async def _last_words(self, worker: SandboxWorker) -> WorkerError:
        deadline = self.tools.clock.now() + LAST_WORDS_S
        while self.tools.clock.now() < deadline:
            ended = await worker.ended()
            if ended is not None:
                return _error_of(ended)
            await self.tools.clock.sleep(LOOK_S)
        return WorkerError("the worker closed its socket and went on without it")

    async def _fail(self, reason: str, tampered: bool = False, cause: FailureCause = "machine") -> None:
        if self._owner is not None:
            reason = self._owner.keep(reason)
        LOG.error("%s: failed: %s", self, reason)
        if self.state == "failed":
            return
        self.state, self.reason, self.tampered, self.cause = "failed", printable(reason), tampered, cause
        report = self.outbox.force(TaskFailed(untrusted(reason), tampered, cause))
        with contextlib.suppress(NotConnectedError):
            await self.tools.send(report)

    def __str__(self) -> str:
        place, stage, replica = "spare", self.assign.stage, self.assign.replica
        if stage is not None:
            # People count places of a deployment from 1.
            place = (
                f"stage {stage + 1} replica {(replica or 0) + 1}" if self.serves else f"stage {stage} replica {replica}"
            )
        return f"job {self.assign.job[:8]} {place} ({self.assign.lease[:8]})"


def _error_of(ended: Exit) -> WorkerError:
    return TamperedError(ended.reason) if ended.tampered else WorkerDiedError(ended.reason)


def _place(cached: Path, target: Path) -> None:
    """Give the worker its own view of a cached file: a link where the disk can, else a copy."""
    try:
        os.link(cached, target)
    except OSError:
        shutil.copyfile(cached, target)
    target.chmod(0o444)
