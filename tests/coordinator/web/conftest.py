"""A real server on a port of its own, over the cluster in memory."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import pytest
from aiohttp import web
from argon2 import PasswordHasher

from common.clock import SystemClock
from coordinator.config import Config
from coordinator.errors import ForbiddenError, TooLargeError
from coordinator.services.accounts.notification_settings import NoticeService
from coordinator.services.accounts.passwords import Passwords
from coordinator.services.arrays.published_images import PublishedImages
from coordinator.services.artifacts.dataset_checks import DatasetChecks
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.file_ownership import FileOwnership
from coordinator.services.artifacts.models import TrainerTools
from coordinator.services.artifacts.uploads import UploadService
from coordinator.services.core.context import Context
from coordinator.services.jobs.idempotency import IdempotentAnswers
from coordinator.services.network.lenders import Lenders
from coordinator.store.memory import MemoryStore
from coordinator.web.application import setup
from coordinator.web.auth import Auth
from coordinator.web.services import Services
from tests.coordinator.operation.fake_operation import Operation
from tests.coordinator.serving.talking_homes import TalkingHomes
from tests.coordinator.web.documented import Ears
from tests.coordinator.web.fake import TOKEN, Cluster, address
from tests.coordinator.web.fake_services import Books, Elements, Market, Outputs, PricedWithdrawals, Registry


def authorise(token: str) -> str:
    if token != TOKEN:
        raise ForbiddenError("this token is not valid: connect again")
    return address("attic-4090")


class OpenDoors:
    """Nodes may read everything, and store all that they say was asked for, of up to two megabytes."""

    async def check_read(self, node: str, artifact: str) -> None:
        pass

    @asynccontextmanager
    async def storing(
        self, node: str, lease: str, answers: str, artifact: str, size: int, address: str
    ) -> AsyncIterator[None]:
        if size > 2 << 20:
            raise TooLargeError(f"{size:,} bytes")
        yield


class House:
    """A coordinator's web layer that can be stopped and started again on the same port and folder.

    Attributes:
        document: of the interface, the same for all.
        kind: of the cluster behind it.
    """

    kind: ClassVar[type[Cluster]] = Cluster
    document: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path, open_to_all: bool = True, **settings: Any) -> None:
        self.folder = folder
        self.port = 0
        self.public_url: str | None = None
        self.artifacts = DiskArtifacts(folder / "artifacts")
        self.cluster = self.kind(self.artifacts)
        self.market = Market(self.cluster)
        self.uploads = UploadService(folder / "uploads", self.artifacts)
        config = Config(folder, "http://ledger.test", open=open_to_all, **settings)
        cheap = Passwords(PasswordHasher(1, 8, 1))
        self.store = MemoryStore()
        self.files = FileOwnership(self.store, SystemClock())
        self.auth = Auth(self.store, SystemClock(), config, cheap)
        self.accounts = self.auth.accounts
        self.operation = Operation(self.cluster, self.accounts)
        self.lenders = Lenders(
            Context(
                replace(config, who_may_lend=settings.get("who_may_lend", "invited")),
                SystemClock(),
                self.store,
                secrets.token_bytes,
            )
        )
        self.app: web.Application | None = None
        self.ears = Ears()
        self.doors = OpenDoors()
        self.private = TalkingHomes()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> str:
        return f"{self.url}/api/v1"

    async def start(self) -> None:
        self.app = app = web.Application(middlewares=[self.ears.middleware])
        self.artifacts = DiskArtifacts(self.folder / "artifacts")
        self.uploads = UploadService(self.folder / "uploads", self.artifacts, kept=self.files)
        self.cluster.files = self.files
        self.cluster.artifacts = self.artifacts
        tools = TrainerTools(self.artifacts, self.folder / "scratch", 120.0, 4096)
        self.checks = DatasetChecks(self.folder / "checks", self.artifacts, tools)
        self._checking = asyncio.create_task(self.checks.run())
        notices = NoticeService(
            Context(Config(self.folder, ""), SystemClock(), MemoryStore(), secrets.token_bytes), mails=True
        )
        services = Services(
            self.cluster,
            Registry(self.cluster),
            self.market,
            Books(self.cluster),
            Outputs(self.cluster),
            notices,
            self.uploads,
            self.checks,
            self.artifacts,
            PricedWithdrawals(),
            self.doors,
            self.operation,
            self.lenders,
            self.private,
            PublishedImages(self.store, self.artifacts),
            Elements(self.artifacts),
            self.folder / "downloads",
            self.public_url,
        )
        setup(app, services, authorise, self.auth, IdempotentAnswers(self.store, SystemClock()))
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        if not House.document:
            async with aiohttp.ClientSession() as asking, asking.get(f"{self.url}/openapi.json") as answer:
                House.document = await answer.json()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            await self.private.aclose()
            self._checking.cancel()
            with suppress(asyncio.CancelledError):
                await self._checking
            self._runner = None

    async def dataset(self, data: bytes = b"to be or not to be\n" * 200) -> str:
        """Put a dataset there without the network."""

        async def chunks() -> AsyncIterator[bytes]:
            yield data

        return await self.artifacts.put(chunks(), None, len(data))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    built = House(tmp_path)
    await built.start()
    yield built
    await built.stop()
    assert not built.ears.undocumented(built.document)


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[House]:
    """A coordinator that asks who somebody is."""
    built = House(tmp_path, open_to_all=False)
    await built.start()
    yield built
    await built.stop()
    assert not built.ears.undocumented(built.document)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session
