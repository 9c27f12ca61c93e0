"""A worker without a model: it speaks the worker's side of the wire and does what the job's name says.

``python scripted_worker.py worker --socket PATH | --stdio [--note=WHAT]`` or ``... bench --threads N --device D``. Names of jobs:

exchange    on BeginRound it sends one payload of each kind to its neighbours and reports what it receives
recording   the same, and tells a record of each round that it begins, and commits to it; restored, it opens what it was given
recalling   the same, and opens what it has the agent give back of the rounds that are kept
large       the same with LARGE bytes of zeros for a state, and LARGE_MOMENTS beside them; what it is given it only hashes
checkpoint  answers ApplyRound with its state, and tells the digest of the state that BeginRound brought
flood       reports without end;  garbage, huge, stranger, forged: breaks the protocol in that way
hungry      takes memory without end
doubting    finds every step wrong that it re-runs;  pondering: finds it right, seconds later;  hasty: at once;  silent: never
failing     reports TaskFailed;  unusable, diverging: the same, and blames the job's files, or numbers
chatting    answers AskModel with WORDS words, each by itself;  shouting: says what no frame holds
staged      on JoinStages it sends a payload to the next stage, the last one to the first, and says what it hears of others
dying       exits with code 7;  hanging: ignores SIGTERM and a closed socket
"""

import asyncio
import hashlib
import json
import os
import signal
import struct
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from common.encrypted_files import SealedFile
from protocol.serving import AnsweredReport, GenerateCommand, TextReport
from protocol.stdio import open_stdio
from protocol.task import (
    ApplyRound,
    AskModel,
    AuditReport,
    BeginRound,
    JoinStages,
    ModelSaid,
    OpenStep,
    Plan,
    Progress,
    ReplayAcross,
    ReplayStep,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    StepOpened,
    TaskFailed,
    TaskReady,
    Validation,
)
from protocol.worker import (
    AgentMessage,
    PeerDeliver,
    PeerSend,
    RecordKept,
    RecordPart,
    RecordRecall,
    RecordReturned,
    RestoredPart,
    Setup,
    TensorName,
    WorkerCommand,
    WorkerReport,
    read_exactly,
    read_frame,
    read_head,
    write_frame,
    write_stream,
)

STATE = b"state of the stage" * 100
RECORD = b"record of a round" * 100
ZEROS = bytes(1 << 20)
WORDS = 400
LARGE, LARGE_MOMENTS = (2 << 30) + 12_345, (9 << 20) + 1
PONDERS_S = {"pondering": 3.0, "hasty": 0.0, "silent": 1e6}


def zeros_digest(size: int) -> str:
    hasher = hashlib.sha256()
    for begin in range(0, size, len(ZEROS)):
        hasher.update(ZEROS[: size - begin])
    return hasher.hexdigest()


async def zeros(size: int) -> AsyncIterator[bytes]:
    for begin in range(0, size, len(ZEROS)):
        yield ZEROS[: size - begin]


