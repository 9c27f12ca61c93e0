"""Bytes in and out: uploads of submitters, artifacts of nodes, the finished model."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from aiohttp import hdrs, web

from coordinator.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError, UnavailableError
from coordinator.services import ports
from coordinator.services.artifacts import ArtifactStore
from coordinator.services.uploads import UploadService
from coordinator.web.auth import public
from coordinator.web.http import API, read_chunks
from coordinator.web.route import Route
from coordinator.web.tus import Tus
from transport.wire.ids import NodeAddress, is_id

MAX_ARTIFACT_BYTES = 64 << 30  # A stage of 7 billion parameters with its outer momentum in float32 has 56 GB.
MAX_TRANSFERS_PER_NODE = 8  # A node moves its checkpoint and an opening; more at once is a fault or an attack.
_BINARY = "application/octet-stream"

Authorise = Callable[[str], NodeAddress]


class Transfers:
    """Handlers of the routes that move files."""

    def __init__(
        self, jobs: ports.Jobs, uploads: UploadService, artifacts: ArtifactStore, authorise: Authorise
    ) -> None:
        self._jobs = jobs
        self._tus = Tus(uploads)
        self._artifacts = artifacts
        self._authorise = authorise
        self._moving: Counter[str] = Counter()

    def routes(self) -> list[Route]:
        """Uploads, artifacts, the model archive."""
        artifact = f"{API}/artifacts/{{digest}}"
        return [
            *self._tus.routes(),
            Route(
                "PUT",
                artifact,
                self.put_artifact,
                "Store an artifact of a node under its SHA-256",
                None,
                _BINARY,
                204,
                (403, 413, 422, 503),
                token=True,
            ),
            Route(
                "GET",
                artifact,
                self.get_artifact,
                "An artifact, or a range of it",
                _BINARY,
                errors=(403, 404),
                token=True,
            ),
            Route(
                "GET",
                f"{API}/jobs/{{job}}/model.zip",
                self.model,
                "The trained model: a Hugging Face folder as a zip archive",
                "application/zip",
                errors=(404, 409),
            ),
        ]

    @public
    async def put_artifact(self, request: web.Request) -> web.Response:
        """PUT artifacts/{digest}."""
        digest = _digest(request)
        with self._one_more(request):
            if self._artifacts.has(digest):
                await _drain(read_chunks(request))
            else:
                await self._artifacts.put(read_chunks(request), digest, MAX_ARTIFACT_BYTES)
        return web.Response(status=204)

    @public
    async def get_artifact(self, request: web.Request) -> web.StreamResponse:
        """GET artifacts/{digest}."""
        self._node(request)
        path = self._artifacts.path(_digest(request))
        headers = {hdrs.CONTENT_TYPE: _BINARY, hdrs.CACHE_CONTROL: "private, immutable, max-age=31536000"}
        return web.FileResponse(path, headers=headers)

    async def model(self, request: web.Request) -> web.StreamResponse:
        """GET jobs/{job}/model.zip."""
        view = await self._jobs.get(job_id(request))
        if view.model is None:
            raise ConflictError(f"job {view.id} is {view.state} and has no model yet: it has one once it is verified")
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", view.name).strip("-.")[:60] or "model"
        headers = {
            hdrs.CONTENT_TYPE: "application/zip",
            hdrs.CONTENT_DISPOSITION: f'attachment; filename="{name}.zip"',
            "X-Content-SHA256": view.model,
        }
        return web.FileResponse(self._artifacts.path(view.model), headers=headers)

    def _node(self, request: web.Request) -> str:
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise ForbiddenError("artifacts are for nodes: send the token of Welcome as Authorization: Bearer")
        return self._authorise(token.strip())

    @contextmanager
    def _one_more(self, request: web.Request) -> Iterator[None]:
        node = self._node(request)
        if self._moving[node] >= MAX_TRANSFERS_PER_NODE:
            raise UnavailableError(
                f"{MAX_TRANSFERS_PER_NODE} transfers of this node are under way: wait for one to end"
            )
        self._moving[node] += 1
        try:
            yield
        finally:
            self._moving -= Counter({node: 1})


def job_id(request: web.Request) -> str:
    """The job's id from the path.

    Raises:
        NotFoundError: it cannot be the id of a job.
    """
    text = request.match_info["job"]
    if not is_id(text):
        raise NotFoundError(f"no job {text[:40]!r} is here: a job's id has 32 hexadecimal digits", "job")
    return text


def _digest(request: web.Request) -> str:
    text = request.match_info["digest"]
    if re.fullmatch(r"[0-9a-f]{64}", text) is None:
        raise NotFoundError(
            f"no artifact {text[:80]!r} is here: its name is a SHA-256, 64 hexadecimal digits", "digest"
        )
    return text


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    left = MAX_ARTIFACT_BYTES
    async for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            raise InvalidError(f"more than {MAX_ARTIFACT_BYTES:,} bytes for one artifact")
