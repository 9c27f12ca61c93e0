"""All pages, their files, and errors as pages."""

from aiohttp import hdrs, web

from coordinator.services import ports
from coordinator.services.checks import DatasetChecks
from coordinator.services.uploads import UploadService
from coordinator.web.auth import public
from coordinator.web.pages.ledger import LedgerPages
from coordinator.web.pages.render import STATIC_FOLDER, Renderer
from coordinator.web.pages.submit import Submit
from coordinator.web.pages.views import Views
from transport.wire.api import Problem

STATIC_SECONDS = 3600
_TITLES = {
    401: "Sign in first",
    403: "Not allowed",
    404: "Not here",
    405: "Not this way",
    413: "Too large",
    503: "Not now",
}
_PROGRAMS = ("/api/", "/healthz", "/readyz", "/openapi.json")


class Site:
    """The pages of a coordinator."""

    def __init__(
        self,
        jobs: ports.Jobs,
        network: ports.Network,
        books: ports.Books,
        uploads: UploadService,
        checks: DatasetChecks,
    ) -> None:
        self._renderer = Renderer()
        self._ledger = LedgerPages(jobs, books, self._renderer)
        self._views = Views(jobs, network, self._renderer)
        self._submit = Submit(jobs, network, uploads, checks, self._renderer)

    def register(self, app: web.Application) -> None:
        """Add the pages and their files to ``app``."""
        self._views.register(app)
        self._ledger.register(app)
        self._submit.register(app)
        app.router.add_static("/static", STATIC_FOLDER)
        app.router.add_get("/favicon.ico", _icon)
        app.on_response_prepare.append(_cache)

    def error_page(self, request: web.Request, status: int, problem: Problem) -> web.Response | None:
        """The error for a person, or None where a program asks."""
        if request.path.startswith(_PROGRAMS) or "text/html" not in request.headers.get(hdrs.ACCEPT, ""):
            return None
        title = _TITLES.get(status, "That did not work")
        return self._renderer.page(request, "error.html", status, title=title, problem=problem)


@public
async def _icon(_request: web.Request) -> web.StreamResponse:
    return web.FileResponse(STATIC_FOLDER / "cottage.svg")


async def _cache(request: web.Request, response: web.StreamResponse) -> None:
    if request.path.startswith("/static/") and response.status in (200, 304):
        response.headers[hdrs.CACHE_CONTROL] = f"public, max-age={STATIC_SECONDS}"
