"""Looks for a new version now and then, has it ready on the disk, and lets the owner say when."""

import asyncio
import contextlib
import random
import shutil
from collections.abc import Callable
from typing import Literal

import msgspec

from common.clock import Clock
from desktop.agent.base.config import Home
from desktop.agent.base.log import LOG
from desktop.agent.errors import UnsignedImageError, UpdateError
from desktop.agent.updates import fetch, manifest
from desktop.agent.updates.folder import InstallationFolder
from desktop.agent.updates.manifest import Seen
from desktop.agent.updates.release import Release, Way, platform_name
from desktop.agent.updates.sandbox_images import Images
from desktop.agent.updates.setup import SetupFile
from desktop.answers import UpdateView
from protocol.codec import encode_json

FIRST_S = 300.0  # A computer that has just started has other things to do.
EVERY_S = 6 * 3600.0
SPREAD = 0.5  # So that all nodes do not come at once.
MAX_FAILED = 16  # Versions that are remembered as not starting here.

Stage = Literal["off", "none", "fetching", "ready", "apt", "by hand", "installed"]


class UpdateOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Look now, or restart into what is ready."""

    restart: bool = False


class Updates:
    """Of one home. ``note``: tells the owner once of each new version."""

    def __init__(
        self,
        home: Home,
        release: Release,
        way: tuple[Way, InstallationFolder | None],
        clock: Clock,
        note: Callable[[str, str], None],
    ) -> None:
        self._home, self._release, self._clock, self._note = home, release, clock, note
        self._way, self.folder = way
        self.setup: SetupFile | None = None
        self._looking = asyncio.Lock()
        self.view = UpdateView("none" if release.follows else "off", release.version)
        if not release.follows:
            self.view = msgspec.structs.replace(self.view, text="this build follows no updates")

    async def watch(self, wanted: Callable[[], bool]) -> None:
        """Look for ever, while ``wanted`` says so."""
        await self._clock.sleep(FIRST_S)
        while self._release.follows:
            if wanted() and self.view.stage not in ("ready", "installed"):
                await self.look()
            await self._clock.sleep(EVERY_S * (1 + SPREAD * random.random()))  # noqa: S311 - no secret

    async def look(self) -> UpdateView:
        """Look once, and fetch what is new; what goes wrong is in the view's text."""
        if not self._release.follows or self.view.stage == "installed":
            return self.view
        async with self._looking:
            try:
                await self._look()
            except UpdateError as error:
                LOG.warning("no update: %s", error)
                stage: Stage = "ready" if self.view.stage == "ready" else "none"
                self.view = msgspec.structs.replace(self.view, stage=stage, text=str(error))
        return self.view

    def installed(self, version: str) -> None:
        """Another version lies in this program's place."""
        text = "it begins once no job has a seat here, or with `cottage node update --restart`"
        self._tell(UpdateView("installed", self._release.version or self.view.running, version, text))

    async def _look(self) -> None:
        release, seen = self._release, load_seen(self._home)
        found = await fetch.manifest_at(release.url, release.key)
        await self._take_statement()
        package = manifest.judge(found, release.version, platform_name(), seen, self._clock.time())
        keep_seen(self._home, manifest.remembered(seen, found))
        if package is None:
            with contextlib.suppress(OSError):  # None is there, or it has not ended yet.
                self._home.setup.unlink()
            self._tell(UpdateView("none", release.version))
            return
        if (self.view.stage, self.view.version) == ("ready", found.version):
            return
        told = UpdateView("fetching", release.version, found.version)
        if self._way == "deb":
            text = "the system's package manager brings it: apt-get update && apt-get install cottage"
            self._tell(msgspec.structs.replace(told, stage="apt", text=text))
            return
        if self.folder is None and self._way != "setup":
            self._tell(msgspec.structs.replace(told, stage="by hand", text="install it the way this one was installed"))
            return
        self.view = told
        file = await fetch.fetch(release.url, package, self._home.updates)
        if self.folder is None:
            self.setup = SetupFile(file.replace(self._home.setup), package)
        else:
            await asyncio.to_thread(self.folder.unpack, file, found.version, package.unpacked)
            await asyncio.to_thread(self.folder.tidy, frozenset({found.version}))
        await asyncio.to_thread(shutil.rmtree, self._home.updates, ignore_errors=True)
        self._tell(msgspec.structs.replace(told, stage="ready", text="restart to update; jobs are handed over first"))

    async def _take_statement(self) -> None:
        try:
            await Images(self._home, self._release, now=self._clock.time).refresh()
        except (UpdateError, UnsignedImageError) as error:
            LOG.warning("no newer statement about the sandbox image: %s", error)

    def _tell(self, view: UpdateView) -> None:
        if view.version and (view.version, view.stage) != (self.view.version, self.view.stage):
            self._note(f"version {view.version} is there: {view.text}", view.version)
        self.view = view


def load_seen(home: Home) -> Seen:
    """What this home has seen of updates; raises UpdateError where that cannot be read."""
    return manifest.MANIFEST.seen(home.seen_updates, Seen())


def keep_seen(home: Home, seen: Seen) -> None:
    """Remember it; raises UpdateError where it cannot be written."""
    manifest.MANIFEST.keep(home.seen_updates, encode_json(seen))


def mark_failed(home: Home, version: str) -> None:
    """Never try this version again: it did not start here."""
    seen = load_seen(home)
    failed = (*(kept for kept in seen.failed if kept != version), version)[-MAX_FAILED:]
    keep_seen(home, msgspec.structs.replace(seen, failed=failed))
