"""What a provider, a thief or a stranger may send in place of a sign-in: each is refused in one sentence, and changes nothing."""

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from joserfc import jwt
from joserfc.jwk import RSAKey
from yarl import URL

from coordinator.services.accounts import identity_provider
from coordinator.store.records import CredentialRecord
from coordinator.web.auth.gate import SESSION_COOKIE
from coordinator.web.pages.identity import COOKIE
from tests.coordinator.web.conftest import House
from tests.coordinator.web.identity.conftest import arrive, back, signed_in, there
from tests.coordinator.web.identity.provider import Claims, Provider
from tests.coordinator.web.test_signin import post

OTHER = RSAKey.generate_key(2048, {"kid": "one"})
Forge = Callable[[Claims, RSAKey], Any]


async def refused(http: aiohttp.ClientSession, house: House, url: str) -> tuple[int, str]:
    """What is said; and nobody is signed in, nor known, afterwards."""
    status, said = await arrive(http, url)
    assert status != 303, said
    assert "Traceback" not in said
    assert len(said) < 500
    async with http.get(f"{house.api}/jobs") as answer:
        assert answer.status == 401
    assert [one.name for one in await house.accounts.all()] == ["operator"]
    async with house.store.transaction() as tx:
        assert await tx.find(CredentialRecord) == []
    assert all(cookie.key != SESSION_COOKIE for cookie in http.cookie_jar)
    return status, said


def changed(**claims: Any) -> Forge:
    """The token with other claims; None: without."""

    def forge(true: Claims, key: RSAKey) -> str:
        whole = {name: value for name, value in (true | claims).items() if value is not None}
        return jwt.encode({"alg": "RS256", "kid": "one"}, whole, key, algorithms=["RS256"])

    return forge


def shifted(**seconds: int) -> Forge:
    """The token made, or ended, at another time."""

    def forge(true: Claims, key: RSAKey) -> str:
        return str(changed(**{name: true[name] + by for name, by in seconds.items()})(true, key))

    return forge


def in_parts(*parts: bytes) -> str:
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def unsigned(true: Claims, _key: RSAKey) -> str:
    return in_parts(b'{"alg":"none","kid":"one"}', json.dumps(true).encode(), b"")


def by_hand(header: Claims, **claims: Any) -> Forge:
    """The token with what no honest library signs."""

    def forge(true: Claims, key: RSAKey) -> str:
        text = in_parts(
            json.dumps({"alg": "RS256", "kid": "one"} | header).encode(), json.dumps(true | claims).encode()
        )
        signature = key.private_key.sign(text.encode(), PKCS1v15(), SHA256())
        return f"{text}.{in_parts(signature)}"

    return forge


def by_what_is_public(true: Claims, key: RSAKey) -> str:
    """The public key's text as a secret: whoever believes the token's own algorithm takes what everybody may read for one."""
    text = in_parts(b'{"alg":"HS256","kid":"one"}', json.dumps(true).encode())
    return f"{text}.{in_parts(hmac.digest(key.as_pem(private=False), text.encode(), 'sha256'))}"


def by(key: RSAKey, **header: Any) -> Forge:
    def forge(true: Claims, _key: RSAKey) -> str:
        return jwt.encode({"alg": "RS256", "kid": "one", **header}, true, key, algorithms=["RS256"])

    return forge


