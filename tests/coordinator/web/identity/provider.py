"""An identity provider that checks its client as RFC 6749 and RFC 7636 have it, and lies to it as a test says."""

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_plus, urlencode

from aiohttp import BasicAuth, web
from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT = "cottage"
Claims = dict[str, Any]


# Made once: that takes a twentieth of a second.
_KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})


class Provider:
    """Everybody who is sent to it is signed in as ``claims`` say.

    Attributes:
        metadata: added to its metadata, or in its place.
        secret: of its client; empty: that is public.
        methods: by which the secret is shown; None: it does not say, which means by a header.
        forge: makes another token of the claims and the key.
        always: the answer to every request for a path.
        asked: how often for each path.
    """

    def __init__(self) -> None:
        self.keys = [_KEY]
        self.claims: Claims = {"sub": "ada-1815", "preferred_username": "ada"}
        self.told: Claims = {}
        self.metadata: Claims = {}
        self.secret = ""
        self.methods: list[str] | None = None
        self.forge: Callable[[Claims, RSAKey], Any] | None = None
        self.always: dict[str, Callable[[], web.StreamResponse]] = {}
        self.silent: set[str] = set()
        self.asked: dict[str, int] = {}
        self.begun: list[dict[str, str]] = []
        self.brings: Callable[[dict[str, str]], dict[str, str]] = lambda answer: answer
        self.clock: Callable[[], float] = time.time
        self._codes: dict[str, dict[str, str]] = {}
        self._ended = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.issuer = ""

    async def start(self) -> None:
        app = web.Application(middlewares=[self._counted])
        app.router.add_get("/.well-known/openid-configuration", self._describe)
        app.router.add_get("/keys", self._show_keys)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._token)
        app.router.add_get("/userinfo", self._userinfo)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        self.issuer = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]

    async def stop(self) -> None:
        self._ended.set()
        if self._runner is not None:
            await self._runner.cleanup()

    def code(self, nonce: str, verifier: str, redirect: str) -> str:
        """The code of somebody who signed in, without a browser."""
        digest = hashlib.sha256(verifier.encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        return self._kept({"nonce": nonce, "code_challenge": challenge, "redirect_uri": redirect})

    def _kept(self, asked: dict[str, str]) -> str:
        code = secrets.token_hex(8)
        self._codes[code] = asked
        return code

    @property
    def public(self) -> dict[str, Any]:
        return {"keys": [key.as_dict(private=False) for key in self.keys]}

    def signed(self, claims: Claims, **header: Any) -> str:
        return jwt.encode({"alg": "RS256", "kid": "one", **header}, claims, self.keys[0], algorithms=["RS256"])

    @web.middleware
    async def _counted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked[request.path] = self.asked.get(request.path, 0) + 1
        if request.path in self.silent:
            await self._ended.wait()
        if request.path in self.always:
            return self.always[request.path]()
        return await handler(request)  # type: ignore[no-any-return]

    async def _describe(self, _request: web.Request) -> web.Response:
        found: Claims = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize?tenant=lab",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "authorization_response_iss_parameter_supported": True,
        }
        if self.methods is not None:
            found["token_endpoint_auth_methods_supported"] = self.methods
        return web.json_response(found | self.metadata)

    async def _show_keys(self, _request: web.Request) -> web.Response:
        return web.json_response(self.public)

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        assert asked["tenant"] == "lab", "what stands in the address stays there"
        assert (asked["response_type"], asked["client_id"], asked["code_challenge_method"]) == ("code", CLIENT, "S256")
        assert "openid" in asked["scope"].split()
        self.begun.append(asked)
        code = self._kept(asked)
        answer = self.brings({"code": code, "state": asked["state"], "iss": self.issuer})
        return web.Response(status=302, headers={"Location": f"{asked['redirect_uri']}?{urlencode(answer)}"})

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        begun = self._codes.pop(str(form["code"]), None)
        if begun is None:
            return web.json_response(
                {"error": "invalid_grant", "error_description": "code is used up\x1b[2J"}, status=400
            )
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == begun["code_challenge"]
        assert (form["redirect_uri"], form["client_id"]) == (begun["redirect_uri"], CLIENT)
        if self.secret and self._secret_of(request, form) != self.secret:
            return web.json_response({"error": "invalid_client"}, status=401)
        now = int(self.clock())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": begun["nonce"],
            **self.claims,
        }
        token = self.signed(claims) if self.forge is None else self.forge(claims, self.keys[0])
        return web.json_response({"id_token": token, "access_token": "of-ada", "token_type": "Bearer"})

    def _secret_of(self, request: web.Request, form: Any) -> str:
        header = request.headers.get("Authorization")
        if header is None or self.methods == ["client_secret_post"]:
            assert header is None
            return str(form.get("client_secret", ""))
        assert "client_secret" not in form
        return unquote_plus(BasicAuth.decode(header).password)

    async def _userinfo(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer of-ada"
        return web.json_response(self.told)
