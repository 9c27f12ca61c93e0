"""The organisation's identity provider, as a client of OpenID Connect meets it over HTTP.

The operator names it, so that it may be in a private network, and requests to it take the proxies of this machine. What it
answers is bounded in bytes and in time, is never followed to another address, and is believed only after a check. Sources:
OpenID Connect Discovery 1.0; OpenID Connect Core 1.0, section 3.1; RFC 6749; RFC 7636; RFC 9207; RFC 9700.
"""

import asyncio
import base64
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote_plus

import aiohttp
import msgspec
from aiohttp import hdrs

from common.clock import Clock
from common.errors import UrlError
from common.http_sessions import ANSWER_S, open_session, why
from common.untrusted_text import untrusted
from common.urls import authority, is_loopback, parse_url
from coordinator.config import IdentityConfig
from coordinator.errors import TooManyError, UnauthorisedError, UnavailableError
from coordinator.services.accounts.id_tokens import (
    ProvenIdentity,
    PublicKey,
    UnknownKeyError,
    name_in,
    read_keys,
    read_token,
)

WELL_KNOWN: Final = "/.well-known/openid-configuration"
SCOPE: Final = "openid profile email"
MAX_ANSWER = 256 << 10  # Bytes; the longest set of keys in use has 40 KB.
AT_A_TIME = 16  # Sign-ins that wait for the provider; whoever comes beyond it begins again.
KEPT_S = 3_600.0  # Its metadata and keys: both change a few times a year.
ANEW_S = 60.0  # Keys are fetched at most as often for a name that is not among them: anybody may write one.
AGAIN_S = 5.0  # A provider that does not answer is not asked again before.

LOG = logging.getLogger(__name__)
T = TypeVar("T")


class ProviderMetadata(msgspec.Struct, frozen=True):
    """What of a provider's metadata counts here, in its words. Its fields: OpenID Connect Discovery 1.0, section 3."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str
    access_token: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: str
    error_description: str = ""


class IdentityProvider:
    """One provider, and this coordinator as its client. Metadata and keys are fetched when somebody signs in."""

    def __init__(self, clock: Clock, config: IdentityConfig) -> None:
        self._clock = clock
        self._config = config
        self._metadata = _Kept(clock, self._fetch_metadata)
        self._keys = _Kept(clock, self._fetch_keys)
        self._room = asyncio.Semaphore(AT_A_TIME)

    @property
    def issuer(self) -> str:
        """Its name and address."""
        return self._config.issuer

    @property
    def host(self) -> str:
        """How people know it."""
        return authority(parse_url(self._config.issuer))

    async def address(self, redirect: str, state: str, nonce: str, verifier: str, anew: bool) -> str:
        """Where the browser goes to sign in.

        Args:
            redirect: where it comes back.
            state, nonce: bind the answer to this browser, and the token to this sign-in.
            verifier: of PKCE; the address has its SHA-256.
            anew: the provider asks who it is, also where somebody is signed in there.
        Raises:
            UnavailableError: the provider cannot be asked now, or its metadata cannot be used.
        """
        metadata = await self._metadata.get()
        digest = hashlib.sha256(verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self._config.client,
            "redirect_uri": redirect,
            "scope": SCOPE,
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
            **({"prompt": "login"} if anew else {}),
        }
        return str(parse_url(metadata.authorization_endpoint).update_query(asked))

    async def check_sender(self, issuer: str | None) -> None:
        """See that an answer is this provider's, as far as it says whose it is (RFC 9207).

        Raises:
            UnauthorisedError: it is another one's, or does not say so though this provider always does.
        """
        always = (await self._metadata.get()).authorization_response_iss_parameter_supported
        if issuer != self.issuer and (always or issuer is not None):
            raise UnauthorisedError(f"this answer is not from {self.host}: begin again")

    async def identify(self, code: str, redirect: str, nonce: str, verifier: str) -> ProvenIdentity:
        """Whom a code stands for.

        Raises:
            UnauthorisedError: the provider refuses the code, or what it says does not hold.
            UnavailableError: it does not answer, or with what is no answer. TooManyError: many wait for it.
        """
        if self._room.locked():
            raise TooManyError("many people are signing in just now: try again", AGAIN_S)
        async with self._room:
            metadata = await self._metadata.get()
            tokens = await self._exchange(metadata, code, redirect, verifier)
            try:
                identity = self._read(tokens.id_token, await self._keys.get(), nonce)
            except UnknownKeyError:
                identity = self._read(tokens.id_token, await self._keys.get(ANEW_S), nonce)
            if identity.name or metadata.userinfo_endpoint is None or not tokens.access_token:
                return identity
            return await self._named(identity, metadata.userinfo_endpoint, tokens.access_token)

    def _read(self, token: str, keys: Sequence[PublicKey], nonce: str) -> ProvenIdentity:
        return read_token(token, keys, self.issuer, self._config.client, nonce, self._clock.time())

    async def _exchange(self, metadata: ProviderMetadata, code: str, redirect: str, verifier: str) -> _Tokens:
        """The tokens for a code: RFC 6749, section 4.1.3, with the verifier of RFC 7636, section 4.5."""
        client, secret = self._config.client, self._config.secret
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "code_verifier": verifier,
            "client_id": client,
        }
        headers: dict[str, str] = {}
        if secret and "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            login = f"{quote_plus(client)}:{quote_plus(secret)}".encode()
            headers[hdrs.AUTHORIZATION] = f"Basic {base64.b64encode(login).decode()}"
        elif secret:
            form["client_secret"] = secret
        status, body = await self._ask("POST", metadata.token_endpoint, headers, form)
        if status != 200:
            raise UnauthorisedError(f"{self.host} does not take the sign-in: {_refusal(status, body)}; begin again")
        try:
            return msgspec.json.decode(body, type=_Tokens)
        except (ValueError, RecursionError) as error:
            raise self._useless("tokens", "it does not say who signed in") from error

    async def _named(self, identity: ProvenIdentity, endpoint: str, token: str) -> ProvenIdentity:
        """With the name that the provider tells in another answer only (OpenID Connect Core, section 5.3); else without."""
        try:
            status, body = await self._ask("GET", endpoint, {hdrs.AUTHORIZATION: f"Bearer {token}"})
            claims = msgspec.json.decode(body, type=dict[str, Any]) if status == 200 else {}
        except (UnavailableError, ValueError, RecursionError):
            return identity
        known = claims.get("sub") == identity.subject  # Another's answer could have been put in its place.
        return msgspec.structs.replace(identity, name=name_in(claims)) if known else identity

    async def _fetch_metadata(self) -> ProviderMetadata:
        status, body = await self._ask("GET", self.issuer.rstrip("/") + WELL_KNOWN)
        if status != 200:
            raise self._useless("metadata", f"it answers {status}")
        try:
            found = msgspec.json.decode(body, type=ProviderMetadata)
        except (ValueError, RecursionError) as error:
            raise self._useless("metadata", str(error)) from error
        if found.issuer != self.issuer:
            raise self._useless("metadata", f"it is called {found.issuer!r} there, and {self.issuer!r} here")
        for url in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri, found.userinfo_endpoint):
            try:
                if url is not None:
                    check_address(url)
            except UrlError as error:
                raise self._useless("metadata", str(error)) from error
        return found

    async def _fetch_keys(self) -> Sequence[PublicKey]:
        status, body = await self._ask("GET", (await self._metadata.get()).jwks_uri)
        if status != 200:
            raise self._useless("keys", f"it answers {status}")
        return read_keys(body)

    async def _ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, form: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of an answer.

        Raises:
            UnavailableError: none came in time, or one without end.
        """
        said = {hdrs.ACCEPT: "application/json", **(headers or {})}
        body = bytearray()
        try:
            async with asyncio.timeout(ANSWER_S), open_session(cookie_jar=aiohttp.DummyCookieJar()) as session:
                # A redirect would hand the code and the secret on to whoever it names.
                async with session.request(method, url, data=form, headers=said, allow_redirects=False) as answer:
                    async for chunk in answer.content.iter_any():
                        body += chunk
                        if len(body) > MAX_ANSWER:
                            raise self._useless("answer", f"it is longer than {MAX_ANSWER:,} bytes")
                    return answer.status, bytes(body)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            LOG.warning("the identity provider %s is not reached: %s", self.host, untrusted(why(error), 200))
            raise UnavailableError(
                f"{self.host} does not answer ({untrusted(why(error), 200)}): try again in a moment"
            ) from error

    def _useless(self, what: str, reason: str) -> UnavailableError:
        shown = untrusted(reason, 300)
        LOG.warning("the identity provider's %s cannot be used: %s", what, shown)
        return UnavailableError(f"the {what} of {self.host} cannot be used ({shown}): ask whoever runs this network")


