"""Every route of the interface: good and bad cases through a real server."""

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from openapi_spec_validator import validate
from yarl import URL

from coordinator.client import Client, JobUpdate, ProblemError, UnreachableError
from protocol.job.job import JobSpec
from protocol.rest import api
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake import TOKEN, address
from tests.support.wait import HANGS_S

NODE = {"Authorization": f"Bearer {TOKEN}"}


def spec(artifact: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "my model",
        "model": {"preset": "tiny-llama"},
        "dataset": {"artifact": artifact},
        "budget": 9_000_000,
        **more,
    }


async def post(http: aiohttp.ClientSession, url: str, body: Any = None, **more: Any) -> tuple[int, dict[str, Any]]:
    async with http.post(url, json=body, **more) as response:
        return response.status, await response.json()


async def submitted(house: House, **more: Any) -> api.JobView:
    async with Client(house.url) as client:
        return await client.create_job(spec(await house.dataset(), **more))


def archive(name: str = "config.json") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:  # Entries without a date: the same bytes whenever it is asked for.
        file.writestr(zipfile.ZipInfo(name), "{}")
        file.writestr(zipfile.ZipInfo("nested/model.safetensors"), b"\0" * 100)
    return out.getvalue()


async def test_a_job_lives_from_quote_to_download_through_the_client(house: House, tmp_path: Any) -> None:
    data = await house.dataset()
    async with Client(house.url) as client:
        quote = await client.quote(msgspec.convert(spec(data), JobSpec))
        assert (quote.stages, quote.replicas, quote.problems) == (2, 2, ())
        job = await client.create_job(spec(data))
        assert job.state == "created"
        funding = await client.funding(job.id)
        assert (funding.amount, funding.coordinator) == (9_000_000, address("coordinator"))
        assert (await client.fund(job.id)).state == "funded"
        assert (await client.fund(job.id)).state == "funded", "idempotent"
        house.cluster.run(job.id)
        await house.cluster.finish(job.id, archive())
        done = await client.get(job.id)
        assert done.state == "settled"
        assert done.paid + done.refunded == done.escrow
        assert [one.id for one in await client.jobs()] == [job.id]
        assert len(await client.nodes(job.id)) == 5
        assert len(await client.rounds(job.id)) == done.rounds_total
        assert sum(commit.amount for commit in await client.commits(job.id)) == done.paid
        assert {audit.state for audit in await client.audits(job.id)} == {"passed"}
        assert (await client.receipts(job.id))[0].kind == "fund"
        points = await client.metrics(job.id)
        assert await client.metrics(job.id, after=len(points) - 2) == points[-2:]
        events = await client.events(job.id)
        assert await client.events(job.id, after=events[-2].id) == events[-1:]
        assert (await client.network()).jobs_done == 1
        assert len(await client.network_nodes()) == 5
        folder = await client.download_folder(job.id, tmp_path / "model")
        assert (folder / "nested" / "model.safetensors").read_bytes() == b"\0" * 100
        whole = await client.download_model(job.id, tmp_path / "model.zip")
        assert whole.read_bytes() == archive()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


