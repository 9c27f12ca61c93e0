"""The page on which people talk with models of their jobs; its script asks ``/v1`` as any program does."""

from aiohttp import web

from coordinator.services.jobs import ports
from coordinator.web.auth import principal
from coordinator.web.completions.routes import MAX_MODELS
from coordinator.web.pages.render import Renderer
from protocol.serving import LONGEST


class Playground:
    """Handler of the page. Which models there are it leaves to ``GET /v1/models``, so both always say the same."""

    def __init__(self, jobs: ports.JobsPort, renderer: Renderer) -> None:
        self._jobs = jobs
        self._renderer = renderer

    def register(self, app: web.Application) -> None:
        """Add the page to ``app``."""
        app.router.add_get("/playground", self.page)

    async def page(self, request: web.Request) -> web.Response:
        """``model`` and ``beside`` of the address choose models; the script reads them."""
        jobs = await self._jobs.list(MAX_MODELS, None, principal(request).account_id)
        tuned = [job.id for job in jobs if job.spec.model.weight_files]
        return self._renderer.page(request, "playground.html", tuned=tuned, longest=LONGEST)
