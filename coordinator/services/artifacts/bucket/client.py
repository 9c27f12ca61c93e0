"""One bucket: objects put whole or in parts, read by ranges, listed and removed. All of it through aiobotocore."""

import asyncio
import hashlib
import logging
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from common.clock import Clock
from coordinator.errors import FilesAwayError, StoreError
from coordinator.services.artifacts.bucket.address import BucketAddress, GoneFromBucketError, answering

PART_BYTES: Final = 8 << 20  # A broken part is sent again; a service takes 5 MiB at the least, and
MAX_PARTS: Final = 10_000  # so many at the most: larger objects have larger parts.
READ_BYTES: Final = 1 << 20
PARTS_AT_ONCE: Final = 4  # Of a file: enough to fill a line of a gigabit at 30 ms.
TRIES: Final = 6  # Of one request, some 15 seconds in all; the client waits longer before each.
READ_TRIES: Final = 6  # Of a body that breaks off without having brought a byte.
CONNECT_S, ANSWER_S = 5.0, 60.0
CONNECTIONS: Final = 64

MakeSocket = Callable[[Any], socket.socket]

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class BucketEntry:
    """An object as a list has it. ``modified``: Unix seconds by the server's clock."""

    key: str
    size: int
    modified: float


@dataclass(frozen=True)
class Unfinished:
    """An upload in parts that was begun and not ended. ``begun``: when, by the server's clock; 0: not known."""

    key: str
    upload: str
    begun: float = 0.0


