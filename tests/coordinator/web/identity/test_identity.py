"""Signing in through an identity provider: whole, by HTTP, with one that others wrote, and with one that checks its client."""

import re
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import oidc_provider_mock
import pytest
from aiohttp import web

from coordinator.domain.account import LOCAL_ACCOUNT, Role
from coordinator.services.accounts.id_tokens import ProvenIdentity
from coordinator.services.accounts.identities import credential_id
from coordinator.services.accounts.signin import SIGN_UPS, TRIES
from coordinator.store.records import CredentialRecord
from coordinator.web.pages.identity import COOKIE, SECURE_COOKIE
from coordinator.web.pages.render import CSRF_COOKIE
from tests.coordinator.web.conftest import House
from tests.coordinator.web.identity.conftest import Opened, arrive, back, signed_in, there
from tests.coordinator.web.identity.provider import CLIENT, Provider
from tests.coordinator.web.test_signin import HTML, PASSWORD, post


@pytest.fixture
def known() -> Iterator[str]:
    """A provider that others wrote; where it is."""
    people = [oidc_provider_mock.User(sub="grace", claims={"name": "Grace Hopper", "email": "grace@lab.example"})]
    with oidc_provider_mock.run_server_in_thread(user_claims=people, require_nonce=True) as server:
        yield f"http://localhost:{server.server_port}"
    assert threading.active_count() < 50


async def through_the_known_one(http: aiohttp.ClientSession, house: House, who: str) -> tuple[int, str]:
    to = await there(http, house)
    async with http.get(to) as form:
        assert form.status == 200, await form.text()
    async with http.post(to, data={"sub": who}, allow_redirects=False) as answer:
        assert answer.status == 302, await answer.text()
        return await arrive(http, answer.headers["Location"])


async def identities_of(house: House, account_id: str) -> list[CredentialRecord]:
    return [one for one in await house.accounts.credentials(account_id) if one.kind == "identity"]


async def test_a_person_of_a_real_provider_signs_in_and_comes_back_as_the_same(
    opened: Opened, known: str, http: aiohttp.ClientSession
) -> None:
    house = await opened(known, "any secret", sign_up=False)
    assert await through_the_known_one(http, house, "grace") == (303, "/jobs")
    async with http.get(f"{house.url}/account") as page:
        text = await page.text()
    assert "Grace Hopper" in text
    assert "by identity" in text, "the session says how it began"
    http.cookie_jar.clear()
    assert (await through_the_known_one(http, house, "grace"))[0] == 303
    http.cookie_jar.clear()
    assert (await through_the_known_one(http, house, "linus@lab.example"))[0] == 303
    assert [one.name for one in await house.accounts.all()] == ["operator", "Grace Hopper", "linus"]
    account = await house.accounts.by_name("grace hopper")
    (record,) = await identities_of(house, account.id)
    assert (record.id, record.name) == (
        credential_id(ProvenIdentity(known, "grace")),
        f"Grace Hopper at {urlsplit(known).netloc}",
    )
    assert [line.action for line in await house.accounts.trail(account.id, None, 9)] == [
        "session.began",
        "session.began",
        "identity.added",
        "account.created",
    ]


async def test_who_declines_there_is_told_so_and_is_nobody_here(
    lab: House, provider: Provider, http: aiohttp.ClientSession
) -> None:
    provider.brings = lambda answer: {
        "state": answer["state"],
        "iss": answer["iss"],
        "error": "access_denied",
        "error_description": "You said\nno <b>\x1b[2J",
    }
    status, said = await signed_in(http, lab)
    assert (status, said) == (401, f"{lab_host(provider)} did not sign you in: access_denied: You said no <b>\ufffd[2J")
    assert len(await lab.accounts.all()) == 1


def lab_host(provider: Provider) -> str:
    return urlsplit(provider.issuer).netloc


async def test_the_way_there_says_what_a_provider_needs_and_keeps_the_rest_to_itself(
    lab: House, provider: Provider, http: aiohttp.ClientSession
) -> None:
    to = await there(http, lab, next="/jobs?before=5")
    asked = {name: values[0] for name, values in parse_qs(urlsplit(to).query).items()}
    assert asked.pop("redirect_uri") == f"{lab.url}/sign-in/identity"
    for secret in ("state", "nonce", "code_challenge"):
        assert re.fullmatch(r"[\w-]{43}", asked.pop(secret))
    assert asked == {
        "tenant": "lab",
        "response_type": "code",
        "client_id": CLIENT,
        "scope": "openid profile email",
        "code_challenge_method": "S256",
    }
    assert await arrive(http, await back(http, to)) == (303, "/jobs?before=5")


