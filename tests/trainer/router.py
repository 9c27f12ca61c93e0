"""Stands where agents and coordinator stand: worker processes over Unix sockets, payloads routed between them.

Workers are forked from a server that has imported torch once, which saves four seconds each; a router made with
``by_command=True`` starts ``python -m trainer worker`` as an agent does, every second one over its standard streams.
"""

import asyncio
import contextlib
import hashlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from cottage.demo import lying_worker
from protocol.ids import NodeAddress
from protocol.job.job import JobSpec
from protocol.task import (
    ApplyRound,
    BeginRound,
    Layers,
    Member,
    Plan,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    StopTask,
    TaskCommand,
    TaskFailed,
    TaskReady,
    Validation,
)
from protocol.worker import (
    OwnData,
    PeerDeliver,
    PeerSend,
    RecordKept,
    RecordPart,
    RecordRecall,
    RecordReturned,
    RestoredPart,
    Setup,
    SumVector,
    TensorName,
    WorkerCommand,
    WorkerMessage,
    WorkerReport,
    read_frame,
    write_frame,
)

WAIT_S = 300.0
PIECE = 10_000  # Bytes of a record that is given back, between which others may say something.
DEVICE = os.environ.get("COTTAGE_TEST_DEVICE", "cpu")
"""What workers compute with: ``cuda`` where a graphics card is to be tried (docs/benchmarks/testing.md)."""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["cottage.demo.lying_worker", "transformers.models.llama.modeling_llama"])
NODE: NodeAddress = "1" * 32
Place = tuple[int, int]
"""(stage, replica)"""
Restored = Sequence[tuple[RestoredPart, bytes]]
"""What a worker that is made after another one died is given."""


def run_worker(arguments: list[str]) -> None:
    """The body of a forked worker."""
    sys.exit(lying_worker.main(arguments))


@dataclass
class Process:
    """A worker process, however it was started."""

    forked: Any = None
    spawned: subprocess.Popen[bytes] | None = None
    child: asyncio.subprocess.Process | None = None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # It has ended.
            (self.forked or self.spawned or self.child).kill()

    async def wait(self) -> int:
        if self.child is not None:
            return await self.child.wait()
        if self.spawned is not None:
            return await asyncio.to_thread(self.spawned.wait)
        await asyncio.to_thread(self.forked.join)
        return int(self.forked.exitcode)


def program_of(arguments: Sequence[str]) -> tuple[str, str]:
    """Who is to lie is another program than the product's worker."""
    return "-m", "cottage.demo.lying_worker" if "--lie" in arguments else "trainer"


def start_process(arguments: list[str], by_command: bool) -> Process:
    if by_command:
        return Process(spawned=subprocess.Popen([sys.executable, *program_of(arguments), *arguments]))
    process = _FORKS.Process(target=run_worker, args=(arguments,))
    process.start()
    return Process(forked=process)


def make_plan(cuts: list[tuple[int, int]], replicas: list[int], epoch: int = 0) -> Plan:
    members = tuple(Member(stage, replica, NODE) for replica in replicas for stage in range(len(cuts)))
    return Plan(epoch, tuple(Layers(first, last) for first, last in cuts), members)


@dataclass
class Handle:
    """One worker process and what it has said."""

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    reports: list[Any] = field(default_factory=list)
    returning: asyncio.Lock = field(default_factory=asyncio.Lock)


