"""The Hugging Face Hub as ``huggingface_hub`` meets it, on a port of this machine: repositories at commits, small files as they
are, large ones behind a redirect and by ranges, gated ones for a token only, commits that come in."""

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

TOKEN = "hf_AsecretOfTheSubmitter"
LARGE = (".safetensors", "tokenizer.json")
"""Endings of what the Hub keeps beside git, with its SHA-256 known."""


@dataclass
class Repository:
    """One model. ``commit``: of its branch ``main``; ``card``: the front matter of its README."""

    files: dict[str, bytes]
    card: Mapping[str, Any] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    @property
    def commit(self) -> str:
        """Of all files."""
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


class Hub:
    """What it has, and what it was asked: method, path, and whether a token came with it."""

    def __init__(self) -> None:
        self.url = ""
        self.repositories: dict[str, Repository] = {}
        self.asked: list[tuple[str, str, bool]] = []
        self.cut = 0  # Bytes after which each answer with a large file breaks off; 0: none does.
        self._blobs: dict[str, bytes] = {}

    def add(self, name: str, folder: Path, **settings: Any) -> Repository:
        """A repository with the files of a folder."""
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        made = self.repositories[name] = Repository(files, **settings)
        self._blobs |= {_sha256(content): content for content in files.values()}
        return made

    def application(self) -> web.Application:
        """Its routes, as the public server has them."""
        app = web.Application(middlewares=[self._heard], client_max_size=1 << 30)
        one = "{owner}/{name}"
        app.router.add_get(f"/api/models/{one}", self._info)
        app.router.add_get(f"/api/models/{one}/revision/{{revision}}", self._info)
        app.router.add_get(f"/api/models/{one}/tree/{{revision}}", self._tree)
        app.router.add_get(f"/{one}/resolve/{{revision}}/{{path:.+}}", self._resolve)
        app.router.add_get("/cdn/{blob}", self._cdn)
        app.router.add_post("/api/repos/create", self._create)
        app.router.add_post("/api/validate-yaml", self._valid)
        app.router.add_post(f"/api/models/{one}/preupload/main", self._preupload)
        app.router.add_post(f"/{one}.git/info/lfs/objects/batch", self._batch)
        app.router.add_put("/lfs/{blob}", self._put)
        app.router.add_post(f"/api/models/{one}/commit/main", self._commit)
        return app

    @web.middleware
    async def _heard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append((request.method, request.path, "Authorization" in request.headers))
        answer: web.StreamResponse = await handler(request)
        return answer

    def _found(self, request: web.Request) -> Repository:
        name = f"{request.match_info['owner']}/{request.match_info['name']}"
        found = self.repositories.get(name)
        if found is None or (found.private and not _allowed(request)):
            raise _problem(401, "RepoNotFound", "Repository not found")
        if request.match_info.get("revision", "main") not in ("main", found.commit):
            raise _problem(404, "RevisionNotFound", "Invalid rev id")
        return found

    async def _info(self, request: web.Request) -> web.Response:
        found = self._found(request)
        name = f"{request.match_info['owner']}/{request.match_info['name']}"
        siblings = [_sibling(path, content) for path, content in sorted(found.files.items())]
        told = {"id": name, "modelId": name, "sha": found.commit, "siblings": siblings, "cardData": dict(found.card)}
        gated = "manual" if found.gated else False
        return web.json_response(told | {"private": found.private, "gated": gated, "tags": [], "downloads": 0})

    async def _tree(self, request: web.Request) -> web.Response:
        return web.json_response([_entry(path, content) for path, content in self._found(request).files.items()])

    async def _resolve(self, request: web.Request) -> web.Response:
        found = self._found(request)
        if found.gated and not _allowed(request):
            raise _problem(403, "GatedRepo", "Access to this model is restricted: ask for it on its page")
        path = request.match_info["path"]
        content = found.files.get(path)
        if content is None:
            raise _problem(404, "EntryNotFound", "Entry not found")
        digest = _sha256(content)
        headers = {"X-Repo-Commit": found.commit, "Accept-Ranges": "bytes", "ETag": f'"{digest}"'}
        if not path.endswith(LARGE):
            return web.Response(body=content, headers=headers)
        elsewhere = self.url.replace("127.0.0.1", "localhost")  # Another host to clients, as the public one has.
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
        return web.Response(status=302, headers=headers | linked | {"Location": f"{elsewhere}/cdn/{digest}?signed=yes"})

    async def _cdn(self, request: web.Request) -> web.StreamResponse:
        """It takes a signature, and no token."""
        content = self._blobs[request.match_info["blob"]]
        assert request.query["signed"] == "yes"
        part = request.http_range
        if "Range" not in request.headers:
            return web.Response(body=content, headers={"Accept-Ranges": "bytes"})
        begin, end = part.start or 0, min(part.stop or len(content), len(content))
        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(content)}", "Content-Length": str(end - begin)}
        if not self.cut:
            return web.Response(status=206, body=content[begin:end], headers=headers)
        broken = web.StreamResponse(status=206, headers=headers)
        await broken.prepare(request)
        self.cut *= 8  # The next one lasts longer.
        await broken.write(content[begin : min(end, begin + self.cut)])
        if end - begin > self.cut and request.transport is not None:
            request.transport.close()
        return broken

    async def _create(self, request: web.Request) -> web.Response:
        _check(request)
        asked = await request.json()
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if name in self.repositories:
            return web.json_response({"error": "You already created this model repo"}, status=409)
        self.repositories[name] = Repository({}, private=asked.get("visibility") == "private")
        return web.json_response({"url": f"{self.url}/{name}", "name": name, "id": name})

    async def _valid(self, _request: web.Request) -> web.Response:
        return web.json_response({"errors": [], "warnings": []})

    async def _preupload(self, request: web.Request) -> web.Response:
        _check(request)
        self._found(request)
        files = (await request.json())["files"]
        modes = {True: "lfs", False: "regular"}
        told = [
            {"path": one["path"], "uploadMode": modes[one["path"].endswith(LARGE)], "shouldIgnore": False}
            for one in files
        ]
        return web.json_response({"files": told})

    async def _batch(self, request: web.Request) -> web.Response:
        _check(request)
        objects = (await request.json())["objects"]
        told = [one | {"actions": {"upload": {"href": f"{self.url}/lfs/{one['oid']}"}}} for one in objects]
        return web.json_response({"transfer": "basic", "objects": told}, content_type="application/vnd.git-lfs+json")

    async def _put(self, request: web.Request) -> web.Response:
        content = await request.read()
        assert _sha256(content) == request.match_info["blob"]
        self._blobs[request.match_info["blob"]] = content
        return web.Response()

    async def _commit(self, request: web.Request) -> web.Response:
        _check(request)
        found = self._found(request)
        for line in (await request.text()).splitlines():
            match json.loads(line):
                case {"key": "file", "value": {"path": path, "content": content}}:
                    found.files[path] = base64.b64decode(content)
                case {"key": "lfsFile", "value": {"path": path, "oid": blob}}:
                    found.files[path] = self._blobs[blob]
        name = f"{request.match_info['owner']}/{request.match_info['name']}"
        url = f"{self.url}/{name}/commit/{found.commit}"
        return web.json_response({"commitUrl": url, "commitOid": found.commit, "success": True})


