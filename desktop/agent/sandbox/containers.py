"""Containers of strangers' images: what the engine is asked for an element of an array job.

::

    porter      Cottage's own image     /in, /out writable   one for each place; carries files, holds the two folders in memory
    element     the submitter's image   /in read-only, /out  one for each run; everything else of it is read-only
    batch       the same                the same             one for several runs, which its shell reads from standard input
"""

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Protocol

import requests
from docker.errors import DockerException, ImageNotFound, NotFound

from desktop.agent.errors import SandboxError
from desktop.agent.sandbox.base import SOCKET_NAME, Exit, SandboxLimits, Volume
from desktop.agent.sandbox.container_plan import ContainerPlan
from desktop.agent.sandbox.docker import DockerSandbox, DockerWorker, connect
from desktop.agent.sandbox.restrictions import INSIDE, volume_options
from protocol.job.array import INPUTS, OUTPUT

PORTER: Final = files("desktop.agent.sandbox").joinpath("porter.py").read_text()
PORTER_MB: Final = 48  # Python without anything takes 12, and its buffers.
LOAD_S: Final = 1800.0  # Gigabytes onto a slow disk.
TAG: Final = "cottage-element"


@dataclass(frozen=True)
class Folders:
    """The two folders in memory of one place. ``lease``: whose."""

    lease: str
    name: str

    def mounts(self, inputs_writable: bool) -> tuple[Volume, Volume]:
        """As a container has them."""
        return (Volume(f"{self.name}-in", INPUTS, inputs_writable), Volume(f"{self.name}-out", OUTPUT, writable=True))


@dataclass(frozen=True)
class LoadedImage:
    """An image that the engine has. ``size``: bytes of the disk."""

    engine_id: str
    size: int


class Containers(Protocol):
    """What an engine does for elements. Every call raises SandboxError where it cannot."""

    async def architecture(self) -> str: ...

    async def load(self, archive: Iterable[bytes], artifact: str, layers: Sequence[str]) -> LoadedImage: ...

    async def loaded(self, artifact: str, layers: Sequence[str]) -> LoadedImage | None: ...

    async def held(self) -> dict[str, int]: ...

    async def unload(self, artifact: str) -> None: ...

    async def folders(self, lease: str, inputs_mb: int, output_mb: int) -> Folders: ...

    async def remove(self, folders: Folders) -> None: ...

    async def porter(self, folders: Folders, folder: Path, inputs_mb: int) -> DockerWorker: ...

    async def element(
        self,
        folders: Folders,
        image: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        limits: SandboxLimits,
        gpu: bool,
    ) -> DockerWorker: ...

    async def batch(
        self, folders: Folders, image: str, shell: Sequence[str], limits: SandboxLimits, gpu: bool
    ) -> DockerWorker: ...

    async def ended(self, worker: DockerWorker, patience: float) -> tuple[Exit, str] | None: ...


