"""What belongs to one account does not exist for another, on any route."""

import asyncio
import inspect
import json
import re
import sys
from collections import Counter

import aiohttp
import pytest
from aiohttp import web

from coordinator.domain.account import LOCAL_ACCOUNT, Principal, Role, Scope
from coordinator.services.accounts.accounts import ABSOLUTE_S, IDLE_S, AccountService
from coordinator.services.accounts.throttle import Throttle
from coordinator.store.memory import MemoryStore
from coordinator.store.records import CredentialRecord
from coordinator.web.auth import access_of
from coordinator.web.auth.gate import ADDRESS_BURST, MAKERS, SESSION_COOKIE
from coordinator.web.pages.render import CSRF_COOKIE, form_token
from protocol.rest.api import NewUpload
from tests.coordinator.web.conftest import House
from tests.support.clock import VirtualClock

FORM = f"csrf={form_token('0' * 64)}"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def time(self) -> float:
        return self.now_s


async def member(town: House, name: str, scopes: frozenset[Scope] = frozenset(Scope)) -> dict[str, str]:
    """A new account's header."""
    role = Role.SUBMITTER if await town.accounts.any() else Role.OPERATOR
    account = await town.accounts.create(name, role)
    who = Principal(account.id, frozenset(Scope))
    _, text = await town.accounts.create_key(who, "test", scopes)
    return {"Authorization": f"Bearer {text}"}


