"""Models that answer: a process for each, which takes several requests at a time and stays for a while after the last one."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import TypeVar

import msgspec

from coordinator.domain.serving import ServedFiles
from coordinator.errors import CottageError, TookTooLongError, UnavailableError
from coordinator.services.artifacts.models import MAX_DIAGNOSIS, crashed
from coordinator.services.serving.refusals import error_of
from protocol.codec import decode_json
from protocol.ids import Digest
from protocol.serving import (
    MAX_LINE,
    AnswerCheck,
    AnsweredReport,
    AnswerReport,
    AskCommand,
    CancelCommand,
    CheckedReport,
    EmbeddedReport,
    EngineCommand,
    EngineReport,
    ProveCommand,
    ProvenReport,
    ReadyReport,
    RefusedReport,
    TextReport,
)

MOST = 2  # Models at a time: each may take as much memory as a tool.
IDLE_S = 300.0  # Then a model that nobody asks makes room.

LOG = logging.getLogger(__name__)

Looked = TypeVar("Looked", CheckedReport, ProvenReport)
Process = asyncio.subprocess.Process
Start = Callable[[ServedFiles], AbstractAsyncContextManager[Process]]
"""Begins a process that holds a model so; leaving ends it."""


class Engines:
    """All models that answer now."""

    def __init__(self, start: Start, most: int = MOST, idle_s: float = IDLE_S) -> None:
        self._start, self._most, self._idle_s = start, most, idle_s
        self._running: OrderedDict[ServedFiles, _Engine] = OrderedDict()
        self._changed = asyncio.Event()
        self._waiting = 0
        self._numbers = count(1)

    def before(self, archive: Digest) -> int:
        """How many wait for room that a request for this model would wait behind, itself among them; 0: it need not wait."""
        full = len(self._running) >= self._most and all(engine.held for engine in self._running.values())
        return self._waiting + 1 if full and ServedFiles(archive) not in self._running else 0

    async def generate(self, archive: Digest, command: AskCommand, seconds: float) -> AsyncGenerator[AnswerReport]:
        """Pieces of an answer as they come, and its end. Whoever stops listening ends it.

        Args:
            command: its ``id`` is given here.
            seconds: for all of it, loading the model among it.
        Raises:
            NotFoundError: the archive is not here. InvalidError: the model cannot read the request.
            TookTooLongError: the time is over. UnavailableError: models do not run here, or this one failed.
        """
        until = asyncio.get_running_loop().time() + seconds
        try:
            async with self._held(ServedFiles(archive), until) as engine:
                request = str(next(self._numbers))
                reports = engine.ask(msgspec.structs.replace(command, id=request))
                try:
                    async for report in _until(reports, engine, until):
                        yield report
                finally:
                    engine.cancel(request)
        except TimeoutError as error:
            late = f"the model took longer than {seconds:g} s, which is all the time that there is for it here"
            raise TookTooLongError(f"{late}: ask for fewer tokens, or run it at home", "tokens") from error

    async def check(self, held: ServedFiles, command: AnswerCheck, seconds: float) -> CheckedReport:
        """Draw an answer again.

        Args:
            held: as those hold the model who answered.
        Raises:
            CottageError: as ``generate``.
        """
        return await self._looked_at(held, command, seconds, CheckedReport)

    async def prove(self, held: ServedFiles, command: ProveCommand, seconds: float) -> ProvenReport:
        """Look whether no rounding explains an answer; as ``check``."""
        return await self._looked_at(held, command, seconds, ProvenReport)

    async def _looked_at(
        self, held: ServedFiles, command: AnswerCheck | ProveCommand, seconds: float, kind: type[Looked]
    ) -> Looked:
        until = asyncio.get_running_loop().time() + seconds
        try:
            async with self._held(held, until) as engine:
                request = str(next(self._numbers))
                reports = engine.ask(msgspec.structs.replace(command, id=request))
                try:
                    async with asyncio.timeout_at(until):
                        report = await reports.get()
                finally:
                    engine.cancel(request)
        except TimeoutError as error:
            raise TookTooLongError(f"the answer was not checked within {seconds:g} s", "tokens") from error
        if isinstance(report, kind):
            return report
        raise error_of(report) if isinstance(report, RefusedReport) else engine.failure()

    async def close(self) -> None:
        """End all of them."""
        running, self._running = list(self._running.values()), OrderedDict()
        await asyncio.gather(*(engine.end() for engine in running))

    @asynccontextmanager
    async def _held(self, model: ServedFiles, until: float) -> AsyncIterator["_Engine"]:
        """A model that answers, which stays while this lasts."""
        async with asyncio.timeout_at(until):
            engine = await self._taken(model)
        try:
            async with asyncio.timeout_at(until):
                await engine.ready()
            yield engine
        finally:
            engine.let_go(self._idle_s, lambda: self._expired(model, engine))
            self._changed.set()

    async def _taken(self, model: ServedFiles) -> "_Engine":
        """The model's engine, begun where it is not there; the one that was asked longest ago makes room."""
        self._waiting += 1
        try:
            while not self._free(model):
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._waiting -= 1
        engine = self._running.get(model)
        if engine is None or engine.ended:
            idle = next((name for name, one in self._running.items() if not one.held), None)
            full = engine is None and len(self._running) >= self._most
            before = engine or (self._running.pop(idle) if full and idle is not None else None)
            engine = self._running[model] = _Engine(lambda: self._start(model), before)
        self._running.move_to_end(model)
        engine.hold()
        return engine

    def _free(self, model: ServedFiles) -> bool:
        there = model in self._running or len(self._running) < self._most
        return there or not all(engine.held for engine in self._running.values())

    def _expired(self, model: ServedFiles, engine: "_Engine") -> None:
        if self._running.get(model) is engine:
            del self._running[model]
        self._changed.set()
        engine.stop()