def deep(_true: Claims, _key: RSAKey) -> str:
    return in_parts(b"[" * 20_000, b"{}", b"{}")


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (changed(iss="https://evil.example"), "is from 'https://evil.example', which is another provider"),
        (changed(iss=None), "is from 'None', which is another provider"),
        (changed(aud="another"), "is for another site"),
        (changed(aud=[]), "is for another site"),
        (changed(aud=None), "is for another site"),
        (changed(aud={"cottage": 1}), "is for another site"),
        (changed(aud=["cottage", "another"]), "was given to another site"),
        (changed(azp="another"), "was given to another site"),
        (changed(nonce="n"), "is for another sign-in"),
        (changed(nonce=None), "is for another sign-in"),
        (by_hand({}, nonce="\ud800"), "is for another sign-in"),
        (shifted(exp=-400, iat=-400), "has ended"),
        (shifted(iat=-700), "has ended"),
        (shifted(iat=120), "is from the future"),
        (changed(exp=None), "does not say when"),
        (changed(exp="tomorrow"), "does not say when"),
        (changed(exp=1e300), "does not say when"),
        (changed(iat=True), "does not say when"),
        (changed(sub=None), "does not say who"),
        (changed(sub=""), "does not say who"),
        (changed(sub=7), "does not say who"),
        (changed(sub="x" * 256), "does not say who"),
        (by_hand({}, sub="\ud800"), "does not say who"),
        (unsigned, "is signed by 'none', which does not count here"),
        (by_what_is_public, "is signed by 'HS256', which does not count here"),
        (by(OTHER), "has a signature that is not the provider's"),
        (by(OTHER, kid="two"), "is signed with a key that it does not publish"),
        (by_hand({"crit": ["exp"], "exp": 1}), "cannot be read"),
        (by_hand({"crit": ["b64"], "b64": False}), "cannot be read"),
        (by_hand({"alg": ["RS256"]}), "which does not count here"),
        (by_hand({"kid": ["one"]}), "does not publish"),
        (lambda _true, _key: "no token", "cannot be read"),
        (lambda _true, _key: "ä.b.c", "cannot be read"),
        (lambda _true, _key: "", "cannot be read"),
        (deep, "cannot be read"),
        (lambda _true, _key: "x" * 40_000, "is too long"),
        (lambda _true, _key: 7, "it does not say who signed in"),
    ],
)
async def test_a_token_that_does_not_hold_opens_nothing(
    lab: House, provider: Provider, http: aiohttp.ClientSession, forge: Forge, said: str
) -> None:
    provider.forge = forge
    status, text = await refused(http, lab, await back(http, await there(http, lab)))
    assert said in text
    assert status in (401, 503)


@pytest.mark.filterwarnings("ignore:Key size")
async def test_keys_that_are_too_short_or_for_something_else_check_nothing(
    lab: House, provider: Provider, http: aiohttp.ClientSession
) -> None:
    small = RSAKey.generate_key(1024, {"kid": "one"})
    short, secret = small.as_dict(private=False), {"kty": "oct", "kid": "one", "k": "c2VjcmV0"}
    sealing = OTHER.as_dict(private=False) | {"use": "enc"}
    odd: list[Any] = [
        None,
        7,
        {},
        {"kty": "RSA"},
        {"kty": ["RSA"]},
        {"kty": "RSA", "n": "!", "e": 1},
        {"kty": "EC", "crv": 1},
    ]
    provider.always["/keys"] = lambda: web.json_response({"keys": [*odd, short, secret, sealing]})
    provider.forge = by(small)
    status, said = await refused(http, lab, await back(http, await there(http, lab)))
    assert (status, said) == (503, "the identity provider has no key that a signature can be checked with")


@pytest.fixture(params=["/.well-known/openid-configuration", "/keys", "/token"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def outcome(http: aiohttp.ClientSession, house: House) -> tuple[int, str]:
    """What is said, be it on the way there or on the way back."""
    answer = await post(http, house, "/sign-in/identity")
    text = await answer.text()
    if answer.status != 200:
        return answer.status, text
    to = text.split('content="0; url=')[1].split('"')[0].replace("&amp;", "&")
    return await refused(http, house, await back(http, to))


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (lambda: web.Response(body=b"{" + b" " * (300 << 10)), 503),
        (lambda: web.Response(text="<html>sign in here</html>", content_type="text/html"), 503),
        (lambda: web.Response(text="[" * 100_000), 503),
        (lambda: web.Response(text="null"), 503),
        (lambda: web.Response(body=b"\xff\xfe"), 503),
        (lambda: web.json_response({"keys": {}, "issuer": 7}), 503),
        (lambda: web.Response(status=500, text="\x1b[2J"), 503),
        (lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"}), 503),
    ],
)
async def test_an_answer_that_is_none_becomes_a_sentence(
    lab: House,
    provider: Provider,
    http: aiohttp.ClientSession,
    path: str,
    answer: Callable[[], web.Response],
    status: int,
) -> None:
    provider.always[path] = answer
    found, said = await outcome(http, lab)
    refuses = path == "/token" and answer().status != 200
    assert found == (401 if refuses else status), said
    assert "\x1b" not in said


async def test_a_provider_that_is_silent_is_given_up(
    lab: House, provider: Provider, http: aiohttp.ClientSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity_provider, "ANSWER_S", 0.2)
    provider.silent.add(path)
    status, said = await outcome(http, lab)
    assert status == 503
    assert "does not answer (no answer in time): try again in a moment" in said


async def test_a_provider_that_is_gone_is_asked_no_more_than_every_few_seconds(
    lab: House, provider: Provider, http: aiohttp.ClientSession
) -> None:
    provider.always["/.well-known/openid-configuration"] = lambda: web.Response(status=500)
    for _ in range(3):
        assert (await outcome(http, lab))[0] == 503
    assert provider.asked["/.well-known/openid-configuration"] == 1


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"issuer": None},
        {"jwks_uri": "http://id.example/keys"},
        {"token_endpoint": "file:///etc/passwd"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"userinfo_endpoint": "http://id.example/userinfo"},
        {"jwks_uri": None},
    ],
)
async def test_metadata_of_another_provider_or_of_an_open_line_is_not_used(
    lab: House, provider: Provider, http: aiohttp.ClientSession, metadata: Claims
) -> None:
    provider.metadata = metadata
    status, said = await outcome(http, lab)
    assert status == 503
    assert "the metadata of" in said
    assert "cannot be used" in said