async def test_the_cookie_of_a_sign_in_is_kept_from_scripts_and_is_gone_afterwards(
    lab: House, http: aiohttp.ClientSession
) -> None:
    answer = await post(http, lab, "/sign-in/identity")
    cookie = answer.cookies[COOKIE]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["secure"]) == (True, "Lax", "/", "")
    assert int(cookie["max-age"]) == 300
    async with http.get(f"{lab.url}/sign-in/identity?state=x&code=y") as refused:
        assert refused.status == 401
        assert refused.cookies[COOKIE].value == ""
    lab.auth.behind_proxy = True
    http.cookie_jar.clear()
    secure = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}
    page = await http.get(f"{lab.url}/sign-in", headers=HTML | secure)
    csrf = re.search(r'name="csrf" value="([0-9a-f]{64})"', await page.text())
    assert csrf
    header = HTML | secure | {"Cookie": f"{CSRF_COOKIE}={page.cookies[CSRF_COOKIE].value}"}
    answer = await http.post(f"{lab.url}/sign-in/identity", data={"csrf": csrf[1]}, headers=header)
    assert answer.cookies[SECURE_COOKIE]["secure"] is True


async def test_no_other_site_s_page_begins_a_sign_in(lab: House, http: aiohttp.ClientSession) -> None:
    async with http.post(f"{lab.url}/sign-in/identity", data={"csrf": "0" * 64}) as answer:
        assert answer.status == 403
    async with http.get(f"{lab.url}/sign-in/identity", allow_redirects=False) as answer:
        assert answer.status == 401


async def test_a_name_that_is_taken_gets_something_behind_it_and_an_identity_without_one_has_one(
    lab: House, provider: Provider, http: aiohttp.ClientSession
) -> None:
    await lab.accounts.create("ADA", Role.SUBMITTER)
    for claims in (
        {"sub": "1", "preferred_username": "ada"},
        {"sub": "2", "preferred_username": "x" * 80},
        {"sub": "3", "preferred_username": "x" * 80},
        {"sub": "4", "preferred_username": " \u202e ", "name": "", "email": "bob@lab.example"},
        {"sub": "5"},
        {"sub": "6", "name": 7, "email": []},
    ):
        http.cookie_jar.clear()
        provider.claims = claims
        assert (await signed_in(http, lab))[0] == 303
    names = [one.name for one in await lab.accounts.all()][2:]
    patterns = [r"ada [0-9a-f]{4}", r"x{63}…", r"x{59} [0-9a-f]{4}", r"\ufffd|bob", *[r"somebody [0-9a-f]{6}"] * 2]
    assert [bool(re.fullmatch(pattern, name)) for pattern, name in zip(patterns, names, strict=True)] == [True] * 6, (
        names
    )


async def test_a_name_is_asked_for_where_the_token_has_none_and_only_of_the_same_person(
    lab: House, provider: Provider, http: aiohttp.ClientSession
) -> None:
    provider.metadata = {"userinfo_endpoint": f"{provider.issuer}/userinfo"}
    provider.claims, provider.told = {"sub": "1"}, {"sub": "1", "name": "Ada"}
    assert (await signed_in(http, lab))[0] == 303
    provider.claims, provider.told = {"sub": "2"}, {"sub": "1", "name": "Bob"}
    http.cookie_jar.clear()
    assert (await signed_in(http, lab))[0] == 303
    provider.always["/userinfo"] = lambda: web.Response(status=500)
    provider.claims = {"sub": "3"}
    http.cookie_jar.clear()
    assert (await signed_in(http, lab))[0] == 303
    assert [one.name.partition(" ")[0] for one in await lab.accounts.all()] == [
        "operator",
        "Ada",
        "somebody",
        "somebody",
    ]


@pytest.mark.parametrize("methods", [["client_secret_basic", "x"], ["client_secret_post"], None])
async def test_a_client_with_a_secret_shows_it_as_the_provider_wants(
    opened: Opened, provider: Provider, http: aiohttp.ClientSession, methods: list[str] | None
) -> None:
    provider.secret, provider.methods = "s3cr%t: +ä", methods
    house = await opened(provider.issuer, provider.secret)
    assert await signed_in(http, house) == (303, "/jobs")
    provider.secret = "another"
    http.cookie_jar.clear()
    status, said = await signed_in(http, house)
    assert (status, said) == (401, f"{lab_host(provider)} does not take the sign-in: invalid_client; begin again")


async def test_the_first_account_is_the_operator_s_with_the_code(
    opened: Opened, provider: Provider, http: aiohttp.ClientSession
) -> None:
    house = await opened(provider.issuer, operator=False)
    code = house.auth.setup.make()
    for guess in ("", "guess"):
        answer = await post(http, house, "/sign-in/identity", "/sign-up", code=guess)
        assert answer.status == 403
        assert "the first account is the operator&#39;s" in await answer.text()
    answer = await post(http, house, "/sign-in/identity", "/sign-up", code=code, next="/account")
    found = re.search(r'refresh" content="0; url=([^"]+)"', await answer.text())
    assert found
    assert await arrive(http, await back(http, found[1].replace("&amp;", "&"))) == (303, "/account")
    (account,) = await house.accounts.all()
    assert (account.id, account.role, account.name) == (LOCAL_ACCOUNT, Role.OPERATOR, "ada")
    assert not (house.folder / "setup-code").exists()


