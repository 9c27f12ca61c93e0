"""Pages about jobs in the plural: home, the reader's jobs, public runs, comparing runs."""

import re

from aiohttp import web

from coordinator.client.compare import differences
from coordinator.services.jobs import ports
from coordinator.web.auth import principal, public, visitor
from coordinator.web.pages import curves
from coordinator.web.pages.job import points_of
from coordinator.web.pages.render import Renderer
from protocol.ids import is_id

JOBS_PER_PAGE = 30
JOBS_AT_HOME = 5


class Views:
    """Handlers of the lists."""

    def __init__(self, jobs: ports.JobsPort, network: ports.NetworkPort, renderer: Renderer) -> None:
        self._jobs = jobs
        self._network = network
        self._renderer = renderer

    def register(self, app: web.Application) -> None:
        """Add the pages to ``app``."""
        for path, handler in (("/", self.home), ("/jobs", self.jobs), ("/compare", self.compare), ("/runs", self.runs)):
            app.router.add_get(path, handler)

    @public
    async def home(self, request: web.Request) -> web.Response:
        """What this is, and how the network does."""
        view, who = await self._network.view(), visitor(request)
        jobs = await self._jobs.list(JOBS_AT_HOME, None, who.account_id) if who is not None else ()
        return self._renderer.page(request, "home.html", network=view, jobs=jobs)

    async def jobs(self, request: web.Request) -> web.Response:
        """Jobs, newest first, in pages."""
        before = _moment(request)
        found = list(await self._jobs.list(JOBS_PER_PAGE + 1, before, principal(request).account_id))
        more = found[JOBS_PER_PAGE - 1].created if len(found) > JOBS_PER_PAGE else None
        return self._renderer.page(request, "jobs.html", jobs=found[:JOBS_PER_PAGE], more=more, first=before is None)

    @public
    async def runs(self, request: web.Request) -> web.Response:
        """Jobs that their owners show to everybody, newest first, in pages."""
        before = _moment(request)
        found = list(await self._jobs.list_shared(JOBS_PER_PAGE + 1, before))
        more = found[JOBS_PER_PAGE - 1].created if len(found) > JOBS_PER_PAGE else None
        return self._renderer.page(request, "runs.html", jobs=found[:JOBS_PER_PAGE], more=more, first=before is None)

    @public
    async def compare(self, request: web.Request) -> web.Response:
        """Curves of several jobs on the same axes."""
        wanted = list(dict.fromkeys(job for job in request.query.getall("job", []) if is_id(job)))
        for job in wanted[: curves.MAX_COMPARED]:
            if not await self._jobs.is_shared(job):
                await self._jobs.check_owner(job, principal(request).account_id)
        runs = [(await self._jobs.get(job), await points_of(self._jobs, job)) for job in wanted[: curves.MAX_COMPARED]]
        return self._renderer.page(
            request,
            "compare.html",
            runs=runs,
            rows=differences([view for view, _ in runs]),
            left_out=max(0, len(wanted) - curves.MAX_COMPARED),
            most=curves.MAX_COMPARED,
        )


def _moment(request: web.Request) -> float | None:
    """Where a link of ours turns the page; whatever else somebody typed is its beginning."""
    text = request.query.get("before", "")
    return float(text) if re.fullmatch(r"[0-9]{1,11}(\.[0-9]{1,9})?", text) else None