# --- what thieves and strangers bring ---------------------------------------------------------------------------------------


async def test_an_answer_opens_nothing_in_another_browser_and_is_not_used_up_there(
    lab: House, http: aiohttp.ClientSession
) -> None:
    """Else a victim would work in the attacker's account: RFC 9700, section 4.7."""
    to = await back(http, await there(http, lab))
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as victim:
        for _ in range(2):
            status, said = await refused(victim, lab, to)
            assert (status, said) == (401, "this browser has begun no sign-in here: begin it again")
            await there(victim, lab)
            assert await refused(victim, lab, to) == (401, "the sign-in is too old or was used already: begin it again")
    assert (await arrive(http, to))[0] == 303


async def test_an_answer_and_its_code_are_good_once(
    lab: House, provider: Provider, http: aiohttp.ClientSession
) -> None:
    to = await back(http, await there(http, lab))
    kept = {cookie.key: cookie.value for cookie in http.cookie_jar}
    assert (await arrive(http, to))[0] == 303
    http.cookie_jar.clear()
    assert (await arrive(http, to))[0] == 401
    http.cookie_jar.update_cookies({COOKIE: kept[COOKIE]}, URL(lab.url))
    assert await arrive(http, to) == (401, "the sign-in is too old or was used already: begin it again")
    provider.brings = lambda answer: answer | {"code": URL(to).query["code"]}
    host = URL(provider.issuer).authority
    assert await signed_in(http, lab) == (
        401,
        f"{host} does not take the sign-in: invalid_grant: code is used up\ufffd[2J; begin again",
    )
    assert len(await lab.accounts.all()) == 2


@pytest.mark.parametrize(
    ("brings", "said"),
    [
        ({"iss": "https://evil.example"}, "this answer is not from"),
        ({"iss": None}, "this answer is not from"),
        ({"code": None}, "it sent no code"),
        ({"code": ""}, "it sent no code"),
        ({"code": "a\nb"}, "it sent no code"),
        ({"code": "x" * 5000}, "it sent no code"),
        ({"code": "guess"}, "invalid_grant"),
        ({"state": None}, "has begun no sign-in"),
        ({"state": "x"}, "too old or was used already"),
        ({"state": "é"}, "has begun no sign-in"),
        ({"state": "add.x"}, "nobody is signed in"),
    ],
)
async def test_an_answer_with_another_part_opens_nothing(
    lab: House, provider: Provider, http: aiohttp.ClientSession, brings: dict[str, str | None], said: str
) -> None:
    provider.brings = lambda answer: {key: value for key, value in (answer | brings).items() if value is not None}
    assert said in (await refused(http, lab, await back(http, await there(http, lab))))[1]


async def test_a_part_that_comes_twice_is_refused(lab: House, http: aiohttp.ClientSession) -> None:
    to = await back(http, await there(http, lab))
    assert await refused(http, lab, f"{to}&code=another") == (
        422,
        "this answer of the identity provider has 'code' twice: begin again",
    )


async def test_cookies_of_any_bytes_are_refused(lab: House, http: aiohttp.ClientSession) -> None:
    for value in ("\udcff", "x" * 3000, "", "%00", '"'):
        async with http.get(
            f"{lab.url}/sign-in/identity?state=x&code=y&iss=z", headers={"Cookie": f"{COOKIE}={value}"}
        ) as answer:
            assert answer.status == 401, value