async def test_a_job_document_in_yaml_says_the_same_as_one_in_json(house: House, http: aiohttp.ClientSession) -> None:
    data = await house.dataset()
    text = f"name: my model\nmodel: {{preset: tiny-llama}}\ndataset: {{artifact: '{data}'}}\nbudget: 9_000_000\n"
    text += "training:\n  learning_rate: 3e-3\n"
    async with http.post(f"{house.api}/quote", data=text, headers={"Content-Type": "application/yaml"}) as response:
        assert response.status == 200, await response.text()
        from_yaml = await response.json()
    assert (await post(http, f"{house.api}/quote", spec(data)))[1] == from_yaml


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"budget": 0}, "budget"),
        ({"budget": -5}, "budget"),
        ({"budget": 10**400}, "budget"),
        ({"budget": 2**63}, "budget"),
        ({"budget": 1.5}, "budget"),
        ({"budget": "lots"}, "budget"),
        ({"name": ""}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"training": {"tokens": 0}}, "training.tokens"),
        ({"training": {"learning_rate": 0}}, "training.learning_rate"),
        ({"training": {"batch": 10**9}}, "training.batch"),
        ({"training": {"steps": 1}}, "training"),
        ({"dataset": {"artifact": "../../etc/passwd"}}, "dataset.artifact"),
        ({"dataset": {"artifact": "0" * 64}}, "dataset.artifact"),
        ({"model": {"preset": "llama-900b"}}, "model.preset"),
        ({"model": {"config": {"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 1}}}, "model.config"),
        ({"model": {"config": {"hidden_size": 10**400}}}, ""),
        ({"model": {"config": {"name": "a\0b"}}}, ""),
        ({"model": {"config": json.loads("[" * 30 + "]" * 30)}}, "model.config"),
        ({"model": {"config": {"a": json.loads("[" * 30 + "]" * 30)}}}, ""),
        ({"parallel": {"stages": 0}}, "parallel.stages"),
        ({"deadline_hours": -1}, "deadline_hours"),
        ({"surprise": 1}, ""),
    ],
)
async def test_a_job_that_cannot_be_is_refused_with_its_field_and_nothing_is_kept(
    house: House, http: aiohttp.ClientSession, change: dict[str, Any], field: str
) -> None:
    body = {"spec": spec(await house.dataset(), **change)}
    status, problem = await post(http, f"{house.api}/jobs", body)
    assert status == 422, problem
    assert problem["field"].removeprefix("spec").lstrip(".") == field
    assert problem["detail"]
    assert await house.cluster.list(10, None) == []


async def test_a_budget_beyond_the_wallet_or_below_the_price_names_both(
    house: House, http: aiohttp.ClientSession
) -> None:
    data = await house.dataset()
    status, problem = await post(http, f"{house.api}/jobs", {"spec": spec(data, budget=60_000_000)})
    assert (status, problem["code"]) == (402, "funds")
    assert "50,000,000" in problem["detail"]
    assert "60,000,000" in problem["detail"]
    status, problem = await post(http, f"{house.api}/jobs", {"spec": spec(data, budget=1)})
    assert (status, problem["field"]) == (422, "budget")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"a: &x [1]\nb: *x\n", "alias *x"),
        (b"a: [[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]\n", "deeper than 24"),
        (b"a: [1, 2\n", "cannot be read"),
        (b"!!python/object/apply:os.system ['true']\n", "cannot be read"),
        (b"a: .nan\n", "a: the number nan: only finite"),
        (b"a: -.inf\n", "finite"),
        (b"when: 2024-01-01\n", "type date"),
        (b"a: \xff\n", "not UTF-8"),
        (b'a: "\\0"\n', "zero character"),
        (b"a: " + b"9" * 5000, "cannot be read"),
        (b"a: {b: [1, " + b"9" * 400 + b"]}", "a.b[1]: a number of 1329 bits"),
        (b"- x\n", "must be a table"),
        (b"", "must be a table"),
        (b"name: 3\n", "name must be text, not a whole number"),
    ],
)
async def test_hostile_yaml_is_refused_with_a_reason(
    house: House, http: aiohttp.ClientSession, text: bytes, says: str
) -> None:
    async with http.post(f"{house.api}/quote", data=text, headers={"Content-Type": "application/yaml"}) as response:
        assert response.status == 422
        assert says in (await response.json())["detail"]


async def test_bodies_are_bounded_and_typed(house: House, http: aiohttp.ClientSession) -> None:
    url = f"{house.api}/quote"
    for kind, data, status in (
        ("application/yaml", b"a" * 300_000, 413),
        ("application/json", b" " * 2_000_000, 413),
        ("text/plain", b"{}", 422),
        ("application/x-www-form-urlencoded", b"a=b", 422),
        ("application/json", b"\xff\xfe", 422),
        ("application/json", b"[" * 500_000, 422),
        ("application/json", b"null", 422),
    ):
        async with http.post(url, data=data, headers={"Content-Type": kind}) as response:
            assert response.status == status, (kind, data[:10])
            assert (await response.json())["detail"]

    async def unannounced() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 100_000

    async with http.post(url, data=unannounced(), headers={"Content-Type": "application/json"}) as response:
        assert response.status == 413