class Router:
    def __init__(self, folder: Path, spec: JobSpec, job_folder: Path, by_command: bool = False) -> None:
        self.by_command = by_command or DEVICE != "cpu"  # What a fork has of a card is of no use to it.
        self.device = DEVICE
        self.own: OwnData | None = None
        """What all owners of a federated job have."""
        self.recording = False
        """Whether workers tell what their rounds could be opened from by others."""
        self.keeping = False
        """Whether they are told that it is kept, so that they let go of it."""
        self.records: dict[Place, list[tuple[RecordPart, bytes]]] = {}
        self.starts: dict[tuple[Place, int], dict[str, bytes]] = {}
        """What rounds began with at a place, as its agent would keep it."""
        self.recalls: list[tuple[Place, RecordRecall]] = []
        self.folder, self.spec, self.job_folder = folder, spec, job_folder
        self.workers: dict[Any, Handle] = {}
        self.artifacts: dict[str, bytes] = {}
        self.moments: dict[Place, bytes] = {}
        self.vectors: dict[tuple[Place, int], bytes] = {}
        """What is to be masked by the agent of a place, by round."""
        self.sent: list[tuple[Place, PeerSend, int]] = []
        self.deliver: Callable[[Place, Place, PeerSend, bytes], bytes | None] = lambda source, to, message, payload: (
            payload
        )
        self.changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0

    async def __aenter__(self) -> "Router":
        return self

    async def __aexit__(self, *_: object) -> None:
        for place in list(self.workers):
            await self.kill(place)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def start(
        self, plan: Plan, places: list[Any], lies: dict[Any, str] | None = None, restored: Restored = ()
    ) -> None:
        """Start a worker at each place ((stage, replica), or any other name for a spare) and wait until all are ready."""
        await asyncio.gather(*(self._start(plan, place, (lies or {}).get(place), restored) for place in places))
        await self.until(lambda: all(self.of(place, TaskReady) for place in places))

    async def _start(self, plan: Plan, place: Any, lie: str | None, restored: Restored) -> None:
        self._count += 1
        if self.by_command and self._count % 2 == 0:
            await self._start_by_stdio(plan, place, lie, restored)
            return
        path = self.folder / f"w{self._count}.sock"
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()
        server = await asyncio.start_unix_server(lambda r, w: connected.set_result((r, w)), path)
        arguments = ["worker", "--socket", str(path), *(["--lie", lie] if lie else [])]
        process = await asyncio.to_thread(start_process, arguments, self.by_command)
        async with asyncio.timeout(WAIT_S):
            reader, writer = await connected
        server.close()
        await self._set_up(plan, place, Handle(process, reader, writer), restored)

    async def _start_by_stdio(self, plan: Plan, place: Any, lie: str | None, restored: Restored) -> None:
        arguments = ("worker", "--stdio", *(("--lie", lie) if lie else ()))
        piped = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            sys.executable, *program_of(arguments), *arguments, stdin=piped, stdout=piped
        )
        assert child.stdin is not None
        assert child.stdout is not None
        await self._set_up(plan, place, Handle(Process(child=child), child.stdout, child.stdin), restored)

    async def _set_up(self, plan: Plan, place: Any, handle: Handle, restored: Restored) -> None:
        self.workers[place] = handle
        stage, replica = place if isinstance(place, tuple) else (None, None)
        setup = Setup(
            self.spec,
            plan,
            stage,
            replica,
            str(self.job_folder),
            1,
            self.device,
            records=self.recording,
            restored=len(restored),
            own=self.own,
        )
        await write_frame(handle.writer, setup)
        for part, data in restored:
            await write_frame(handle.writer, part, data)
        task = asyncio.create_task(self._read(place, handle))
        self._tasks.add(task)

    async def _read(self, place: Any, handle: Handle) -> None:
        try:
            while True:
                message, payload = await read_frame(handle.reader, WorkerMessage)
                if isinstance(message, WorkerReport):
                    state, own = (
                        (payload[: message.split], payload[message.split :]) if message.split else (payload, b"")
                    )
                    if payload:
                        self.artifacts[hashlib.sha256(state).hexdigest()] = state
                    if own:
                        self.moments[place] = own
                    if isinstance(message.body, RoundApplied):
                        self.starts[place, message.body.round + 1] = {"state": state, "moments": own}
                    handle.reports.append(message.body)
                elif isinstance(message, RecordPart):
                    await self._keep(place, handle, message, payload)
                elif isinstance(message, RecordRecall):
                    # Beside reading: a worker that has much to say reads again once that is read.
                    self._tasks.add(asyncio.create_task(self._give_back(place, handle, message)))
                elif isinstance(message, SumVector):
                    self.vectors[place, message.round] = payload
                else:
                    assert isinstance(message, PeerSend)
                    await self._route(place, message, payload)
                async with self.changed:
                    self.changed.notify_all()
        except (EOFError, ConnectionError):
            return

    async def _keep(self, place: Place, handle: Handle, part: RecordPart, payload: bytes) -> None:
        if part.kind == "state":
            self.starts[place, part.round] = {"state": payload}
            return
        self.records.setdefault(place, []).append((part, payload))
        if self.keeping:
            await write_frame(handle.writer, RecordKept(part.epoch, part.round, part.kind))

    async def _give_back(self, place: Place, handle: Handle, recall: RecordRecall) -> None:
        """As an agent does: one after the other."""
        self.recalls.append((place, recall))
        async with handle.returning:
            await self._give_back_in_turn(place, handle, recall)

    async def _give_back_in_turn(self, place: Place, handle: Handle, recall: RecordRecall) -> None:
        parts = dict(self.starts[place, recall.round])
        wanted = RecordPart(recall.epoch, recall.round, recall.kind)
        parts |= {part.kind: data for part, data in self.records[place] if part == wanted}
        if recall.kind != "state" and recall.kind not in parts:
            parts = {}
        await write_frame(handle.writer, RecordReturned(recall, {kind: len(data) for kind, data in parts.items()}))
        for kind, data in parts.items():
            message = RestoredPart(recall.epoch, recall.round, kind)  # type: ignore[arg-type]
            for start in range(0, len(data), PIECE):
                await write_frame(handle.writer, message, data[start : start + PIECE])

    async def _route(self, source: Place, message: PeerSend, payload: bytes) -> None:
        to = (message.stage, message.replica)
        self.sent.append((source, message, len(payload)))
        changed = self.deliver(source, to, message, payload)
        if to in self.workers and changed is not None:
            try:
                deliver = PeerDeliver(source[0], source[1], message.name)
                await write_frame(self.workers[to].writer, deliver, changed)
            except ConnectionError:
                return  # The worker was killed: as on a real link, what was on the way is lost.

    def inject(self, to: Place, source: Place, name: TensorName, payload: bytes) -> None:
        """Say to a worker, in the name of somebody else, before whatever is routed next."""
        deliver = PeerDeliver(source[0], source[1], name)
        self._tasks.add(asyncio.ensure_future(write_frame(self.workers[to].writer, deliver, payload)))

    async def command(self, place: Any, body: TaskCommand, payload: bytes = b"", split: int = 0) -> None:
        await write_frame(self.workers[place].writer, WorkerCommand(body, split), payload)

    def of(self, place: Any, kind: type, **fields: Any) -> list[Any]:
        """Reports of a kind from a place whose fields have these values."""
        handle = self.workers.get(place)
        found = [report for report in handle.reports if isinstance(report, kind)] if handle else []
        return [report for report in found if all(getattr(report, name) == value for name, value in fields.items())]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for a condition over the reports; a worker that failed ends the wait."""

        def failed() -> list[str]:
            return [report.reason for place in self.workers for report in self.of(place, TaskFailed)]

        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(lambda: condition() or failed())
        assert condition(), failed()

    async def kill(self, place: Any) -> None:
        handle = self.workers.pop(place)
        handle.process.kill()
        await handle.process.wait()
        handle.writer.close()

    async def stop(self, place: Any) -> int:
        await self.command(place, StopTask("done"))
        return await self.workers[place].process.wait()

    # --- the coordinator's part ---------------------------------------------------------------------------------------

    async def begin(
        self,
        plan: Plan,
        round_index: int,
        first_step: int,
        steps: int,
        total: int,
        states: dict[int, bytes] | None = None,
        validate: bool = False,
        only: list[Place] | None = None,
        seconds: float | None = None,
        rate_step: int | None = None,
        moments: dict[Place, bytes] | None = None,
    ) -> None:
        for member in plan.members:
            place = (member.stage, member.replica)
            if only is not None and place not in only:
                continue
            state = (states or {}).get(member.stage)
            body = BeginRound(
                plan,
                round_index,
                first_step,
                steps,
                total,
                validate,
                hashlib.sha256(state).hexdigest() if state else None,
                seconds=seconds,
                rate_step=rate_step,
            )
            own = (moments or {}).get(place, b"")
            await self.command(place, body, (state or b"") + own, len(state or b"") if own else 0)

    async def wait_commits(
        self, plan: Plan, round_index: int, replicas: list[int] | None = None
    ) -> dict[Place, RoundCommit]:
        """Wait until every replica has committed and every member holds all of their pseudo-gradients."""
        key = {"epoch": plan.epoch, "round": round_index}
        wanted = replicas if replicas is not None else list(plan.replicas())
        stages = range(len(plan.layers))
        members = [(m.stage, m.replica) for m in plan.members]

        def complete() -> bool:
            if not all(self.of((s, p), RoundCommit, **key) for s in stages for p in wanted):
                return False
            commits = {(s, p): self.of((s, p), RoundCommit, **key)[0].pseudo_gradient for s in stages for p in wanted}
            for stage, replica in members:
                held = self.of((stage, replica), RoundHolding, **key)
                if not held or any(held[-1].held.get(p) != commits[stage, p] for p in wanted):
                    return False
            return True

        await self.until(complete)
        return {(s, p): self.of((s, p), RoundCommit, **key)[0] for s in stages for p in wanted}

    async def apply(self, plan: Plan, round_index: int, commits: dict[Place, RoundCommit]) -> dict[int, bytes]:
        """ApplyRound to all; the new checkpoint of each stage, after checking that all members agree bit for bit."""
        lowest = min(plan.replicas())
        places = [(m.stage, m.replica) for m in plan.members]
        for stage, replica in places:
            contributors = {p: commit.pseudo_gradient for (s, p), commit in commits.items() if s == stage}
            body = ApplyRound(plan.epoch, round_index, contributors, checkpoint=replica == lowest)
            await self.command((stage, replica), body)
        key = {"epoch": plan.epoch, "round": round_index}
        await self.until(lambda: all(self.of(place, RoundApplied, **key) for place in places))
        for stage in range(len(plan.layers)):
            found = {self.of(place, RoundApplied, **key)[0].parameters for place in places if place[0] == stage}
            assert len(found) == 1, f"replicas of stage {stage} disagree: {found}"
        reports = [self.of((stage, lowest), RoundApplied, **key)[0] for stage in range(len(plan.layers))]
        return {stage: self.artifacts[report.checkpoint] for stage, report in enumerate(reports)}

    async def round(self, plan: Plan, round_index: int, steps: int, total: int, **options: Any) -> dict[int, bytes]:
        """One whole undisturbed round from the step that equal rounds of ``steps`` before it lead to."""
        await self.begin(plan, round_index, options.pop("first_step", round_index * steps), steps, total, **options)
        return await self.apply(plan, round_index, await self.wait_commits(plan, round_index))

    async def validation(self, plan: Plan, round_index: int) -> Validation:
        """What every replica says of the held-out loss, which is the same of all, bit for bit."""
        said: set[Validation] = set()
        for replica in plan.replicas():
            key = {"epoch": plan.epoch, "round": round_index}
            place = (len(plan.layers) - 1, replica)
            await self.until(partial(self.of, place, Validation, **key))
            said.update(self.of(place, Validation, **key))
        [report] = said
        return report


def replace(plan: Plan, **changes: Any) -> Plan:
    return msgspec.structs.replace(plan, **changes)


MakeRouter = Callable[..., AbstractAsyncContextManager[Router]]
"""The fixture ``routed``: a router for a job; ``by_command`` and ``recording`` as ``Router`` has them."""
