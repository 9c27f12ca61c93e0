"""A lease of an array job: its image, its places, its queue of runs, and what is told of them.

::

    fetching    the image: accepted, looked through, loaded
    starting    so many places as the lent memory, processors and card allow
    running     ArrayReady; each place takes the next run; begun and ended are told together
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from common.errors import SealedFileError
from desktop.agent.arrays.element_place import ElementPlace, Finished, PlaceSize, PlaceTools
from desktop.agent.base.exception_groups import main_error
from desktop.agent.base.log import LOG
from desktop.agent.base.payloads import PartPayload, Payload, SmallPayload
from desktop.agent.coordinator.report_outbox import MAX_UNACKNOWLEDGED
from desktop.agent.errors import ArtifactError, UnacceptedImageError, UnwantedError, WorkerDiedError
from desktop.agent.images.store import ElementImages
from desktop.agent.jobs.tasks import HeldTask
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.containers import PORTER_MB, Containers
from protocol.artifacts import result_answer
from protocol.ids import Digest
from protocol.job.array import RESULT, ArraySpec, inputs_of_element
from protocol.job.elements import (
    INLINE_BYTES,
    MAX_QUEUED,
    MAX_REPORT_BYTES,
    MAX_SLOTS,
    MAX_TOGETHER,
    TOGETHER_S,
    ArrayReady,
    DropElements,
    ElementEnd,
    ElementRun,
    ElementsMoved,
    RunElements,
)
from protocol.job.results import contents
from protocol.task import TaskCommand

MB = 1 << 20
OWN_INPUTS_MB = 256  # For what one element reads, beside what all of them read.
MOST_UNTOLD = MAX_UNACKNOWLEDGED // 2  # A coordinator that is away hears the rest together, once it is back.
INPUTS_AHEAD = 8  # Runs whose inputs are fetched while others run.
IDLE_S = 5.0  # Without a run, after which a place has no container any more.
DELIVERIES = 4  # Results that are on their way at a time; then places wait for the line.

LaidInputs = Mapping[str, tuple[str, Payload]]
"""Path below ``/in`` -> digest and bytes."""


@dataclass(frozen=True)
class ArrayTools:
    """What a node needs for array jobs. ``memory_mb``, ``threads``: what its owner lends; ``gpu``: whether a card is lent.

    ``env_class``: what results may hang on, as the profile says it.
    """

    containers: Containers
    images: ElementImages
    memory_mb: int
    threads: int
    gpu: bool
    env_class: str


@dataclass
class HeldArray(HeldTask):
    """One lease of an array job."""

    arrays: ArrayTools | None = field(kw_only=True)

    def __post_init__(self) -> None:
        """Hold nothing yet."""
        super().__post_init__()
        assert self.assign.spec.array is not None
        self.array: ArraySpec = self.assign.spec.array
        self.done = 0
        self._queue: deque[ElementRun] = deque()
        self._known: set[int] = set()
        self._dropped: set[int] = set()
        self._wake, self._tell = asyncio.Event(), asyncio.Event()
        self._begun: list[int] = []
        self._ended: list[ElementEnd] = []
        self._places: list[ElementPlace] = []
        self._shared: dict[str, Payload] = {}
        self._delivering = asyncio.Semaphore(DELIVERIES)
        self._aborting: set[asyncio.Task[None]] = set()
        self._coming: dict[int, asyncio.Task[LaidInputs | None]] = {}

    def command(self, body: TaskCommand) -> bool:
        """Take runs, or let go of some."""
        match body:
            case RunElements(runs=runs):
                fresh = [run for run in runs if run.run not in self._known]
                if len(self._queue) + len(fresh) > MAX_QUEUED:
                    return False
                self._known |= {run.run for run in fresh}
                self._queue.extend(fresh)
                self._wake.set()
            case DropElements(runs=dropped):
                self._known |= set(dropped)
                self._dropped |= set(dropped)
                for coming in [self._coming.pop(run) for run in dropped if run in self._coming]:
                    coming.cancel()
                self._queue = deque(run for run in self._queue if run.run not in self._dropped)
                for place in self._places:
                    if place.run_number in self._dropped:
                        aborting = asyncio.create_task(place.abort(), name="element-dropped")
                        self._aborting.add(aborting)
                        aborting.add_done_callback(self._aborting.discard)
            case _:
                return False
        return True

    async def _hold(self) -> None:
        # All at once: an owner who takes the computer back waits for one, not for each.
        await asyncio.gather(*(place.freeze(self._frozen or self._resting) for place in self._places))

    # --- its life -------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        arrays = self.arrays
        if arrays is None:
            raise UnacceptedImageError("this computer runs no containers of others: it lends without a Docker engine")
        image = self.assign.files.get("image", self.array.image)
        checker = self.assign.files.get("checker", image)
        async with arrays.images.held(image, self.array) as loaded, arrays.images.held(checker, self.array) as looking:
            for digest in dict.fromkeys(self.array.inputs.values()):
                self._shared[digest] = await self.tools.artifacts.fetch_closed(digest)
            self.state = "starting"
            number, size = self._sizes(arrays)
            tools = PlaceTools(
                self.assign.lease,
                self.array,
                loaded.engine_id,
                looking.engine_id,
                size,
                arrays.containers,
                self.tools.states.spool,
                self.tools.clock,
            )
            try:
                for index in range(number):
                    place = ElementPlace(tools, self._folder / str(index))
                    self._places.append(place)
                    await place.open()
                await self._hold()
                self.state = "running"
                await self.report(ArrayReady(arrays.env_class, number), True)
                await self._run_all()
            finally:
                await asyncio.shield(asyncio.gather(*(place.close() for place in self._places), return_exceptions=True))
                self._places.clear()

    def _sizes(self, arrays: ArrayTools) -> tuple[int, PlaceSize]:
        """How many elements run at a time, and what each may use; raises UnacceptedImageError where not even one has room."""
        array = self.array
        if array.gpu and not arrays.gpu:
            raise UnacceptedImageError("the job asks for a GPU, and this computer lends none")
        inputs = -(-sum(payload.size for payload in self._shared.values()) // MB) + OWN_INPUTS_MB
        inputs += 0 if array.checker is None else array.disk_mb  # A result at which it looks.
        run = array.memory_mb + array.disk_mb
        number = min(
            arrays.memory_mb // (run + inputs + PORTER_MB), arrays.threads, MAX_SLOTS, 1 if array.gpu else MAX_SLOTS
        )
        if number < 1:
            raise UnacceptedImageError(
                f"an element needs {run + inputs + PORTER_MB:,} MB of memory with its files, "
                f"and this computer lends {arrays.memory_mb:,}"
            )
        threads = max(1, arrays.threads // number)
        longest = max(array.limit(look=False), array.limit(look=True))
        seconds = int(longest * threads) + 60
        limits = SandboxLimits(run, threads, temporary_mb=array.disk_mb, cpu_seconds=seconds)
        return number, PlaceSize(inputs, limits)

    async def _run_all(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._report_all(), name="elements-told")
                for place in self._places:
                    group.create_task(self._serve(place, group), name="elements")
                    group.create_task(place.watch(), name="elements-watch")
        except BaseExceptionGroup as errors:
            raise main_error(errors, WorkerDiedError) from None

    async def _serve(self, place: ElementPlace, group: asyncio.TaskGroup) -> None:
        while True:
            run = await self._next(place)
            async with self._delivering:
                pass  # A line that is slower than the elements holds them up, not the disk.
            inputs = await self._coming_inputs(run, group)
            if inputs is None or run.run in self._dropped:
                continue
            finished = await place.run(run, inputs, lambda run=run: self._has_begun(run))  # type: ignore[misc]
            del inputs  # The cache may let go of them.
            self.done += 1
            if run.run in self._dropped:
                continue
            if finished.result is not None and finished.result.payload.size > INLINE_BYTES:
                await self._delivering.acquire()
                group.create_task(self._deliver(finished), name="element-result")
            else:
                self._has_ended(finished)

    async def _next(self, place: ElementPlace) -> ElementRun:
        while not self._queue:
            self._wake.clear()
            try:
                async with asyncio.timeout(IDLE_S):
                    await self._wake.wait()
            except TimeoutError:
                await place.rest()
                await self._wake.wait()
        return self._queue.popleft()

    def _coming_inputs(self, run: ElementRun, group: asyncio.TaskGroup) -> "asyncio.Task[LaidInputs | None]":
        """What a run reads, which may have been asked for already; what the next ones read is asked for now."""
        for one in (run, *itertools.islice(self._queue, INPUTS_AHEAD)):
            if one.run not in self._coming:
                self._coming[one.run] = group.create_task(self._inputs(one), name="element-inputs")
        return self._coming.pop(run.run)

    async def _inputs(self, run: ElementRun) -> LaidInputs | None:
        """Path -> digest and bytes; None where they cannot be had, which is told."""
        found: dict[str, tuple[str, Payload]] = {}
        try:
            for path, digest in inputs_of_element(self.array, run.element).items():
                payload = self._shared.get(digest) or await self._short(await self.tools.artifacts.fetch_closed(digest))
                found[path] = (digest, payload)
            if run.check is not None:
                found |= await self._looked_at(run.check)
        except (ArtifactError, ValueError, SealedFileError, OSError) as error:
            LOG.warning("%s: the inputs of %s: %s", self, run.index, error)
            self._has_begun(run)
            self._note_end(ElementEnd(run.run, "owner" if isinstance(error, OSError) else "inputs"))
            return None
        return found

    @staticmethod
    async def _short(payload: Payload) -> Payload:
        """The same in memory, where it is short: laying it in then waits for no disk."""
        return SmallPayload(await asyncio.to_thread(payload.read)) if payload.size <= INLINE_BYTES else payload

    async def _looked_at(self, result: Digest) -> dict[str, tuple[str, Payload]]:
        """The files of a result, as they are laid in; raises ValueError where it is no archive of one."""
        archive = await self.tools.artifacts.fetch_payload(result)

        def read(begin: int, end: int) -> bytes:
            return archive.read(begin, min(end, archive.size))

        inside = await asyncio.to_thread(contents, read, archive.size)
        return {
            f"{RESULT}/{one.path}": (f"{result} {one.path}", PartPayload(archive, one.begin, one.size))
            for one in inside
        }

    async def _deliver(self, finished: Finished) -> None:
        assert finished.result is not None
        try:
            await self.tools.artifacts.upload(
                finished.result.payload,
                finished.result.sha256,
                self.assign.lease,
                result_answer(finished.end.run),
            )
            self._note_end(finished.end)
        except UnwantedError:
            LOG.info("%s: nobody waits for run %d any more", self, finished.end.run)
        except ArtifactError as error:
            LOG.warning("%s: %s", self, error)
            self._note_end(ElementEnd(finished.end.run, "owner", seconds=finished.end.seconds))
        finally:
            self._delivering.release()

    def _has_ended(self, finished: Finished) -> None:
        end = finished.end
        if finished.result is not None:  # A short one, which is in memory.
            end = msgspec.structs.replace(end, data=finished.result.payload.read())
        self._note_end(end)

    # --- what is told ---------------------------------------------------------------------------------------------------

    def _has_begun(self, run: ElementRun) -> None:
        self._begun.append(run.run)
        self._tell.set()

    def _note_end(self, end: ElementEnd) -> None:
        self._ended.append(end)
        self._tell.set()

    async def _report_all(self) -> None:
        """Beginnings and ends, several in one report."""
        while True:
            await self._tell.wait()
            await self.tools.clock.sleep(TOGETHER_S)
            self._tell.clear()
            while self._begun or self._ended:
                if len(self.outbox) >= MOST_UNTOLD:
                    await self.tools.clock.sleep(TOGETHER_S)
                    continue
                begun, self._begun = self._begun[:MAX_QUEUED], self._begun[MAX_QUEUED:]
                ended = self._together()
                await self.report(ElementsMoved(tuple(begun), tuple(ended)), True)

    def _together(self) -> list[ElementEnd]:
        taken: list[ElementEnd] = []
        size = 0
        while self._ended and len(taken) < MAX_TOGETHER:
            size += len(self._ended[0].data or b"")
            if taken and size > MAX_REPORT_BYTES:
                break
            taken.append(self._ended.pop(0))
        return taken

    def __str__(self) -> str:
        return f"job {self.assign.job[:8]} elements ({self.assign.lease[:8]})"
