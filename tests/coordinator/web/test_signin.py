"""Signing in and up over HTTP: passwords, wallets with real keys, cookies, tokens of forms, and what must be refused."""

import base64
import json
import re
from typing import Any

import aiohttp
import pytest

from coordinator.domain.account import LOCAL_ACCOUNT, Role
from coordinator.errors import UnauthorisedError
from coordinator.services.accounts.challenges import CHALLENGE_S, Challenges
from coordinator.services.accounts.signin import TRIES, signed_text
from coordinator.store.memory import MemoryStore
from coordinator.web.auth.gate import SECURE_COOKIE, SESSION_COOKIE
from coordinator.web.pages.account import after
from coordinator.web.pages.render import CSRF_COOKIE
from protocol.identity import NodeKey
from tests.coordinator.web.conftest import House
from tests.support.clock import VirtualClock

PASSWORD = "correct horse battery staple"
HTML = {"Accept": "text/html"}


async def token(http: aiohttp.ClientSession, url: str) -> str:
    """The token in a page's form."""
    async with http.get(url, headers=HTML) as answer:
        found = re.search(r'name="csrf" value="([0-9a-f]{64})"', await answer.text())
    assert found
    return found[1]


async def post(http: aiohttp.ClientSession, town: House, path: str, page: str = "/sign-in", **fields: str) -> Any:
    fields = {"csrf": await token(http, town.url + page), **fields}
    return await http.post(town.url + path, data=fields, headers=HTML, allow_redirects=False)


async def sign_up(http: aiohttp.ClientSession, town: House, name: str = "Ada", **fields: str) -> Any:
    values = {"name": name, "password": PASSWORD, "again": PASSWORD, **fields}
    return await post(http, town, "/sign-up", "/sign-up", **values)


async def operator(town: House) -> None:
    await town.accounts.create("operator", Role.OPERATOR)


def cookie_of(answer: aiohttp.ClientResponse, name: str = SESSION_COOKIE) -> Any:
    return answer.cookies[name]


async def test_the_first_account_needs_the_code_and_becomes_the_operator(
    town: House, http: aiohttp.ClientSession
) -> None:
    code = town.auth.setup.make()
    assert ((town.folder / "setup-code").stat().st_mode & 0o777) == 0o600
    refused = await sign_up(http, town, code="guess")
    assert refused.status == 403
    assert not await town.accounts.any()
    made = await sign_up(http, town, code=code)
    assert made.status == 303
    account = await town.accounts.by_name("ada")
    assert (account.id, account.role) == (LOCAL_ACCOUNT, Role.OPERATOR)
    assert not (town.folder / "setup-code").exists()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as other:
        assert (await sign_up(other, town, "Bob", code="")).status == 303
    assert (await town.accounts.by_name("Bob")).role is Role.SUBMITTER


async def test_a_page_of_ones_own_leads_to_the_sign_in_and_back(town: House, http: aiohttp.ClientSession) -> None:
    await operator(town)
    assert (await sign_up(http, town)).status == 303
    http.cookie_jar.clear()
    answer = await http.get(f"{town.url}/jobs?before=5", headers=HTML, allow_redirects=False)
    assert (answer.status, answer.headers["Location"]) == (303, "/sign-in?next=%2Fjobs%3Fbefore%3D5")
    entered = await post(http, town, "/sign-in", name=" ada ", password=PASSWORD, next="/jobs?before=5")
    assert (entered.status, entered.headers["Location"]) == (303, "/jobs?before=5")
    async with http.get(f"{town.url}/jobs", headers=HTML) as page:
        assert page.status == 200
        assert "Ada" in await page.text()


async def test_the_cookie_is_kept_from_scripts_and_changes_at_every_sign_in(
    town: House, http: aiohttp.ClientSession
) -> None:
    await operator(town)
    first = cookie_of(await sign_up(http, town))
    assert first["httponly"] is True
    assert (first["samesite"], first["path"], first["secure"]) == ("Lax", "/", "")
    http.cookie_jar.clear()
    http.cookie_jar.update_cookies({SESSION_COOKIE: "planted by somebody"})
    answer = await post(http, town, "/sign-in", name="Ada", password=PASSWORD)
    second = cookie_of(answer)
    assert second.value not in (first.value, "planted by somebody")
    assert answer.cookies[CSRF_COOKIE].value == "", "forms of before are void"
    out = await post(http, town, "/sign-out", "/account")
    assert out.status == 303
    async with http.get(f"{town.api}/jobs", headers={"Cookie": f"{SESSION_COOKIE}={second.value}"}) as answer:
        assert answer.status == 401, "a cookie that somebody kept is worth nothing after signing out"


