"""Images of array jobs in the engine: looked at before they are fetched, looked through before they are loaded, made room for.

::

    the statement (4 KB) -> accepted? fits? -> the archive, sealed in the cache -> looked through -> the engine

What the engine has of them counts against the disk that the owner lends. What was used longest ago goes first; so does, at the
next start, what nobody accepts any more, or has used for ``UNUSED_S``.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from common.clock import Clock
from common.errors import SealedFileError
from desktop.agent.base.log import LOG
from desktop.agent.base.payloads import Payload, read_pieces
from desktop.agent.coordinator.artifacts import Artifacts
from desktop.agent.errors import ArtifactError, SandboxError, UnacceptedImageError
from desktop.agent.images.publishers import KnownImage, Publishers
from desktop.agent.sandbox.containers import Containers, LoadedImage
from protocol.ids import Digest
from protocol.images.archive import HEAD_BYTES, ImageContents, examine, stated_in
from protocol.images.errors import ImageFormatError
from protocol.images.statement import PublishedImage
from protocol.job.array import ArraySpec

UNUSED_S: Final = 14 * 86_400.0
GB: Final = 10**9


class ElementImages:
    """Of one home and its engine."""

    def __init__(
        self, publishers: Publishers, artifacts: Artifacts, containers: Containers, clock: Clock, limit: int
    ) -> None:
        """``limit``: bytes of the disk that they may have; it may change."""
        self.publishers, self._artifacts, self._containers = publishers, artifacts, containers
        self.clock = clock
        self.limit = limit
        self._turn = asyncio.Lock()
        self._used = Counter[Digest]()

    @contextlib.asynccontextmanager
    async def held(self, artifact: Digest, array: ArraySpec) -> AsyncIterator[LoadedImage]:
        """An image, ready to run for as long as the body does.

        Raises:
            UnacceptedImageError: its publisher is not accepted here, it is for other machines, or too large.
            ArtifactError, SandboxError: it cannot be had, or the engine does not take it.
        """
        self._used[artifact] += 1
        try:
            async with self._turn:
                image = await self._ready(artifact, array)
            yield image
        finally:
            self._used[artifact] -= 1

    async def sweep(self) -> int:
        """Have the engine forget what nobody accepts, or has used for long; how many."""
        known = {one.artifact: one for one in self.publishers.known()}
        gone = 0
        for artifact in await self._containers.held():
            one = known.get(artifact)
            unused = one is None or self.clock.time() - one.used > UNUSED_S
            if self._used[artifact] == 0 and (
                one is None or unused or not self.publishers.accepts(one.stated.publisher)
            ):
                await self._unload(artifact)
                gone += 1
        return gone

    async def _ready(self, artifact: Digest, array: ArraySpec) -> LoadedImage:
        now = self.clock.time()
        before = next((one for one in self.publishers.known() if one.artifact == artifact), None)
        stated = before.stated if before is not None else await self._stated(artifact)
        known = KnownImage(artifact, stated, array.gpu, array.memory_mb, now, before.layers if before else ())
        self.publishers.note(known)
        self.publishers.check(stated)
        if known.layers and (image := await self._containers.loaded(artifact, known.layers)) is not None:
            return image
        if (here := await self._containers.architecture()) != stated.architecture:
            raise UnacceptedImageError(
                f"the image {stated.name} is for {stated.architecture}, and this computer is {here}"
            )
        await self._make_room(stated)
        image, layers = await self._loaded(artifact, stated)
        await self._artifacts.drop(artifact)  # Nobody reads it any more: Windows deletes no open file.
        self.publishers.note(KnownImage(artifact, stated, array.gpu, array.memory_mb, now, layers))
        return image

    async def _stated(self, artifact: Digest) -> PublishedImage:
        head = bytearray()
        await self._artifacts.fetch_range(artifact, 0, HEAD_BYTES, head.extend)
        try:
            return stated_in(bytes(head))
        except ImageFormatError as error:
            raise UnacceptedImageError(f"the job's image cannot run here: {error}") from error

    async def _loaded(self, artifact: Digest, stated: PublishedImage) -> tuple[LoadedImage, tuple[str, ...]]:
        LOG.info("fetching the image %s of %s", stated.name, stated.publisher)
        archive = await self._artifacts.fetch_payload(artifact)
        contents = await asyncio.to_thread(_looked_through, archive)
        if contents.stated != stated:
            raise UnacceptedImageError("the job's image is another one than its beginning says")
        layers = contents.configuration.rootfs.diff_ids
        image = await self._containers.load(read_pieces(archive), artifact, layers)
        LOG.info("the engine has the image %s (%s MB)", stated.name, f"{image.size / 1e6:,.0f}")
        return image, layers

    async def _make_room(self, stated: PublishedImage) -> None:
        if stated.unpacked > self.limit:
            raise UnacceptedImageError(
                f"the image {stated.name} has {stated.unpacked / GB:,.1f} GB, and jobs may have "
                f"{self.limit / GB:,.1f} GB of this computer's disk"
            )
        used = {one.artifact: one.used for one in self.publishers.known()}
        held = await self._containers.held()
        for artifact in sorted(held, key=lambda one: used.get(one, 0.0)):
            if sum(held.values()) + stated.unpacked <= self.limit:
                return
            if self._used[artifact] == 0:
                await self._unload(artifact)
                del held[artifact]

    async def _unload(self, artifact: Digest) -> None:
        LOG.info("the image %s makes room", artifact[:12])
        try:
            await self._containers.unload(artifact)
        except SandboxError as error:  # A container of somebody else's has it.
            LOG.warning("%s", error)
        self.publishers.forget_layers(artifact)


class _Sequential:
    """A payload, read from its beginning to its end."""

    def __init__(self, payload: Payload) -> None:
        self._payload, self._at = payload, 0

    def read(self, size: int, /) -> bytes:
        data = self._payload.read(self._at, min(self._at + size, self._payload.size))
        self._at += len(data)
        return data


def _looked_through(archive: Payload) -> ImageContents:
    try:
        return examine(_Sequential(archive))
    except ImageFormatError as error:
        raise UnacceptedImageError(f"the job's image cannot run here: {error}") from error
    except (OSError, SealedFileError) as error:
        raise ArtifactError(f"the job's image cannot be read any more: {error}") from error
