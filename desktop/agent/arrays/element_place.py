"""A place for one element at a time: two folders in memory, what carries files, and the container of the run.

::

    open -> [ lay the inputs in -> run -> take what it left -> empty ] for each run -> close
                                     '-- its time ends, it is dropped, the owner takes the machine: killed

Only the inputs that change are laid in anew. Nothing else of a run is there for the next: its container is gone with its
``/tmp``, and ``/out`` is emptied by somebody else's hands.
"""

import asyncio
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.clock import Clock
from common.untrusted_text import Untrusted, untrusted
from desktop.agent.arrays.porter_link import CarryError, PorterLink
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
MB = 1 << 20


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
        checker = self.array.checker
        return self.array.seconds if run.check is None or checker is None else checker.seconds


@dataclass(frozen=True)
class Finished:
    """How a run ended, and what it left where it ended well."""

    end: ElementEnd
    result: ResultArchive | None = None


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
        self._frozen = self._held = False
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
        workers, self._running, self._porter = (self._running, self._porter), None, None
        for worker in workers:
            if worker is not None:
                await _ended(worker)
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
        """Hold the present run, and each that begins, or let it go on."""
        self._frozen = frozen
        await self._hold()

    async def _hold(self) -> None:
        async with self._holding:
            worker = self._running
            if worker is not None and self._held != self._frozen:
                await (worker.freeze() if self._frozen else worker.thaw())
                self._held = self._frozen

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
        self.run_number, self._unwanted = run.run, False
        try:
            await self._lay(inputs)
        except (CarryError, OSError) as error:
            self._laid = {}
            await self._anew()
            return self._end(run, "inputs", said=f"its inputs cannot be laid in: {error}")
        tools, element = self._tools, run.element
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
        self._held = False
        began = tools.clock.now()
        try:
            await self._hold()
            if self._unwanted:
                await self._running.kill()
            begun()
            found = await self._until_end(self._running, tools.seconds(run))
        finally:
            worker, self._running, self.run_number = self._running, None, 0
            await worker.stop(0)
        finished = await self._judged(run, found, tools.clock.now() - began)
        await self._empty()
        return finished

    async def _lay(self, inputs: Mapping[str, tuple[str, Payload]]) -> None:
        assert self._link is not None
        wanted = {path: digest for path, (digest, _) in inputs.items()}
        for path, digest in list(self._laid.items()):
            if wanted.get(path) != digest:
                await self._link.drop(path)
                del self._laid[path]
        for path in sorted(wanted.keys() - self._laid.keys()):
            await self._link.put(path, inputs[path][1])
            self._laid[path] = wanted[path]

    async def _until_end(self, worker: DockerWorker, limit: float) -> tuple[Exit, str] | None:
        """How it ended and the last that it printed; None: its time did. Time in which it is held does not count."""
        tools, used, patience = self._tools, 0.0, 0.0  # One that ended before anybody listened is seen at once.
        while used < limit:
            began = tools.clock.now()
            found = await tools.containers.ended(worker, patience)
            if found is not None:
                return found
            used += 0.0 if self._held else tools.clock.now() - began
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
            left = await self._link.left(self._tools.array.disk_mb * MB)
        except CarryError:
            if code == 0:
                raise
            return self._end(run, "exited", code, seconds=seconds, said=said)
        if code != 0:
            return self._end(
                run, "disk" if left.full else "exited", 0 if left.full else code, seconds=seconds, said=said
            )
        return Finished(*await self._succeeded(run, left.sizes, said, seconds))

    async def _succeeded(
        self, run: ElementRun, sizes: Mapping[str, int], said: str, seconds: float
    ) -> tuple[ElementEnd, ResultArchive]:
        assert self._link is not None
        result = await collect(self._link, sizes, self._tools.spool)
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
