"""Elements of array jobs: which have ended, what each left."""

from typing import cast

from aiohttp import web

from coordinator.domain.account import Scope
from coordinator.errors import InvalidError
from coordinator.services.arrays.element_books import ElementsPort, Ended
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.web.auth import needs
from coordinator.web.http import API, answer, integer
from coordinator.web.parameters import Query
from coordinator.web.route import Route
from coordinator.web.sending import attached, send_artifact, send_pieces
from coordinator.web.transfers import job_id, path_number
from protocol.rest.arrays import ElementView

_TAR, _BYTES = "application/x-tar", "application/octet-stream"
MAX_ROWS = 1_000
STATES = ("done", "failed")
_QUERIES = (
    Query("after", "Number of the last element that the caller has: only those that ended later."),
    Query("state", "Only those that are done, or that failed: done or failed; both if left out.", "string"),
    Query("limit", f"At most this many, 1 to {MAX_ROWS}; 100 if left out."),
)


class ElementRoutes:
    """Handlers of what an array job leaves."""

    def __init__(self, elements: ElementsPort, artifacts: ArtifactStore) -> None:
        self._elements, self._artifacts = elements, artifacts

    def routes(self) -> list[Route]:
        """Every route of these handlers."""
        job = f"{API}/jobs/{{job}}"
        listed = "Elements of an array job that have ended, in the order in which they did"
        one = "The result of an element: the files that its command left, as a tar archive"
        all_ = "The results of all elements that are done, as one tar archive with a folder each"
        return [
            Route(
                "GET",
                f"{job}/elements",
                self.list,
                listed,
                list[ElementView],
                errors=(404, 409, 422),
                queries=_QUERIES,
                listed=True,
            ),
            Route("GET", f"{job}/elements/{{index}}/result.tar", self.result, one, _BYTES, errors=(404, 409, 422)),
            Route("GET", f"{job}/results.tar", self.archive, all_, _TAR, errors=(404, 409)),
        ]

    @needs(Scope.JOBS_READ)
    async def list(self, request: web.Request) -> web.Response:
        """GET jobs/{job}/elements."""
        state = request.query.get("state")
        if state is not None and state not in STATES:
            raise InvalidError(f"state {state[:40]!r} is neither done nor failed", "state")
        after = integer(request, "after", 0, 0, 2**53)
        limit = integer(request, "limit", 100, 1, MAX_ROWS)
        return answer(await self._elements.ended(job_id(request), after, cast(Ended | None, state), limit))

    @needs(Scope.JOBS_READ)
    async def result(self, request: web.Request) -> web.StreamResponse:
        """GET jobs/{job}/elements/{index}/result.tar."""
        name, digest = await self._elements.result(job_id(request), path_number(request, "index"))
        return await send_artifact(request, self._artifacts, digest, attached(f"{name}.tar", _BYTES, digest))

    @needs(Scope.JOBS_READ)
    async def archive(self, request: web.Request) -> web.StreamResponse:
        """GET jobs/{job}/results.tar."""
        job = job_id(request)
        response = web.StreamResponse(headers=attached(f"{job[:8]}-results.tar", _TAR))
        return await send_pieces(request, response, self._elements.archive(job), f"what job {job} left")
