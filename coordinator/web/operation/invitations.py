"""``/api/v1/invitations``, and who may lend: for operators, and for owners on the network's list."""

from typing import Final

import msgspec
from aiohttp import web

from common.invitations import Invitation
from coordinator.domain.account import Scope
from coordinator.services.jobs.ports import NetworkPort
from coordinator.services.operation.ports import LendersPort
from coordinator.web import pagination as pages
from coordinator.web.auth import needs, principal
from coordinator.web.documents import read_document
from coordinator.web.http import API, answer
from coordinator.web.operation.routes import ordered_by
from coordinator.web.pages.render import server_of
from coordinator.web.route import Route
from protocol.rest.lending import InvitationView, LendersView, NewInvitation

_PLACE: Final = f"{API}/invitations"


class InvitationRoutes:
    """Handlers. ``public_url``: where others find this coordinator, if its operator has said so."""

    def __init__(self, lenders: LendersPort, network: NetworkPort, public_url: str | None) -> None:
        self._lenders = lenders
        self._network = network
        self._public_url = public_url

    def routes(self) -> list[Route]:
        """Every route of these handlers."""
        listed = "Invitations that were made with the account, oldest first; an operator sees all"
        made = "Make an invitation for one machine; its link is in this answer and never again"
        back = "Take an invitation back: nobody can use it, and the machine that has may lend no more"
        rule = "Who may lend, and what the list says"
        return [
            Route("GET", _PLACE, self.all, listed, list[InvitationView], pager=pages.INVITATIONS),
            Route("POST", _PLACE, self.make, made, InvitationView, NewInvitation, 201, (409,), secret=True),
            Route("DELETE", f"{_PLACE}/{{invitation}}", self.withdraw, back, InvitationView, None, 200, (404,)),
            Route("GET", f"{API}/admin/lenders", self.lenders, rule, LendersView),
        ]

    @needs(Scope.ACCOUNT)
    async def all(self, request: web.Request) -> web.Response:
        """GET invitations."""
        return pages.INVITATIONS.cut(request, await self._lenders.invitations(principal(request)))

    @needs(Scope.ACCOUNT)
    async def make(self, request: web.Request) -> web.Response:
        """POST invitations."""
        return answer(await self.made(request, await read_document(request, NewInvitation)), 201)

    @needs(Scope.ACCOUNT)
    async def withdraw(self, request: web.Request) -> web.Response:
        """DELETE invitations/{invitation}."""
        return answer(await self._lenders.withdraw(request.match_info["invitation"], ordered_by(request)))

    @needs(Scope.OPERATE)
    async def lenders(self, _request: web.Request) -> web.Response:
        """GET admin/lenders."""
        return answer(self._lenders.view())

    async def made(self, request: web.Request, new: NewInvitation) -> InvitationView:
        """A new invitation with its link, as whoever asks reaches this coordinator where nothing else was said."""
        view, code = await self._lenders.invite(new.note, new.days, ordered_by(request))
        url = (self._public_url or server_of(request)).rstrip("/")
        invitation = Invitation(url, (await self._network.view()).coordinator, code)
        return msgspec.structs.replace(view, link=invitation.link, page=invitation.page)
