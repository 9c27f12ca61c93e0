"""``/api/v1/account``: who one is, API keys, sessions, the trail."""

from aiohttp import web

from coordinator.domain.account import Scope
from coordinator.errors import ForbiddenError
from coordinator.store.records import KeyRecord
from coordinator.web import pagination as pages
from coordinator.web.auth import Auth, needs, principal
from coordinator.web.auth.gate import address_of, person
from coordinator.web.documents import read_document
from coordinator.web.http import API, answer
from coordinator.web.parameters import Query
from coordinator.web.route import Route
from protocol.rest.account import AccountView, KeyView, NewKey, SessionView, TrailView

MAX_ID = 2**62
DAY_S = 86_400.0
_OF = Query("of", "everybody: all accounts' (operators only).", "string")


class AccountRoutes:
    """Handlers of what programs may ask about their account."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth
        self._accounts = auth.accounts

    def routes(self) -> list[Route]:
        """Every route of these handlers."""
        base = f"{API}/account"
        made = "Make an API key; its text is in this answer and never again"
        over = "Sign a browser out"
        trail = "What was done with the account, newest first"
        return [
            Route("GET", base, self.account, "Who the request is from", AccountView),
            Route("GET", f"{base}/keys", self.keys, "API keys", list[KeyView], pager=pages.KEYS),
            Route("POST", f"{base}/keys", self.new_key, made, KeyView, NewKey, 201, (409, 413, 422), secret=True),
            Route("DELETE", f"{base}/keys/{{key}}", self.revoke, "End an API key at once", None, None, 204, (404,)),
            Route(
                "GET",
                f"{base}/sessions",
                self.sessions,
                "Browsers that are signed in",
                list[SessionView],
                pager=pages.SESSIONS,
            ),
            Route("DELETE", f"{base}/sessions/{{session}}", self.end, over, None, None, 204, (404,)),
            Route(
                "GET",
                f"{base}/trail",
                self.trail,
                trail,
                list[TrailView],
                errors=(422,),
                queries=(_OF,),
                pager=pages.TRAIL,
            ),
        ]

    @needs(Scope.JOBS_READ)
    async def account(self, request: web.Request) -> web.Response:
        """GET account."""
        who = principal(request)
        scopes = tuple(sorted(scope.value for scope in who.scopes))
        return answer(AccountView(who.account_id, who.name, who.role.value, scopes, self._auth.open_to_all))

    @needs(Scope.ACCOUNT)
    async def keys(self, request: web.Request) -> web.Response:
        """GET account/keys."""
        return pages.KEYS.cut(request, [_key(one) for one in await self._accounts.keys(principal(request).account_id)])

    @needs(Scope.ACCOUNT)
    async def new_key(self, request: web.Request) -> web.Response:
        """POST account/keys."""
        new = await read_document(request, NewKey)
        life = None if new.days is None else new.days * DAY_S
        scopes = frozenset(Scope(scope) for scope in new.scopes)
        record, text = await self._accounts.create_key(person(request), new.name, scopes, life, address_of(request))
        return answer(_key(record, text), 201)

    @needs(Scope.ACCOUNT)
    async def revoke(self, request: web.Request) -> web.Response:
        """DELETE account/keys/{key}."""
        await self._accounts.revoke_key(principal(request).account_id, request.match_info["key"], address_of(request))
        return web.Response(status=204)

    @needs(Scope.ACCOUNT)
    async def sessions(self, request: web.Request) -> web.Response:
        """GET account/sessions."""
        found = await self._accounts.sessions(principal(request).account_id)
        return pages.SESSIONS.cut(
            request, [SessionView(s.id, s.method, s.agent, s.address, s.created, s.seen) for s in found]
        )

    @needs(Scope.ACCOUNT)
    async def end(self, request: web.Request) -> web.Response:
        """DELETE account/sessions/{session}."""
        session = request.match_info["session"]
        await self._accounts.end_session(principal(request).account_id, session, address_of(request))
        return web.Response(status=204)

    @needs(Scope.ACCOUNT)
    async def trail(self, request: web.Request) -> web.Response:
        """GET account/trail."""
        who = principal(request)
        everybody = request.query.get("of") == "everybody"
        if everybody and Scope.OPERATE not in who.scopes:
            raise ForbiddenError("everybody's trail is for operators: leave `of` out to see your own", "of")
        window = pages.TRAIL.window(request)
        before = MAX_ID if window.after is None else window.after[0]
        found = await self._accounts.trail(None if everybody else who.account_id, before, window.limit)
        told = [TrailView(t.id, t.account_id, t.time, t.action, t.subject, t.via, t.address) for t in found]
        return pages.TRAIL.page(request, told)


def _key(record: KeyRecord, text: str = "") -> KeyView:
    scopes = tuple(scope.value for scope in record.scopes)
    return KeyView(record.id, record.name, scopes, record.created, record.expires, record.used, text)
