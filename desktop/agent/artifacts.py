"""Artifacts: files named by their SHA-256, fetched from the coordinator into a bounded disk cache, and stored with it."""

import asyncio
import contextlib
import hashlib
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from yarl import URL

from desktop.agent.errors import ArtifactError
from desktop.agent.log import LOGGER
from transport.clock import Clock, backoff

ARTIFACT_PATH = "/api/v1/artifacts/"
MAX_ARTIFACT = 64 << 30  # The weights of the largest model that a home machine could hold a stage of.
CACHE_BYTES = 20 << 30  # A few datasets and checkpoints; what was used longest ago goes first.
CHUNK = 1 << 20
STALL_S = 60.0  # Nothing received or taken for so long: the connection is dead.
MAX_TRANSFERS = 4  # At once; a coordinator grants a node a few.
MAX_FORBIDDEN = (
    10  # Tries with a refused token: a restarted coordinator knows none until this node has said hello again.
)
DAMAGED_TRIES = 3  # A transfer may be damaged once by chance; a store that always sends other bytes is broken.


class Artifacts:
    """The artifacts of one coordinator. Transfers repeat through cuts and restarts until they succeed or are cancelled."""

    def __init__(self, base_url: str, folder: Path, clock: Clock, cache_bytes: int = CACHE_BYTES) -> None:
        """Keep files in ``folder``, at most ``cache_bytes`` of them."""
        self._base = URL(base_url)
        self._folder = folder
        self._clock = clock
        self._limit = cache_bytes
        self._token: str | None = None
        self._authorised = asyncio.Event()
        self._transfers = asyncio.Semaphore(MAX_TRANSFERS)
        self._locks: dict[str, asyncio.Lock] = {}
        self._http: aiohttp.ClientSession | None = None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def authorise(self, token: str) -> None:
        """Use the token of the newest ``Welcome``."""
        self._token = token
        self._authorised.set()

    def limit(self, cache_bytes: int) -> None:
        """Keep at most so many bytes, from the next file on."""
        self._limit = cache_bytes

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def fetch(self, digest: str) -> Path:
        """A file with exactly the bytes that ``digest`` names. It stays until the cache needs room.

        Raises:
            ArtifactError: the coordinator does not have it, or keeps sending other bytes.
        """
        lock = self._locks.setdefault(digest, asyncio.Lock())
        async with lock:
            path = self._folder / digest
            if path.exists():
                if await asyncio.to_thread(_hash, path) == digest:
                    os.utime(path)
                    return path
                LOGGER.warning("the cached artifact %s is damaged: fetching it again", digest)
                path.unlink()
            await self._download(digest, path)
        self._locks.pop(digest, None)
        await asyncio.to_thread(self._make_room, path)
        return path

    async def fetch_bytes(self, digest: str) -> bytes:
        """The bytes that ``digest`` names; raises as ``fetch``."""
        path = await self.fetch(digest)
        return await asyncio.to_thread(path.read_bytes)

    async def fetch_range(self, digest: str, begin: int, end: int, target: Path, at: int) -> None:
        """Write bytes ``begin <= i < end`` of an artifact into ``target`` from offset ``at`` on, through any number of cuts.

        What arrives is not checked here: a part has no digest of its own.

        Raises:
            ArtifactError: the coordinator does not have it, or sends another range.
        """
        done = 0

        async def get(http: aiohttp.ClientSession, headers: dict[str, str]) -> None:
            nonlocal done
            asked = {**headers, "Range": f"bytes={begin + done}-{end - 1}"}
            async with http.get(self._url(digest), headers=asked) as answer:
                await _check(answer, digest)
                if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(
                    f"bytes {begin + done}-"
                ):
                    raise ArtifactError(f"the coordinator answers a range of the artifact {digest} with something else")
                with target.open("r+b") as file:
                    file.seek(at + done)
                    async for chunk in answer.content.iter_chunked(CHUNK):
                        if done + len(chunk) > end - begin:
                            raise ArtifactError(
                                f"the coordinator sends more of the artifact {digest} than was asked for"
                            )
                        await asyncio.to_thread(file.write, chunk)
                        done += len(chunk)

        if begin < end:
            await self._repeat(get, f"fetching bytes {begin:,} to {end:,} of the artifact {digest}")

    async def upload(self, payload: bytes, digest: str) -> None:
        """Store ``payload`` with the coordinator; storing it twice is the same as once.

        Raises:
            ArtifactError: the coordinator refuses it.
        """

        async def put(http: aiohttp.ClientSession, headers: dict[str, str]) -> None:
            async with http.put(self._url(digest), data=payload, headers=headers) as answer:
                await _check(answer, digest)

        await self._repeat(put, f"storing the artifact {digest}")

    async def _download(self, digest: str, path: Path) -> None:
        part = path.with_suffix(".part")
        for _ in range(DAMAGED_TRIES):
            await self._repeat(
                lambda http, headers: self._get(http, headers, digest, part), f"fetching the artifact {digest}"
            )
            if await asyncio.to_thread(_hash, part) == digest:
                part.replace(path)
                return
            LOGGER.warning("the artifact %s arrived damaged", digest)
            part.unlink()
        raise ArtifactError(f"the coordinator sent other bytes than {digest} names, {DAMAGED_TRIES} times")

    async def _get(self, http: aiohttp.ClientSession, headers: dict[str, str], digest: str, part: Path) -> None:
        """Append to ``part`` what is missing of it."""
        have = part.stat().st_size if part.exists() else 0
        if have:
            headers = {**headers, "Range": f"bytes={have}-"}
        async with http.get(self._url(digest), headers=headers) as answer:
            if answer.status == 416:  # The part is whole already, or too long: its hash will tell.
                return
            await _check(answer, digest)
            with part.open("ab" if answer.status == 206 else "wb") as file:
                async for chunk in answer.content.iter_chunked(CHUNK):
                    if file.tell() + len(chunk) > MAX_ARTIFACT:
                        raise ArtifactError(f"the artifact {digest} is larger than {MAX_ARTIFACT:,} bytes")
                    await asyncio.to_thread(file.write, chunk)

    async def _repeat(
        self, transfer: Callable[[aiohttp.ClientSession, dict[str, str]], Awaitable[None]], what: str
    ) -> None:
        failures = forbidden = 0
        while True:
            await self._authorised.wait()
            try:
                async with self._transfers:
                    await transfer(self._session(), {"Authorization": f"Bearer {self._token}"})
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failures += 1
                if isinstance(error, aiohttp.ClientResponseError) and error.status in (401, 403):
                    forbidden += 1
                if forbidden > MAX_FORBIDDEN:
                    raise ArtifactError(f"{what}: the coordinator does not accept this node's token") from error
                LOGGER.info("%s failed, trying again: %s", what, error or type(error).__name__)
                await self._clock.sleep(backoff(failures, random.random))
            else:
                return

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=None, connect=STALL_S, sock_read=STALL_S)
            self._http = aiohttp.ClientSession(timeout=timeout)
        return self._http

    def _url(self, digest: str) -> URL:
        return self._base.join(URL(ARTIFACT_PATH + digest))

    def _make_room(self, keep: Path) -> None:
        """Delete what was used longest ago until the cache is within its limit."""
        files = sorted((file for file in self._folder.iterdir() if file != keep), key=lambda file: file.stat().st_mtime)
        total = sum(file.stat().st_size for file in [*files, keep])
        for file in files:
            if total <= self._limit:
                return
            if file.stem in self._locks:
                continue  # Being fetched or handed out.
            total -= file.stat().st_size
            with contextlib.suppress(FileNotFoundError):
                file.unlink()


async def _check(answer: aiohttp.ClientResponse, digest: str) -> None:
    """Raise what a refusal means: ArtifactError where trying again changes nothing, ClientResponseError where it may."""
    if answer.status < 400:
        return
    if answer.status in (401, 403, 408, 425, 429) or answer.status >= 500:
        answer.raise_for_status()
    detail = (await answer.content.read(500)).decode(errors="replace")
    raise ArtifactError(f"the coordinator refuses the artifact {digest}: {answer.status} {detail}")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
