"""A place for one element at a time: two folders in memory, what carries files, and the container of the run.

::

    open -> [ lay the inputs in -> run -> take what it left -> empty ] for each run -> close
                                     '-- its time ends, it is dropped, the owner takes the machine: killed

Only the inputs that change are laid in anew. Nothing else of a run is there for the next: its container is gone with its
``/tmp``, and ``/out`` is emptied by somebody else's hands.

Where the array has ``batch``, so many runs share one container (``batch_shell``). Only what succeeds there counts: whatever ends
otherwise is run once more, in a container of its own, and how it ends there is told.
"""

import asyncio
import shutil
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from common.clock import Clock
from common.untrusted_text import Untrusted, untrusted
from desktop.agent.arrays.batch_shell import SHELL, BatchedEnd, BatchShell, work_of
from desktop.agent.arrays.porter_link import CarryError, LeftFiles, PorterLink
from desktop.agent.arrays.results import ResultArchive, collect
from desktop.agent.base.log import LOG
from desktop.agent.base.payloads import Payload
from desktop.agent.base.unixsocket import listen
from desktop.agent.errors import SandboxError, TamperedError, UnacceptedImageError, WorkerDiedError
from desktop.agent.jobs.spool import Spool
from desktop.agent.sandbox.base import SOCKET_NAME, Exit, SandboxLimits
from desktop.agent.sandbox.containers import Containers, Folders
from desktop.agent.sandbox.docker import DockerWorker
from protocol.job.array import ArraySpec, command_of, environment_of
from protocol.job.elements import TAIL_LINES, TAIL_TEXT, ElementEnd, ElementOutcome, ElementRun

CONNECT_S = 60.0  # Python alone starts in a tenth of a second; a crowded machine takes longer.
LOOK_S = 1.0  # The engine says when a container has ended; one of its words may get lost.
MOST_SPOILT, SPOILT_PART = 4, 4
"""Runs of a place that came to nothing in batches, after which all of its runs are alone, if that is one in so many: each is run
twice and paid once."""
NO_PROGRAM = (126, 127)  # What a container's first process says where it cannot start another.
MB = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class PlaceSize:
    """What a place may use. ``inputs_mb``: of memory, for what elements read; ``limits``: of a run."""

    inputs_mb: int
    limits: SandboxLimits


@dataclass(frozen=True)
class PlaceTools:
    """What every place of a lease shares. ``image``, ``checker``: images of elements and of what looks at their results, as the
    engine names them."""

    lease: str
    array: ArraySpec
    image: str
    checker: str
    size: PlaceSize
    containers: Containers
    spool: Spool
    clock: Clock

    def seconds(self, run: ElementRun) -> float:
        """After which a run is ended."""
        return self.array.limit(run.check is not None)


@dataclass(frozen=True)
class Finished:
    """How a run ended, and what it left where it ended well."""

    end: ElementEnd
    result: ResultArchive | None = None


@dataclass(frozen=True)
class _Batch:
    """A container in which runs follow each other."""

    worker: DockerWorker
    shell: BatchShell


