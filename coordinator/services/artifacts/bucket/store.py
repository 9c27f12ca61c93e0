"""Artifacts as objects of a bucket, under their digest and nothing else.

What comes with a digest goes straight on, part by part, and gets its name once its hash is known: a cut line, a wrong digest or a
killed process leaves nothing under any name, and the parts that had come are given up, at the latest at the next start. A file of
this machine is noted before it is sent, so that a coordinator that was restarted goes on with the parts that have arrived.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from coordinator.errors import InvalidError, NotFoundError, StoreAwayError, StoreError, TooLargeError, UnavailableError
from coordinator.services.artifacts.artifacts import ArtifactStock, file_digest, is_digest, missing, no_room
from coordinator.services.artifacts.bucket.address import FULL, GoneFromBucketError
from coordinator.services.artifacts.bucket.cache import FileCache
from coordinator.services.artifacts.bucket.client import BucketClient, PartsUpload, Unfinished, part_bytes, send_file

SMALL_BYTES: Final = 64 << 20  # Configs, tokenizers, most datasets: fetched once, and sent to whoever asks from here.
MAX_KNOWN: Final = 10_000  # Sizes that are remembered: what is under a digest never changes.
OWNER: Final = "owner"  # The object that says whose artifacts these are,
MAX_OWNER: Final = 200  # in so many bytes at the most.
UNFINISHED_S: Final = 48 * 3600.0  # As an upload that nobody goes on with.
RECOUNT_S: Final = 3600.0  # What others store and remove shows as late as what a sweep does.

LOG = logging.getLogger(__name__)


class BucketArtifacts:
    """Implements ``ArtifactStore``. ``room``: bytes that the bucket may hold."""

    def __init__(self, bucket: BucketClient, cache: FileCache, notes: Path, room: int, alone: bool = True) -> None:
        """``notes``: a folder, for what is being sent, and for bytes that come without a digest.

        Args:
            alone: nobody else stores and removes there. Else what others do is looked at anew, now and then.
        """
        self._alone = alone
        self._recounted = 0.0
        self._bucket = bucket
        self._cache = cache
        self._notes = notes
        self._room = room
        self._used = 0
        self._known: OrderedDict[str, int] = OrderedDict()
        self._under_way: set[str] = set()  # Uploads in parts of this process, by their id.
        self._placed: set[str] = set()  # Since the last sweep began.
        notes.mkdir(parents=True, exist_ok=True)

    async def begin(self, owner: str) -> None:
        """See that the bucket can be used, and is this coordinator's; give up what an earlier process left half sent.

        Raises:
            StoreError: it cannot be used, or is another coordinator's.
        """
        for draft in self._notes.glob("*.part"):
            draft.unlink()
        try:
            await self._count()
            theirs = await self._whose()
            if theirs not in ("", owner):
                raise StoreError(
                    f"{self._bucket.address} has the files of the coordinator {theirs[:60]}, and this is {owner}: "
                    "give each a prefix of its own, as in s3://BUCKET/PREFIX"
                )
            await self._bucket.put(OWNER, owner.encode())
            await self._give_up(self._noted())
        except StoreAwayError as error:
            raise StoreError(error.cause) from error

    async def put(self, chunks: AsyncIterator[bytes], expect: str | None, limit: int) -> str:
        """As ``ArtifactStore.put``. What comes without a digest waits on the disk until it has one."""
        if expect is None or not is_digest(expect):
            return await self._put_unnamed(chunks, expect, limit)
        await self._check_room(limit)
        hasher, size, length = hashlib.sha256(), 0, part_bytes(limit)
        buffer, count = bytearray(), 0
        async with AsyncExitStack() as stack:
            upload: PartsUpload | None = None
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise _too_much(limit)
                await asyncio.to_thread(hasher.update, chunk)
                buffer += chunk
                while len(buffer) > length:  # The last part is sent below, once the digest is known.
                    if upload is None:
                        upload = await stack.enter_async_context(self._sending(expect))
                    count += 1
                    await upload.send(count, bytes(buffer[:length]))
                    del buffer[:length]
            if (digest := hasher.hexdigest()) != expect:
                raise _damaged(size, digest, expect)
            if upload is None:
                await self._bucket.put(digest, bytes(buffer))
            else:
                await upload.send(count + 1, bytes(buffer))
                await upload.complete(count + 1)
        self._keep(digest, size)
        return digest

    async def put_file(self, path: Path, link: bool = False, expect: str | None = None) -> str:
        """As ``ArtifactStore.put_file``; where the file can be linked, it stays near."""
        digest = await asyncio.to_thread(file_digest, path)
        if expect is not None and digest != expect:
            raise InvalidError(f"the file arrived with SHA-256 {digest}, not {expect}: send it again", "sha256")
        size = path.stat().st_size
        await self._check_room(size)
        if size <= part_bytes(size):
            await self._bucket.put(digest, await asyncio.to_thread(path.read_bytes))
        else:
            await self._send_file(path, digest, size)
        self._keep(digest, size)
        if link:
            self._cache.adopt(path, digest)
        return digest

    async def has(self, digest: str) -> bool:
        """As ``ArtifactStore.has``."""
        if not self._alone:
            self._known.pop(digest, None)
        try:
            await self.size(digest)
        except NotFoundError:
            return False
        return True

    async def size(self, digest: str) -> int:
        """As ``ArtifactStore.size``; asked once."""
        if not is_digest(digest):
            raise missing(digest)
        if digest not in self._known:
            with self._present(digest):
                self._remember(digest, await self._bucket.size(digest))
        return self._known[digest]

    @asynccontextmanager
    async def files(self, *digests: str) -> AsyncIterator[tuple[Path, ...]]:
        """As ``ArtifactStore.files``: fetched, and kept while there is room."""
        async with AsyncExitStack() as stack:
            yield tuple([await stack.enter_async_context(self._file(digest)) for digest in digests])

    async def near(self, digest: str) -> Path | None:
        """As ``ArtifactStore.near``: what was fetched lately, and what is small."""
        if (found := self._cache.find(digest)) is not None:
            return found
        if await self.size(digest) > SMALL_BYTES:
            return None
        async with self._file(digest) as path:
            return path

    async def read(self, digest: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """As ``ArtifactStore.read``."""
        with self._present(digest):
            async for chunk in self._bucket.read(digest, start, min(stop, await self.size(digest))):
                yield chunk

    async def sweep(self, referred: Collection[bytes], before: float) -> tuple[int, int]:
        """As ``ArtifactStore.sweep``; the age is by the server's clock."""
        self._placed.clear()
        files = freed = used = 0
        async for entry in self._bucket.entries():
            used += entry.size
            if not is_digest(entry.key) or bytes.fromhex(entry.key) in referred or entry.modified >= before:
                continue
            if entry.key in self._placed or await self._came_again(entry.key, before):  # While this was going on.
                continue
            self._known.pop(entry.key, None)
            self._cache.forget(entry.key)
            await self._bucket.remove(entry.key)
            files, freed = files + 1, freed + entry.size
        self._used = used - freed
        await self._give_up(self._noted())
        return files, freed

    async def _came_again(self, digest: str, before: float) -> bool:
        """Whether somebody else has stored it since it was listed; what is gone did not."""
        if self._alone:
            return False
        with suppress(GoneFromBucketError):
            return await self._bucket.modified(digest) >= before
        return False

    async def survey(self, referred: Collection[bytes], before: float) -> ArtifactStock:
        """As ``ArtifactStore.survey``; the age is by the server's clock."""
        stock = ArtifactStock()
        async for entry in self._bucket.entries():
            if is_digest(entry.key):
                kept = bytes.fromhex(entry.key) in referred
                stock = stock.with_one(entry.key, entry.size, not kept and entry.modified < before)
        return stock

    def total(self) -> int:
        """As ``ArtifactStore.total``: what the operator lets the bucket hold."""
        return self._room

    def free(self) -> int:
        """As ``ArtifactStore.free``, as far as is known since the last sweep, or the last count."""
        return max(0, self._room - self._used)

    # --- sending ----------------------------------------------------------------------------------------------------------

    async def _put_unnamed(self, chunks: AsyncIterator[bytes], expect: str | None, limit: int) -> str:
        path, size, hasher = self._notes / f"{secrets.token_hex(16)}.part", 0, hashlib.sha256()
        try:
            with path.open("wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > limit:
                        raise _too_much(limit)
                    hasher.update(chunk)
                    await asyncio.to_thread(file.write, chunk)
            if expect is not None:
                raise _damaged(size, hasher.hexdigest(), expect)
            return await self.put_file(path, link=True)
        except OSError as error:
            raise no_room(error) from error
        finally:
            path.unlink(missing_ok=True)

    @asynccontextmanager
    async def _sending(self, digest: str) -> AsyncIterator[PartsUpload]:
        """An upload in parts, given up where the body does not end well."""
        made = await self._bucket.begin(digest)
        self._under_way.add(made.upload.upload)
        try:
            yield made
        except BaseException:
            with suppress(StoreAwayError):  # The next sweep, or the next start, does it.
                await asyncio.shield(self._bucket.abort(made.upload))
            raise
        finally:
            self._under_way.discard(made.upload.upload)

    async def _send_file(self, path: Path, digest: str, size: int) -> None:
        """In parts; those that have come stay where this breaks off, for the next try."""
        note = self._notes / digest
        made = await self._resumed(note, digest) or await self._bucket.begin(digest)
        self._under_way.add(made.upload.upload)
        try:
            note.write_text(made.upload.upload)
            await send_file(made, path, size)
            note.unlink(missing_ok=True)
        except GoneFromBucketError as error:
            note.unlink(missing_ok=True)
            raise UnavailableError("the coordinator's store of files lost what was being sent: try again") from error
        finally:
            self._under_way.discard(made.upload.upload)

    async def _resumed(self, note: Path, digest: str) -> PartsUpload | None:
        if not note.is_file() or (upload := note.read_text()) in self._under_way:
            return None
        try:
            return await self._bucket.resume(Unfinished(digest, upload))
        except GoneFromBucketError:
            return None

    def _noted(self) -> set[str]:
        """Ids of uploads of files that somebody may still go on with."""
        now, found = time.time(), set()
        for note in self._notes.iterdir():
            if is_digest(note.name) and now - note.stat().st_mtime < UNFINISHED_S:
                found.add(note.read_text())
            elif is_digest(note.name):
                note.unlink()
        return found

    async def _give_up(self, wanted: set[str]) -> None:
        oldest = time.time() - UNFINISHED_S
        for upload in await self._bucket.unfinished():
            others = not self._alone and upload.begun > oldest  # Somebody else may be sending it.
            if upload.upload not in wanted | self._under_way and is_digest(upload.key) and not others:
                await self._bucket.abort(upload)

    # --- what is known ----------------------------------------------------------------------------------------------------

    async def _whose(self) -> str:
        try:
            size = min(await self._bucket.size(OWNER), MAX_OWNER)
            return b"".join([chunk async for chunk in self._bucket.read(OWNER, 0, size)]).decode(errors="replace")
        except GoneFromBucketError:
            return ""

    @asynccontextmanager
    async def _file(self, digest: str) -> AsyncIterator[Path]:
        size = await self.size(digest)

        async def fetch(draft: Path) -> None:
            hasher = hashlib.sha256()
            try:
                with draft.open("wb") as file:
                    async for chunk in self.read(digest, 0, size):
                        hasher.update(chunk)
                        await asyncio.to_thread(file.write, chunk)
            except OSError as error:
                raise no_room(error) from error
            if hasher.hexdigest() != digest:
                LOG.error("%s: what is under %s is something else: remove it", self._bucket.address, digest)
                raise UnavailableError(f"artifact {digest} is damaged in the coordinator's store: tell its operator")

        async with self._cache.holding(digest, size, fetch) as path:
            yield path

    @contextmanager
    def _present(self, digest: str) -> Iterator[None]:
        """What is not in the bucket is an artifact that is not here, whatever was known of it."""
        try:
            yield
        except GoneFromBucketError as error:
            self._known.pop(digest, None)
            raise missing(digest) from error

    def _keep(self, digest: str, size: int) -> None:
        if digest not in self._known:
            self._used += size
        self._placed.add(digest)
        self._remember(digest, size)

    def _remember(self, digest: str, size: int) -> None:
        self._known[digest] = size
        self._known.move_to_end(digest)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    async def _check_room(self, size: int) -> None:
        if not self._alone and time.monotonic() - self._recounted > RECOUNT_S:
            await self._count()
        if size > self.free():
            raise UnavailableError(FULL)

    async def _count(self) -> None:
        self._recounted = time.monotonic()
        self._used = sum([entry.size async for entry in self._bucket.entries()])


def _too_much(limit: int) -> TooLargeError:
    return TooLargeError(f"more than {limit:,} bytes came: this artifact may have {limit:,} at most")


def _damaged(size: int, digest: str, expect: str) -> InvalidError:
    return InvalidError(f"the {size:,} bytes received have SHA-256 {digest}, not {expect}: send them again")
