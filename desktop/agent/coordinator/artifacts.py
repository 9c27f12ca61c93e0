"""Artifacts: files named by their SHA-256, fetched from the coordinator into a bounded disk cache, and stored with it.

What lies in the cache is encrypted, each file with a key of its own (``common.encrypted_files``), and the keys are in this
process's
memory only: nobody reads a job's data on the disk, and what an earlier process has left is thrown away and fetched again.
"""

import asyncio
import contextlib
import hashlib
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import aiohttp
from aiohttp import AddrInfoType
from yarl import URL

from common.clock import Clock, backoff
from common.encrypted_files import SealedFile, SealedWriter, fresh_key
from common.errors import SealedFileError
from common.http_sessions import open_session
from common.urls import at, parse_url
from desktop.agent.base.log import LOG
from desktop.agent.base.payloads import FilePayload, Payload
from desktop.agent.coordinator.cache_contents import CacheContents
from desktop.agent.coordinator.transfer_pacing import TransferPacing
from desktop.agent.errors import ArtifactError, UnwantedError
from transport.sctp.allowance import Allowance

ARTIFACT_PATH = "/api/v1/artifacts/"
MAX_ARTIFACT = 64 << 30  # The weights of the largest model that a home machine could hold a stage of.
CACHE_BYTES = 20 << 30  # A few datasets and checkpoints; what was used longest ago goes first.
PART = ".part"
CHUNK = 1 << 20
UNSENT = 64 << 10  # Bytes in the kernel that have not left: what waits there overtakes whatever comes first.
STALL_S = 60.0  # Nothing received or taken for so long: the connection is dead.
MAX_DOWNLOADS, MAX_UPLOADS = 4, 3  # At once; a coordinator grants a node a few.
MAX_LEFT = 8  # Downloads that nobody waits for any more, and that are gone on with where somebody does.
# Tries with a refused token: a restarted coordinator knows none until this node has said hello again.
MAX_FORBIDDEN = 10
UNWANTED = 410  # The audit is over, or another member has brought the state.
DAMAGED_TRIES = 3  # A transfer may be damaged once by chance; a store that always sends other bytes is broken.


@dataclass(frozen=True)
class Cached:
    """An artifact on the disk, and what it can be read with. The cache keeps it while somebody has this, or what it gives."""

    path: Path
    key: bytes
    turn: asyncio.Lock

    def payload(self) -> Payload:
        """All of it, to be read piece by piece: as long as it is being read the cache does not lose it.

        Raises:
            ArtifactError: somebody has changed it meanwhile.
        """
        try:
            return SealedFile(self.path, self.key)
        except (SealedFileError, OSError) as error:
            raise ArtifactError(f"the artifact {self.path.name} cannot be used: {error}") from error

    def closed(self) -> Payload:
        """The same, which is open only while some of it is being read: of these many may wait.

        Raises:
            SealedFileError, OSError: the disk cannot give it.
        """
        with SealedFile(self.path, self.key) as file:
            return FilePayload(file.size, self._span)

    def _span(self, wanted: slice) -> bytes:
        with SealedFile(self.path, self.key) as file:
            return file.read(wanted.start, wanted.stop)

    def read(self) -> bytes:
        """The same in memory, in a thread."""
        try:
            return self.payload().read()
        except (SealedFileError, OSError) as error:
            raise ArtifactError(f"the artifact {self.path.name} cannot be used: {error}") from error


