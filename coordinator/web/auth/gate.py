"""The one place where a request meets what it may do."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import Final, Protocol

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from yarl import URL

from common.clock import Clock
from common.urls import authority, ip_of, is_loopback, parse_url
from coordinator.config import Config
from coordinator.domain.account import LOCAL_PRINCIPAL, Principal, Scope
from coordinator.errors import ConflictError, ForbiddenError, TooManyError, UnauthorisedError, UnavailableError
from coordinator.services.accounts.accounts import KEY_PREFIX, AccountService
from coordinator.services.accounts.budgets import Budgets
from coordinator.services.accounts.challenges import Challenges
from coordinator.services.accounts.identities import IdentitySignIn
from coordinator.services.accounts.identity_provider import IdentityProvider
from coordinator.services.accounts.passkeys import Passkeys
from coordinator.services.accounts.passwords import Passwords
from coordinator.services.accounts.signin import SetupCode, SignIn
from coordinator.services.accounts.throttle import Throttle
from coordinator.store.ports import Store
from coordinator.web.auth.access import access_of, cost_of
from coordinator.web.auth.origin import SAFE_METHODS, check_same_origin
from coordinator.web.http import WHOSE
from coordinator.web.monitoring.watchers import METRICS, Watchers

SESSION_COOKIE: Final = "cottage_session"
SECURE_COOKIE: Final = "__Host-cottage_session"  # Browsers take this name over TLS only, and from no subdomain.
MAX_TOKEN = 200
ADDRESS_RATE, ADDRESS_BURST = 20.0, 200.0  # A page and what it loads are ten requests; a family shares an address.
ACCOUNT_RATE, ACCOUNT_BURST = 50.0, 500.0
MAKERS: Final = frozenset({"/api/v1/jobs", "/submit", "/submit/array", "/jobs/{job}/serve"})
"""Routes that make a job, and lead to it."""
_MADE: Final = re.compile(r"/jobs/([0-9a-f]{32})$")
_PRINCIPAL: Final = web.RequestKey("principal", Principal)
_BUDGETS: Final = web.RequestKey("budgets", Budgets)
_OWNED: Final = web.RequestKey("owned", frozenset[str])  # Names in a path, of what is the principal's own.

CheckOwner = Callable[[str, str], Awaitable[None]]
IsShared = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True)
class SiteAddress:
    """Where browsers find this coordinator. ``host`` has no port; ``domain`` may have one."""

    origin: str
    domain: str
    host: str


class FrontMark(Protocol):
    """By what a request is known that another coordinator leads here."""

    def is_on(self, headers: Mapping[str, str]) -> bool:
        """Whether it is one."""


class Auth:
    """Knows callers.

    Attributes:
        open_to_all: everybody is the built-in account; only for a port that nobody else reaches.
        public_url: where browsers find it, which signatures are bound to; None: on this machine alone.
        behind_proxy: a reverse proxy says in X-Forwarded-For and -Proto who asks and how.
        budgets: what accounts may ask for, beside how often.
        fronts: knows the coordinators that stand by, who say as a proxy does who asks; None: there are none.
        identities: those whom the organisation's identity provider vouches for; None: there is no such provider.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        config: Config,
        passwords: Passwords | None = None,
        budgets: Budgets | None = None,
        fronts: FrontMark | None = None,
    ) -> None:
        self.budgets = budgets or Budgets(store, clock)
        self.fronts = fronts
        challenges = Challenges(store, clock)
        self.accounts = AccountService(store, clock)
        self._watchers = Watchers(clock, self.accounts.by_key)
        self.setup = SetupCode(config.data / "setup-code")
        self.sign_in = SignIn(store, clock, self.accounts, challenges, self.setup, config.sign_up, passwords)
        self.passkeys = Passkeys(store, clock, self.accounts, challenges)
        self.identities: IdentitySignIn | None = None
        if config.identity is not None:
            provider = IdentityProvider(clock, config.identity)
            self.identities = IdentitySignIn(store, clock, self.accounts, challenges, self.sign_in, provider)
        self.open_to_all = config.open
        self.public_url = config.public_url
        self.behind_proxy = config.behind_proxy
        self._by_address = Throttle(clock, ADDRESS_RATE, ADDRESS_BURST)
        self._by_account = Throttle(clock, ACCOUNT_RATE, ACCOUNT_BURST)

    def site(self, request: web.Request) -> SiteAddress:
        """What signatures are bound to. What a request says of our name is believed only where it names this machine.

        Raises:
            UnavailableError: nobody told the coordinator its public address.
        """
        if self.public_url is not None:
            return _site(parse_url(self.public_url))
        if is_loopback(request.host):
            return _site(parse_url(f"{request.scheme}://{request.host}"))
        raise UnavailableError("this way to sign in needs --public-url, which this coordinator's operator has not set")

    async def note(self, request: web.Request, who: Principal | None, location: str) -> None:
        """Write what was done to a job into its account's trail. ``location``: where the answer leads to."""
        if who is None or self.open_to_all or request.method in SAFE_METHODS:
            return
        job, resource = request.match_info.get("job"), request.match_info.route.resource
        made = _MADE.search(location) if resource is not None and resource.canonical in MAKERS else None
        if job is None and made is None:
            return
        action = "created" if made else request.path.rstrip("/").rpartition("/")[2]
        via = "session" if who.session else f"key {who.key}"
        await self.accounts.note(who, via, f"job.{action}", made[1] if made else str(job), address_of(request))

    def throttle(self, request: web.Request, who: Principal | None) -> None:
        """Count a request.

        Raises:
            TooManyError: the account, or else the address, asks too often.
        """
        if self.open_to_all:
            return
        wait = self._by_account.take(who.account_id) if who else self._by_address.take(address_of(request))
        if wait:
            raise TooManyError("too many requests: slow down", wait)

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
            return await (self._watchers if request.path == METRICS else self.accounts).by_key(token)
        cookie = request.cookies.get(cookie_name(request), "")
        return await self.accounts.by_session(cookie) if 0 < len(cookie) <= MAX_TOKEN else None


