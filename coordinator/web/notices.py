"""What an account is told of its jobs: where, of what, and what became of it."""

from aiohttp import web

from coordinator.domain.account import Scope
from coordinator.services.jobs import ports
from coordinator.web import pagination as pages
from coordinator.web.auth import needs, principal
from coordinator.web.documents import read_document
from coordinator.web.http import API, answer, read_body
from coordinator.web.route import Route
from protocol.rest import api

_NOTICES = f"{API}/notices"
_CHANGES = (403, 409, 422, 503)


class NoticeRoutes:
    """Handlers of an account's notices."""

    def __init__(self, notices: ports.NoticesPort) -> None:
        self._notices = notices

    def routes(self) -> list[Route]:
        """Every route of these handlers."""
        settings, change = "Where the account is told what", "Say where to tell what; a new mail address is asked first"
        rotate = "A new secret for webhooks; the old one signs nothing more"
        confirm = "Confirm a mail address with what was sent there"
        test, log = "Send a test to every address that is switched on; how many", "What was sent, newest first"
        return [
            Route("GET", _NOTICES, self.get, settings, api.NoticesView),
            Route("PUT", _NOTICES, self.put, change, api.NoticesView, api.NewNotices, errors=_CHANGES),
            Route("POST", f"{_NOTICES}/secret", self.rotate, rotate, api.NoticesView, errors=_CHANGES),
            Route(
                "POST", f"{_NOTICES}/confirm", self.confirm, confirm, api.NoticesView, api.Confirmation, errors=_CHANGES
            ),
            Route("POST", f"{_NOTICES}/test", self.test, test, dict[str, int], errors=_CHANGES),
            Route("GET", f"{_NOTICES}/deliveries", self.log, log, list[api.Delivery], pager=pages.DELIVERIES),
        ]

    @needs(Scope.ACCOUNT)
    async def get(self, request: web.Request) -> web.Response:
        """GET notices."""
        return answer(await self._notices.get(principal(request).account_id))

    @needs(Scope.ACCOUNT)
    async def put(self, request: web.Request) -> web.Response:
        """PUT notices."""
        wanted = await read_document(request, api.NewNotices)
        return answer(await self._notices.put(principal(request).account_id, wanted))

    @needs(Scope.ACCOUNT)
    async def rotate(self, request: web.Request) -> web.Response:
        """POST notices/secret."""
        await read_body(request)
        return answer(await self._notices.rotate(principal(request).account_id))

    @needs(Scope.ACCOUNT)
    async def confirm(self, request: web.Request) -> web.Response:
        """POST notices/confirm."""
        given = await read_document(request, api.Confirmation)
        return answer(await self._notices.confirm(principal(request).account_id, given.token))

    @needs(Scope.ACCOUNT)
    async def test(self, request: web.Request) -> web.Response:
        """POST notices/test."""
        await read_body(request)
        return answer({"queued": await self._notices.test(principal(request).account_id)})

    @needs(Scope.ACCOUNT)
    async def log(self, request: web.Request) -> web.Response:
        """GET notices/deliveries."""
        window = pages.DELIVERIES.window(request)
        before = None if window.after is None else window.after[0]
        found = await self._notices.deliveries(principal(request).account_id, window.limit, before)
        return pages.DELIVERIES.page(request, found)
