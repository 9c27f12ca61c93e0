"""All pages, their files, and errors as pages."""

import difflib
from urllib.parse import quote

from aiohttp import hdrs, web

from coordinator.web.arrays.pages import ArraySubmit
from coordinator.web.auth import public
from coordinator.web.operation.invitation_pages import InvitationPages
from coordinator.web.operation.pages import OperationPages
from coordinator.web.pages.disputes import DisputePages
from coordinator.web.pages.downloads import Downloads
from coordinator.web.pages.guides import Guides
from coordinator.web.pages.invitation import InvitationPage
from coordinator.web.pages.job import JobPages
from coordinator.web.pages.ledger import LedgerPages
from coordinator.web.pages.market import MarketPages
from coordinator.web.pages.playground import Playground
from coordinator.web.pages.reference import Reference
from coordinator.web.pages.render import STATIC_FOLDER, Renderer
from coordinator.web.pages.serve import ServePages
from coordinator.web.pages.submit import Submit
from coordinator.web.pages.views import Views
from coordinator.web.services import Services
from protocol.rest.api import Problem

STATIC_S = 3600
_TITLES = {
    401: "Sign in first",
    403: "Not allowed",
    404: "Not here",
    405: "Not this way",
    413: "Too large",
    429: "Too fast",
    503: "Not now",
}
PLACES = {
    "/network": "Network",
    "/machines": "Machines",
    "/lenders": "Lenders",
    "/status": "Status",
    "/runs": "Public runs",
    "/jobs": "Jobs",
    "/compare": "Compare runs",
    "/playground": "Playground",
    "/submit": "Train a model",
    "/earn": "What would my GPU earn",
    "/earnings": "Earnings",
    "/download": "Download",
    "/join": "Join this network",
    "/invitations": "Who may lend",
    "/ledger": "Ledger",
    "/ledger/audits": "Audits",
    "/ledger/disputes": "Disputes",
    "/docs": "Documents",
    "/admin": "Operate",
}
_PROGRAMS = ("/api/", "/healthz", "/readyz", "/openapi.json")


class Site:
    """The pages of a coordinator."""

    def __init__(self, services: Services) -> None:
        jobs, network, market = services.jobs, services.network, services.market
        self._renderer = renderer = Renderer()
        self.reference = Reference(renderer)
        self._parts = (
            Views(jobs, network, renderer),
            JobPages(jobs, services.outputs, network, market, services.elements, renderer, services.moment),
            ServePages(jobs, network, renderer),
            Playground(jobs, renderer),
            MarketPages(network, market, services.withdrawals, renderer),
            LedgerPages(jobs, services.books, renderer),
            DisputePages(services.books, renderer),
            Submit(jobs, network, services.uploads, services.checks, renderer),
            ArraySubmit(jobs, network, services.uploads, services.images, renderer),
            self.reference,
            Guides(renderer),
            Downloads(renderer, services.downloads),
            OperationPages(services.operation, renderer),
            InvitationPages(services.lenders, network, renderer, services.public_url),
            InvitationPage(network, renderer, services.public_url),
        )

    @property
    def renderer(self) -> Renderer:
        """What draws pages."""
        return self._renderer

    def register(self, app: web.Application) -> None:
        """Add the pages and their files to ``app``."""
        for part in self._parts:
            part.register(app)
        app.router.add_static("/static", STATIC_FOLDER)
        app.router.add_get("/favicon.ico", _icon)
        app.on_response_prepare.append(_cache)

    def error_page(self, request: web.Request, status: int, problem: Problem) -> web.Response | None:
        """The error for a person, or None where a program asks."""
        if request.path.startswith(_PROGRAMS) or "text/html" not in request.headers.get(hdrs.ACCEPT, ""):
            return None
        if status == 401 and request.method == hdrs.METH_GET:
            return _to_sign_in(request)
        title = _TITLES.get(status, "That did not work")
        near = _near(request.path) if status == 404 else []
        return self._renderer.page(
            request, "error.html", status, status=status, title=title, problem=problem, near=near
        )


def _near(path: str) -> list[tuple[str, str]]:
    """Pages whose address is nearly what somebody typed."""
    first = "/" + path[1:60].casefold().partition("/")[0]
    return [(address, PLACES[address]) for address in difflib.get_close_matches(first, PLACES, 3, 0.6)]


@public
async def _icon(_request: web.Request) -> web.StreamResponse:
    return web.FileResponse(STATIC_FOLDER / "cottage.svg")


def _to_sign_in(request: web.Request) -> web.Response:
    back = quote(request.path_qs[:500], safe="")
    return web.Response(status=303, headers={hdrs.LOCATION: f"/sign-in?next={back}", hdrs.CACHE_CONTROL: "no-store"})


async def _cache(request: web.Request, response: web.StreamResponse) -> None:
    if request.path.startswith("/static/") and response.status in (200, 304):
        response.headers[hdrs.CACHE_CONTROL] = f"public, max-age={STATIC_S}"
