"""The page of one job, its buttons, its log, and trying its model."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast, get_args

import msgspec
from aiohttp import hdrs, web

from common.invitations import Invitation
from coordinator.client.compare import settings
from coordinator.client.deployments import chats, curl_of, texts_only
from coordinator.client.text import parse_amount
from coordinator.domain.job import JobAction
from coordinator.errors import CottageError, NotFoundError
from coordinator.services.arrays.element_books import ElementsPort
from coordinator.services.jobs import ports
from coordinator.web.auth import owns, shared, visitor
from coordinator.web.pages import atlas
from coordinator.web.pages.account import read_form
from coordinator.web.pages.fresh import Fresh, is_live
from coordinator.web.pages.pipeline import drawing, pipeline
from coordinator.web.pages.render import NODE_LOOKS, Renderer, server_of
from coordinator.web.pages.serve import usual
from coordinator.web.stream import TERMINAL
from coordinator.web.transfers import job_id
from protocol.codec import MessageError, convert
from protocol.ids import NodeAddress
from protocol.rest import api

T = TypeVar("T")

MAX_EVENTS_SHOWN = 300
MAX_POINTS_READ = 100_000  # For one page; a chart has some hundred pixels.
MAX_ROWS_SHOWN = 500  # Of commitments, audits and receipts; all of them are in the interface.
LINES_PER_PAGE = 300
MAX_FAILURES_SHOWN = 20
MAX_SEARCH = 200
MAX_ID = 10**15
# Which buttons a job has, by its state.
PAUSABLE = frozenset({"funded", "planned", "running"})
STOPPABLE = frozenset({"planned", "running", "paused"})
ENDABLE = frozenset({"funded", "planned", "running", "paused"})
"""In which a deployment can be stopped: before it is paid for, it is cancelled."""


class JobPages:
    """Handlers of one job. A shared one is shown to everybody, without its buttons, log and files."""

    def __init__(
        self,
        jobs: ports.JobsPort,
        outputs: ports.OutputsPort,
        network: ports.NetworkPort,
        market: ports.MarketPort,
        elements: ElementsPort,
        renderer: Renderer,
        moment: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self._elements = elements
        self._moment = moment
        self._jobs = jobs
        self._outputs = outputs
        self._network = network
        self._market = market
        self._renderer = renderer
        self._fresh = Fresh()

    def register(self, app: web.Application) -> None:
        """Add the pages to ``app``."""
        for path, show in (
            ("/jobs/{job}", self.job),
            ("/jobs/{job}/cancel", self.confirm_cancel),
            ("/jobs/{job}/stop", self.confirm_stop),
            ("/jobs/{job}/logs", self.log),
        ):
            app.router.add_get(path, show)
        for word, do in (
            ("fund", self.fund),
            ("cancel", self.cancel),
            ("pause", self.pause),
            ("resume", self.resume),
            ("stop", self.stop),
            ("budget", self.budget),
            ("share", self.share),
            ("output", self.output),
            ("try", self.try_model),
        ):
            app.router.add_post(f"/jobs/{{job}}/{word}", do)

    @shared
    async def job(self, request: web.Request) -> web.Response:
        """One job, whole."""
        if not is_live(request):
            return await self._job(request)
        job, server, mine = job_id(request), server_of(request), await self._is_mine(request, job_id(request))

        async def make() -> str:
            values = await self._values(job, server, mine=mine)
            return self._renderer.html(request.path, _template(values["job"]), **values)

        return await self._fresh.answer((job, mine, server), make)

    async def confirm_cancel(self, request: web.Request) -> web.Response:
        """What cancelling means, before it is done."""
        return self._renderer.page(request, "cancel.html", job=await self._jobs.get(job_id(request)))

    async def confirm_stop(self, request: web.Request) -> web.Response:
        """What stopping means, before it is done."""
        return self._renderer.page(request, "stop.html", job=await self._jobs.get(job_id(request)))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Cancel, and show the job again."""
        await read_form(request)
        return await self._change(request, self._jobs.cancel(job_id(request)))

    async def fund(self, request: web.Request) -> web.StreamResponse:
        """Fund, or look for the escrow, and show the job again."""
        await read_form(request)
        return await self._change(request, self._jobs.fund(job_id(request)))

    async def pause(self, request: web.Request) -> web.StreamResponse:
        """Pause once the round in flight is safe."""
        await read_form(request)
        return await self._change(request, self._jobs.ask(job_id(request), JobAction.PAUSE))

    async def resume(self, request: web.Request) -> web.StreamResponse:
        """Go on."""
        await read_form(request)
        return await self._change(request, self._jobs.ask(job_id(request), JobAction.RESUME))

    async def stop(self, request: web.Request) -> web.StreamResponse:
        """End now and keep the model."""
        await read_form(request)
        return await self._change(request, self._jobs.ask(job_id(request), JobAction.STOP))

    async def budget(self, request: web.Request) -> web.StreamResponse:
        """Raise the cap."""
        typed = await read_form(request)
        try:
            amount = parse_amount(typed.get("amount", ""))
        except ValueError as error:
            return await self._job(request, str(error), 422)
        if amount == 0:
            return await self._job(request, "nothing would be added: type an amount above 0", 422)
        return await self._change(request, self._jobs.add_budget(job_id(request), amount))

    async def share(self, request: web.Request) -> web.StreamResponse:
        """Show the job to everybody, or to nobody else."""
        typed = await read_form(request)
        return await self._change(request, self._jobs.share(job_id(request), typed.get("shared") == "1"))

    async def output(self, request: web.Request) -> web.StreamResponse:
        """Name the bucket that the model goes to; an empty address takes it back."""
        typed, job, who = await read_form(request), job_id(request), visitor(request)
        given = {name: typed.get(name, "").strip() for name in ("url", "endpoint", "region", "key", "secret")}
        try:
            if not given["url"]:
                await self._outputs.remove_output(job)
            elif who is not None:
                filled = {name: value for name, value in given.items() if value}
                wanted = convert({**filled, "checkpoints": typed.get("checkpoints") == "1"}, api.NewOutput)
                await self._outputs.set_output(job, who.account_id, wanted)
        except NotFoundError:
            raise
        except MessageError as error:
            return await self._job(request, f"{error.field or 'bucket'}: {error}", 422)
        except CottageError as error:
            return await self._job(request, error.detail, error.status)
        raise web.HTTPSeeOther(f"/jobs/{job}", headers={hdrs.CACHE_CONTROL: "no-store"})

    async def log(self, request: web.Request) -> web.Response:
        """The job's log, the newest lines, searchable."""
        job, search = job_id(request), request.query.get("search", "").replace("\0", "")[:MAX_SEARCH]
        level = request.query.get("level", "info")
        level = level if level in get_args(ports.LogLevel) else "info"
        text = request.query.get("before", "")
        before = int(text) if text.isascii() and text.isdigit() and 0 < len(text) <= 15 else MAX_ID
        lines = await self._outputs.log(job, 0, before, search, cast(ports.LogLevel, level), LINES_PER_PAGE)
        ordered = sorted(lines, key=lambda line: line.id)
        return self._renderer.page(
            request,
            "logs.html",
            job=await self._jobs.get(job),
            lines=ordered,
            search=search,
            level=level,
            levels=get_args(ports.LogLevel),
            first=before == MAX_ID,
            more=ordered[0].id if len(lines) == LINES_PER_PAGE else None,
        )

    async def try_model(self, request: web.Request) -> web.Response:
        """Let the newest checkpoint continue a text; for browsers without scripts, which wait for all of it."""
        typed, job = await read_form(request), job_id(request)
        before, said, refused, status = "", "", "", 200
        try:
            wanted = {"prompt": typed.get("prompt", ""), "chat": "chat" in typed}
            asked = msgspec.convert(wanted, api.TrialRequest)
            said = await self._said(job, asked)
            if "start" in typed:
                before = await self._said(job, msgspec.structs.replace(asked, start=True))
        except msgspec.ValidationError:
            refused, status = f"the text must have 1 to {api.MAX_PROMPT:,} characters", 422
        except CottageError as error:
            refused, status = error.detail, error.status
        view = await self._jobs.get(job)
        return self._renderer.page(
            request,
            "try.html",
            status,
            job=view,
            prompt=typed.get("prompt", ""),
            chat="chat" in typed,
            beside="start" in typed,
            said=said,
            before=before,
            refused=refused,
        )

    async def _said(self, job: str, asked: api.TrialRequest) -> str:
        return "".join([str(piece.get("text", "")) async for piece in self._outputs.generate(job, None, asked)])

    async def _change(self, request: web.Request, change: Awaitable[api.JobView]) -> web.StreamResponse:
        try:
            await change
        except NotFoundError:
            raise
        except CottageError as error:
            return await self._job(request, error.detail, error.status)
        raise web.HTTPSeeOther(f"/jobs/{job_id(request)}", headers={hdrs.CACHE_CONTROL: "no-store"})

    async def _job(self, request: web.Request, refused: str = "", status: int = 200) -> web.Response:
        job = job_id(request)
        values = await self._values(job, server_of(request), mine=await self._is_mine(request, job))
        return self._renderer.page(request, _template(values["job"]), status, **values | {"refused": refused})

    async def _values(self, job: str, server: str, *, mine: bool) -> dict[str, Any]:
        """What the page of a job shows. ``mine``: to its owner."""
        # Where a coordinator stands by, this and the market take the way to the one at work; files may lie in a bucket. No
        # transaction waits for either.
        network = await self._network.view()
        async with self._moment():
            stored = await self._read(job, server, network, mine=mine)
        stored |= await self._of_files(stored["job"], mine=mine)
        members = {node.node for node in stored["nodes"] if node.state not in ("lost", "rejected")}
        return stored | {
            "drawing": drawing(stored["pipeline"], await self._market.links(members), NODE_LOOKS),
            "marks": atlas.marks(await self._market.regions(members))[0],
        }

    async def _of_files(self, view: api.JobView, *, mine: bool) -> dict[str, Any]:
        """What of it lies in files."""
        failed, trains = view.array is not None and view.array.failed > 0, view.spec.trains
        checkpoints = await self._outputs.checkpoints(view.id) if trains else ()
        return {
            "checkpoints": checkpoints,
            "serve": usual(view) if mine and trains and (checkpoints or view.model) else None,
            "failures": await self._elements.failures(view.id, MAX_FAILURES_SHOWN) if failed and mine else (),
        }

    async def _read(self, job: str, server: str, network: api.NetworkView, *, mine: bool) -> dict[str, Any]:
        """What of it is stored."""
        view = await self._jobs.get(job)
        served, trains = view.spec.serve is not None, view.spec.trains
        nodes = await self._jobs.nodes(job)
        shape = pipeline(nodes)
        return {
            "job": view,
            "mine": mine,
            "over": view.state in TERMINAL,
            "pausable": view.state in PAUSABLE,
            "stoppable": view.state in STOPPABLE and view.rounds_done > 0 if trains else view.state in ENDABLE,
            "nodes": nodes,
            "pipeline": shape,
            "map_size": (atlas.WIDTH, atlas.HEIGHT),
            "rounds": _latest(await self._jobs.rounds(job), MAX_ROWS_SHOWN),
            "commits": _latest(await self._jobs.commits(job), MAX_ROWS_SHOWN),
            "audits": _latest(await self._jobs.audits(job), MAX_ROWS_SHOWN),
            "receipts": _latest(await self._jobs.receipts(job), MAX_ROWS_SHOWN),
            "curl": curl_of(server, view.id, chats(view)) if served else "",
            "texts": texts_only(chats(view)) if served else "",
            "output": await self._output_of(job) if mine and trains else None,
            "metrics": await points_of(self._jobs, job) if trains else (),
            "events": _latest(await self._happened(job), MAX_EVENTS_SHOWN),
            "funding": await self._jobs.funding(job) if mine and view.state not in TERMINAL else None,
            "network": network,
            "refused": "",
            "settings": settings(view),
            "names": {node.node: node.name for node in nodes},
            "server": server,
            "federation_link": _invitation(view, server, network.coordinator),
        }

    async def _output_of(self, job: str) -> api.OutputView | None:
        try:
            return await self._outputs.output(job)
        except NotFoundError:
            return None

    async def _is_mine(self, request: web.Request, job: str) -> bool:
        """Whether the job is the reader's own."""
        who = visitor(request)
        if who is None or owns(request, "job"):
            return who is not None
        try:
            await self._jobs.check_owner(job, who.account_id)
        except NotFoundError:
            return False
        return True

    async def _happened(self, job: str) -> list[api.JobEvent]:
        """All events, which come in parts."""
        events: list[api.JobEvent] = []
        while len(events) < MAX_POINTS_READ:
            part = await self._jobs.events(job, events[-1].id if events else 0)
            events += part
            if len(part) < ports.MAX_ROWS:
                break
        return events


async def points_of(jobs: ports.JobsPort, job: str) -> list[api.Metric]:
    """All points of a job's curves, which come in parts."""
    points: list[api.Metric] = []
    while len(points) < MAX_POINTS_READ:
        part = await jobs.metrics(job, len(points))
        points += part
        if len(part) < ports.MAX_ROWS:
            break
    return points


def _invitation(view: api.JobView, server: str, key: NodeAddress) -> str:
    """The link for owners of data; empty where the job is no federation."""
    return "" if view.federation is None else Invitation(server.rstrip("/"), key, job=view.id).link


def _template(view: api.JobView) -> str:
    if view.spec.array is not None:
        return "array.html"
    return "job.html" if view.spec.serve is None else "deployment.html"


def _latest(rows: Sequence[T], limit: int) -> list[T]:
    """The last rows, newest first."""
    return list(rows)[: -limit - 1 : -1]