@dataclass
class Download:
    """An artifact that is not here whole yet. ``length``: its bytes, once the coordinator has said how many."""

    key: bytes
    writer: SealedWriter
    length: int | None = None

    @classmethod
    def begun(cls, path: Path) -> "Download":
        """One that is to be at ``path``; raises OSError. Its own file has a name that no other has: one may still be let go."""
        key = fresh_key()
        return cls(key, SealedWriter(path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}"), key))

    def finish(self, digest: str) -> bool:
        """All has come: whether it is what ``digest`` names. Raises OSError where the disk does not take the rest."""
        self.writer.finish()
        return _hash(self.writer.path, self.key) == digest

    def abandon(self) -> None:
        """Delete what has come."""
        with contextlib.suppress(
            PermissionError
        ):  # Windows keeps what is being read: it is deleted where room is made.
            self.writer.abandon()


class Artifacts:
    """The artifacts of one coordinator. Transfers repeat through cuts and restarts until they succeed or are cancelled."""

    def __init__(
        self,
        base_url: str,
        folder: Path,
        clock: Clock,
        cache_bytes: int = CACHE_BYTES,
        contents: CacheContents | None = None,
        pacing: TransferPacing | None = None,
    ) -> None:
        """Keep files in ``folder``, at most ``cache_bytes`` of them.

        Args:
            contents: what this process has cached already; what comes is added. Any other file is deleted.
            pacing: paces transfers; None: they go as fast as they can.
        """
        self._base = parse_url(base_url)
        self._folder = folder
        self._clock = clock
        self._limit = cache_bytes
        self._pacing = pacing or TransferPacing(clock, Allowance(), dict)
        self._token: str | None = None
        self._authorised = asyncio.Event()
        # A result that waits for what others are to read would be late, and unpaid.
        self._down, self._up = asyncio.Semaphore(MAX_DOWNLOADS), asyncio.Semaphore(MAX_UPLOADS)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # Of what somebody is at.
        self.contents = CacheContents() if contents is None else contents
        self._downloads: dict[str, Download] = {}
        self._left: dict[str, Download] = {}  # Whoever takes one out has it alone.
        self._http: aiohttp.ClientSession | None = None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in folder.iterdir():
            if file.name not in self.contents.keys:
                file.unlink()
        self._most = sum(map(_size, folder.iterdir()))  # Bytes that are here at most; some may be gone.

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

    async def fetch(self, digest: str) -> Cached:
        """A file with exactly the bytes that ``digest`` names. It stays until nobody has it and the cache needs room.

        Raises:
            ArtifactError: the coordinator does not have it, or keeps sending other bytes.
            OSError: the disk does not take it.
        """
        turn = self._locks.setdefault(digest, asyncio.Lock())
        async with turn:
            path = self._folder / digest
            if path.exists():
                key = self.contents.keys.get(digest)
                if key is not None and await asyncio.to_thread(_hash, path, key) == digest:
                    os.utime(path)
                    return Cached(path, key, turn)
                LOG.warning("the cached artifact %s is damaged: fetching it again", digest)
                path.unlink()
            self.contents.keys[digest] = key = await self._download(digest, path)
        await asyncio.to_thread(self._make_room, path)
        return Cached(path, key, turn)

    def arrived(self, digests: Iterable[str]) -> float | None:
        """How much of those that are on their way is here, as a share of their bytes; None: none is, or nobody knows."""
        coming = [self._downloads[digest] for digest in digests if digest in self._downloads]
        whole = sum(one.length or 0 for one in coming)
        return sum(one.writer.size for one in coming if one.length) / whole if whole else None

    async def drop(self, digest: str) -> None:
        """Delete an artifact that will not be wanted soon."""
        async with self._locks.setdefault(digest, asyncio.Lock()):
            with contextlib.suppress(PermissionError):  # Windows keeps what is being read.
                # Of gigabytes that takes a while.
                await asyncio.to_thread((self._folder / digest).unlink, missing_ok=True)
                self.contents.keys.pop(digest, None)

    async def fetch_payload(self, digest: str) -> Payload:
        """The bytes that ``digest`` names, on the disk; raises as ``fetch``."""
        return await asyncio.to_thread((await self.fetch(digest)).payload)

    async def fetch_closed(self, digest: str) -> Payload:
        """The same for one of many: no file is open until it is read. Raises SealedFileError, and as ``fetch``."""
        return await asyncio.to_thread((await self.fetch(digest)).closed)

    def adopt(self, path: Path, key: bytes) -> Path | None:
        """Keep a file beside where it lies, as long as the cache has room for it; None where the disk cannot."""
        kept = self._folder / f"{path.stem}-{secrets.token_hex(16)}"
        try:
            os.link(path, kept)
        except OSError as error:
            LOG.info("%s is not kept for later jobs: %s", path.name, error)
            return None
        self.contents.keys[kept.name] = key
        self._make_room(kept)
        return kept

    async def fetch_range(self, digest: str, begin: int, end: int, take: Callable[[bytes], None]) -> None:
        """Hand bytes ``begin <= i < end`` of an artifact to ``take``, piece by piece and in order, through any number of cuts.

        What arrives is not checked here: a part has no digest of its own. ``take`` is called in a thread.

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
                async for chunk in answer.content.iter_chunked(CHUNK):
                    if done + len(chunk) > end - begin:
                        raise ArtifactError(f"the coordinator sends more of the artifact {digest} than was asked for")
                    await asyncio.to_thread(take, chunk)
                    done += len(chunk)
                    await self._pacing.arrived(len(chunk))

        if begin < end:
            await self._repeat(self._down, get, f"fetching bytes {begin:,} to {end:,} of the artifact {digest}")

    async def upload(self, payload: Payload, digest: str, lease: str, answers: str, urgent: bool = False) -> None:
        """Store ``payload`` with the coordinator; storing it twice is the same as once.

        Args:
            lease: under which it was asked for. answers: the question that it answers (``protocol.artifacts``).
            urgent: a round's end waits for it, so it does not give way to links.
        Raises:
            UnwantedError: the coordinator does not wait for it any more.
            ArtifactError: the coordinator refuses it, or the disk has lost it.
        """
        url = self._url(digest).with_query(lease=lease, answers=answers)

        lost: list[Exception] = []

        async def put(http: aiohttp.ClientSession, headers: dict[str, str]) -> None:
            loop = asyncio.get_running_loop()
            if lost:  # Trying again does not bring it back.
                raise ArtifactError(f"the artifact {digest} cannot be read any more: {lost[0]}")
            async with asyncio.timeout(STALL_S) as stall:

                async def body() -> AsyncIterator[bytes]:
                    try:
                        async for piece in self._pacing.pieces(payload, urgent):
                            stall.reschedule(loop.time() + STALL_S)
                            yield piece
                    except OSError as error:
                        lost.append(error)
                        raise

                # No limit for the answer's first byte while the payload is still on its way: ``stall`` sees to that.
                patient = aiohttp.ClientTimeout(total=None, connect=STALL_S)
                sized = {**headers, "Content-Length": str(payload.size), "Content-Type": "application/octet-stream"}
                async with http.put(url, data=body(), headers=sized, timeout=patient) as answer:
                    await _check(answer, digest)

        await self._repeat(self._up, put, f"storing the artifact {digest}")

    async def _download(self, digest: str, path: Path) -> bytes:
        """Have the artifact at ``path``; returns its key. What a cut or a cancelled download has left here is gone on with."""
        for _ in range(DAMAGED_TRIES):
            download = self._left.pop(digest, None) or Download.begun(path)
            self._downloads[digest] = download
            try:
                await self._repeat(
                    self._down,
                    lambda http, headers, one=download: self._get(http, headers, digest, one),  # type: ignore[misc]
                    f"fetching the artifact {digest}",
                )
            except BaseException as error:
                self._let_go(digest, download, isinstance(error, asyncio.CancelledError))
                raise
            finally:
                del self._downloads[digest]
            try:
                if await asyncio.to_thread(download.finish, digest):
                    download.writer.path.replace(path)
                    return download.key
            except BaseException:
                download.abandon()
                raise
            LOG.warning("the artifact %s arrived damaged", digest)
            download.abandon()
        raise ArtifactError(f"the coordinator sent other bytes than {digest} names, {DAMAGED_TRIES} times")

    def _let_go(self, digest: str, download: Download, may_go_on: bool) -> None:
        """Of a download that its asker does not wait for any more: the newest few are kept, in files that count as cached."""
        if not may_go_on or not download.writer.size:
            download.abandon()
            return
        self._left[digest] = download
        self._most += _size(download.writer.path)
        for oldest in list(self._left)[:-MAX_LEFT]:
            if (one := self._left.pop(oldest, None)) is not None:
                one.abandon()

    async def _get(self, http: aiohttp.ClientSession, headers: dict[str, str], digest: str, download: Download) -> None:
        """Append what is missing of the artifact."""
        writer = download.writer
        have = writer.size
        if have:
            headers = {**headers, "Range": f"bytes={have}-"}
        async with http.get(self._url(digest), headers=headers) as answer:
            if answer.status == 416:  # What is there is whole already, or too long: its hash will tell.
                return
            await _check(answer, digest)
            if answer.status != 206:
                have = 0
                await asyncio.to_thread(writer.rewind, 0)
            if answer.content_length is not None:
                download.length = have + answer.content_length
            async for chunk in answer.content.iter_chunked(CHUNK):
                if have + len(chunk) > MAX_ARTIFACT:
                    raise ArtifactError(f"the artifact {digest} is larger than {MAX_ARTIFACT:,} bytes")
                await asyncio.to_thread(writer.write, chunk, have)
                have += len(chunk)
                await self._pacing.arrived(len(chunk))

    async def _repeat(
        self,
        places: asyncio.Semaphore,
        transfer: Callable[[aiohttp.ClientSession, dict[str, str]], Awaitable[None]],
        what: str,
    ) -> None:
        failures = forbidden = 0
        while True:
            await self._authorised.wait()
            try:
                async with places:
                    await transfer(self._session(), {"Authorization": f"Bearer {self._token}"})
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failures += 1
                if isinstance(error, aiohttp.ClientResponseError) and error.status in (401, 403):
                    forbidden += 1
                if forbidden > MAX_FORBIDDEN:
                    raise ArtifactError(f"{what}: the coordinator does not accept this node's token") from error
                LOG.info("%s failed, trying again: %s", what, error or type(error).__name__)
                await self._clock.sleep(backoff(failures, random.random))
            else:
                return

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=None, connect=STALL_S, sock_read=STALL_S)
            connector = aiohttp.TCPConnector(socket_factory=_socket)
            self._http = open_session(connector=connector, timeout=timeout)
        return self._http

    def _url(self, digest: str) -> URL:
        return at(self._base, ARTIFACT_PATH + digest)

    def _make_room(self, keep: Path) -> None:
        """Delete what was used longest ago until the cache is within its limit."""
        self._most += _size(keep)
        if self._most <= self._limit:
            return  # Thousands of short files are not looked at with each that comes.
        found = {file: status for file in self._folder.iterdir() if (status := _status(file)) is not None}
        total = sum(status.st_size for status in found.values())
        for file in sorted(found.keys() - {keep}, key=lambda file: found[file].st_mtime):
            if total <= self._limit:
                break
            digest = file.name.partition(".")[0]
            if digest in self._locks:
                continue  # Being fetched or handed out.
            if file.suffix == PART and (left := self._left.pop(digest, None)) is not None:
                left.abandon()
            with contextlib.suppress(PermissionError):  # Windows keeps what is being read.
                file.unlink(missing_ok=True)
                total -= found[file].st_size
                self.contents.keys.pop(file.name, None)
        self._most = total


def _status(file: Path) -> os.stat_result | None:
    """Of a file; None where it has another name by now: whole downloads get theirs."""
    try:
        return file.stat()
    except FileNotFoundError:
        return None


def _size(file: Path) -> int:
    status = _status(file)
    return 0 if status is None else status.st_size


def _socket(address: AddrInfoType) -> socket.socket:
    """A socket that takes no more than it is about to send, where the system has that."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
    return made


async def _check(answer: aiohttp.ClientResponse, digest: str) -> None:
    """Raise what a refusal means: ArtifactError where trying again changes nothing, ClientResponseError where it may."""
    if answer.status < 400:
        return
    if answer.status in (401, 403, 408, 425, 429) or answer.status >= 500:
        answer.raise_for_status()
    detail = (await answer.content.read(500)).decode(errors="replace")
    if answer.status == UNWANTED:
        raise UnwantedError(f"the coordinator does not wait for the artifact {digest} any more: {detail}")
    raise ArtifactError(f"the coordinator refuses the artifact {digest}: {answer.status} {detail}")


def _hash(path: Path, key: bytes) -> str:
    """The SHA-256 of what was sealed; empty where it cannot be read any more."""
    hasher = hashlib.sha256()
    try:
        with SealedFile(path, key) as file:
            for begin in range(0, file.size, CHUNK):
                hasher.update(file.read(begin, begin + CHUNK))
    except SealedFileError:
        return ""
    return hasher.hexdigest()
