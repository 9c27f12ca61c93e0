"""Pages about what is: home, jobs, one job; and the buttons of a job."""

import re
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import msgspec
from aiohttp import hdrs, web

from coordinator.errors import CottageError, NotFoundError
from coordinator.services import ports
from coordinator.web.auth import principal, public, visitor
from coordinator.web.http import read_body
from coordinator.web.pages import atlas, curves
from coordinator.web.pages.pipeline import drawing, pipeline
from coordinator.web.pages.render import CSRF_FIELD, NODE_LOOKS, Renderer, check_csrf, server_of
from coordinator.web.stream import TERMINAL
from coordinator.web.transfers import job_id
from transport.wire import api

T = TypeVar("T")

JOBS_PER_PAGE = 30
JOBS_AT_HOME = 5
MAX_FORM_BYTES = 4096  # A token and nothing else.
MAX_EVENTS_SHOWN = 300
MAX_POINTS_READ = 100_000  # For one page; a chart has some hundred pixels.
MAX_ROWS_SHOWN = 500  # Of commitments, audits and receipts; all of them are in the interface.


class Views:
    """Handlers of the pages."""

    def __init__(self, jobs: ports.Jobs, network: ports.Network, market: ports.Market, renderer: Renderer) -> None:
        self._jobs = jobs
        self._network = network
        self._market = market
        self._renderer = renderer

    def register(self, app: web.Application) -> None:
        """Add the pages to ``app``."""
        for path, handler in (
            ("/", self.home),
            ("/jobs", self.jobs),
            ("/jobs/{job}", self.job),
            ("/compare", self.compare),
            ("/jobs/{job}/cancel", self.confirm_cancel),
        ):
            app.router.add_get(path, handler)
        app.router.add_post("/jobs/{job}/cancel", self.cancel)
        app.router.add_post("/jobs/{job}/fund", self.fund)

    @public
    async def home(self, request: web.Request) -> web.Response:
        """What this is, and how the network does."""
        view, who = await self._network.view(), visitor(request)
        jobs = await self._jobs.list(JOBS_AT_HOME, None, who.account_id) if who is not None else ()
        return self._renderer.page(request, "home.html", network=view, jobs=jobs)

    async def jobs(self, request: web.Request) -> web.Response:
        """Jobs, newest first, in pages."""
        text = request.query.get("before", "")
        before = float(text) if re.fullmatch(r"[0-9]{1,11}(\.[0-9]{1,9})?", text) else None
        found = list(await self._jobs.list(JOBS_PER_PAGE + 1, before, principal(request).account_id))
        more = found[JOBS_PER_PAGE - 1].created if len(found) > JOBS_PER_PAGE else None
        return self._renderer.page(request, "jobs.html", jobs=found[:JOBS_PER_PAGE], more=more, first=before is None)

    async def job(self, request: web.Request) -> web.Response:
        """One job, whole."""
        return await self._job(request)

    async def compare(self, request: web.Request) -> web.Response:
        """Curves of several jobs on the same axes."""
        wanted = list(
            dict.fromkeys(job for job in request.query.getall("job", []) if re.fullmatch(r"[0-9a-f]{32}", job))
        )
        for job in wanted[: curves.MAX_COMPARED]:
            await self._jobs.check_owner(job, principal(request).account_id)
        runs = [(await self._jobs.get(job), await self._points(job)) for job in wanted[: curves.MAX_COMPARED]]
        return self._renderer.page(
            request,
            "compare.html",
            runs=runs,
            rows=differences([view for view, _ in runs]),
            left_out=max(0, len(wanted) - curves.MAX_COMPARED),
            most=curves.MAX_COMPARED,
        )

    async def confirm_cancel(self, request: web.Request) -> web.Response:
        """What cancelling means, before it is done."""
        return self._renderer.page(request, "cancel.html", job=await self._jobs.get(job_id(request)))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Cancel, and show the job again."""
        await self._check(request)
        return await self._change(request, self._jobs.cancel(job_id(request)))

    async def fund(self, request: web.Request) -> web.StreamResponse:
        """Fund, or look for the escrow, and show the job again."""
        await self._check(request)
        return await self._change(request, self._jobs.fund(job_id(request)))

    async def _change(self, request: web.Request, change: Awaitable[api.JobView]) -> web.StreamResponse:
        try:
            await change
        except NotFoundError:
            raise
        except CottageError as error:
            return await self._job(request, error.detail, error.status)
        raise web.HTTPSeeOther(f"/jobs/{job_id(request)}", headers={hdrs.CACHE_CONTROL: "no-store"})

    async def _check(self, request: web.Request) -> None:
        body = (await read_body(request, MAX_FORM_BYTES)).decode("ascii", "replace")
        found = re.search(rf"(?:^|&){CSRF_FIELD}=([0-9a-f]{{64}})(?:&|$)", body)
        check_csrf(request, found[1] if found else None)

    async def _job(self, request: web.Request, refused: str = "", status: int = 200) -> web.Response:
        job = job_id(request)
        view = await self._jobs.get(job)
        nodes = await self._jobs.nodes(job)
        shape = pipeline(nodes)
        members = {node.node for node in nodes if node.state not in ("lost", "rejected")}
        funding = await self._jobs.funding(job) if view.state == "created" else None
        return self._renderer.page(
            request,
            "job.html",
            status,
            job=view,
            over=view.state in TERMINAL,
            nodes=nodes,
            pipeline=shape,
            drawing=drawing(shape, await self._market.links(members), NODE_LOOKS),
            marks=atlas.marks(await self._market.regions(members))[0],
            map_size=(atlas.WIDTH, atlas.HEIGHT),
            rounds=_latest(await self._jobs.rounds(job), MAX_ROWS_SHOWN),
            commits=_latest(await self._jobs.commits(job), MAX_ROWS_SHOWN),
            audits=_latest(await self._jobs.audits(job), MAX_ROWS_SHOWN),
            receipts=_latest(await self._jobs.receipts(job), MAX_ROWS_SHOWN),
            metrics=await self._points(job),
            events=_latest(await self._happened(job), MAX_EVENTS_SHOWN),
            funding=funding,
            network=await self._network.view(),
            refused=refused,
            settings=settings(view),
            names={node.node: node.name for node in nodes},
            server=server_of(request),
        )

    async def _points(self, job: str) -> list[api.Metric]:
        """All points of the curves, which come in parts."""
        points: list[api.Metric] = []
        while len(points) < MAX_POINTS_READ and (part := await self._jobs.metrics(job, len(points))):
            points += part
        return points

    async def _happened(self, job: str) -> list[api.JobEvent]:
        """All events, which come in parts."""
        events: list[api.JobEvent] = []
        while len(events) < MAX_POINTS_READ and (part := await self._jobs.events(job, events[-1].id if events else 0)):
            events += part
        return events


def _latest(rows: Sequence[T], limit: int) -> list[T]:
    """The last rows, newest first."""
    return list(rows)[: -limit - 1 : -1]


def settings(view: api.JobView) -> list[tuple[str, str]]:
    """The job document as pairs, flat, in the words of the interface."""
    flat: list[tuple[str, str]] = []
    queue: list[tuple[str, Any]] = [("", msgspec.to_builtins(view.spec))]
    while queue:
        name, value = queue.pop(0)
        if isinstance(value, dict) and value:
            queue[0:0] = [(f"{name}.{key}" if name else str(key), part) for key, part in value.items()]
        elif value not in (None, ""):
            flat.append((name, str(value)))
    return flat


def differences(views: Sequence[api.JobView]) -> list[tuple[str, list[str]]]:
    """Settings in which the jobs differ: name, and each job's value."""
    tables = [dict(settings(view)) for view in views]
    names = list(dict.fromkeys(name for table in tables for name in table if name != "name"))
    rows = [(name, [table.get(name, "") for table in tables]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]
