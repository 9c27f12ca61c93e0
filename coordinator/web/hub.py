"""Models of the Hugging Face Hub by name."""

from aiohttp import web

from coordinator.domain.account import Scope
from coordinator.services.accounts.budgets import UPLOADS
from coordinator.services.artifacts.hub_models import HubModels
from coordinator.web.auth import costs, needs, principal
from coordinator.web.documents import read_document
from coordinator.web.http import API, answer
from coordinator.web.route import Route
from protocol.rest.api import Upload
from protocol.rest.hub import HubModelView, NewHubModel, Pull


class HubRoutes:
    """Handlers of the routes that fetch models from the Hub."""

    def __init__(self, hub: HubModels) -> None:
        self._hub = hub

    def routes(self) -> list[Route]:
        """Look up, and pull."""
        found = (
            "A public model of the Hugging Face Hub: its commit, licence and files, and what a job document says of it"
        )
        pulled = (
            "Go on with an upload of weights for some seconds, out of a model of the Hub; again until it is complete"
        )
        finds = (403, 413, 422, 503, 507)
        pulls = (403, 404, 409, 413, 422, 503, 507)
        return [
            Route("POST", f"{API}/hub-models", self.find, found, HubModelView, NewHubModel, 200, finds),
            Route("POST", f"{API}/uploads/{{upload}}/pull", self.pull, pulled, Upload, Pull, 200, pulls),
        ]

    @costs(UPLOADS)
    @needs(Scope.DATA_WRITE)
    async def find(self, request: web.Request) -> web.Response:
        """POST hub-models."""
        asked = await read_document(request, NewHubModel)
        return answer(await self._hub.find(asked.name, principal(request).account_id))

    @costs(None)
    @needs(Scope.DATA_WRITE)
    async def pull(self, request: web.Request) -> web.Response:
        """POST uploads/{upload}/pull."""
        asked = await read_document(request, Pull)
        return answer(await self._hub.pull(request.match_info["upload"], asked))
