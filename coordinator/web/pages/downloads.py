"""What there is to download: the installers that the operator has put into a folder, with their SHA-256."""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from aiohttp import hdrs, web

from coordinator.errors import NotFoundError
from coordinator.web.auth import public
from coordinator.web.pages.render import Renderer

System = Literal["windows", "macos", "linux", ""]
SYSTEMS: Final[dict[System, str]] = {"windows": "Windows", "macos": "macOS", "linux": "Linux"}
_ENDINGS: Final[dict[str, System]] = {
    ".exe": "windows",
    ".msi": "windows",
    ".dmg": "macos",
    ".pkg": "macos",
    ".deb": "linux",
    ".rpm": "linux",
    ".appimage": "linux",
}
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]{0,120}")


@dataclass(frozen=True)
class Installer:
    """A file that can be downloaded; ``digest``: its SHA-256."""

    name: str
    system: System
    size: int
    digest: str


class Downloads:
    """Handlers of the downloads. ``folder``: of the installers; None, or a folder that is missing, has none."""

    def __init__(self, renderer: Renderer, folder: Path | None) -> None:
        self._renderer = renderer
        self._folder = folder

    def register(self, app: web.Application) -> None:
        """Add the page and the files to ``app``."""
        app.router.add_get("/download", self.page)
        app.router.add_get("/download/SHA256SUMS", self.sums)
        app.router.add_get("/download/{file}", self.file)

    @public
    async def page(self, request: web.Request) -> web.Response:
        """What there is for the visitor's own system first."""
        here = system_of(request.headers.get(hdrs.USER_AGENT, ""))
        order = sorted(SYSTEMS.items(), key=lambda item: item[0] != here)
        found = installers(self._folder)
        return self._renderer.page(request, "download.html", here=here, systems=order, installers=found)

    @public
    async def sums(self, _request: web.Request) -> web.Response:
        """All checksums, as ``sha256sum --check`` takes them."""
        return web.Response(text="".join(f"{one.digest}  {one.name}\n" for one in installers(self._folder)))

    @public
    async def file(self, request: web.Request) -> web.StreamResponse:
        """An installer."""
        name = request.match_info["file"]
        if self._folder is None or name not in {found.name for found in installers(self._folder)}:
            raise NotFoundError(f"there is no file {name[:60]!r} to download: the download page lists what there is")
        return web.FileResponse(
            self._folder / name, headers={hdrs.CONTENT_DISPOSITION: f'attachment; filename="{name}"'}
        )


def system_of(agent: str) -> System:
    """The system that a browser says it runs on; empty for telephones and what is not known."""
    if re.search(r"Android|iPhone|iPad|Mobile", agent):
        return ""
    for mark, system in (("Windows", "windows"), ("Mac OS X", "macos"), ("Linux", "linux")):
        if mark in agent:
            return system  # type: ignore[return-value]
    return ""


def installers(folder: Path | None) -> list[Installer]:
    """The installers in a folder by name; files of other kinds are none."""
    found = []
    for path in sorted(folder.iterdir()) if folder is not None and folder.is_dir() else ():
        system: System = next(
            (system for ending, system in _ENDINGS.items() if path.name.casefold().endswith(ending)), ""
        )
        if system and _FILE.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            stat = path.stat()
            found.append(Installer(path.name, system, stat.st_size, _digest(path, stat.st_size, stat.st_mtime_ns)))
    return found


@lru_cache(maxsize=64)
def _digest(path: Path, _size: int, _changed: int) -> str:
    """Worked out once for each state of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
