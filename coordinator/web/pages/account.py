"""Signing in and up, and the account's own page: keys, ways to sign in, sessions, the trail."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote

import msgspec
from aiohttp import hdrs, web

from common.untrusted_text import untrusted
from coordinator.domain.account import SCOPE_WORDS, Role, Scope
from coordinator.errors import CottageError, ForbiddenError, InvalidError
from coordinator.services.accounts.signin import WalletAnswer
from coordinator.web.auth import Auth, needs, principal, public, visitor
from coordinator.web.auth.gate import address_of, cookie_name, person
from coordinator.web.http import answer, read_body, say_when
from coordinator.web.pages.render import CSRF_COOKIE, CSRF_FIELD, Renderer, check_csrf
from protocol import codec

MAX_FORM_BYTES = 40_000  # A text to try a model with, at its longest, escaped.
MAX_FIELDS = 40
MAX_TRAIL = 50
SESSION_S: Final = 30 * 86_400
LIVES: Final[Mapping[str, float | None]] = {"30": 30 * 86_400.0, "90": 90 * 86_400.0, "365": 365 * 86_400.0, "": None}


class Returned(msgspec.Struct, frozen=True):
    """Where the page goes on after a script has signed in."""

    next: str


class AccountPages:
    """Handlers of everything about who somebody is."""

    def __init__(self, auth: Auth, renderer: Renderer) -> None:
        self._auth = auth
        self._accounts = auth.accounts
        self._renderer = renderer
        self._provider = "" if auth.identities is None else auth.identities.host

    def register(self, app: web.Application) -> None:
        """Add the pages to ``app``."""
        gets: list[tuple[str, Callable[..., Any]]] = [
            ("/sign-in", self.sign_in),
            ("/sign-up", self.sign_up),
            ("/account", self.account),
            ("/account/trail", self.trail),
        ]
        posts: list[tuple[str, Callable[..., Any]]] = [
            ("/sign-in", self.send_sign_in),
            ("/sign-up", self.send_sign_up),
            ("/sign-out", self.sign_out),
            ("/sign-in/wallet/challenge", self.wallet_challenge),
            ("/sign-in/wallet", self.wallet),
            ("/sign-in/passkey/challenge", self.passkey_challenge),
            ("/sign-in/passkey", self.passkey),
            ("/account/password", self.password),
            ("/account/wallets", self.link_wallet),
            ("/account/passkeys/challenge", self.new_passkey),
            ("/account/passkeys", self.keep_passkey),
            ("/account/keys", self.new_key),
            ("/account/keys/{key}/revoke", self.revoke_key),
            ("/account/sessions/{session}/end", self.end_session),
            ("/account/credentials/{credential}/remove", self.remove_credential),
        ]
        for path, handler in gets:
            app.router.add_get(path, handler)
        for path, handler in posts:
            app.router.add_post(path, handler)

    # --- in, up and out -----------------------------------------------------------------------------------------------------

    @public
    async def sign_in(self, request: web.Request) -> web.StreamResponse:
        """The form."""
        if visitor(request) is not None:
            raise web.HTTPSeeOther(after(request.query.get("next")))
        if await self._auth.sign_in.needs_code():
            raise web.HTTPSeeOther("/sign-up")
        return self.door(request, "sign_in.html", 200, {})

    @public
    async def send_sign_in(self, request: web.Request) -> web.StreamResponse:
        """Name and password."""
        typed = await read_form(request)
        try:
            account = await self._auth.sign_in.with_password(
                typed.get("name", ""), typed.get("password", ""), address_of(request)
            )
        except CottageError as error:
            return self.door(request, "sign_in.html", error.status, typed, error)
        return await self.enter(request, account.id, "password", after(typed.get("next")))

    @public
    async def sign_up(self, request: web.Request) -> web.StreamResponse:
        """The form; for the first account with a field for the operator's code."""
        if visitor(request) is not None:
            raise web.HTTPSeeOther("/account")
        first = await self._auth.sign_in.needs_code()
        return self.door(request, "sign_up.html", 200, {"code": request.query.get("code", "")[:100]}, first=first)

    @public
    async def send_sign_up(self, request: web.Request) -> web.StreamResponse:
        """A new account."""
        typed = await read_form(request)
        first = await self._auth.sign_in.needs_code()
        name, password, code = (typed.get(field, "") for field in ("name", "password", "code"))
        try:
            if password != typed.get("again", ""):
                raise InvalidError("the two passwords differ: type the same one twice", "again")
            account = await self._auth.sign_in.sign_up(name, password, code, address_of(request))
        except CottageError as error:
            return self.door(request, "sign_up.html", error.status, typed, error, first=first)
        return await self.enter(request, account.id, "password", "/jobs" if not first else "/account")

    @needs(Scope.JOBS_READ)
    async def sign_out(self, request: web.Request) -> web.StreamResponse:
        """End this browser's session."""
        await read_form(request)
        who = principal(request)
        if who.session:
            await self._accounts.end_session(who.account_id, who.session, address_of(request))
        gone = web.HTTPSeeOther("/")
        gone.del_cookie(cookie_name(request), path="/", secure=request.secure)
        gone.del_cookie(CSRF_COOKIE, path="/")
        raise gone

    # --- wallets and passkeys, which need a script ----------------------------------------------------------------------------

    @public
    async def wallet_challenge(self, request: web.Request) -> web.Response:
        """What the wallet shall sign."""
        await read_json(request)
        site = self._auth.site(request)
        return answer(await self._auth.sign_in.challenge(site.domain, site.origin, address_of(request)))

    @public
    async def wallet(self, request: web.Request) -> web.StreamResponse:
        """Sign in with what it signed."""
        said: WalletAnswer = codec.decode_json(await read_json(request), WalletAnswer)
        account = await self._auth.sign_in.with_wallet(said, address_of(request))
        return await self._enter_by_script(request, account.id, "wallet")

    @needs(Scope.ACCOUNT)
    async def link_wallet(self, request: web.Request) -> web.Response:
        """Let a wallet sign this account in."""
        said: WalletAnswer = codec.decode_json(await read_json(request), WalletAnswer)
        account = await self._accounts.get(person(request).account_id)
        await self._auth.sign_in.link_wallet(account, said, address_of(request))
        return answer(Returned("/account"))

    @public
    async def passkey_challenge(self, request: web.Request) -> web.Response:
        """What the browser needs to sign in with a passkey."""
        await read_json(request)
        self._auth.sign_in.may_try(f"from {address_of(request)}")
        return answer(await self._auth.passkeys.begin(self._auth.site(request).host))

    @public
    async def passkey(self, request: web.Request) -> web.StreamResponse:
        """Sign in with a passkey."""
        said: dict[str, Any] = codec.decode_json(await read_json(request), dict[str, Any])
        site = self._auth.site(request)
        account = await self._auth.passkeys.finish(said, site.host, site.origin)
        return await self._enter_by_script(request, account.id, "passkey")

    @needs(Scope.ACCOUNT)
    async def new_passkey(self, request: web.Request) -> web.Response:
        """What the browser needs to make a passkey."""
        await read_json(request)
        account = await self._accounts.get(person(request).account_id)
        return answer(await self._auth.passkeys.begin_making(account, self._auth.site(request).host))

    @needs(Scope.ACCOUNT)
    async def keep_passkey(self, request: web.Request) -> web.Response:
        """Keep the passkey that the browser made."""
        said: dict[str, Any] = codec.decode_json(await read_json(request), dict[str, Any])
        site, account = self._auth.site(request), await self._accounts.get(person(request).account_id)
        name = _device(request)
        await self._auth.passkeys.finish_making(account, said, site.host, site.origin, name, address_of(request))
        return answer(Returned("/account"))

    # --- the account's page -------------------------------------------------------------------------------------------------

    @needs(Scope.ACCOUNT)
    async def account(self, request: web.Request) -> web.Response:
        """Everything about the account."""
        return await self.show(request)

    @needs(Scope.ACCOUNT)
    async def trail(self, request: web.Request) -> web.Response:
        """What was done, page by page; the operator may see everybody's."""
        who = principal(request)
        everybody = Scope.OPERATE in who.scopes and request.query.get("of") == "everybody"
        text = request.query.get("before", "")
        before = int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None
        found = await self._accounts.trail(None if everybody else who.account_id, before, MAX_TRAIL + 1)
        names = {one.id: one.name for one in await self._accounts.all()} if everybody else {who.account_id: who.name}
        more = found[MAX_TRAIL - 1].id if len(found) > MAX_TRAIL else None
        return self._renderer.page(
            request,
            "trail.html",
            200,
            trail=found[:MAX_TRAIL],
            more=more,
            everybody=everybody,
            names=names,
            operator=Scope.OPERATE in who.scopes,
        )

    @needs(Scope.ACCOUNT)
    async def password(self, request: web.Request) -> web.StreamResponse:
        """Another password; every other browser is signed out."""
        typed = await read_form(request)
        who = person(request)
        try:
            if typed.get("password", "") != typed.get("again", ""):
                raise InvalidError("the two passwords differ: type the same one twice", "again")
            account = await self._accounts.get(who.account_id)
            await self._auth.sign_in.change_password(
                account, typed.get("old", ""), typed.get("password", ""), address_of(request)
            )
        except CottageError as error:
            return await self.show(request, error.detail, error.status)
        return await self.enter(request, who.account_id, "password", "/account")

    @needs(Scope.ACCOUNT)
    async def new_key(self, request: web.Request) -> web.Response:
        """A new API key, shown this once."""
        form = await read_fields(request)
        typed = dict(form)
        scopes = {value for name, value in form if name == "scope"}
        try:
            if unknown := scopes - set(Scope):
                raise InvalidError(f"there is no scope {min(unknown)[:40]!r}", "scopes")
            _, text = await self._accounts.create_key(
                person(request),
                typed.get("name", ""),
                frozenset(Scope(one) for one in scopes),
                LIVES.get(typed.get("life", "90")),
                address_of(request),
            )
        except CottageError as error:
            return await self.show(request, error.detail, error.status)
        return await self.show(request, key=text)

    @needs(Scope.ACCOUNT)
    async def revoke_key(self, request: web.Request) -> web.StreamResponse:
        """End a key."""
        return await self._end(request, "key", self._accounts.revoke_key, "keys")

    @needs(Scope.ACCOUNT)
    async def end_session(self, request: web.Request) -> web.StreamResponse:
        """Sign another browser out."""
        return await self._end(request, "session", self._accounts.end_session, "sessions")

    @needs(Scope.ACCOUNT)
    async def remove_credential(self, request: web.Request) -> web.StreamResponse:
        """A wallet, passkey or identity signs in no more."""
        return await self._end(request, "credential", self._accounts.remove_credential, "ways")

    # --- helpers ------------------------------------------------------------------------------------------------------------

    async def _end(
        self, request: web.Request, what: str, end: Callable[[str, str, str], Awaitable[None]], part: str
    ) -> web.StreamResponse:
        """Take one of the account's things away, and show that part of its page again."""
        await read_form(request)
        await end(principal(request).account_id, request.match_info[what], address_of(request))
        raise web.HTTPSeeOther(f"/account#{part}")

    def door(
        self,
        request: web.Request,
        page: str,
        status: int,
        typed: Mapping[str, str],
        error: CottageError | None = None,
        first: bool = False,
    ) -> web.Response:
        """The page to sign in or up, with what was typed and what is wrong with it."""
        wanted = after(typed.get("next") or request.query.get("next"))
        shown = self._renderer.page(
            request,
            page,
            status,
            typed=typed,
            problem=error.detail if error else "",
            wanted=wanted,
            first=first,
            quoted=quote(wanted, safe=""),
            provider=self._provider,
        )
        if error is not None:
            say_when(shown, error)
        return shown

    async def show(self, request: web.Request, problem: str = "", status: int = 200, key: str = "") -> web.Response:
        """The account's page. ``key``: a new API key's text."""
        who = principal(request)
        account_id, single = who.account_id, self._auth.open_to_all
        held = None if single else await self._accounts.get(account_id)
        return self._renderer.page(
            request,
            "account.html",
            status,
            me=who,
            account=held,
            problem=problem,
            key=key,
            keys=await self._accounts.keys(account_id),
            sessions=await self._accounts.sessions(account_id),
            credentials=await self._accounts.credentials(account_id),
            trail=await self._accounts.trail(account_id, None, 8),
            scopes=[(scope, SCOPE_WORDS[scope]) for scope in Scope if scope in who.scopes],
            lives=(("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("", "for ever")),
            operator=who.role is Role.OPERATOR,
            single=single,
            provider=self._provider,
        )

    async def enter(self, request: web.Request, account_id: str, method: str, to: str) -> web.StreamResponse:
        """A new session under a new cookie: one that was there before is worth nothing afterwards."""
        gone = web.Response(status=303, headers={hdrs.LOCATION: to, hdrs.CACHE_CONTROL: "no-store"})
        await self._give_cookie(request, gone, account_id, method)
        return gone

    async def _enter_by_script(self, request: web.Request, account_id: str, method: str) -> web.Response:
        response = answer(Returned(after(request.query.get("next"))))
        await self._give_cookie(request, response, account_id, method)
        return response

    async def _give_cookie(
        self, request: web.Request, response: web.StreamResponse, account_id: str, method: str
    ) -> None:
        agent = _device(request)
        secret = await self._accounts.begin_session(account_id, method, address_of(request), agent)
        response.set_cookie(
            cookie_name(request),
            secret,
            max_age=SESSION_S,
            path="/",
            httponly=True,
            samesite="Lax",
            secure=request.secure,
        )
        response.del_cookie(CSRF_COOKIE, path="/")  # Forms from before the sign-in are void.


async def read_fields(request: web.Request) -> list[tuple[str, str]]:
    """The fields of a plain form, whose token has been checked.

    Raises:
        InvalidError: not a form; ForbiddenError: its token is missing or wrong.
    """
    body = (await read_body(request, MAX_FORM_BYTES)).decode("utf-8", "replace")
    try:
        fields = parse_qsl(body, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise InvalidError(f"a form of more than {MAX_FIELDS} fields: reload the page") from error
    check_csrf(request, dict(fields).get(CSRF_FIELD))
    return fields


async def read_form(request: web.Request) -> dict[str, str]:
    """As ``read_fields``, each field once."""
    return dict(await read_fields(request))


async def read_json(request: web.Request) -> bytes:
    """The body of a script's request. A page of another site cannot send this type without asking first (CORS)."""
    if request.content_type != "application/json":
        raise ForbiddenError(f"Content-Type is {request.content_type[:80]!r}: send application/json")
    return await read_body(request, MAX_FORM_BYTES)


def after(wanted: str | None) -> str:
    """Where to go on: a path of ours, or the list of jobs. ``//host`` and ``/\\host`` are other sites to a browser."""
    return wanted if wanted and re.fullmatch(r"/(?![/\\])[\x21-\x7e]{0,500}", wanted) else "/jobs"


def _device(request: web.Request) -> str:
    """What the browser is, in a few words, for people who look through their sessions."""
    agent = request.headers.get(hdrs.USER_AGENT, "")[:400]
    browser = next((name for mark, name in _BROWSERS if mark in agent), "")
    system = next((name for mark, name in _SYSTEMS if mark in agent), "")
    told = " on ".join(filter(None, (browser, system))) or agent[:60]
    return untrusted(told) or "unknown"


_BROWSERS: Final = (
    ("Edg", "Edge"),
    ("OPR", "Opera"),
    ("Firefox", "Firefox"),
    ("Chrome", "Chrome"),
    ("Safari", "Safari"),
)
_SYSTEMS: Final = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)
