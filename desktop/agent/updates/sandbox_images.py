"""Which sandbox image may run on this computer: the one that the release key signed, or one that its owner names."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

from common.system_words import reason
from common.urls import at
from desktop.agent.base.config import DEFAULT_IMAGE, Home
from desktop.agent.errors import NoEngineError, SandboxError, SettingsError, UnsignedImageError
from desktop.agent.sandbox.statement import MAX_DOCUMENT, STATEMENT, Newest, SandboxImage, judge, read
from desktop.agent.updates import fetch
from desktop.agent.updates.release import Release, checked_url
from protocol.codec import encode_json

FILE = "image.json"  # Beside ``release.json`` in a build, beside the update manifest on the web server, and in a home.
Progress = Callable[[str, int, int], None]
PIECE = 1 << 20
LOAD_S = 1800.0  # Gigabytes onto a slow disk.


class Images:
    """Of one home. ``signed``: the name under which an image needs a signature; another name is the owner's own choice."""

    def __init__(
        self,
        home: Home,
        release: Release,
        *,
        signed: str = DEFAULT_IMAGE,
        shipped: bytes | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``shipped``: the statement that came with this build; by default the one that lies in it, if any."""
        self._home, self._release, self._name, self._now = home, release, signed, now
        self._shipped = _shipped() if shipped is None else shipped

    def admit(self, name: str, image: str) -> str:
        """In words why the engine's image ``image`` (``sha256:...``), which is called ``name``, may hold jobs here.

        Raises:
            UnsignedImageError: it may not: nobody whom this build trusts has signed it.
        """
        if name != self._name:
            return f"the image {name} is its owner's own choice (--image): no signature was asked for"
        if not self._release.key:
            return f"this build names no release key: the image {name} is what this computer made, and nobody signed it"
        stated = self.stated()
        if stated is None:
            raise UnsignedImageError(
                f"there is no signed statement about the image {name}: take the signed image with `cottage node image`, or "
                "name one that you have made yourself with --image"
            )
        if image not in stated.ids:
            raise UnsignedImageError(
                f"the image {name} of this engine ({image[:19]}) is not the one that {stated.key} signed "
                f"(statement {stated.number}, {stated.name}, {stated.ids[0][:19]}): take that with `cottage node image`, or "
                "name your own with --image"
            )
        return f"the image {name} is {stated.name}, as {stated.key} signed it (statement {stated.number})"

    def stated(self) -> SandboxImage | None:
        """The newest statement that came with this build or was kept later; raises UnsignedImageError where it cannot be used."""
        file = self._home.image_statement
        try:
            documents = [self._shipped, file.read_bytes() if file.exists() else b""]
        except OSError as error:
            raise UnsignedImageError(f"{file} cannot be read: {reason(error)}") from error
        found = [read(document, self._release.key) for document in documents if document]
        if not found:
            return None
        newest = max(found, key=lambda image: image.number)
        self._remember(judge(newest, self._newest(), self._now()))
        return newest

    def keep(self, document: bytes) -> SandboxImage:
        """Believe ``document`` from now on, if it may be believed; raises UnsignedImageError."""
        image = read(document, self._release.key)
        self._remember(judge(image, self._newest(), self._now()))
        STATEMENT.keep(self._home.image_statement, document)
        return image

    async def refresh(self) -> SandboxImage:
        """Fetch the present statement, from beside the update manifest, and keep it.

        Raises:
            UnsignedImageError: it may not be believed.
            UpdateError: it cannot be had.
        """
        return self.keep(await fetch.document_at(str(at(checked_url(self._url()), FILE)), MAX_DOCUMENT))

    async def take(self, folder: Path | None = None, progress: Progress = lambda _stage, _done, _size: None) -> str:
        """Have the engine take the signed image, fetched or out of ``folder`` (``image.json`` and the archive); its id.

        Args:
            progress: told the stage (fetching, loading), and how many bytes of how many, from any thread.
        Raises:
            UnsignedImageError, UpdateError, SandboxError: it may not be believed, cannot be had, or the engine fails.
        """
        if folder is None:
            image = await self.refresh()
            archive = await fetch.fetch(
                self._url(),
                image.archive,
                self._home.updates,
                lambda done: progress("fetching", done, image.archive.size),
            )
        else:
            try:
                image = self.keep(await asyncio.to_thread((folder / FILE).read_bytes))
            except OSError as error:
                raise SettingsError(f"{folder / FILE} cannot be read: {reason(error)}") from error
            archive = folder / image.archive.file
            if not archive.is_file() or not await asyncio.to_thread(fetch.is_whole, archive, image.archive):
                raise UnsignedImageError(
                    f"{archive} is not the file that its statement names (SHA-256 {image.archive.sha256})"
                )
        taken = await asyncio.to_thread(_load, archive, image, self._name, partial(progress, "loading"))
        if folder is None:
            await asyncio.to_thread(shutil.rmtree, self._home.updates, ignore_errors=True)
        return taken

    def _url(self) -> str:
        if not self._release.key or not self._release.url:
            raise SettingsError(
                "this build names nobody whose images it takes: make one with `python -m installer.image.build` and name it "
                "with --image"
            )
        return self._release.url

    def _remember(self, newest: Newest) -> None:
        if newest != self._newest():
            STATEMENT.keep(self._home.seen_image, encode_json(newest))

    def _newest(self) -> Newest:
        return STATEMENT.seen(self._home.seen_image, Newest())


def _shipped() -> bytes:
    file = resources.files("desktop.agent.updates").joinpath(FILE)
    return file.read_bytes() if file.is_file() else b""


def _counted(file: BinaryIO, size: int, told: Callable[[int, int], None]) -> Iterator[bytes]:
    """A file in pieces, telling how much of it was taken."""
    while piece := file.read(PIECE):
        yield piece
        told(file.tell(), size)


def _load(archive: Path, image: SandboxImage, name: str, told: Callable[[int, int], None]) -> str:
    """In a thread: load, compare what came of it, and only then give it the name that jobs run under."""
    import requests
    from docker.errors import DockerException

    # Takes a third of a second, which `cottage node status` can spare.
    from desktop.agent.sandbox.docker import connect

    try:
        client: Any = connect(LOAD_S)
        try:
            with archive.open("rb") as file:
                pieces = _counted(file, image.archive.size, told)
                loaded = [str(found.id) for found in client.images.load(pieces)]
            right = [found for found in loaded if found in image.ids]
            if not right:
                raise UnsignedImageError(
                    f"{archive.name} holds another image than its statement names: {', '.join(loaded)}"
                )
            repository, _, tag = name.partition(":")
            client.images.get(right[0]).tag(repository, tag or "latest")
            return right[0]
        finally:
            client.close()
    except NoEngineError:
        raise
    except (DockerException, requests.RequestException, OSError) as error:
        raise SandboxError(f"the engine could not take {archive.name}: {error}") from error
