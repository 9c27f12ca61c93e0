"""The one place where a request meets what it may do."""

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from coordinator.domain.account import LOCAL_PRINCIPAL, Principal, Scope
from coordinator.errors import ForbiddenError, UnauthorisedError
from coordinator.services.accounts import KEY_PREFIX, Accounts
from coordinator.web.auth.access import access_of

SESSION_COOKIE: Final = "cottage_session"
MAX_TOKEN = 200
_PRINCIPAL: Final = web.RequestKey("principal", Principal)
_READS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})

CheckOwner = Callable[[str, str], Awaitable[None]]


class Auth:
    """Knows callers. ``open_to_all``: everybody is the built-in account; only for a port that nobody else reaches."""

    def __init__(self, accounts: Accounts, open_to_all: bool = False) -> None:
        self.accounts = accounts
        self.open_to_all = open_to_all

    async def identify(self, request: web.Request) -> Principal | None:
        """Who it is; None where nobody says.

        Raises:
            UnauthorisedError: an API key that is not valid.
            ForbiddenError: another site's name leads a browser to an open coordinator.
        """
        if self.open_to_all:
            if not is_loopback(request.host):
                raise ForbiddenError(
                    f"an open coordinator answers to localhost only, not to {request.host[:80]!r}: use that address"
                )
            return LOCAL_PRINCIPAL
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        token = token.strip()
        if scheme.lower() == "bearer" and token.startswith(KEY_PREFIX) and len(token) <= MAX_TOKEN:
            return await self.accounts.by_key(token)
        cookie = request.cookies.get(SESSION_COOKIE, "")
        return await self.accounts.by_session(cookie) if 0 < len(cookie) <= MAX_TOKEN else None


def install(app: web.Application, auth: Auth, owners: dict[str, CheckOwner]) -> None:
    """Put the gate before every route of ``app``.

    Args:
        app: not yet started; its error middleware is there already.
        auth: knows callers.
        owners: by the name of a path's variable: raises NotFoundError unless (id, account) belong together.
    """

    @web.middleware
    async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
        found = request.match_info
        if found.http_exception is not None or isinstance(found.route.resource, web.StaticResource):
            return await handler(request)
        who = await auth.identify(request)
        if who is not None:
            request[_PRINCIPAL] = who
        access = access_of(found.handler)
        if not access.public:
            allowed = principal(request)
            reads = request.method in _READS
            scope = access.scope or (Scope.JOBS_READ if reads else Scope.JOBS_WRITE)
            if scope not in allowed.scopes:
                raise ForbiddenError(f"this needs the scope {scope}: use a key or an account that has it")
            for name, check in owners.items():
                if name in found:
                    await check(found[name], allowed.account_id)
        return await handler(request)

    app.middlewares.append(gate)


def principal(request: web.Request) -> Principal:
    """Who the request is from.

    Raises:
        UnauthorisedError: nobody is signed in.
    """
    who = visitor(request)
    if who is None:
        raise UnauthorisedError("nobody is signed in: sign in, or send an API key as Authorization: Bearer")
    return who


def visitor(request: web.Request) -> Principal | None:
    """Who the request is from, on a page that everybody may see."""
    return request.get(_PRINCIPAL)


def is_loopback(host: str) -> bool:
    """Guards against a foreign name that resolves to 127.0.0.1 (DNS rebinding)."""
    name = host.removesuffix(".").lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
