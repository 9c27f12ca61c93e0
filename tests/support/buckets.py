"""Two S3 servers that packages bring, as processes, which are killed like a power cut.

nanio keeps everything on the disk and checks every signature; moto does what AWS does, but keeps it in memory.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from common.clock import SystemClock
from coordinator.services.artifacts.bucket.address import BucketAddress
from coordinator.services.artifacts.bucket.cache import FileCache
from coordinator.services.artifacts.bucket.client import BucketClient, opened
from coordinator.services.artifacts.bucket.store import BucketArtifacts

START_S = 60.0
KEY, SECRET = "cottage-key", "cottage-secret-key"
OWNER = "the coordinator"

Kind = Literal["nanio", "moto"]


class BucketServer:
    """``start`` after ``kill`` finds again what was stored, where the kind keeps it on the disk."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp(prefix=f"cottage-{kind}-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run, and wait until it takes connections."""
        nanio = [sys.executable, "-m", "nanio", "serve", "--data-dir", str(self.folder / "data"), "--port"]
        command = nanio if self.kind == "nanio" else [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p"]
        keys = {"NANIO_ACCESS_KEY": KEY, "NANIO_SECRET_KEY": SECRET}
        (self.folder / "data").mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, str(self.port)], env=os.environ | keys, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while True:
            assert time.monotonic() < deadline, self.log()
            assert self.process.poll() is None, self.log()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill -9, all of its processes."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def log(self) -> str:
        """What it has written."""
        return (self.folder / "log").read_text()

    def remove(self) -> None:
        """End it and everything of it."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder)

    def how(self, **changes: Any) -> dict[str, Any]:
        """What a client is made with."""
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        return {"endpoint_url": self.url, "region_name": "us-east-1", **keys} | changes

    async def make(self, name: str) -> BucketAddress:
        """A new bucket."""
        async with self.open(BucketAddress(name)) as bucket:
            await bucket._client.create_bucket(Bucket=name)
        return BucketAddress(name, "cottage/")

    @asynccontextmanager
    async def open(self, address: BucketAddress, tries: int = 3, **changes: Any) -> AsyncIterator[BucketClient]:
        """A client of a bucket."""
        async with opened(address, SystemClock(), tries, **self.how(**changes)) as bucket:
            yield bucket

    @asynccontextmanager
    async def store(
        self,
        address: BucketAddress,
        folder: Path,
        cached: int = 1 << 30,
        room: int = 1 << 40,
        tries: int = 3,
        alone: bool = True,
    ) -> AsyncIterator[BucketArtifacts]:
        """A coordinator's store over it; a second one in the same ``folder`` is the first one restarted."""
        async with self.open(address, tries) as bucket:
            made = BucketArtifacts(bucket, FileCache(folder / "cache", cached), folder / "unfinished", room, alone)
            await made.begin(OWNER)
            yield made


async def in_buckets(bucket: BucketClient) -> tuple[set[str], int]:
    """Names of the objects of a bucket but for its owner's, and how many uploads in parts are unfinished."""
    names = {entry.key async for entry in bucket.entries()} - {"owner"}
    return names, len(await bucket.unfinished())


async def restarted(server: BucketServer, after: float = 0.0) -> None:
    """Kill the server and start it again, while others go on."""
    server.kill()
    await asyncio.sleep(after)
    await asyncio.to_thread(server.start)
