"""The container images that an account has pushed. They arrive as uploads (``tus``)."""

from aiohttp import web

from coordinator.domain.account import Scope
from coordinator.services.arrays.published_images import PublishedImages
from coordinator.web import pagination as pages
from coordinator.web.auth import needs, principal
from coordinator.web.http import API
from coordinator.web.route import Route
from protocol.rest.images import PublishedImageView


class ImageRoutes:
    """Handlers of an account's images."""

    def __init__(self, images: PublishedImages) -> None:
        self._images = images

    def routes(self) -> list[Route]:
        """Every route of these handlers."""
        summary = "Container images that the account has pushed, newest first"
        return [Route("GET", f"{API}/images", self.list, summary, list[PublishedImageView], pager=pages.IMAGES)]

    @needs(Scope.JOBS_READ)
    async def list(self, request: web.Request) -> web.Response:
        """GET images."""
        return pages.IMAGES.cut(request, await self._images.of_account(principal(request).account_id))