class BucketClient:
    """``client``: aiobotocore's, open. Names of objects are without the address's prefix."""

    def __init__(self, client: Any, address: BucketAddress, clock: Clock, told: bool = True) -> None:
        """``told``: the log says when it is away."""
        self._client = client
        self._clock = clock
        self._away_since: float | None = None
        self._reached = False
        self._told = told
        self.address = address

    @contextmanager
    def asking(self) -> Iterator[None]:
        """As ``answering``; that the bucket is away is told once, and its end too."""
        try:
            with answering(self.address):
                yield
        except FilesAwayError as error:
            if self._told and self._away_since is None and self._reached:  # At the start its caller says it.
                self._away_since = self._clock.now()
                LOG.error("%s. Whatever needs a file of it is refused until that is mended", error.cause)
            raise
        self._reached = True
        if self._away_since is not None:
            LOG.warning("%s can be used again, after %.0f s", self.address, self._clock.now() - self._away_since)
            self._away_since = None

    async def put(self, key: str, data: bytes) -> None:
        """Store an object at once."""
        with self.asking():
            await self._client.put_object(**self.named(key), Body=data)

    async def size(self, key: str) -> int:
        """Bytes of an object; GoneFromBucketError where there is none."""
        with self.asking():
            return int((await self._client.head_object(**self.named(key)))["ContentLength"])

    async def modified(self, key: str) -> float:
        """When an object was stored last, by the server's clock; GoneFromBucketError where there is none."""
        with self.asking():
            return float((await self._client.head_object(**self.named(key)))["LastModified"].timestamp())

    async def remove(self, key: str) -> None:
        """Remove an object, if it is there."""
        with self.asking():
            await self._client.delete_object(**self.named(key))

    async def read(self, key: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """The bytes from ``start`` to before ``stop``; what breaks off is asked for again from where it was."""
        at, tries = start, 0
        while at < stop:
            try:
                async for chunk in self._read_once(key, at, stop):
                    at, tries = at + len(chunk), 0
                    yield chunk
                if at < stop:
                    raise FilesAwayError(f"{self.address}: {key} broke off after {at - start:,} bytes")
            except FilesAwayError:
                if (tries := tries + 1) >= READ_TRIES:
                    raise
                await self._clock.sleep(min(0.25 * 2**tries, 8.0))

    async def _read_once(self, key: str, at: int, stop: int) -> AsyncIterator[bytes]:
        with self.asking():
            response = await self._client.get_object(**self.named(key), Range=f"bytes={at}-{stop - 1}")
        async with response["Body"] as body:
            while True:
                with self.asking():
                    chunk = await body.read(min(READ_BYTES, stop - at))
                if not chunk:
                    return
                at += len(chunk)
                yield chunk

    async def entries(self) -> AsyncIterator[BucketEntry]:
        """Every object below the prefix."""
        more: dict[str, str] = {}
        while True:
            with self.asking():
                page = await self._client.list_objects_v2(
                    Bucket=self.address.bucket, Prefix=self.address.prefix, **more
                )
            for found in page.get("Contents", ()):
                key = str(found["Key"]).removeprefix(self.address.prefix)
                yield BucketEntry(key, int(found["Size"]), found["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    async def unfinished(self) -> list[Unfinished]:
        """Uploads in parts that nobody has ended."""
        found: list[Unfinished] = []
        more: dict[str, str] = {}
        while True:
            with self.asking():
                page = await self._client.list_multipart_uploads(
                    Bucket=self.address.bucket, Prefix=self.address.prefix, **more
                )
            found += [
                Unfinished(
                    str(one["Key"]).removeprefix(self.address.prefix),
                    str(one["UploadId"]),
                    one["Initiated"].timestamp() if "Initiated" in one else 0.0,
                )
                for one in page.get("Uploads", ())
            ]
            if not page.get("IsTruncated"):
                return found
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    async def abort(self, upload: Unfinished) -> None:
        """Give an upload in parts up, with the parts that have come."""
        with suppress(GoneFromBucketError), self.asking():
            await self._client.abort_multipart_upload(**self.named(upload.key), UploadId=upload.upload)

    async def begin(self, key: str) -> "PartsUpload":
        """Begin an upload in parts."""
        with self.asking():
            begun = await self._client.create_multipart_upload(**self.named(key))
        return PartsUpload(self, self._client, Unfinished(key, str(begun["UploadId"])), {})

    async def resume(self, upload: Unfinished) -> "PartsUpload":
        """Go on with one; GoneFromBucketError where the server has forgotten it."""
        parts: dict[int, str] = {}
        more: dict[str, int] = {}
        while True:
            with self.asking():
                page = await self._client.list_parts(**self.named(upload.key), UploadId=upload.upload, **more)
            parts |= {int(part["PartNumber"]): str(part["ETag"]) for part in page.get("Parts", ())}
            if not page.get("IsTruncated"):
                return PartsUpload(self, self._client, upload, parts)
            more = {"PartNumberMarker": page["NextPartNumberMarker"]}

    def named(self, key: str) -> dict[str, str]:
        """An object as the client wants it."""
        return {"Bucket": self.address.bucket, "Key": self.address.prefix + key}


class PartsUpload:
    """An upload in parts under way. Nothing is under its name until ``complete``."""

    def __init__(self, bucket: BucketClient, client: Any, upload: Unfinished, parts: dict[int, str]) -> None:
        self._bucket = bucket
        self._client = client
        self._parts = parts
        self.upload = upload

    def has(self, number: int, data: bytes) -> bool:
        """Whether a part of these bytes has come already; a service that names parts otherwise is sent them again."""
        return self._parts.get(number, "").strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest()

    async def send(self, number: int, data: bytes) -> None:
        """Send a part; they count from 1."""
        with self._bucket.asking():
            sent = await self._client.upload_part(**self._where(), PartNumber=number, Body=data)
        self._parts[number] = str(sent["ETag"])

    async def complete(self, count: int) -> None:
        """Make an object of the first ``count`` parts."""
        parts = [{"PartNumber": number, "ETag": self._parts[number]} for number in range(1, count + 1)]
        with self._bucket.asking():
            await self._client.complete_multipart_upload(**self._where(), MultipartUpload={"Parts": parts})

    def _where(self) -> dict[str, str]:
        return {**self._bucket.named(self.upload.key), "UploadId": self.upload.upload}


async def send_file(upload: PartsUpload, path: Path, size: int) -> None:
    """Send what has not come yet of a file, several parts at a time, and complete it."""
    length = part_bytes(size)
    count = -(-size // length)
    numbers = iter(range(1, count + 1))

    async def work() -> None:
        for number in numbers:  # One iterator for all: each takes the next part.
            data = await asyncio.to_thread(_part_of, path, (number - 1) * length, length)
            if not await asyncio.to_thread(upload.has, number, data):
                await upload.send(number, data)

    await together([work] * min(PARTS_AT_ONCE, count))
    await upload.complete(count)


async def together(works: list[Callable[[], Awaitable[None]]]) -> None:
    """All of them at once; the first fault ends the others, and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(_run(work), name="part of a file")
    except BaseExceptionGroup as faults:
        raise faults.exceptions[0] from faults


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def part_bytes(size: int) -> int:
    """Bytes of a part of an object of ``size`` bytes: a whole number of MiB."""
    return max(PART_BYTES, math.ceil(size / MAX_PARTS / (1 << 20)) << 20)


def _part_of(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


@asynccontextmanager
async def opened(
    address: BucketAddress, clock: Clock, tries: int = TRIES, outside: MakeSocket | None = None, **how: Any
) -> AsyncIterator[BucketClient]:
    """A bucket, reached by the settings that every tool of AWS takes: environment, files in ``~/.aws``, the machine's role.

    Args:
        tries: of one request.
        outside: makes the sockets, and no proxy is taken, where a stranger named the address.
        how: what the client is made with beside them.
    Raises:
        StoreError: the client is not installed, or these settings cannot be.
    """
    try:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session
        from botocore.exceptions import BotoCoreError
    except ModuleNotFoundError as error:
        raise StoreError(f"{address} needs the Python package {error.name}: install cottage[s3]") from error
    config = AioConfig(
        connect_timeout=CONNECT_S,
        read_timeout=ANSWER_S,
        max_pool_connections=CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": tries},
        # The newer checksums are not known to every service. The signature covers each part's SHA-256 instead.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": True},
        **({} if outside is None else {"connector_args": {"socket_factory": outside}, "proxies": {}}),
    )
    how.setdefault("region_name", get_session().get_config_variable("region") or "us-east-1")
    client = get_session().create_client("s3", config=config, **how)
    try:
        made = await client.__aenter__()
    except (BotoCoreError, ValueError) as error:
        raise StoreError(f"{address} cannot be used: {error}. Correct AWS_ENDPOINT_URL, or the profile") from error
    try:
        yield BucketClient(made, address, clock, told=outside is None)
    finally:
        await client.__aexit__(None, None, None)