@pytest.mark.parametrize(
    "part",
    [
        "",
        "/funding",
        "/nodes",
        "/rounds",
        "/commits",
        "/audits",
        "/receipts",
        "/metrics",
        "/events",
        "/stream",
        "/model.zip",
    ],
)
async def test_a_job_that_is_not_there_is_not_found_on_any_route(
    house: House, http: aiohttp.ClientSession, part: str
) -> None:
    for job in ("0" * 32, "x", "%00", "a" * 5000, "<script>"):
        async with http.get(f"{house.api}/jobs/{job}{part}") as response:
            assert response.status == 404
            assert response.content_type == "application/problem+json"
            found = await response.json()
            assert found["code"] in ("not_found", "http")
            assert (found["status"], found["title"]) == (404, "Not Found")
            assert found["type"] == f"/docs/api#{found['code']}"


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "limit=-1",
        "cursor=x",
        "cursor=" + "A" * 500,
        "cursor=bnVsbA",
        "cursor=WyJyb3VuZHMiLFsxLDFdXQ",
        "cursor=WyJqb2JzIixbMS4wLCJ4Il1d",
        "limit=1e1",
        "limit=٣",
    ],
)
async def test_a_bad_query_is_named(house: House, http: aiohttp.ClientSession, query: str) -> None:
    async with http.get(f"{house.api}/jobs?{query}") as response:
        assert response.status == 422
        assert (await response.json())["field"] == query.partition("=")[0]


async def test_a_settled_job_cannot_be_cancelled(house: House) -> None:
    job = await submitted(house)
    async with Client(house.url) as client:
        await client.fund(job.id)
        house.cluster.run(job.id)
        with pytest.raises(ProblemError) as refused:
            await client.cancel(job.id)
        assert (refused.value.status, refused.value.code) == (409, "illegal_transition")
        other = await submitted(house)
        assert (await client.cancel(other.id)).state == "cancelled"


async def test_a_model_that_is_not_there_yet_is_a_conflict(house: House, tmp_path: Any) -> None:
    job = await submitted(house)
    async with Client(house.url) as client:
        with pytest.raises(ProblemError, match="no model yet"):
            await client.download_model(job.id, tmp_path / "m.zip")
    assert list(tmp_path.glob("*m.zip*")) == []


async def test_nodes_store_and_fetch_artifacts_with_their_token_only(house: House, http: aiohttp.ClientSession) -> None:
    data = bytes(range(256)) * 5000
    asked = f"?lease={'a' * 32}&answers=audit-{'b' * 32}"
    url = f"{house.api}/artifacts/{hashlib.sha256(data).hexdigest()}{asked}"
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer "},
    ):
        async with http.put(url, data=data, headers=headers) as response:
            assert response.status == 403
        async with http.get(url, headers=headers) as response:
            assert response.status == 403
    async with http.get(url, headers=NODE) as response:
        assert response.status == 404
    for _ in range(2):
        async with http.put(url, data=data, headers=NODE) as response:
            assert response.status == 204
    async with http.get(url, headers=NODE) as response:
        assert await response.read() == data
    async with http.get(url, headers={**NODE, "Range": "bytes=256-511"}) as response:
        assert (response.status, await response.read()) == (206, bytes(range(256)))
    async with http.head(url, headers=NODE) as response:
        assert (response.status, response.content_length) == (200, len(data))
    async with http.put(f"{house.api}/artifacts/{'0' * 64}{asked}", data=data, headers=NODE) as response:
        assert response.status == 422
    async with http.put(f"{house.api}/artifacts/..%2f..%2fx{asked}", data=data, headers=NODE) as response:
        assert response.status == 404
    async with http.put(url, data=bytes(3 << 20), headers=NODE) as response:
        assert response.status == 413
    for wrong in ("", "?lease=x&answers=state-1-1", f"?lease={'a' * 32}", f"?lease={'a' * 32}&answers=gift-1"):
        async with http.put(url.partition("?")[0] + wrong, data=data, headers=NODE) as response:
            assert response.status == 422, wrong

    async def pieces() -> AsyncIterator[bytes]:
        yield data

    async with http.put(url, data=pieces(), headers=NODE) as response:
        assert response.status == 411, "how much is coming is said before it comes"