@asynccontextmanager
async def hub() -> AsyncIterator[Hub]:
    """Serve an empty one."""
    made = Hub()
    runner = web.AppRunner(made.application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": "file",
        "path": path,
        "size": len(content),
        "oid": hashlib.sha1(content).hexdigest(),
    }
    if path.endswith(LARGE):
        entry["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 130}
    return entry


def _sibling(path: str, content: bytes) -> dict[str, Any]:
    entry = {"rfilename": path, "size": len(content), "blobId": hashlib.sha1(content).hexdigest()}
    large = {"size": len(content), "sha256": _sha256(content), "pointerSize": 130}
    return entry | ({"lfs": large} if path.endswith(LARGE) else {})


def _allowed(request: web.Request) -> bool:
    return request.headers.get("Authorization") == f"Bearer {TOKEN}"


def _check(request: web.Request) -> None:
    if not _allowed(request):
        raise web.HTTPUnauthorized(text=json.dumps({"error": "Invalid credentials"}), content_type="application/json")


def _problem(status: int, code: str, said: str) -> web.HTTPException:
    kinds: dict[int, type[web.HTTPException]] = {
        401: web.HTTPUnauthorized,
        403: web.HTTPForbidden,
        404: web.HTTPNotFound,
    }
    headers = {"X-Error-Code": code, "X-Error-Message": said}
    return kinds[status](text=json.dumps({"error": said}), headers=headers, content_type="application/json")
