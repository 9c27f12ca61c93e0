"""The worker process: one Unix socket to the agent, or its standard streams, one thread that computes.

The loop reads frames and sorts them: commands and payloads into the ``WorkerInbox``, what the computing thread says out of the
``WorkerOutbox``. Nothing here waits for a computation, so a round is abandoned, and an audit heard, at any moment.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from torch import Tensor

from common.untrusted_text import untrusted
from protocol.audit import NoAnswer
from protocol.codec import MessageError
from protocol.stdio import open_stdio
from protocol.task import (
    AbandonRound,
    ApplyRound,
    AuditReport,
    BeginRound,
    BisectAnswer,
    BisectQuery,
    LeafShown,
    OpenOuter,
    OpenStep,
    ReduceRound,
    ReplayAcross,
    ReplayOuter,
    ReplayStep,
    ShowLeaf,
    StepOpened,
    StopTask,
    TaskReady,
)
from protocol.worker import (
    AgentMessage,
    PeerDeliver,
    RecordKept,
    RecordReturned,
    RestoredPart,
    Setup,
    WorkerCommand,
    read_buffer,
    read_exactly,
    read_frame,
    read_head,
    write_pieces,
)
from trainer.audit.environment import configure, env_class
from trainer.audit.replay import OpeningReplayer
from trainer.data.folder import JobFiles, open_files
from trainer.errors import OpeningError, RoundRecordError
from trainer.files.inputs import TRAIN, InputFolder
from trainer.files.tensors import vector_in_pieces
from trainer.worker.dispute_player import DisputePlayer
from trainer.worker.federated_member import FederatedMember, closed
from trainer.worker.inbox import Audit, ReturnedRecord, WorkerInbox
from trainer.worker.logs import ReportHandler
from trainer.worker.member import StageMember
from trainer.worker.outbox import WorkerOutbox
from trainer.worker.recalls import Recalls, RecordReceiver
from trainer.worker.restoring import restore
from trainer.worker.thread_guard import guarded
from trainer.worker.throttle import slow_down

CONNECT_S = 20.0  # The agent listens before it starts us; this only covers a busy machine.

LOG = logging.getLogger("cottage.worker")


class Worker:
    """One task's process."""

    member: ClassVar[type[StageMember]] = StageMember
    """What has a seat; a program around this one may put a class of its own here, and below."""
    player: ClassVar[type[DisputePlayer]] = DisputePlayer
    """What answers in a dispute."""

    def __init__(self, pace: float | None = None) -> None:
        """``pace``: see ``trainer.worker.throttle``."""
        self._pace = pace
        self._member: StageMember | None = None
        self._auditor: OpeningReplayer | None = None
        self._players: dict[str, DisputePlayer] = {}
        self._recalls: Recalls | None = None
        self._closed = False  # The job is federated: its owner's data is no auditor's.
        self._inbox = WorkerInbox(self._serve)
        self._outbox: WorkerOutbox | None = None

    async def run(self, socket: Path | None) -> int:
        """Obey the agent behind ``socket``, or at the standard streams, until it says stop or goes away.

        Returns:
            the process's exit code.
        """
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await (open_stdio() if socket is None else asyncio.open_unix_connection(str(socket)))
        loop = asyncio.get_running_loop()
        outbox = self._outbox = WorkerOutbox(loop)
        lines = ReportHandler(
            outbox.report, lambda seconds, flush: loop.call_soon_threadsafe(loop.call_later, seconds, flush)
        )
        LOG.addHandler(lines)
        with ThreadPoolExecutor(1, "compute") as executor:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._write(writer, self._outbox), name="write")
                    code = group.create_task(self._obey(reader, executor, self._outbox), name="obey")
                return code.result()
            finally:
                LOG.removeHandler(lines)
                self._inbox.close()
                self._outbox.close()
                writer.close()

    async def _obey(self, reader: asyncio.StreamReader, executor: ThreadPoolExecutor, outbox: WorkerOutbox) -> int:
        """Set up, then read and compute side by side until one of them ends."""
        loop = asyncio.get_running_loop()
        try:
            setup, _ = await read_frame(reader, AgentMessage)
        except (MessageError, EOFError) as error:
            LOG.error("no Setup came: %s", error)
            outbox.close()
            return 1
        if isinstance(setup, Setup) and setup.spec.serve is not None:
            from trainer.worker.answering import answer  # Half a second, which a worker that trains does not pay.

            well = await answer(setup, reader, outbox)
            outbox.close()
            return 0 if well else 1
        parts = await self._restored(reader, setup) if isinstance(setup, Setup) else []
        well = await loop.run_in_executor(executor, guarded, outbox, lambda: self._build(setup, outbox, parts))
        if well:
            computing = loop.run_in_executor(executor, guarded, outbox, self._compute)
            reading = asyncio.ensure_future(self._read(reader))
            waited: set[asyncio.Future[Any]] = {computing, reading}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            self._inbox.close()
            reading.cancel()
            well = await computing
        outbox.close()
        return 0 if well else 1

    async def _restored(self, reader: asyncio.StreamReader, setup: Setup) -> list[tuple[RestoredPart, bytearray]]:
        """The records that follow a ``Setup``; fewer where the agent goes away."""
        parts: list[tuple[RestoredPart, bytearray]] = []
        try:
            for _ in range(setup.restored):
                message, length = await read_head(reader, RestoredPart)
                assert isinstance(message, RestoredPart)
                parts.append((message, await read_buffer(reader, length)))
        except (MessageError, EOFError) as error:
            LOG.error("not all records came: %s", error)
        return parts

    def _build(self, setup: object, outbox: WorkerOutbox, parts: list[tuple[RestoredPart, bytearray]]) -> None:
        if not isinstance(setup, Setup):
            raise MessageError(f"the first message is {type(setup).__name__}, not Setup")
        configure(setup.threads, setup.device)
        folder = InputFolder(Path(setup.folder), setup.keys, setup.weights_key)
        files: JobFiles = open_files(folder, setup.spec, setup.own)
        name = env_class(setup.threads, setup.device)
        train = folder.file(TRAIN)
        self._auditor = OpeningReplayer(
            files.config, setup.spec.training, train, files.weights, name, setup.device, self._anchor
        )
        parameters = 0
        self._closed = setup.spec.federated is not None
        if setup.stage is not None and setup.replica is not None:
            kind = FederatedMember if self._closed and self.member is StageMember else self.member
            self._member = kind(
                setup.spec,
                setup.plan,
                setup.stage,
                setup.replica,
                files,
                name,
                setup.device,
                self._inbox,
                outbox,
            )
            if self._pace:
                slow_down(self._member.stage, self._pace)
            parameters = self._member.stage.parameter_count
            if setup.restored:
                rounds = restore(self._member.openings, self._member.stage, parts)
                if not rounds:
                    raise RoundRecordError("nothing could be restored from the records of a worker that died")
            if setup.records:
                self._member.record()
                self._recalls = Recalls(self._member.openings, self._member.stage, outbox, self._inbox)
                self._member.openings.recalled = self._recalls.settle
            self._inbox.whole_steps = self._member.stage.makes_room
        LOG.info("%s parameters are loaded on %s, %d threads", f"{parameters:,}", setup.device, setup.threads)
        outbox.report(TaskReady(name, parameters))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Sort frames until the agent stops the task or goes away."""
        assert self._outbox is not None
        returning = RecordReceiver(self._inbox, None if self._member is None else self._member.stage)
        try:
            while True:
                message, length = await read_head(reader, AgentMessage)
                self._outbox.times.told(message)
                if isinstance(message, WorkerCommand):
                    payload = await read_buffer(reader, length)
                    if isinstance(message.body, StopTask):
                        LOG.info("stopped: %s", message.body.reason)
                        return
                    self._command(message, payload)
                    continue
                data = await read_exactly(reader, length)
                match message:
                    case PeerDeliver():
                        await self._deliver(message, data)
                    case RecordKept() if self._member is not None:
                        self._member.openings.on_disk(message)
                    case RecordReturned():
                        returning.begin(message)
                    case RestoredPart():
                        returning.take(message, data)
                    case _:
                        raise MessageError(f"{type(message).__name__} is not expected here")
        except EOFError:
            LOG.info("the agent is gone")
        except MessageError as error:
            LOG.error("the agent sent a message that cannot be read: %s", error)

    def _command(self, message: WorkerCommand, payload: bytearray) -> None:
        """Queue what the coordinator asks for; ``payload`` is the only copy."""
        match message.body:
            case BeginRound() | ReduceRound() | ApplyRound() | AbandonRound() as order:
                self._inbox.order(order, payload, message.split)
            case (
                OpenStep()
                | ShowLeaf()
                | ReplayStep()
                | ReplayAcross()
                | OpenOuter()
                | ReplayOuter()
                | BisectQuery() as audit
            ):
                split = message.split or len(payload)
                self._inbox.audit(audit, payload if split == len(payload) else payload[:split], bytes(payload[split:]))
            case _:
                raise MessageError(f"{type(message.body).__name__} is not expected here")

    async def _deliver(self, message: PeerDeliver, payload: bytes) -> None:
        if self._member is None:
            return
        if message.name.kind in (
            "exchange",
            "pseudo_gradient",
            "shard",
            "result",
        ):  # Unpacking one is long enough to keep it off the loop.
            member = self._member
            take = member.take_payload if message.name.kind == "exchange" else member.take_contribution
            await asyncio.to_thread(take, message.name, message.stage, message.replica, payload)
        else:
            self._member.take_payload(message.name, message.stage, message.replica, payload)

    def _compute(self) -> None:
        """Obey orders one after the other, until closed."""
        while (order := self._inbox.next_order()) is not None:
            if self._member is not None and self._outbox is not None:
                self._outbox.times.begins(order[0])
                self._member.obey(*order)

    def _anchor(self, digest: str) -> Tensor | None:
        return None if self._member is None else self._member.openings.anchor(digest)

    def _judged(self, command: ReplayStep, report: AuditReport) -> None:
        """Report what came of an audit; where something was found, with the anchor that nobody else may have."""
        assert self._outbox is not None
        assert self._auditor is not None
        anchor = self._auditor.anchor(command) if command.anchor_in == "auditor" else None
        if anchor is None or report.verdict == "match":
            self._outbox.report(report)
        else:
            self._outbox.report(msgspec.structs.replace(report, anchor=command.anchor), *vector_in_pieces(anchor))

    def _serve(self, command: Audit | ReturnedRecord, payload: bytes | bytearray, anchor: bytes) -> None:
        """Answer an audit, now or once that is here which it needs."""
        if isinstance(command, ReturnedRecord):
            if self._recalls is not None:
                self._recalls.serve(command, self._serve_audit)
            return
        if self._member is not None:
            self._member.make_way()
        if self._recalls is None or not self._recalls.holds(command, payload, anchor):
            self._serve_audit(command, payload, anchor)

    def _serve_audit(self, command: Audit, payload: bytes | bytearray, anchor: bytes = b"") -> None:
        assert self._outbox is not None
        assert self._auditor is not None
        if self._closed and (refused := closed(command)) is not None:
            self._outbox.report(refused)
            return
        if anchor:
            self._auditor.offer_anchor(anchor)
        away = nullcontext() if self._member is None else self._member.stage.away()
        match command:
            case ReplayStep():
                with away:
                    report = self._auditor.judge(command, payload)
                self._judged(command, report)
            case ReplayAcross():
                with away:
                    self._outbox.report(self._auditor.judge_across(command, payload))
            case OpenStep() if self._member is not None:
                self._member.openings.open_step(command)
            case OpenOuter() if self._member is not None:
                self._member.openings.open_outer(command)
            case ShowLeaf():
                shown = (
                    LeafShown(command.audit, None) if self._member is None else self._member.openings.show_leaf(command)
                )
                self._outbox.report(shown)
            case OpenStep() | OpenOuter():
                self._outbox.report(StepOpened(command.audit, None, untrusted("a spare has no steps to open")))
            case ReplayOuter():
                self._outbox.report(self._auditor.judge_outer(command, payload))
            case BisectQuery():
                with away:
                    self._outbox.report(*self._play(self._auditor, command, payload))

    def _play(
        self, auditor: OpeningReplayer, query: BisectQuery, opening: bytes | bytearray
    ) -> tuple[BisectAnswer, bytes]:
        """An answer of ours in a dispute; the opening comes with the first question, and is kept until the next dispute."""
        if opening:
            self._players.clear()
            try:
                self._players[query.dispute] = self.player(auditor, query.replay, opening)
            except OpeningError as error:
                return BisectAnswer(query.dispute, query.ask, NoAnswer(untrusted(error))), b""
        if query.dispute not in self._players:
            return BisectAnswer(query.dispute, query.ask, NoAnswer(untrusted("the opening is not here"))), b""
        return self._players[query.dispute].answer(query)

    async def _write(self, writer: asyncio.StreamWriter, outbox: WorkerOutbox) -> None:
        try:
            while (item := await outbox.get()) is not None:
                message, payload = item
                await write_pieces(writer, message, payload)
        except (ConnectionError, BrokenPipeError):
            self._inbox.close()
            outbox.close()
