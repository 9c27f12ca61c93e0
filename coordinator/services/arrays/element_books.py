"""Elements of array jobs as they are read: which have ended, what each left, all results in one archive."""

import asyncio
import logging
import tarfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal, Protocol

from coordinator.domain.arrays.votes import ElementCourse
from coordinator.domain.job import Job
from coordinator.errors import ConflictError, NotFoundError
from coordinator.services.arrays.array_views import element_view
from coordinator.services.arrays.open_arrays import OpenArrays
from coordinator.services.artifacts.artifacts import CHUNK_BYTES, ArtifactStore
from coordinator.services.core.context import Context
from coordinator.store.ports import Condition, col
from protocol.ids import Digest
from protocol.job.array import ArrayElement, ArraySpec
from protocol.job.results import END, entry, is_plain, padding
from protocol.rest.arrays import ElementView

LOG = logging.getLogger(__name__)

PAGE = 200
Ended = Literal["done", "failed"]


class ElementsPort(Protocol):
    """What became of an array's elements. Raises ``coordinator.errors``."""

    async def ended(self, job: str, after: int, state: Ended | None, limit: int) -> Sequence[ElementView]:
        """Elements that are done or have failed, in the order in which they were, behind a number of it."""

    async def failures(self, job: str, limit: int) -> Sequence[ElementView]:
        """Elements that have failed, the last one first."""

    async def result(self, job: str, index: int) -> tuple[str, Digest]:
        """An element's name, and the artifact of its result."""

    def archive(self, job: str) -> AsyncIterator[bytes]:
        """All results in one tar archive, each in a folder of its element's name."""


class ElementBooks:
    """Implements ``ElementsPort``."""

    def __init__(self, context: Context, arrays: OpenArrays, artifacts: ArtifactStore) -> None:
        self._context, self._arrays, self._artifacts = context, arrays, artifacts

    async def ended(self, job: str, after: int, state: Ended | None, limit: int) -> Sequence[ElementView]:
        """As ``ElementsPort.ended``."""
        elements = await self._elements(job)
        found = await self._courses(job, after, state, limit)
        return [element_view(course, elements[course.index]) for course in found]

    async def failures(self, job: str, limit: int) -> Sequence[ElementView]:
        """As ``ElementsPort.failures``."""
        elements = await self._elements(job)
        found = await self._courses(job, 0, "failed", limit, newest=True)
        return [element_view(course, elements[course.index]) for course in found]

    async def result(self, job: str, index: int) -> tuple[str, Digest]:
        """As ``ElementsPort.result``."""
        elements = await self._elements(job)
        async with self._context.everywhere.transaction() as tx:
            where = (col(ElementCourse.job).equals(job), col(ElementCourse.index).equals(index))
            found = await tx.find(ElementCourse, *where)
        if not 0 <= index < len(elements):
            raise NotFoundError(f"job {job} has no element {index}: it has {len(elements):,}, from 0 on", "index")
        if not found or found[0].result is None:
            stands = "has failed" if found and found[0].state == "failed" else "is not done yet"
            raise NotFoundError(f"element {index} of job {job} {stands}: it has no result", "index")
        return elements[index].name, found[0].result

    async def archive(self, job: str) -> AsyncIterator[bytes]:
        """As ``ElementsPort.archive``."""
        elements, after = await self._elements(job), 0
        while page := await self._courses(job, after, "done", PAGE):
            for course in page:
                if course.result is not None:
                    async for piece in self._renamed(course.result, elements[course.index].name):
                        yield piece
            after = page[-1].settled
        yield END

    async def _renamed(self, result: Digest, name: str) -> AsyncIterator[bytes]:
        """The files of a result, each below a folder of its element's name."""
        async with self._artifacts.files(result) as (path,):
            try:
                members = await asyncio.to_thread(_members, path)
            except (tarfile.TarError, ValueError, EOFError) as error:
                LOG.warning("the result %s of element %s is no archive, and is left out: %s", result, name, error)
                return
            with path.open("rb") as file:
                for member in members:
                    yield entry(f"{name}/{member.name}", member.size)
                    file.seek(member.offset_data)
                    left = member.size
                    while piece := await asyncio.to_thread(file.read, min(CHUNK_BYTES, left)):
                        left -= len(piece)
                        yield piece
                    yield padding(member.size)

    async def _courses(
        self, job: str, after: int, state: Ended | None, limit: int, newest: bool = False
    ) -> list[ElementCourse]:
        where: list[Condition] = [col(ElementCourse.job).equals(job), col(ElementCourse.settled) > after]
        where += [] if state is None else [col(ElementCourse.state).equals(state)]
        async with self._context.everywhere.transaction() as tx:
            return await tx.find(ElementCourse, *where, newest=newest, limit=limit)

    async def _elements(self, job: str) -> Sequence[ArrayElement]:
        return await self._arrays.listed(job, await self._array(job))

    async def _array(self, job: str) -> ArraySpec:
        async with self._context.everywhere.transaction() as tx:
            found = await tx.find(Job, col(Job.id).equals(job))
        if not found:
            raise NotFoundError(f"there is no job {job}: look it up in the list of jobs", "job")
        if found[0].spec.array is None:
            raise ConflictError(f"job {job} runs no containers, so it has no elements", "job")
        return found[0].spec.array


def _members(path: Path) -> list[tarfile.TarInfo]:
    """The files in an archive that a node wrote; raises what ``tarfile`` does. A packed one is none: it may be a bomb."""
    with tarfile.open(path, "r:") as archive:
        return [member for member in archive if is_plain(member)]