class Worker:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, setup: Setup) -> None:
        self.reader, self.writer, self.setup = reader, writer, setup
        self.name = setup.spec.name
        self.received: dict[str, str] = {}
        self.given: list[tuple[RestoredPart, bytes]] = []
        self.kept: list[RecordKept] = []
        self.wanted = ""
        self.due: dict[str, int] = {}
        self.joined: list[int] = []

    async def report(self, body: object, payload: bytes = b"") -> None:
        await write_frame(self.writer, WorkerReport(body), payload)

    async def run(self) -> None:
        for _ in range(self.setup.restored):
            part, data = await read_frame(self.reader, RestoredPart)
            self.given.append((part, data))
        await self.misbehave()
        parameters = SealedFile(Path(self.setup.folder, "config.json"), self.setup.keys["config.json"]).size
        await self.report(
            TaskReady(" ".join(["scripted", *sys.argv[4 if "--socket" in sys.argv else 3 :]]), parameters)
        )
        while True:
            message, length = await read_head(self.reader, AgentMessage)
            handle = self.handle_large if self.name == "large" else self.handle
            await handle(message, length)

    async def handle(self, message: object, length: int) -> None:
        payload = await read_exactly(self.reader, length)
        match message:
            case WorkerCommand(body=OpenStep(audit=audit, round=number)) if self.given:
                own = b"|".join(data for part, data in self.given if part.round == number)
                named = hashlib.sha256(own).hexdigest() if own else None
                await self.report(StepOpened(audit, named, "" if own else "not here"), own)
            case WorkerCommand(body=OpenStep()) | RecordKept() | RecordReturned() | RestoredPart() if (
                self.name == "recalling"
            ):
                await self.recall(message, payload)
            case WorkerCommand(body=BeginRound() as begin):
                await self.begin(begin, payload)
            case WorkerCommand(body=ApplyRound(epoch=epoch, round=number, checkpoint=asked)):
                stored = hashlib.sha256(STATE).hexdigest() if asked else None
                await self.report(RoundApplied(epoch, number, "ab" * 32, stored), STATE)
            case WorkerCommand(body=OpenStep(audit=audit)):
                named = hashlib.sha256(STATE).hexdigest() if self.name == "naming" else None
                await self.report(StepOpened(audit, named), STATE)
            case WorkerCommand(body=ReplayStep(audit=audit)) if self.name == "doubting":
                await self.report(AuditReport(audit, "mismatch", "the state after the step is not what the step gives"))
            case WorkerCommand(body=ReplayStep(audit=audit)) if self.name in PONDERS_S:
                await asyncio.sleep(PONDERS_S[self.name])
                await self.report(AuditReport(audit, "match"))
            case WorkerCommand(body=ReplayStep(audit=audit) | ReplayAcross(replay=ReplayStep(audit=audit))):
                await self.report(StepOpened(audit, hashlib.sha256(payload).hexdigest()))
            case WorkerCommand(body=AskModel(body=GenerateCommand(id=request))):
                for number in range(WORDS):
                    await self.report(ModelSaid((TextReport(request, f"{number} ", (number,)),)))
                await self.report(ModelSaid((AnsweredReport(request, "stop", 1, WORDS),)))
            case WorkerCommand(body=JoinStages() as told) | (PeerDeliver() as told):
                await (self.join(told.plan) if isinstance(told, JoinStages) else self.delivered(told, payload))

    async def handle_large(self, message: object, length: int) -> None:
        """Give and take without ever holding it, as little memory as there is."""
        hasher = hashlib.sha256()
        for begin in range(0, length, len(ZEROS)):
            hasher.update(await read_exactly(self.reader, min(len(ZEROS), length - begin)))
        match message:
            case WorkerCommand(body=BeginRound(plan=plan, round=number)):
                await self.report(RoundHolding(plan.epoch, number, {0: hasher.hexdigest()}))
            case WorkerCommand(body=ApplyRound(epoch=epoch, round=number, checkpoint=asked)):
                stored = zeros_digest(LARGE) if asked else None
                report = WorkerReport(RoundApplied(epoch, number, "ab" * 32, stored), LARGE)
                await write_stream(self.writer, report, LARGE + LARGE_MOMENTS, zeros(LARGE + LARGE_MOMENTS))

    async def recall(self, message: object, payload: bytes) -> None:
        match message:
            case WorkerCommand(body=OpenStep(audit=audit, round=number)):
                self.wanted, self.given = audit, []
                await write_frame(self.writer, RecordRecall(0, number, "steps"))
            case RecordKept():
                self.kept.append(message)
            case RecordReturned(sizes=sizes):
                self.due = dict(sizes)
                if not sizes:
                    await self.report(StepOpened(self.wanted, None, f"lost; kept were {len(self.kept)}"))
            case RestoredPart():
                self.given.append((message, payload))
                if sum(len(data) for _, data in self.given) == sum(self.due.values()):
                    await self.open_recalled()

    async def open_recalled(self) -> None:
        kinds = list(dict.fromkeys(part.kind for part, _ in self.given))
        own = b"|".join(b"".join(data for part, data in self.given if part.kind == kind) for kind in kinds)
        await self.report(StepOpened(self.wanted, hashlib.sha256(own).hexdigest(), f"kept were {len(self.kept)}"), own)

    async def begin(self, begin: BeginRound, payload: bytes) -> None:
        if payload:
            await self.report(RoundHolding(begin.plan.epoch, begin.round, {0: hashlib.sha256(payload).hexdigest()}))
        await self.report(Progress(begin.plan.epoch, begin.round, 1, 100, 2.5))
        if self.name in ("recording", "recalling") and self.setup.records:
            await write_frame(
                self.writer, RecordPart(begin.plan.epoch, begin.round, "steps"), RECORD + bytes([begin.round])
            )
            await self.report(RoundCommit(begin.plan.epoch, begin.round, "ab" * 32, 10, "cd" * 32, 100, 100))
        if self.name != "exchange":
            return
        me = (self.setup.stage, self.setup.replica)
        for member in begin.plan.members:
            kind = _kind_for(me, (member.stage, member.replica))
            if kind is not None:
                name = TensorName(kind, begin.plan.epoch, begin.round, 0, 0)
                data = f"{kind} from {me[0]},{me[1]}".encode() * 5000
                await write_frame(self.writer, PeerSend(member.stage, member.replica, name, 4 * len(data)), data)

    async def join(self, plan: Plan) -> None:
        """Greet the next stage, or the first one if this is the last; say under which epoch."""
        self.joined.append(plan.epoch)
        stage, count = self.setup.stage, len(plan.layers)
        name = TensorName("pass" if stage + 1 < count else "drawn", plan.epoch, 0, 0, 0)
        to = (stage + 1) % count
        data = f"{name.kind} from {stage} in {plan.epoch}".encode() * 5000
        await write_frame(self.writer, PeerSend(to, self.setup.replica, name, 4 * len(data)), data)

    async def delivered(self, message: PeerDeliver, payload: bytes) -> None:
        if self.name == "staged":
            text = f"{payload[: len(payload) // 5000].decode()}; joined {self.joined}"
            await self.report(ModelSaid((TextReport("heard", text),)))
            return
        digest = hashlib.sha256(payload).hexdigest()
        key = message.replica if message.name.kind == "pseudo_gradient" else 100 + message.stage
        await self.report(RoundHolding(message.name.epoch, message.name.round, {key: digest}))

    async def misbehave(self) -> None:
        match self.name:
            case "garbage":
                self.writer.write(struct.pack("<IQ", 10, 0) + b"\xff" * 10)
            case "huge":
                self.writer.write(struct.pack("<IQ", 5, 1 << 60) + b"12345")
            case "stranger":
                await write_frame(self.writer, Setup(self.setup.spec, self.setup.plan, 0, 0, "/", 1))
            case "forged":
                await self.report(RoundApplied(0, 0, "ab" * 32, "cd" * 32), STATE)
            case "misplaced":
                await self.report(Validation(0, 0, 1.0, 1), STATE)
            case "shouting":
                await self.report(ModelSaid((TextReport("1", "x" * 300_000),)))
            case "failing":
                await self.report(TaskFailed("the dataset is not what it seems"))
            case "unusable":
                await self.report(TaskFailed("wte.weight is (8, 4), the config makes it (16, 4)", cause="inputs"))
            case "diverging":
                await self.report(TaskFailed("the loss became nan", cause="numbers"))
            case "dying":
                sys.stderr.write("the last words of this worker")
                sys.exit(7)
            case _:
                await self.wear_out()

    async def wear_out(self) -> None:
        match self.name:
            case "flood":
                for step in range(5000):
                    await self.report(Validation(0, step, 1.0, 1))
            case "hungry":
                hoard = []
                while True:
                    hoard.append(bytearray(1 << 24))
            case "hanging":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                await self.report(TaskReady("scripted", 1))
                threading.Event().wait()  # The loop stands still: neither a signal nor a closed socket is noticed.


def _kind_for(me: tuple[int, int], other: tuple[int, int]) -> str | None:
    if me[0] == other[0] and me[1] != other[1]:
        return "pseudo_gradient"
    if me[1] == other[1] and abs(me[0] - other[0]) == 1:
        return "activation" if other[0] > me[0] else "gradient"
    return None


async def main() -> None:
    if sys.argv[2] == "--stdio":
        reader, writer = await open_stdio()
        os.write(1, b"what a library prints is no frame")
    else:
        reader, writer = await asyncio.open_unix_connection(sys.argv[3])
    setup, _ = await read_frame(reader, AgentMessage)
    try:
        await Worker(reader, writer, setup).run()
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    if sys.argv[1] == "bench":
        sys.stdout.write("a line that is not the result\n")
        result = {"flops": 1e9, "env_class": "scripted", "device": "cpu", "memory_mb": 100, "threads": 1}
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        asyncio.run(main())
