"""A release, the web server that it lies on, and an installation that follows it."""

import asyncio
import gzip
import hashlib
import io
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from desktop.agent.updates.folder import AGENT, InstallationFolder
from desktop.agent.updates.manifest import MANIFEST, Package, UpdateManifest
from desktop.agent.updates.release import platform_name
from desktop.layout import VERSIONS
from protocol.identity import NodeKey

KEY = NodeKey(bytes(range(32)))
NAME = "package.tar.gz"


def packed(files: Mapping[str, bytes]) -> tuple[bytes, int]:
    """A package with these files, each executable; and the bytes of its tar."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(plain.getvalue()), len(plain.getvalue())


def described(data: bytes, unpacked: int = 1 << 20, **changed: object) -> Package:
    given = {
        "platform": platform_name(),
        "file": NAME,
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": len(data),
        "unpacked": unpacked,
    }
    return Package(**{**given, **changed})  # type: ignore[arg-type]


def manifest_of(*packages: Package, **changed: object) -> UpdateManifest:
    given = {"number": 5, "version": "0.2.0", "minimum": "0.1.0", "expires": int(time.time()) + 3600}
    return UpdateManifest(packages=packages, **{**given, **changed})  # type: ignore[arg-type]


def installed(place: Path, version: str, program: str) -> InstallationFolder:
    """A version with ``program`` as its agent, in use where it is the first."""
    folder = InstallationFolder(place / VERSIONS)
    agent = folder.of(version) / AGENT
    agent.parent.mkdir(parents=True)
    agent.write_text(program)
    agent.chmod(0o755)
    if not folder.link.is_symlink():
        folder.link.symlink_to(f"{VERSIONS}/{version}")
    return folder


@dataclass
class Server:
    """Serves ``files``, honestly unless told otherwise.

    ``cut``: close the connection after so many bytes of a body; ``whole``: ignore ranges; ``elsewhere``: redirect there.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    cut: int | None = None
    whole: bool = False
    shifted: bool = False
    elsewhere: str = ""
    asked: list[str] = field(default_factory=list)
    url: str = ""
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> "Server":
        app = web.Application()
        app.router.add_get("/{name:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/channel/update.json"  # type: ignore[attr-defined]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def publish(self, manifest: UpdateManifest, data: bytes | None = None, key: NodeKey = KEY) -> None:
        self.files["channel/update.json"] = MANIFEST.sign(manifest, key)
        if data is not None:
            self.files[f"channel/{NAME}"] = data

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self.asked.append(request.headers.get("Range", ""))
        if self.elsewhere:
            return web.Response(status=302, headers={"Location": self.elsewhere})
        if name not in self.files:
            return web.Response(status=404)
        data, start = self.files[name], 0
        if "Range" in request.headers and not self.whole:
            start = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-")) + self.shifted
        answer = web.StreamResponse(status=206 if start else 200)
        if start:
            answer.headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        body = data[start:]
        answer.content_length = len(body)
        await answer.prepare(request)
        await answer.write(body[: self.cut])
        if self.cut is not None and self.cut < len(body):
            await asyncio.sleep(0)
            assert request.transport is not None
            request.transport.close()
        return answer
