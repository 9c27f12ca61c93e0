"""Whatever a test asks, the answer must be one that the interface's document has. Used by tests, which need not know it."""

from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from coordinator.web.http import CLOSED


class Ears:
    """Hears every answer of an application: ``middleware`` goes in before any other."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, str, int], str] = {}

    @property
    def middleware(self) -> Any:
        """Notes which route answered with which status."""

        @web.middleware
        async def listen(request: web.Request, handler: Handler) -> web.StreamResponse:
            response = await handler(request)
            resource = request.match_info.route.resource
            if resource is not None and response.status != CLOSED:
                key = (request.method, resource.canonical, response.status)
                self._heard.setdefault(key, f"{request.method} {request.path_qs}")
            return response

        return listen

    def undocumented(self, document: dict[str, Any]) -> list[str]:
        """Answers that the document does not have, in words; routes that it does not have are not its business."""
        found = []
        for (method, path, status), asked in sorted(self._heard.items()):
            operation = document["paths"].get(path, {}).get("get" if method == "HEAD" else method.lower())
            if operation is not None and str(status) not in operation["responses"]:
                found.append(f"{asked} answers {status} {HTTPStatus(status).phrase}")
        return found