def check_address(text: str) -> None:
    """See that an address of a provider may be asked.

    Raises:
        UrlError: it is none; or what is said there could be read, and forged, on the way.
    """
    url = parse_url(text)
    if url.scheme != "https" and not is_loopback(url.raw_host or ""):
        raise UrlError(f"{text[:100]!r} is not https://: who is on the way could say that they are anybody")


class _Kept(Generic[T]):
    """Something fetched once for all who ask at a time, and then kept for a while; so is that it cannot be had."""

    def __init__(self, clock: Clock, fetch: Callable[[], Awaitable[T]]) -> None:
        self._clock = clock
        self._fetch = fetch
        self._lock = asyncio.Lock()
        self._held: tuple[float, T] | None = None
        self._failed: tuple[float, UnavailableError] | None = None

    async def get(self, kept_s: float = KEPT_S) -> T:
        """It, fetched less than ``kept_s`` ago.

        Raises:
            UnavailableError: it cannot be had.
        """
        async with self._lock:
            now = self._clock.now()
            if self._held is not None and now - self._held[0] < kept_s:
                return self._held[1]
            if self._failed is not None and now - self._failed[0] < AGAIN_S:
                raise UnavailableError(self._failed[1].detail)
            try:
                found = await self._fetch()
            except UnavailableError as error:
                self._failed = self._clock.now(), error
                raise
            self._held, self._failed = (self._clock.now(), found), None
            return found


def _refusal(status: int, body: bytes) -> str:
    """What the provider says of a code that it does not take: RFC 6749, section 5.2."""
    try:
        told = msgspec.json.decode(body, type=_Refusal)
    except (ValueError, RecursionError):
        return f"it answers {status}"
    return refusal_words(told.error, told.error_description)


def refusal_words(error: str, description: str) -> str:
    """An error of the provider in one line; both are its own words, or those of whoever made the browser bring them."""
    return untrusted(": ".join(filter(None, (error[:60], description[:200]))))