def install(app: web.Application, auth: Auth, owners: dict[str, CheckOwner], is_shared: IsShared) -> None:
    """Put the gate before every route of ``app``.

    Args:
        app: not yet started; its error middleware is there already.
        auth: knows callers.
        owners: by the name of a path's variable: raises NotFoundError unless (id, account) belong together.
        is_shared: whether everybody may look at a job.
    """

    @web.middleware
    async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
        if auth.behind_proxy or (auth.fronts is not None and auth.fronts.is_on(request.headers)):
            request = as_the_proxy_says(request)
        check_same_origin(request, auth.public_url)
        found = request.match_info
        if found.http_exception is not None or isinstance(found.route.resource, web.StaticResource):
            return await handler(request)
        who = await auth.identify(request)
        auth.throttle(request, who)
        request[_BUDGETS] = auth.budgets
        request[WHOSE] = f"address {address_of(request)}" if who is None else who.account_id
        if who is not None:
            request[_PRINCIPAL] = who
        access = access_of(found.handler)
        reads = request.method in SAFE_METHODS
        open_to_look = access.shared and reads and await is_shared(found.get("job", ""))
        if not access.public and not open_to_look:
            allowed = principal(request)
            scope = access.scope or (Scope.JOBS_READ if reads else Scope.JOBS_WRITE)
            if scope not in allowed.scopes:
                raise ForbiddenError(f"this needs the scope {scope}: use a key or an account that has it")
            for name, check in owners.items():
                if name in found:
                    await check(found[name], allowed.account_id)
                    request[_OWNED] = request.get(_OWNED, frozenset()) | {name}
            rate, amount = cost_of(found.handler, not reads)
            if rate is not None:
                await auth.budgets.take(rate, allowed.account_id, amount)
        try:
            response = await handler(request)
        except web.HTTPSeeOther as gone:
            await auth.note(request, who, str(gone.location))
            raise
        if response.status < 400:
            await auth.note(request, who, response.headers.get(hdrs.LOCATION, ""))
        return response

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


def budgets_of(request: web.Request) -> Budgets:
    """Where a handler counts what ``costs`` cannot say of all its requests."""
    return request[_BUDGETS]


def owns(request: web.Request, name: str) -> bool:
    """Whether what the path names so was found to be of whom the request is from, since it was for nobody else."""
    return name in request.get(_OWNED, frozenset())


def person(request: web.Request) -> Principal:
    """Who it is, where there are accounts.

    Raises:
        ConflictError: an open coordinator.
    """
    who = principal(request)
    if not who.name:
        raise ConflictError("this coordinator is open (--open) and has no accounts: start it without, and sign up")
    return who


def cookie_name(request: web.Request) -> str:
    """The name of the session's cookie."""
    return SECURE_COOKIE if request.secure else SESSION_COOKIE


def address_of(request: web.Request) -> str:
    """Whose requests are counted together: an IPv4 address, or the 2^64 of IPv6 that one line has."""
    address = ip_of(request.remote or "")
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address) >> 64 << 64, 64)))
    return "?" if address is None else str(address)


def as_the_proxy_says(request: web.Request) -> web.Request:
    """A request as it came to the proxy. The last entry is our proxy's own; what stands before it anybody may have written."""
    remote = request.headers.get(hdrs.X_FORWARDED_FOR, "").rpartition(",")[2].strip()
    scheme = request.headers.get(hdrs.X_FORWARDED_PROTO, "").rpartition(",")[2].strip()
    return request.clone(
        remote=remote[:64] or request.remote or "", scheme=scheme if scheme in ("http", "https") else request.scheme
    )


def _site(url: URL) -> SiteAddress:
    return SiteAddress(str(url.origin()), authority(url), url.raw_host or "")
