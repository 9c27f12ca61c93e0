"""The page on which people talk with models of their jobs; its script asks ``/v1`` as any program does."""

from collections.abc import Mapping

from aiohttp import web

from coordinator.client.deployments import adapter_models, chats
from coordinator.services.jobs import ports
from coordinator.web.auth import principal
from coordinator.web.completions.routes import MAX_MODELS
from coordinator.web.pages.render import Renderer
from protocol.rest.api import JobView
from protocol.serving import LONGEST


def has_template(job: JobView, known: Mapping[str, JobView]) -> bool | None:
    """Whether a job's model has a chat template; None where neither the job tells nor, of ``known``, whose model it has."""
    for _ in range(len(known) + 1):
        if chats(job):
            return True
        if job.spec.model.from_job is None:
            return False
        if job.spec.model.from_job not in known:
            return None
        job = known[job.spec.model.from_job]
    return None


def _plain_adapters(deployment: JobView, known: Mapping[str, JobView]) -> list[str]:
    """The jobs whose adapters bring no chat template to a deployment whose model has none."""
    adapters = () if deployment.spec.serve is None else deployment.spec.serve.adapters
    return [one.job for one in adapters if one.job in known and has_template(known[one.job], known) is False]


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
        tuned = [job.id for job in jobs if job.spec.model.weight_files and job.spec.serve is None]
        deployed = [job for job in jobs if job.spec.serve is not None]
        served = [name for job in deployed for name in (job.id, *dict(adapter_models(job)))]
        held = [
            f"{job.id}={serve.weights}" for job in deployed if (serve := job.spec.serve) and serve.weights != "float32"
        ]
        contexts = [f"{job.id}={serve.context}" for job in deployed if (serve := job.spec.serve) and serve.context]
        known = {job.id: job for job in jobs}
        texts = [job.id for job in jobs if has_template(job, known) is False]
        texts += [f"{job.id}:{one}" for job in jobs if job.id in texts for one in _plain_adapters(job, known)]
        lists = {"tuned": tuned, "served": served, "held": held, "texts": texts, "contexts": contexts}
        return self._renderer.page(request, "playground.html", 200, longest=LONGEST, **lists)