class ElementPlace:
    """Open it, run elements one after the other, close it."""

    def __init__(self, tools: PlaceTools, folder: Path) -> None:
        """``folder``: of its own, for the porter's socket."""
        self._tools, self._folder = tools, folder
        self._folders: Folders | None = None
        self._porter: DockerWorker | None = None
        self._link: PorterLink | None = None
        self._laid: dict[str, str] = {}
        self._running: DockerWorker | None = None
        self._batch: _Batch | None = None
        self._has_shell = True
        self._tried = self._spoilt = 0  # Runs in batches, and those of them that came to nothing.
        self._emptied = False
        self._ending: set[asyncio.Task[None]] = set()
        self._frozen = False
        self._held: DockerWorker | None = None  # That is frozen.
        self._holding = asyncio.Lock()
        self._unwanted = False
        self.run_number = 0

    async def open(self) -> None:
        """Make the folders and start what carries files; raises SandboxError, WorkerDiedError."""
        tools, size = self._tools, self._tools.size
        self._folder.mkdir(parents=True, mode=0o755)
        self._folder.chmod(0o755)
        # The sandbox's user is another; the folder above is closed.
        server = listen(self._folder / SOCKET_NAME, 0o666)
        try:
            self._folders = await tools.containers.folders(tools.lease, size.inputs_mb, tools.array.disk_mb)
            self._porter = await tools.containers.porter(self._folders, self._folder, size.inputs_mb)
            connection = self._porter.connection or await _accepted(server, self._porter)
        finally:
            server.close()
        self._link = PorterLink(*await asyncio.open_connection(sock=connection, limit=4 * MB))

    async def close(self) -> None:
        """Leave nothing behind."""
        if self._link is not None:
            self._link.close()
        batched = None if self._batch is None else self._batch.worker
        if self._batch is not None:
            self._batch.shell.close()
        workers, self._running, self._porter, self._batch = {self._running, self._porter, batched}, None, None, None
        for worker in workers:
            if worker is not None:
                await _ended(worker)
        if self._ending:
            await asyncio.wait(self._ending)
        if self._folders is not None:
            try:
                await self._tools.containers.remove(self._folders)
            except SandboxError as error:  # The next start removes what it finds.
                LOG.warning("%s", error)
        self._link = self._folders = None
        self._laid = {}
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def watch(self) -> None:
        """Return never: raise TamperedError or WorkerDiedError once what carries files has ended and nobody had meant it to."""
        while True:
            porter = self._porter
            if porter is None:  # It is being made anew.
                await self._tools.clock.sleep(LOOK_S)
                continue
            await porter.died.wait()
            if porter is self._porter:
                ended = await porter.ended()
                if ended is not None and ended.tampered:
                    raise TamperedError(ended.reason)
                raise WorkerDiedError(f"what carries an element's files has ended: {ended.reason if ended else 'why?'}")

    async def abort(self) -> None:
        """End the present run, if there is one; one that is only just starting ends at once."""
        self._unwanted = True
        if self._running is not None:
            await self._running.kill()

    async def freeze(self, frozen: bool) -> None:
        """Hold the present run, each that begins, and what a batch has left running; or let them go on."""
        self._frozen = frozen
        await self._hold()

    async def _hold(self) -> None:
        async with self._holding:
            worker = self._running or (None if self._batch is None else self._batch.worker)
            if worker is not None and (worker is self._held) != self._frozen:
                await (worker.freeze() if self._frozen else worker.thaw())
                self._held = worker if self._frozen else None

    async def rest(self) -> None:
        """Nothing is run for now: end a batch's container, in which somebody may go on computing."""
        if self._batch is not None:
            await self._end_batch(self._batch, None)

    # --- one run --------------------------------------------------------------------------------------------------------

    async def run(
        self, run: ElementRun, inputs: Mapping[str, tuple[str, Payload]], begun: Callable[[], None]
    ) -> Finished:
        """Run an element to its end.

        Args:
            inputs: path below ``/in`` -> digest and bytes.
            begun: called once its program runs.
        Raises:
            TamperedError: somebody reached into it. SandboxError, WorkerDiedError: no element can run in this place any more.
        """
        self.run_number, self._unwanted, self._emptied = run.run, False, False
        try:
            await self._lay(inputs)
        except (CarryError, OSError) as error:
            self._laid = {}
            await self._anew()
            outcome: ElementOutcome = "owner" if isinstance(error, OSError) else "inputs"
            return self._end(run, outcome, said=f"its inputs cannot be laid in: {error}")
        try:
            work = self._batched(run)
            found = None if work is None else await self._run_batched(run, work, begun)
            return found or await self._run_alone(run, begun)
        finally:
            self.run_number = 0

    async def _run_alone(self, run: ElementRun, begun: Callable[[], None]) -> Finished:
        """In a container of its own."""
        await self.rest()  # Else it would share this run's folders, and take memory beside it.
        tools, element, self._emptied = self._tools, run.element, False
        assert self._folders is not None
        try:
            self._running = await tools.containers.element(
                self._folders,
                tools.image if run.check is None else tools.checker,
                command_of(tools.array, run.index, element, run.check is not None),
                environment_of(tools.array, run.index, element, run.seed),
                tools.size.limits,
                tools.array.gpu and run.check is None,
            )
        except SandboxError as error:  # The engine has just started a container of Cottage's own: it is the image.
            raise UnacceptedImageError(f"this computer's engine cannot run the job's image: {error}") from error
        worker, found = self._running, None
        began = tools.clock.now()
        try:
            await self._hold()
            if self._unwanted:
                await worker.kill()
            begun()
            limit = tools.seconds(run)
            found = await self._until_end(limit, lambda patience: tools.containers.ended(worker, patience))
        finally:
            self._running = None
            if found is None:
                await worker.stop(0)
        self._let_go(worker)
        finished = await self._judged(run, found, tools.clock.now() - began)
        await self._empty()
        return finished

    # --- runs that share a container ------------------------------------------------------------------------------------

    def _batched(self, run: ElementRun) -> str | None:
        """What a shell is told to run; None: the run has a container of its own."""
        array = self._tools.array
        if array.batch == 1 or run.alone or run.check is not None or not self._has_shell:
            return None
        if self._spoilt >= MOST_SPOILT and self._spoilt * SPOILT_PART > self._tried:
            return None
        environment = environment_of(array, run.index, run.element)
        return work_of(command_of(array, run.index, run.element), environment)

    async def _run_batched(self, run: ElementRun, work: str, begun: Callable[[], None]) -> Finished | None:
        """Behind others in one container; None where that was no clean success, so that it is to be run alone."""
        tools = self._tools
        batch = self._batch = self._batch or await self._begin_batch()
        self._running = batch.worker
        began = tools.clock.now()
        try:
            await self._hold()
            if self._unwanted:
                await batch.worker.kill()
            await batch.shell.begin(work)
            begun()
            ended = await self._until_end(tools.seconds(run), batch.shell.ended)
        finally:
            self._running = None
        finished = None
        if ended is not None and ended.code == 0 and not self._unwanted:
            finished = await self._succeeded_batched(run, ended, tools.clock.now() - began)
        if not self._unwanted:
            self._tried, self._spoilt = self._tried + 1, self._spoilt + (finished is None)
        if finished is None or batch.shell.begun >= tools.array.batch or (ended is not None and ended.left):
            await self._end_batch(batch, ended)
        await self._empty()
        return self._end(run, "owner") if self._unwanted else finished

    def _let_go(self, worker: DockerWorker) -> None:
        """Remove a container that does nothing any more, beside the next run."""
        ending = asyncio.create_task(_ended(worker), name="element-container-removed")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _succeeded_batched(self, run: ElementRun, ended: BatchedEnd, seconds: float) -> Finished | None:
        try:
            finished = await self._taken(run, 0, ended.said, seconds)
        except (CarryError, OSError):
            return None
        return None if finished.result is None else finished

    async def _begin_batch(self) -> _Batch:
        tools = self._tools
        assert self._folders is not None
        try:
            worker = await tools.containers.batch(self._folders, tools.image, SHELL, tools.size.limits, tools.array.gpu)
        except SandboxError as error:
            raise UnacceptedImageError(f"this computer's engine cannot run the job's image: {error}") from error
        assert worker.connection is not None
        worker.connection.setblocking(False)
        return _Batch(worker, BatchShell(*await asyncio.open_connection(sock=worker.connection)))

    async def _end_batch(self, batch: _Batch, last: BatchedEnd | None) -> None:
        """Let it go; raises TamperedError where somebody had reached into it."""
        self._batch = None
        batch.shell.close()
        exit_ = await batch.worker.ended()
        if exit_ is None and last is not None and last.code == 0:
            self._let_go(batch.worker)  # Nothing of it is left but its shell.
        else:
            await batch.worker.stop(0)
        if exit_ is not None and exit_.tampered:
            raise TamperedError(exit_.reason)
        if last is not None and last.code is None and exit_ is not None and exit_.code in NO_PROGRAM:
            LOG.info("the job's image has no shell, so each of its elements has a container of its own")
            self._has_shell = False

    async def _lay(self, inputs: Mapping[str, tuple[str, Payload]]) -> None:
        assert self._link is not None
        wanted = {path: digest for path, (digest, _) in inputs.items()}
        gone = [path for path, digest in self._laid.items() if wanted.get(path) != digest]
        for path in gone:
            del self._laid[path]
        new = sorted(wanted.keys() - self._laid.keys())
        if gone or new:
            await self._link.lay(gone, {path: inputs[path][1] for path in new})
            self._laid |= {path: wanted[path] for path in new}

    async def _until_end(self, limit: float, look: Callable[[float], Awaitable[T | None]]) -> T | None:
        """What ``look(patience)`` finds; None: the run's time has ended. Time in which it is held does not count."""
        tools, used, patience = self._tools, 0.0, 0.0  # One that ended before anybody listened is seen at once.
        while used < limit:
            began = tools.clock.now()
            found = await look(patience)
            if found is not None:
                return found
            used += 0.0 if self._held is self._running else tools.clock.now() - began
            patience = min(LOOK_S, limit - used)
        return None

    async def _judged(self, run: ElementRun, found: tuple[Exit, str] | None, seconds: float) -> Finished:
        if found is None:
            limit = self._tools.seconds(run)
            return self._end(run, "time", seconds=seconds, said=f"it was ended at its limit of {limit:,.0f} seconds")
        exit_, said = found
        if exit_.tampered:
            raise TamperedError(exit_.reason)
        if exit_.memory:
            return self._end(run, "memory", seconds=seconds, said=f"{said}\n{exit_.reason}")
        if exit_.code is None:
            return self._end(run, "owner", seconds=seconds, said=exit_.reason)
        try:
            return await self._taken(run, exit_.code, said, seconds)
        except CarryError as error:
            return self._end(run, "disk", seconds=seconds, said=f"{said}\n{error}")
        except OSError as error:
            LOG.error("what an element left cannot be kept: %s", error)
            return self._end(run, "owner", seconds=seconds, said=said)

    async def _taken(self, run: ElementRun, code: int, said: str, seconds: float) -> Finished:
        assert self._link is not None
        try:
            left = await self._link.left(self._tools.array.disk_mb * MB, take=code == 0)
            self._emptied = left.contents is not None
        except CarryError:
            if code == 0:
                raise
            return self._end(run, "exited", code, seconds=seconds, said=said)
        if code != 0:
            return self._end(
                run, "disk" if left.full else "exited", 0 if left.full else code, seconds=seconds, said=said
            )
        return Finished(*await self._succeeded(run, left, said, seconds))

    async def _succeeded(
        self, run: ElementRun, left: LeftFiles, said: str, seconds: float
    ) -> tuple[ElementEnd, ResultArchive]:
        assert self._link is not None
        result = await collect(self._link, left, self._tools.spool)
        size = result.payload.size
        end = ElementEnd(
            run.run,
            "exited",
            0,
            result.sha256,
            size,
            result.files,
            seconds=seconds,
            tail=tail_of(said),
        )
        return end, result

    def _end(
        self, run: ElementRun, outcome: ElementOutcome, code: int = 0, seconds: float = 0.0, said: str = ""
    ) -> Finished:
        return Finished(ElementEnd(run.run, outcome, min(code, 255), seconds=seconds, tail=tail_of(said)))

    async def _empty(self) -> None:
        """Make ready for the next; what cannot be emptied is replaced."""
        assert self._link is not None
        if self._emptied:
            return
        try:
            await self._link.clear()
        except (CarryError, WorkerDiedError) as error:
            LOG.info("an element's folders are made anew: %s", error)
            await self._anew()

    async def _anew(self) -> None:
        await self.close()
        await self.open()


def tail_of(said: str) -> tuple[Untrusted, ...]:
    """The last lines of what a program printed."""
    lines = [line for line in said.replace("\r", "\n").split("\n") if line.strip()]
    return tuple(untrusted(line, TAIL_TEXT - 1) for line in lines[-TAIL_LINES:])


async def _ended(worker: DockerWorker) -> None:
    try:
        await worker.stop(0)
    except SandboxError as error:
        LOG.warning("a container cannot be removed: %s", error)


async def _accepted(server: socket.socket, porter: DockerWorker) -> socket.socket:
    """The porter's one connection."""
    server.setblocking(False)
    accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(server))
    try:
        async with asyncio.timeout(CONNECT_S):
            while not accepting.done():
                await asyncio.wait((accepting,), timeout=LOOK_S)
                if not accepting.done() and (ended := await porter.ended()) is not None:
                    raise WorkerDiedError(f"what carries an element's files did not begin: {ended.reason}")
    except TimeoutError:
        raise WorkerDiedError(f"what carries an element's files has not connected within {CONNECT_S:.0f} s") from None
    finally:
        accepting.cancel()
    connection, _ = accepting.result()
    connection.setblocking(False)
    return connection