async def uploaded(town: House, http: aiohttp.ClientSession, header: dict[str, str], data: bytes) -> str:
    """Upload a dataset; returns its digest."""
    async with http.post(f"{town.api}/uploads", json={"length": len(data)}, headers=header) as answer:
        upload = (await answer.json())["id"]
    sent = header | {"Tus-Resumable": "1.0.0", "Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    async with http.patch(f"{town.api}/uploads/{upload}", data=data, headers=sent) as answer:
        assert answer.status == 204, await answer.text()
    async with http.get(f"{town.api}/uploads/{upload}", headers=header) as answer:
        return str((await answer.json())["artifact"])


async def job_of(town: House, http: aiohttp.ClientSession, header: dict[str, str]) -> str:
    body = {
        "spec": {
            "name": "secret",
            "model": {"preset": "tiny-llama"},
            "budget": 9_000_000,
            "dataset": {"artifact": await uploaded(town, http, header, b"to be or not to be\n" * 200)},
        }
    }
    async with http.post(f"{town.api}/jobs", json=body, headers=header) as answer:
        assert answer.status == 201, await answer.text()
        return str((await answer.json())["id"])


def guarded(app: web.Application) -> list[tuple[str, str]]:
    """Method and path of every route that is not for everybody."""
    return [
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None
        and not isinstance(route.resource, web.StaticResource)
        and not access_of(route.handler).public
    ]


async def test_without_a_key_every_guarded_route_asks_who_it_is(town: House, http: aiohttp.ClientSession) -> None:
    assert town.app is not None
    routes = guarded(town.app)
    assert len(routes) > 40
    for method, path in routes:
        filled = re.sub(r"\{\w+\}", "0" * 32, path)
        async with http.request(method, town.url + filled) as answer:
            assert answer.status == 401, (method, path)
            assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_every_id_of_one_account_is_unknown_to_another_on_every_route(
    town: House, http: aiohttp.ClientSession
) -> None:
    assert town.app is not None
    await member(town, "operator")
    alice, bob = await member(town, "alice"), await member(town, "bob")
    ids = {"job": await job_of(town, http, alice)}
    async with http.post(f"{town.api}/uploads", json={"length": 9}, headers=alice) as answer:
        ids["upload"] = (await answer.json())["id"]
    hers = await town.accounts.by_key(alice["Authorization"].removeprefix("Bearer "))
    await town.accounts.begin_session(hers.account_id, "password")
    await town.accounts.add_credential(
        CredentialRecord("wallet-of-alice", hers.account_id, "wallet", "w", b"", 1.0), "127.0.0.1"
    )
    ids["key"] = (await town.accounts.keys(hers.account_id))[0].id
    ids["session"] = (await town.accounts.sessions(hers.account_id))[0].id
    ids["credential"] = "wallet-of-alice"
    tried = 0
    forms = {"Cookie": f"{CSRF_COOKIE}={'0' * 64}", "Content-Type": "application/x-www-form-urlencoded"}
    for method, path in guarded(town.app):
        names = re.findall(r"\{(\w+)\}", path)
        if not set(names) & set(ids):
            continue
        tried += 1
        filled = re.sub(r"\{(\w+)\}", lambda found: ids.get(found[1], "0"), path)
        unknown = re.sub(r"\{(\w+)\}", lambda found: "f" * 32 if found[1] in ids else "0", path)
        told = []
        for address in (filled, unknown):
            async with http.request(method, town.url + address, headers=bob | forms, data=FORM) as answer:
                assert answer.status == 404, (method, path, await answer.text())
                text = await answer.text()
            for one in (*ids.values(), "f" * 32):
                text = text.replace(one, "?")
            told.append(text)
        assert told[0] == told[1], "an id that is somebody's reads like one that is nobody's"
    assert tried > 20
    assert len(await town.accounts.keys(hers.account_id)) == len(await town.accounts.sessions(hers.account_id)) == 1
    assert len(await town.accounts.credentials(hers.account_id)) == 1
    async with http.get(f"{town.api}/jobs/{ids['job']}", headers=alice) as answer:
        assert (answer.status, (await answer.json())["state"]) == (200, "created"), "nobody changed it"
    async with http.get(f"{town.api}/jobs", headers=bob) as answer:
        assert await answer.json() == []
    for form in ("submit", "submit/array"):
        async with http.get(f"{town.url}/{form}?from={ids['job']}", headers=bob) as answer:
            assert answer.status == 404, form


async def test_whoever_knows_the_digest_of_anothers_file_cannot_use_it(
    town: House, http: aiohttp.ClientSession
) -> None:
    await member(town, "operator")
    alice, bob = await member(town, "alice"), await member(town, "bob")
    hers = await uploaded(town, http, alice, b"a secret recipe\n" * 100)
    spec = {"name": "j", "model": {"preset": "tiny-llama"}, "budget": 9_000_000, "dataset": {"artifact": hers}}
    for path, body in (
        ("jobs", {"spec": spec}),
        ("checks", {"dataset": {"artifact": hers}}),
        ("quote", {**spec, "tokenizer": {"kind": "file", "file": hers}}),
        ("quote", {**spec, "model": {"preset": "tiny-llama", "weights": hers}}),
    ):
        text = []
        for digest in (hers, "f" * 64):
            said = json.loads(json.dumps(body).replace(hers, digest))
            async with http.post(f"{town.api}/{path}", json=said, headers=bob) as answer:
                assert answer.status == 404, (path, await answer.text())
                text.append((await answer.text()).replace(digest, "?"))
        assert text[0] == text[1]
    assert await uploaded(town, http, bob, b"a secret recipe\n" * 100) == hers, "who has the file may use it"
    async with http.post(f"{town.api}/jobs", json={"spec": spec}, headers=bob) as answer:
        assert answer.status == 201


async def test_what_is_done_to_a_job_is_in_its_accounts_trail_and_in_no_others(
    town: House, http: aiohttp.ClientSession
) -> None:
    await member(town, "operator")
    alice, bob = await member(town, "alice"), await member(town, "bob")
    job = await job_of(town, http, alice)
    for action in ("fund", "cancel"):
        async with http.post(f"{town.api}/jobs/{job}/{action}", headers=alice) as answer:
            assert answer.status == 200
    async with http.post(f"{town.api}/jobs/{job}/cancel", headers=bob) as answer:
        assert answer.status == 404
    hers = await town.accounts.by_key(alice["Authorization"].removeprefix("Bearer "))
    done = [(one.action, one.subject, one.via) for one in await town.accounts.trail(hers.account_id, None, 3)]
    via = f"key {hers.key}"
    assert done == [("job.cancel", job, via), ("job.fund", job, via), ("job.created", job, via)]
    async with http.get(f"{town.api}/account/trail", headers=bob) as answer:
        assert job not in await answer.text()
    async with http.get(f"{town.api}/account/trail?of=everybody", headers=alice) as answer:
        assert answer.status == 403


async def test_an_array_that_is_made_with_its_form_is_in_the_trail(town: House, http: aiohttp.ClientSession) -> None:
    alice = await member(town, "alice")
    town.cluster.artifacts = None  # No file is looked for.
    typed = {"image": "a" * 64, "command": "square {input}", "elements": "b" * 64, "count": "2", "name": "squares"}
    data = aiohttp.FormData(default_to_multipart=True)
    for name, value in {"csrf": form_token("0" * 64), "budget": "9", "action": "create", **typed}.items():
        data.add_field(name, value)
    sent = alice | {"Cookie": f"{CSRF_COOKIE}={'0' * 64}"}
    async with http.post(f"{town.url}/submit/array", data=data, headers=sent, allow_redirects=False) as answer:
        assert answer.status == 303, await answer.text()
        job = answer.headers["Location"].removeprefix("/jobs/")
    hers = await town.accounts.by_key(alice["Authorization"].removeprefix("Bearer "))
    [last] = await town.accounts.trail(hers.account_id, None, 1)
    assert (last.action, last.subject) == ("job.created", job)


def test_every_route_that_makes_jobs_is_known_to_write_them_into_the_trail(town: House) -> None:
    assert town.app is not None
    routes = [route for route in town.app.router.routes() if route.method == "POST" and route.resource is not None]
    makes = {
        name: inspect.getsource(sys.modules[name]).count("jobs.create(")
        for name in {route.handler.__module__ for route in routes}
    }
    known = Counter(
        route.handler.__module__ for route in routes if route.resource and route.resource.canonical in MAKERS
    )
    assert {name: count for name, count in makes.items() if count} == known
    assert known.total() == len(MAKERS)


async def test_a_stranger_who_asks_too_often_is_told_when_to_come_back(
    town: House, http: aiohttp.ClientSession
) -> None:
    told = set()
    for _ in range(int(ADDRESS_BURST) + 60):
        async with http.get(f"{town.url}/healthz") as answer:
            told.add(answer.status)
            if answer.status == 429:
                assert int(answer.headers["Retry-After"]) >= 1
                break
    assert told == {200, 429}


def test_the_throttle_remembers_a_bounded_number_of_keys() -> None:
    throttle = Throttle(VirtualClock(), 1.0, 2.0, max_keys=100)
    assert [throttle.take("a") for _ in range(3)] == [0.0, 0.0, 1.0]
    for number in range(1000):
        throttle.take(str(number))
    assert len(throttle) == 100


async def test_a_key_does_only_what_its_scopes_say(town: House, http: aiohttp.ClientSession) -> None:
    reader = await member(town, "reader", frozenset({Scope.JOBS_READ}))
    async with http.get(f"{town.api}/jobs", headers=reader) as answer:
        assert answer.status == 200
    for path, body in (("jobs", {"spec": {}}), ("uploads", {"length": 1})):
        async with http.post(f"{town.api}/{path}", json=body, headers=reader) as answer:
            assert answer.status == 403
            assert "scope" in (await answer.json())["detail"]


async def test_revoked_expired_and_forged_keys_read_the_same() -> None:
    clock = Clock()
    accounts = AccountService(MemoryStore(), clock)  # type: ignore[arg-type]
    account = await accounts.create("somebody", Role.OPERATOR)
    who = Principal(account.id, frozenset(Scope))
    kept, text = await accounts.create_key(who, "kept", frozenset({Scope.JOBS_READ}), 10.0)
    gone, other = await accounts.create_key(who, "gone", frozenset({Scope.JOBS_READ}))
    assert (await accounts.by_key(text)).scopes == {Scope.JOBS_READ}
    await accounts.revoke_key(account.id, gone.id)
    clock.now_s += 11.0
    said = set()
    for bad in (text, other, text[:-1], "cottage_", f"cottage_{kept.id}_", "cottage_" + "0" * 12 + "_x"):
        with pytest.raises(Exception, match="not valid") as refused:
            await accounts.by_key(bad)
        said.add(str(refused.value))
    assert len(said) == 1


async def test_a_session_ends_when_idle_and_after_a_month_however_busy() -> None:
    clock = Clock()
    accounts = AccountService(MemoryStore(), clock)  # type: ignore[arg-type]
    account = await accounts.create("somebody", Role.SUBMITTER)
    idle, busy = [await accounts.begin_session(account.id, "password") for _ in range(2)]
    began = clock.now_s
    while clock.now_s - began < ABSOLUTE_S - IDLE_S / 2:
        clock.now_s += IDLE_S / 2
        assert await accounts.by_session(busy) is not None
    assert await accounts.by_session(idle) is None
    clock.now_s = began + ABSOLUTE_S + 1
    assert await accounts.by_session(busy) is None
    assert await accounts.sessions(account.id) == []


async def test_a_session_cookie_opens_what_is_the_accounts(town: House, http: aiohttp.ClientSession) -> None:
    account = await town.accounts.create("somebody", Role.SUBMITTER)
    secret = await town.accounts.begin_session(account.id, "password")
    cookie = {"Cookie": f"{SESSION_COOKIE}={secret}"}
    async with http.get(f"{town.api}/jobs", headers=cookie) as answer:
        assert answer.status == 200
    [session] = await town.accounts.sessions(account.id)
    assert secret not in str(session)
    await town.accounts.end_session(account.id, session.id)
    async with http.get(f"{town.api}/jobs", headers=cookie) as answer:
        assert answer.status == 401


async def test_the_first_account_takes_over_what_an_open_coordinator_had(town: House) -> None:
    await town.uploads.create(NewUpload(5))
    first = await town.accounts.create("first", Role.OPERATOR)
    second = await town.accounts.create("second", Role.SUBMITTER)
    assert first.id == LOCAL_ACCOUNT != second.id


async def test_an_open_coordinator_answers_to_no_foreign_name(house: House, http: aiohttp.ClientSession) -> None:
    for host, status in (
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost:1", 200),
        ("[::1]:80", 200),
        ("10.0.0.1", 403),
        ("127.0.0.1", 200),
    ):
        async with http.get(f"{house.api}/jobs", headers={"Host": host}) as answer:
            assert answer.status == status, host


@pytest.mark.parametrize(
    "header",
    [b"Authorization: Bearer cottage_" + b"a" * 12 + b"_\xff", SESSION_COOKIE.encode().join((b"Cookie: ", b"=\xff"))],
)
async def test_a_key_of_bytes_that_are_no_text_is_not_valid_and_no_fault(town: House, header: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", town.port)
    writer.write(b"GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + header + b"\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert b" 401 " in answer.splitlines()[0]