async def test_over_tls_the_cookie_is_for_tls_alone(town: House, http: aiohttp.ClientSession) -> None:
    town.auth.behind_proxy = True
    await operator(town)
    secure = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "6.6.6.6, 203.0.113.9"}
    page = await http.get(f"{town.url}/sign-up", headers=HTML | secure)
    csrf = re.search(r'name="csrf" value="([0-9a-f]{64})"', await page.text())
    assert csrf
    cookie = page.cookies[CSRF_COOKIE]
    assert cookie["secure"] is True
    form = {"csrf": csrf[1], "name": "Ada", "password": PASSWORD, "again": PASSWORD}
    header = HTML | secure | {"Cookie": f"{CSRF_COOKIE}={cookie.value}"}
    answer = await http.post(f"{town.url}/sign-up", data=form, headers=header, allow_redirects=False)
    assert cookie_of(answer, SECURE_COOKIE)["secure"] is True
    [session] = await town.accounts.sessions((await town.accounts.by_name("Ada")).id)
    assert session.address == "203.0.113.9", "what the client wrote itself is not believed"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"password": "short", "again": "short"}, "10 to 200"),
        ({"again": "another one altogether"}, "differ"),
        ({"name": "OPERATOR"}, "taken"),
        ({"name": "  "}, "can be seen"),
        ({"name": "a\u202eb"}, "can be seen"),
        ({"name": "x" * 65}, "can be seen"),
    ],
)
async def test_what_makes_no_account_is_said_beside_the_form(
    town: House, http: aiohttp.ClientSession, fields: dict[str, str], says: str
) -> None:
    await operator(town)
    answer = await sign_up(http, town, **fields)
    assert answer.status in (409, 422)
    assert says in await answer.text()
    assert len(await town.accounts.all()) == 1


async def test_a_wrong_name_reads_like_a_wrong_password_and_tries_run_out(
    town: House, http: aiohttp.ClientSession
) -> None:
    await operator(town)
    await sign_up(http, town)
    http.cookie_jar.clear()
    said = set()
    for name in ("Ada", "nobody"):
        answer = await post(http, town, "/sign-in", name=name, password="wrong")
        assert answer.status == 401
        text = re.sub(r'(value|data-csrf)="[^"]*"', "", await answer.text())
        said.add(text)
    assert len(said) == 1
    for _ in range(int(TRIES)):
        answer = await post(http, town, "/sign-in", name="Ada", password="wrong")
    assert answer.status == 429
    assert int(answer.headers["Retry-After"]) > 0
    right = await post(http, town, "/sign-in", name="Ada", password=PASSWORD)
    assert right.status == 429, "a guess that is right is not told from one that is wrong"
    trail = await town.accounts.trail((await town.accounts.by_name("Ada")).id, None, 50)
    assert "sign-in.failed" in {one.action for one in trail}


async def test_no_form_works_without_its_token(town: House, http: aiohttp.ClientSession) -> None:
    await operator(town)
    await sign_up(http, town)
    assert town.app is not None
    forms = [
        route.resource.canonical
        for route in town.app.router.routes()
        if route.method == "POST" and route.resource is not None and not route.resource.canonical.startswith("/api/")
    ]
    assert len(forms) > 15
    for path in forms:
        filled = re.sub(r"\{\w+\}", "0" * 32, path)
        for data in ({"name": "x"}, {"csrf": "0" * 64, "name": "x"}):
            answer = await http.post(town.url + filled, data=data, allow_redirects=False)
            refused = (400,) if path.startswith("/v1/") else (403, 404, 422)
            assert answer.status in refused, (path, answer.status)
    [session] = await town.accounts.sessions((await town.accounts.by_name("Ada")).id)
    assert session


