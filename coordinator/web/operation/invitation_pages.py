"""The page of who may lend, and of invitations. It works without scripts."""

from typing import Final

from aiohttp import web

from coordinator.domain.account import Scope
from coordinator.errors import CottageError
from coordinator.services.jobs.ports import NetworkPort
from coordinator.services.operation.ports import LendersPort
from coordinator.web.auth import needs, principal
from coordinator.web.operation.invitations import InvitationRoutes
from coordinator.web.operation.routes import ordered_by
from coordinator.web.pages.account import read_form
from coordinator.web.pages.invitation import picture
from coordinator.web.pages.render import Renderer
from protocol import codec
from protocol.rest.lending import InvitationView, NewInvitation

SHOWN: Final = 200  # The newest; `cottage invite --list` has all.
LIVES: Final = (("1", "a day"), ("7", "a week"), ("30", "30 days"), ("365", "a year"))


class InvitationPages:
    """Handlers, for operators and whoever may invite."""

    def __init__(self, lenders: LendersPort, network: NetworkPort, renderer: Renderer, public_url: str | None) -> None:
        self._lenders = lenders
        self._renderer = renderer
        self._routes = InvitationRoutes(lenders, network, public_url)

    def register(self, app: web.Application) -> None:
        """Add the page to ``app``."""
        app.router.add_get("/invitations", self.page)
        app.router.add_post("/invitations", self.make)
        app.router.add_post("/invitations/{invitation}/withdraw", self.withdraw)

    @needs(Scope.ACCOUNT)
    async def page(self, request: web.Request) -> web.Response:
        """Who may lend, and the invitations that one sees."""
        return await self._show(request)

    @needs(Scope.ACCOUNT)
    async def make(self, request: web.Request) -> web.Response:
        """Make one, and show it this once."""
        form = await read_form(request)
        typed = {"note": form.get("note", ""), "days": int(days) if (days := form.get("days", "7")).isdecimal() else 0}
        try:
            made = await self._routes.made(request, codec.convert(typed, NewInvitation))
        except (CottageError, codec.MessageError) as error:
            status, told = (error.status, error.detail) if isinstance(error, CottageError) else (422, str(error))
            return await self._show(request, told, status)
        return await self._show(request, made=made)

    @needs(Scope.ACCOUNT)
    async def withdraw(self, request: web.Request) -> web.StreamResponse:
        """Take one back."""
        await read_form(request)
        await self._lenders.withdraw(request.match_info["invitation"], ordered_by(request))
        raise web.HTTPSeeOther("/invitations")

    async def _show(
        self, request: web.Request, problem: str = "", status: int = 200, made: InvitationView | None = None
    ) -> web.Response:
        who = principal(request)
        found = await self._lenders.invitations(who)
        return self._renderer.page(
            request,
            "invitations.html",
            status,
            lenders=self._lenders.view(),
            operates=Scope.OPERATE in who.scopes,
            may_invite=await self._lenders.may_invite(who),
            invitations=list(reversed(found))[:SHOWN],
            more=len(found) > SHOWN,
            lives=LIVES,
            made=made,
            picture=picture(made.page) if made is not None else None,
            problem=problem,
        )
