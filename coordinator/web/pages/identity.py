"""Signing in through the organisation's identity provider: the way there, and the way back.

The way there is a form of ours, so that no other site's page begins it. It is answered with a page that goes on by itself, and
not with a redirect: browsers hold a form's redirects to the ``form-action`` of the page, and a provider may lead on to another.
"""

from typing import Final

from aiohttp import hdrs, web

from coordinator.domain.account import Scope
from coordinator.errors import CottageError, InvalidError, NotFoundError
from coordinator.services.accounts.challenges import CHALLENGE_S
from coordinator.services.accounts.identities import IdentitySignIn, ProviderAnswer
from coordinator.web.auth import Auth, needs, public, visitor
from coordinator.web.auth.gate import address_of, person
from coordinator.web.http import say_when
from coordinator.web.pages.account import AccountPages, after, read_form
from coordinator.web.pages.render import Renderer

BACK: Final = "/sign-in/identity"
"""Where the provider leads back to: the address that is entered there, behind the coordinator's own."""
COOKIE: Final = "cottage_identity"
SECURE_COOKIE: Final = "__Host-cottage_identity"  # As of the session: no other site of the domain can plant it.
WORDS: Final = ("state", "code", "iss", "error", "error_description")


class IdentityPages:
    """Handlers. ``pages``: where what went wrong is shown."""

    def __init__(self, auth: Auth, pages: AccountPages, renderer: Renderer) -> None:
        self._auth = auth
        self._pages = pages
        self._renderer = renderer

    def register(self, app: web.Application) -> None:
        """Add the pages to ``app``."""
        app.router.add_post(BACK, self.begin)
        app.router.add_get(BACK, self.back)
        app.router.add_post("/account/identities", self.begin_adding)

    @public
    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Go to the provider to sign in, or up."""
        typed = await read_form(request)
        there, code = after(typed.get("next")), typed.get("code", "")
        try:
            to, browser = await self._identities().begin(self._redirect(request), there, address_of(request), code)
        except CottageError as error:
            first = await self._auth.sign_in.needs_code()
            page = "sign_up.html" if first else "sign_in.html"
            return self._pages.door(request, page, error.status, typed, error, first=first)
        return self._leading(request, to, browser)

    @needs(Scope.ACCOUNT)
    async def begin_adding(self, request: web.Request) -> web.StreamResponse:
        """Go to the provider to let an identity there sign this account in."""
        await read_form(request)
        account = await self._auth.accounts.get(person(request).account_id)
        try:
            to, browser = await self._identities().begin_adding(
                account, self._redirect(request), "/account#ways", address_of(request)
            )
        except CottageError as error:
            return await self._failed(request, error, adds=True)
        return self._leading(request, to, browser)

    @public
    async def back(self, request: web.Request) -> web.StreamResponse:
        """The browser comes back from the provider."""
        adds = False
        try:
            answer = _answer_in(request)
            adds = answer.adds
            gone = await self._arrive(request, answer)
        except CottageError as error:
            failed = await self._failed(request, error, adds)
            self._forget(request, failed)
            return failed
        self._forget(request, gone)
        return gone

    async def _arrive(self, request: web.Request, answer: ProviderAnswer) -> web.StreamResponse:
        identities, browser = self._identities(), request.cookies.get(_cookie_name(request), "")
        if not answer.adds:
            account, there = await identities.finish(answer, browser, address_of(request))
            return await self._pages.enter(request, account.id, "identity", there)
        account = await self._auth.accounts.get(person(request).account_id)
        there = await identities.finish_adding(account, answer, browser, address_of(request))
        return _led(there)

    async def _failed(self, request: web.Request, error: CottageError, adds: bool) -> web.Response:
        """What went wrong, beside what somebody can try next."""
        if adds and visitor(request) is not None:
            shown = await self._pages.show(request, error.detail, error.status)
            say_when(shown, error)
            return shown
        return self._pages.door(request, "sign_in.html", error.status, {}, error)

    def _leading(self, request: web.Request, to: str, browser: str) -> web.Response:
        shown = self._renderer.page(request, "to_identity.html", to=to, provider=self._identities().host)
        shown.set_cookie(
            _cookie_name(request),
            browser,
            max_age=int(CHALLENGE_S),
            path="/",
            httponly=True,
            samesite="Lax",  # Strict would not come back: the provider's page leads here.
            secure=request.secure,
        )
        return shown

    def _forget(self, request: web.Request, response: web.StreamResponse) -> None:
        response.del_cookie(_cookie_name(request), path="/", secure=request.secure)

    def _redirect(self, request: web.Request) -> str:
        return self._auth.site(request).origin + BACK

    def _identities(self) -> IdentitySignIn:
        if self._auth.identities is None:
            raise NotFoundError("this coordinator has no identity provider: sign in another way")
        return self._auth.identities


def _led(there: str) -> web.Response:
    return web.Response(status=303, headers={hdrs.LOCATION: there, hdrs.CACHE_CONTROL: "no-store"})


def _answer_in(request: web.Request) -> ProviderAnswer:
    """What the browser brought.

    Raises:
        InvalidError: it has a part twice, so that two readers of it could take another one each (RFC 6749, section 3.1).
    """
    found = {name: request.query.getall(name, []) for name in WORDS}
    if twice := [name for name, values in found.items() if len(values) > 1]:
        raise InvalidError(f"this answer of the identity provider has {twice[0]!r} twice: begin again", twice[0])
    state, code, issuer, error, description = (values[0] if values else None for values in found.values())
    return ProviderAnswer(state or "", code or "", issuer, error or "", description or "")


def _cookie_name(request: web.Request) -> str:
    return SECURE_COOKIE if request.secure else COOKIE
