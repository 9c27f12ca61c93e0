"""Bytes in and out: uploads of submitters, artifacts of nodes, the finished model."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import hdrs, web

from coordinator.errors import (
    ConflictError,
    CottageError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.uploads import UploadService
from coordinator.services.jobs import ports
from coordinator.web.auth import public
from coordinator.web.auth.gate import address_of
from coordinator.web.http import API, read_chunks
from coordinator.web.parameters import Query
from coordinator.web.route import Route
from coordinator.web.sending import attached, send_artifact
from coordinator.web.tus import Tus
from protocol.artifacts import ANSWERS_PATTERN, is_answer
from protocol.ids import ID_PATTERN, NodeAddress, is_id

MAX_TRANSFERS_PER_NODE = 8  # A node moves its checkpoint and an opening; more at once is a fault or an attack.
_BINARY = "application/octet-stream"
_LEASE = Query("lease", "The lease under which it was asked for.", "string", True, bounds={"pattern": ID_PATTERN})
_ANSWERS = Query(
    "answers",
    "What it answers: audit-ID, state-EPOCH-ROUND or inputs-DISPUTE.",
    "string",
    True,
    bounds={"pattern": ANSWERS_PATTERN},
)

Authorise = Callable[[str], NodeAddress]


class LengthError(CottageError):
    """Nobody says how much is coming."""

    status, code = 411, "length_required"


class TransferRoutes:
    """Handlers of the routes that move files."""

    def __init__(
        self,
        jobs: ports.JobsPort,
        uploads: UploadService,
        artifacts: ArtifactStore,
        authorise: Authorise,
        doors: ports.ArtifactAccessPort,
    ) -> None:
        self._jobs = jobs
        self._doors = doors
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
                "Store an artifact that this node was asked for, under its SHA-256",
                None,
                _BINARY,
                204,
                (403, 410, 411, 413, 422, 503),
                (_LEASE, _ANSWERS),
                token=True,
            ),
            Route(
                "GET",
                artifact,
                self.get_artifact,
                "An artifact of a job that this node holds a lease in, or a range of it",
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
        node, digest = self._node(request), _digest(request)
        lease, answers = request.query.get("lease", ""), request.query.get("answers", "")
        if not is_id(lease) or not is_answer(answers):
            raise InvalidError(
                f"lease is {lease[:40]!r} and answers {answers[:60]!r}: say under which lease this answers what",
                "lease" if not is_id(lease) else "answers",
            )
        size = request.content_length
        if size is None:
            raise LengthError("how long the artifact is must be said before it comes: send Content-Length")
        with self._one_more(node):
            async with self._doors.storing(node, lease, answers, digest, size, address_of(request)):
                await self._artifacts.put(read_chunks(request), digest, size)
        return web.Response(status=204)

    @public
    async def get_artifact(self, request: web.Request) -> web.StreamResponse:
        """GET artifacts/{digest}."""
        node, digest = self._node(request), _digest(request)
        await self._doors.check_read(node, digest)
        headers: dict[str, str] = {
            hdrs.CONTENT_TYPE: _BINARY,
            hdrs.CACHE_CONTROL: "private, immutable, max-age=31536000",
        }
        return await send_artifact(request, self._artifacts, digest, headers)

    async def model(self, request: web.Request) -> web.StreamResponse:
        """GET jobs/{job}/model.zip."""
        view = await self._jobs.get(job_id(request))
        if view.model is None:
            raise ConflictError(f"job {view.id} is {view.state} and has no model yet: it has one once it is verified")
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", view.name).strip("-.")[:60] or "model"
        headers = attached(f"{name}.zip", "application/zip", view.model)
        return await send_artifact(request, self._artifacts, view.model, headers)

    def _node(self, request: web.Request) -> str:
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise ForbiddenError("artifacts are for nodes: send the token of Welcome as Authorization: Bearer")
        return self._authorise(token.strip())

    @contextmanager
    def _one_more(self, node: str) -> Iterator[None]:
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


def path_number(request: web.Request, name: str) -> int:
    """A whole number from the path.

    Raises:
        InvalidError: it is none, or has more than nine digits.
    """
    text = request.match_info[name]
    if re.fullmatch(r"[0-9]{1,9}", text) is None:
        raise InvalidError(f"{name} is {text[:40]!r}: give a whole number", name)
    return int(text)


def _digest(request: web.Request) -> str:
    text = request.match_info["digest"]
    if re.fullmatch(r"[0-9a-f]{64}", text) is None:
        raise NotFoundError(
            f"no artifact {text[:80]!r} is here: its name is a SHA-256, 64 hexadecimal digits", "digest"
        )
    return text