class DockerContainers:
    """Of a sandbox that has been checked: its engine, its restrictions, its watch for who reaches in."""

    def __init__(self, sandbox: DockerSandbox) -> None:
        self._sandbox = sandbox

    # --- images ---------------------------------------------------------------------------------------------------------

    async def architecture(self) -> str:
        """What programs the engine runs, as images name it."""
        named = str((await self._sandbox.call(self._sandbox.client.info)).get("Architecture"))
        return {"x86_64": "amd64", "aarch64": "arm64"}.get(named, named)

    async def load(self, archive: Iterable[bytes], artifact: str, layers: Sequence[str]) -> LoadedImage:
        """Have the engine take an image, and see that it has these layers.

        Args:
            archive: its bytes, which have been looked through already.
            artifact: the archive's SHA-256: the name that the image has here.
            layers: as its configuration names them.
        """
        return await self._sandbox.call(lambda: self._load(archive, artifact, layers))

    async def loaded(self, artifact: str, layers: Sequence[str]) -> LoadedImage | None:
        """The same image, where the engine has it already and nobody has put another in its place."""
        return await self._sandbox.call(lambda: self._found(artifact, layers))

    async def held(self) -> dict[str, int]:
        """Images that the engine has for this home: their artifacts, and bytes of the disk."""
        return await self._sandbox.call(self._held)

    async def unload(self, artifact: str) -> None:
        """Have the engine forget an image; one that a container still has stays."""

        def remove() -> None:
            with contextlib.suppress(ImageNotFound):
                self._sandbox.client.images.remove(f"{self._repository}:{artifact}")

        await self._sandbox.call(remove)

    # --- containers -----------------------------------------------------------------------------------------------------

    async def folders(self, lease: str, inputs_mb: int, output_mb: int) -> Folders:
        """Two empty folders in memory; they cost nothing until something is in them."""
        made = Folders(lease, f"cottage-{lease[:12]}-{secrets.token_hex(4)}")
        await self._sandbox.call(lambda: self._make(made, inputs_mb, output_mb))
        return made

    async def remove(self, folders: Folders) -> None:
        """Let go of them; their containers must be gone."""

        def forget() -> None:
            for one in folders.mounts(True):
                with contextlib.suppress(NotFound):
                    self._sandbox.client.volumes.get(one.name).remove(force=True)

        await self._sandbox.call(forget)

    async def porter(self, folders: Folders, folder: Path, inputs_mb: int) -> DockerWorker:
        """Start what carries files. It speaks over the socket in ``folder``, or over its standard streams."""
        way = "-" if self._sandbox.stdio else f"{INSIDE}/{SOCKET_NAME}"
        plan = ContainerPlan(
            folders.lease,
            ("python3", "-I", "-S", "-c", PORTER, INPUTS, OUTPUT, way),
            SandboxLimits(memory_mb=PORTER_MB + inputs_mb, threads=1, processes=16, temporary_mb=1),
            folder=folder,
            volumes=folders.mounts(True),
        )
        return await self._sandbox.watched(plan)

    async def element(
        self,
        folders: Folders,
        image: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        limits: SandboxLimits,
        gpu: bool,
    ) -> DockerWorker:
        """Start a run. Where the image has no such program, it ends with code 127 at once."""
        return await self._sandbox.watched(self._plan(folders, image, command, environment, limits, gpu))

    async def batch(
        self, folders: Folders, image: str, shell: Sequence[str], limits: SandboxLimits, gpu: bool
    ) -> DockerWorker:
        """Start ``shell``, which runs several elements and speaks over its standard streams; where the image has none, as
        ``element`` does."""
        plan = self._plan(folders, image, shell, {}, limits, gpu)
        return await self._sandbox.watched(dataclasses.replace(plan, streams=True))

    def _plan(
        self,
        folders: Folders,
        image: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        limits: SandboxLimits,
        gpu: bool,
    ) -> ContainerPlan:
        return ContainerPlan(
            folders.lease,
            command,
            limits,
            trusted=False,
            image=image,
            gpu=self._sandbox.gpu if gpu else "",
            volumes=folders.mounts(False),
            environment=environment,
            working_dir=OUTPUT,
        )

    async def ended(self, worker: DockerWorker, patience: float) -> tuple[Exit, str] | None:
        """How a run ended and the last that it printed; None where it has not within ``patience`` seconds."""
        if patience > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await worker.died.wait()
        found = await worker.ended()
        if found is None:
            return None
        return found, "" if found.tampered else await self._sandbox.call(worker.said)

    # --- in threads -----------------------------------------------------------------------------------------------------

    @property
    def _repository(self) -> str:
        return element_repository(self._sandbox.owner)

    def _load(self, archive: Iterable[bytes], artifact: str, layers: Sequence[str]) -> LoadedImage:
        client = connect(LOAD_S)
        try:
            found = [str(one.id) for one in client.images.load(iter(archive))]
            if len(found) != 1:
                raise SandboxError(f"the engine took {len(found)} images of an archive of one")
            client.images.get(found[0]).tag(self._repository, artifact)
        finally:
            client.close()
        taken = self._found(artifact, layers)
        if taken is None:
            raise SandboxError("the engine made another image of the archive than it holds")
        return taken

    def _found(self, artifact: str, layers: Sequence[str]) -> LoadedImage | None:
        try:
            image = self._sandbox.client.images.get(f"{self._repository}:{artifact}")
        except ImageNotFound:
            return None
        if list(image.attrs["RootFS"].get("Layers") or ()) != list(layers):
            return None
        return LoadedImage(str(image.id), int(image.attrs.get("Size") or 0))

    def _held(self) -> dict[str, int]:
        found = element_images(self._sandbox.client, self._sandbox.owner)
        return {artifact: int(image.attrs.get("Size") or 0) for artifact, image in found.items()}

    def _make(self, made: Folders, inputs_mb: int, output_mb: int) -> None:
        volumes: list[Any] = []
        try:
            for one, size in zip(made.mounts(True), (inputs_mb, output_mb), strict=True):
                wanted = volume_options(size)
                labels = self._sandbox.labels(made.lease)
                volumes.append(
                    self._sandbox.client.volumes.create(one.name, driver="local", driver_opts=wanted, labels=labels)
                )
                if volumes[-1].attrs.get("Options") != wanted or volumes[-1].attrs.get("Driver") != "local":
                    raise SandboxError("the engine made another folder in memory than it was asked for")
        except (SandboxError, DockerException, requests.RequestException):
            for volume in volumes:
                volume.remove(force=True)
            raise


def element_repository(owner: str) -> str:
    """Under what name an engine has the images of array jobs of a home; ``owner``: what its containers are labelled with."""
    return f"{TAG}-{owner[:12]}"


def element_images(client: Any, owner: str) -> dict[str, Any]:
    """Those that an engine has by that name: artifact -> image."""
    name = element_repository(owner)
    named = ((tag.rpartition(":"), image) for image in client.images.list(name) for tag in image.tags)
    return {artifact: image for (repository, _, artifact), image in named if repository == name}