async def test_a_disabled_account_stays_out(lab: House, provider: Provider, http: aiohttp.ClientSession) -> None:
    assert (await signed_in(http, lab))[0] == 303
    account = await lab.accounts.by_name("ada")
    (before,) = await identities_of(lab, account.id)
    await lab.accounts.change(account.id, "account.disabled", disabled=True)
    http.cookie_jar.clear()
    assert await signed_in(http, lab) == (403, "this account was disabled: ask this coordinator's operator")
    assert await lab.accounts.sessions(account.id) == []
    assert await identities_of(lab, account.id) == [before], "who is out is not seen"
    assert (await lab.accounts.trail(account.id, None, 1))[0].action == "sign-in.failed"


async def test_tries_run_out_and_an_office_with_one_address_has_its_own(
    lab: House, provider: Provider, http: aiohttp.ClientSession
) -> None:
    for number in range(int(max(TRIES, SIGN_UPS)) + 2):
        http.cookie_jar.clear()
        provider.claims = {"sub": str(number), "name": f"person {number}"}
        assert (await signed_in(http, lab))[0] == 303, "who arrives has used up nothing"
    http.cookie_jar.clear()
    for _ in range(int(TRIES)):
        await there(http, lab)
    answer = await post(http, lab, "/sign-in/identity")
    assert answer.status == 429
    assert int(answer.headers["Retry-After"]) > 0
    assert (await post(http, lab, "/sign-in", name="operator", password="wrong")).status == 401, "nor has a password"


# --- on the account's page --------------------------------------------------------------------------------------------------


async def test_an_identity_is_added_to_an_account_and_removed_from_it(
    opened: Opened, provider: Provider, http: aiohttp.ClientSession
) -> None:
    house = await opened(provider.issuer)
    fields = {"name": "Countess", "password": PASSWORD, "again": PASSWORD}
    assert (await post(http, house, "/sign-up", "/sign-up", **fields)).status == 303
    account = await house.accounts.by_name("countess")
    assert await arrive(http, await back(http, await there(http, house, "/account/identities"))) == (
        303,
        "/account#ways",
    )
    assert provider.begun[-1]["prompt"] == "login", "somebody else may be signed in there"
    (record,) = await identities_of(house, account.id)
    assert record.used is not None
    async with http.get(f"{house.url}/account") as page:
        text = await page.text()
    assert f"ada at {lab_host(provider)}" in text
    http.cookie_jar.clear()
    assert (await signed_in(http, house))[0] == 303
    assert [one.name for one in await house.accounts.all()] == ["operator", "Countess"]
    removed = await post(http, house, f"/account/credentials/{record.id}/remove", "/account")
    assert removed.status == 303
    assert [line.action for line in await house.accounts.trail(account.id, None, 5)] == [
        "identity.removed",
        "session.began",
        "identity.added",
        "session.began",
        "account.created",
    ]


async def test_the_last_way_in_is_not_removed_and_one_identity_is_one_account_s(
    opened: Opened, provider: Provider, http: aiohttp.ClientSession
) -> None:
    house = await opened(provider.issuer)
    assert (await signed_in(http, house))[0] == 303
    (record,) = await identities_of(house, (await house.accounts.by_name("ada")).id)
    assert (await post(http, house, f"/account/credentials/{record.id}/remove", "/account")).status == 409
    http.cookie_jar.clear()
    fields = {"name": "Bob", "password": PASSWORD, "again": PASSWORD}
    assert (await post(http, house, "/sign-up", "/sign-up", **fields)).status == 303
    status, said = await arrive(http, await back(http, await there(http, house, "/account/identities")))
    assert (status, said) == (
        409,
        "this identity signs in an account already: sign in with it, or remove it there",
    )
    assert await identities_of(house, (await house.accounts.by_name("Bob")).id) == []


async def test_what_one_account_began_is_added_to_no_other(
    opened: Opened, provider: Provider, http: aiohttp.ClientSession
) -> None:
    house = await opened(provider.issuer)
    fields = {"password": PASSWORD, "again": PASSWORD}
    assert (await post(http, house, "/sign-up", "/sign-up", name="Bob", **fields)).status == 303
    to = await back(http, await there(http, house, "/account/identities"))
    await post(http, house, "/sign-out", "/account")
    status, said = await arrive(http, to)
    assert (status, said) == (401, "nobody is signed in: sign in, or send an API key as Authorization: Bearer")
    assert (await post(http, house, "/sign-up", "/sign-up", name="Eve", **fields)).status == 303
    to = await there(http, house, "/account/identities")
    assert (await arrive(http, await back(http, to.replace("state=add.", "state="))))[0] == 401
    for name in ("Bob", "Eve"):
        assert await identities_of(house, (await house.accounts.by_name(name)).id) == []


async def test_without_a_provider_nothing_is_offered(town: House, http: aiohttp.ClientSession) -> None:
    await town.accounts.create("operator", Role.OPERATOR)
    async with http.get(f"{town.url}/sign-in") as page:
        assert "/sign-in/identity" not in await page.text()
    answer: Any = await post(http, town, "/sign-in/identity")
    assert answer.status == 404
    async with http.get(f"{town.url}/sign-in/identity?state=a&code=b") as answer:
        assert answer.status == 404