async def _until(
    reports: asyncio.Queue[EngineReport | None], engine: "_Engine", until: float
) -> AsyncIterator[AnswerReport]:
    """What comes of a request; TimeoutError: the time is over."""
    while True:
        async with asyncio.timeout_at(until):
            report = await reports.get()
        match report:
            case TextReport() | EmbeddedReport():
                yield report
            case AnsweredReport():
                yield report
                return
            case RefusedReport(code="failed"):
                LOG.error("a model failed at a request: %s", report.detail)
                raise error_of(report)
            case RefusedReport():
                raise error_of(report)
            case _:
                raise engine.failure()


class _Engine:
    """A process that holds a model."""

    def __init__(self, start: Callable[[], AbstractAsyncContextManager[Process]], before: "_Engine | None") -> None:
        """Begin it, once the one ``before`` it has gone."""
        self.held = 0
        self.ended = False
        self._answers: dict[str, asyncio.Queue[EngineReport | None]] = {}
        self._process: Process | None = None
        self._error: CottageError | None = None
        self._ready = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._run(start, before), name="engine")

    async def ready(self) -> None:
        """Wait until the model is loaded.

        Raises:
            CottageError: it cannot be.
        """
        await self._ready.wait()
        if self.ended:
            raise self.failure()

    def failure(self) -> CottageError:
        """Why it has ended."""
        return self._error or UnavailableError("the model's process has ended: try again")

    def ask(self, command: AskCommand | AnswerCheck | ProveCommand) -> asyncio.Queue[EngineReport | None]:
        """Begin a request; what comes of it, and None once the process has ended."""
        reports = self._answers[command.id] = asyncio.Queue()  # As long as the answer.
        self._send(command)
        if self.ended:
            reports.put_nowait(None)
        return reports

    def cancel(self, request: str) -> None:
        """Nobody listens any more."""
        if self._answers.pop(request, None) is not None:
            self._send(CancelCommand(request))

    def hold(self) -> None:
        """One more that uses it."""
        self.held += 1
        if self._expiry is not None:
            self._expiry.cancel()

    def let_go(self, idle_s: float, expired: Callable[[], None]) -> None:
        """One less; ``expired`` is called when nobody has come back for a while."""
        self.held -= 1
        if not self.held:
            self._expiry = asyncio.get_running_loop().call_later(0 if self.ended else idle_s, expired)

    def stop(self) -> None:
        """Begin to end it."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._task.cancel()

    async def end(self) -> None:
        """End it, and wait until its memory is free."""
        self.stop()
        await asyncio.wait([self._task])

    def _send(self, command: EngineCommand) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(msgspec.json.encode(command) + b"\n")

    async def _run(self, start: Callable[[], AbstractAsyncContextManager[Process]], before: "_Engine | None") -> None:
        try:
            if before is not None:
                await before.end()
            async with start() as process:
                await self._listen(process)
        except CottageError as error:
            self._error = error
        finally:
            self.ended = True
            self._ready.set()
            for reports in self._answers.values():
                reports.put_nowait(None)

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        complaining = asyncio.create_task(_end_of(process.stderr), name="complaint")
        try:
            async for line in process.stdout:
                self._told(decode_json(line, EngineReport, MAX_LINE))
            status, complaint = await process.wait(), await complaining
        finally:
            complaining.cancel()
        LOG.error("a model's process ended with %d: %s", status, complaint)
        self._error = UnavailableError(crashed("serve", status, complaint))

    def _told(self, report: EngineReport) -> None:
        if isinstance(report, ReadyReport):
            self._ready.set()
        elif (reports := self._answers.get(report.id)) is not None:
            reports.put_nowait(report)


async def _end_of(complaints: asyncio.StreamReader) -> str:
    """The last of what a process says on standard error, which warns of much."""
    kept = b""
    while block := await complaints.read(MAX_DIAGNOSIS):
        kept = (kept + block)[-MAX_DIAGNOSIS:]
    return kept.decode(errors="replace")