async def test_the_document_describes_exactly_the_routes_that_there_are(
    house: House, http: aiohttp.ClientSession
) -> None:
    async with http.get(f"{house.url}/openapi.json") as response:
        document = await response.json()
    assert document["openapi"] == "3.1.0"
    assert house.app is not None
    served = {
        (route.method.lower(), route.resource.canonical)
        for route in house.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    interface = {
        (method, path)
        for method, path in served
        if path.startswith(("/api/", "/v1/")) or path in ("/healthz", "/readyz", "/openapi.json")
    }
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert described == interface
    references = set(_references(document))
    assert references
    for reference in references:
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    assert all(
        operation["summary"] and "500" in operation["responses"]
        for methods in document["paths"].values()
        for operation in methods.values()
    )


def _references(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [found for value in part.values() for found in _references(value)]
    return [found for value in part for found in _references(value)] if isinstance(part, list) else []


async def test_health_and_headers(house: House, http: aiohttp.ClientSession) -> None:
    for path, status in (("/healthz", 200), ("/readyz", 200), ("/nothing-here", 404), ("/api/v1/nothing", 404)):
        async with http.get(house.url + path) as response:
            assert response.status == status
            policy = response.headers["Content-Security-Policy"]
            assert "unsafe" not in policy
            assert "default-src 'none'" in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Server"] == "cottage"
    async with http.delete(f"{house.api}/jobs") as response:
        assert response.status == 405
        assert "GET" in response.headers["Allow"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_another_sites_page_cannot_change_anything(
    house: House, http: aiohttp.ClientSession, headers: dict[str, str]
) -> None:
    job = await submitted(house)
    status, problem = await post(http, f"{house.api}/jobs/{job.id}/cancel", headers=headers)
    assert (status, problem["code"]) == (403, "forbidden")
    assert (await house.cluster.get(job.id)).state == "created"
    own = {"Origin": house.url, "Sec-Fetch-Site": "same-origin"}
    assert (await post(http, f"{house.api}/jobs/{job.id}/cancel", headers=own))[0] == 200


async def test_a_fault_of_the_coordinator_is_logged_and_not_told(
    house: House, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> None:
        raise RuntimeError("secret of the house")

    monkeypatch.setattr(house.cluster, "view", broken)
    async with http.get(f"{house.api}/network") as response:
        assert response.status == 500
        assert "secret" not in await response.text()
    assert "secret of the house" in caplog.text


async def test_the_stream_brings_the_job_its_points_and_events_until_it_is_over(house: House) -> None:
    job = await submitted(house)
    await house.cluster.fund(job.id)
    updates: list[JobUpdate] = []

    def on_update(update: JobUpdate) -> None:
        updates.append(update)
        if update.job is not None and update.job.state == "funded":
            house.cluster.run(job.id)

    async with Client(house.url) as client:
        async with asyncio.timeout(HANGS_S):
            done = await client.wait(job.id, on_update)
        assert done.state == "settled"
        assert [m for update in updates for m in update.metrics] == list(await client.metrics(job.id))
        assert [e for update in updates for e in update.events] == list(await client.events(job.id))


async def test_a_stream_goes_on_after_a_restart_without_repeating_anything(house: House) -> None:
    job = await submitted(house)
    await house.cluster.fund(job.id)
    house.cluster.step(job.id)
    seen: list[int] = []
    async with Client(house.url, sleep=lambda _s: asyncio.sleep(0.01)) as client:
        async with asyncio.timeout(HANGS_S):
            async for update in client.watch(job.id):
                seen += [event.id for event in update.events]
                if update.job is not None and update.job.state == "planned":
                    await house.stop()
                    await house.start()
                    house.cluster.run(job.id)
        assert seen == [event.id for event in await client.events(job.id)]


async def test_a_coordinator_that_is_not_there_is_said_to_be_so() -> None:
    async with Client("http://127.0.0.1:9", sleep=lambda _s: asyncio.sleep(0)) as client:
        with pytest.raises(UnreachableError, match=r"http://127.0.0.1:9 does not answer"):
            await client.network()
        with pytest.raises(ConnectionError):
            await client.get("0" * 32)


async def test_an_answer_that_is_not_a_coordinators_is_said_to_be_so(house: House) -> None:
    async with Client(f"{house.url}/healthz?") as client:
        with pytest.raises((UnreachableError, ProblemError)):
            await client.network()


async def walked(http: aiohttp.ClientSession, url: URL) -> list[list[Any]]:
    """Every page of a list, by its Link headers."""
    found = []
    while True:
        async with http.get(url) as response:
            assert response.status == 200, await response.text()
            found.append(await response.json())
            if "next" not in response.links:
                return found
            url = URL(str(response.links["next"]["url"]))


async def test_a_list_is_walked_page_by_page_and_what_is_added_meanwhile_repeats_nothing(
    house: House, http: aiohttp.ClientSession
) -> None:
    made = [(await submitted(house)).id for _ in range(7)]
    first = f"{house.api}/jobs?limit=3"
    async with http.get(first) as response:
        page = [one["id"] for one in await response.json()]
        there = URL(str(response.links["next"]["url"]))
    house.cluster.now += 1
    made.append((await submitted(house)).id)
    rest = [one["id"] for part in await walked(http, there) for one in part]
    assert sorted(page + rest) == sorted(made[:-1])
    assert [len(part) for part in await walked(http, URL(first))] == [3, 3, 2]
    async with Client(house.url) as client:
        assert sorted(one.id for one in await client.jobs(limit=8)) == sorted(made)
        assert len(await client.jobs(limit=5)) == 5


@pytest.mark.parametrize("part", ["nodes", "rounds", "commits", "audits", "receipts", "metrics", "events"])
async def test_every_list_of_a_job_is_the_same_in_pages_of_any_size(
    house: House, http: aiohttp.ClientSession, part: str
) -> None:
    job = await submitted(house)
    await house.cluster.fund(job.id)
    house.cluster.run(job.id)
    url = URL(f"{house.api}/jobs/{job.id}/{part}")
    (whole,) = await walked(http, url.with_query(limit=1000))
    assert len(whole) > 4
    for limit in (1, 3, len(whole), len(whole) - 1):
        pages = await walked(http, url.with_query(limit=limit))
        assert [one for page in pages for one in page] == whole
        assert max(map(len, pages)) == limit


@pytest.mark.parametrize("path", ["nodes", "relays", "ledger", "ledger/audits"])
async def test_every_list_of_the_network_is_the_same_in_pages_of_any_size(
    house: House, http: aiohttp.ClientSession, path: str
) -> None:
    for _ in range(2):
        job = await submitted(house)
        await house.cluster.fund(job.id)
        house.cluster.run(job.id)
    url = URL(f"{house.api}/{path}")
    (whole,) = await walked(http, url.with_query(limit=200))
    pages = await walked(http, url.with_query(limit=2))
    assert [one for page in pages for one in page] == whole
    assert len(pages) == (len(whole) + 1) // 2


async def test_who_has_an_answer_already_is_not_sent_it_again(house: House, http: aiohttp.ClientSession) -> None:
    job = await submitted(house)
    url = f"{house.api}/jobs/{job.id}"
    async with http.get(url) as response:
        tag = response.headers["ETag"]
    async with http.get(url, headers={"If-None-Match": tag}) as response:
        assert (response.status, await response.read()) == (304, b"")
    await house.cluster.fund(job.id)
    async with http.get(url, headers={"If-None-Match": tag}) as response:
        assert response.status == 200
        assert response.headers["ETag"] != tag


async def test_the_document_is_valid_openapi(house: House, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{house.url}/openapi.json") as response:
        validate(await response.json())