async def test_a_page_of_another_site_changes_nothing(town: House, http: aiohttp.ClientSession) -> None:
    await operator(town)
    await sign_up(http, town)
    for header in (
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        answer = await http.post(f"{town.api}/uploads", json={"length": 1}, headers=header)
        assert answer.status == 403, header


@pytest.mark.parametrize(
    ("wanted", "to"),
    [
        ("/jobs/abc?x=1", "/jobs/abc?x=1"),
        ("//evil.example", "/jobs"),
        ("/\\evil.example", "/jobs"),
        ("https://evil.example", "/jobs"),
        ("/a\r\nSet-Cookie: x", "/jobs"),
        ("javascript:alert(1)", "/jobs"),
        ("", "/jobs"),
    ],
)
def test_nobody_is_sent_to_another_site_after_signing_in(wanted: str, to: str) -> None:
    assert after(wanted) == to


# --- wallets ----------------------------------------------------------------------------------------------------------------


async def challenge(http: aiohttp.ClientSession, town: House) -> dict[str, str]:
    async with http.post(f"{town.url}/sign-in/wallet/challenge", json={}) as answer:
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())


def proof(key: NodeKey, asked: dict[str, str], text: str | None = None) -> dict[str, str]:
    """What a wallet answers."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from coordinator.services.accounts.signin import WalletChallenge

    message = (text or signed_text(WalletChallenge(**asked), key.address)).encode()
    signature = Ed25519PrivateKey.from_private_bytes(key.seed).sign(message)
    return {
        "address": key.address,
        "nonce": asked["nonce"],
        "message": base64.b64encode(message).decode(),
        "signature": base64.b64encode(signature).decode(),
    }


async def send(http: aiohttp.ClientSession, town: House, said: dict[str, str]) -> int:
    async with http.post(f"{town.url}/sign-in/wallet", json=said) as answer:
        return answer.status


async def test_a_wallet_signs_in_and_comes_back_to_the_same_account(town: House, http: aiohttp.ClientSession) -> None:
    await operator(town)
    key = NodeKey.generate()
    asked = await challenge(http, town)
    assert asked["domain"] == f"127.0.0.1:{town.port}"
    assert await send(http, town, proof(key, asked)) == 200
    http.cookie_jar.clear()
    assert await send(http, town, proof(key, await challenge(http, town))) == 200
    assert len(await town.accounts.all()) == 2
    async with http.get(f"{town.api}/jobs") as answer:
        assert answer.status == 200


async def test_a_wallets_signature_opens_nothing_twice_or_elsewhere(town: House, http: aiohttp.ClientSession) -> None:
    await operator(town)
    key, other = NodeKey.generate(), NodeKey.generate()
    used = await challenge(http, town)
    assert await send(http, town, proof(key, used)) == 200
    assert await send(http, town, proof(key, used)) == 401, "a challenge is good once"
    bad: list[dict[str, str]] = []
    asked = await challenge(http, town)
    bad.append(proof(key, asked) | {"address": other.address})
    asked = await challenge(http, town)
    bad.append(proof(key, asked, f"evil.example wants you to sign in\nNonce: {asked['nonce']}"))
    bad.append(proof(key, {**await challenge(http, town), "domain": "evil.example"}))
    bad.append(proof(key, {**await challenge(http, town), "expirationTime": "2999-01-01T00:00:00.000Z"}))
    bad.append(proof(key, {**await challenge(http, town), "nonce": "f" * 32}))
    bad.append(proof(key, await challenge(http, town)) | {"signature": base64.b64encode(bytes(64)).decode()})
    bad.append(proof(key, await challenge(http, town)) | {"signature": "not base64"})
    bad.append(proof(key, await challenge(http, town)) | {"address": "1" * 31})
    for said in bad:
        assert await send(http, town, said) == 401, said
    assert len(await town.accounts.all()) == 2


async def test_a_request_cannot_say_what_site_the_wallet_signs_for(town: House, http: aiohttp.ClientSession) -> None:
    url = f"{town.url}/sign-in/wallet/challenge"
    async with http.post(url, json={}, headers={"Host": "evil.example"}) as answer:
        assert answer.status == 503
        assert "--public-url" in (await answer.json())["detail"]
    town.auth.public_url = "https://cottage.example"
    async with http.post(url, json={}, headers={"Host": "evil.example"}) as answer:
        assert (await answer.json())["domain"] == "cottage.example"


async def test_an_old_challenge_is_refused() -> None:
    clock = VirtualClock()
    challenges = Challenges(MemoryStore(), clock)
    await challenges.keep("n", "wallet", "", "text")
    await clock.advance(CHALLENGE_S + 1)
    with pytest.raises(UnauthorisedError, match="too old"):
        await challenges.take("n", "wallet")
    await challenges.keep("m", "wallet", "", "text")
    with pytest.raises(UnauthorisedError):
        await challenges.take("m", "passkey")


async def test_a_wallet_is_linked_and_is_not_removed_as_the_last_way_in(
    town: House, http: aiohttp.ClientSession
) -> None:
    await operator(town)
    key = NodeKey.generate()
    await send(http, town, proof(key, await challenge(http, town)))
    refused = await post(http, town, f"/account/credentials/{key.address}/remove", "/account")
    assert refused.status == 409
    changed = await post(http, town, "/account/password", "/account", password=PASSWORD, again=PASSWORD)
    assert changed.status == 303
    assert (await post(http, town, f"/account/credentials/{key.address}/remove", "/account")).status == 303
    async with http.post(f"{town.url}/account/wallets", json=proof(key, await challenge(http, town))) as answer:
        assert answer.status == 200
    async with http.post(f"{town.url}/account/wallets", json=proof(key, await challenge(http, town))) as answer:
        assert answer.status == 409


async def test_another_password_signs_every_other_browser_out(town: House, http: aiohttp.ClientSession) -> None:
    await operator(town)
    old = cookie_of(await sign_up(http, town)).value
    wrong = await post(http, town, "/account/password", "/account", old="wrong", password=PASSWORD, again=PASSWORD)
    assert wrong.status == 401
    new = "a new one, longer than before"
    changed = await post(http, town, "/account/password", "/account", old=PASSWORD, password=new, again=new)
    assert changed.status == 303
    async with http.get(f"{town.api}/jobs") as answer:
        assert answer.status == 200, "this browser stays"
    async with aiohttp.ClientSession() as other:
        async with other.get(f"{town.api}/jobs", headers={"Cookie": f"{SESSION_COOKIE}={old}"}) as answer:
            assert answer.status == 401


async def test_a_key_is_shown_once_and_works_until_it_is_revoked(town: House, http: aiohttp.ClientSession) -> None:
    await operator(town)
    await sign_up(http, town)
    page = await post(http, town, "/account/keys", "/account", name="laptop", life="30", scope="jobs:read")
    text = await page.text()
    found = re.search(r"cottage_[0-9a-f]{12}_[\w-]{43}", text)
    assert found
    header = {"Authorization": f"Bearer {found[0]}", "Cookie": ""}
    async with aiohttp.ClientSession() as program:
        async with program.get(f"{town.api}/jobs", headers=header) as answer:
            assert answer.status == 200
        async with http.get(f"{town.url}/account") as shown:
            assert found[0] not in await shown.text()
        key = found[0].split("_")[1]
        assert (await post(http, town, f"/account/keys/{key}/revoke", "/account")).status == 303
        async with program.get(f"{town.api}/jobs", headers=header) as answer:
            assert answer.status == 401
            assert json.loads(await answer.text())["code"] == "unauthorised"


async def test_the_operator_sees_everybodys_trail_and_others_their_own(
    town: House, http: aiohttp.ClientSession
) -> None:
    await operator(town)
    await sign_up(http, town, "Ada")
    async with http.get(f"{town.url}/account/trail?of=everybody") as answer:
        text = await answer.text()
    assert "operator" not in text
    assert "session.began" in text
    root = (await town.accounts.all())[0]
    secret = await town.accounts.begin_session(root.id, "password")
    async with aiohttp.ClientSession() as other:
        url = f"{town.url}/account/trail?of=everybody"
        async with other.get(url, headers={"Cookie": f"{SESSION_COOKIE}={secret}"}) as answer:
            assert "Ada" in await answer.text()
