"""The life of a job over HTTP: what changes it, what it leaves, and who may look."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from coordinator.client import Client
from coordinator.client.cli import main
from coordinator.client.errors import ProblemError
from coordinator.errors import UnavailableError
from protocol.rest.api import NewOutput, TrialRequest
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake_services import Outputs
from tests.coordinator.web.test_tenants import job_of, member


async def started(house: House, rounds: int = 5) -> str:
    """A job that has done some rounds."""
    spec: dict[str, Any] = {"name": "a job", "model": {"preset": "tiny-llama"}, "budget": 9_000_000}
    async with Client(house.url) as client:
        job = (await client.create_job(spec | {"dataset": {"artifact": await house.dataset()}})).id
        await client.fund(job)
    for _ in range(rounds + 2):
        house.cluster.step(job)
    return job


async def test_a_job_is_paused_resumed_and_stopped_by_its_client(house: House) -> None:
    job = await started(house)
    async with Client(house.url) as client:
        assert (await client.pause(job)).state == "paused"
        assert (await client.resume(job)).state == "planned"
        with pytest.raises(ProblemError, match="nothing more can be spent"):
            await client.add_budget(job, 10**12)
        assert (await client.stop(job)).state == "verifying"
        with pytest.raises(ProblemError) as refused:
            await client.pause(job)
        assert refused.value.status == 409


async def test_checkpoints_are_listed_and_come_whole(house: House, http: aiohttp.ClientSession) -> None:
    job = await started(house)
    async with Client(house.url) as client:
        newest = (await client.checkpoints(job))[0]
        archive = await client.download_checkpoint(job, newest.round, house.folder / "model.zip")
    assert archive.read_bytes().startswith(b"model of ")
    async with http.get(f"{house.api}/jobs/{job}/checkpoints/{newest.round}/stages/0") as answer:
        data = await answer.read()
        assert answer.headers["X-Content-SHA256"] == hashlib.sha256(data).hexdigest()
        assert answer.headers["Content-Disposition"].endswith(f'-round{newest.round}-stage0.safetensors"')
    for path, status in (("99/model.zip", 404), ("x/model.zip", 422), ("1/stages/-1", 422)):
        async with http.get(f"{house.api}/jobs/{job}/checkpoints/{path}") as answer:
            assert answer.status == status, path


async def test_a_bucket_of_ones_own_is_named_shown_and_taken_back(
    house: House, http: aiohttp.ClientSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await started(house)
    wanted = NewOutput("s3://mine/models", "a key", "a very secret key", "https://s3.example.org", checkpoints=True)
    async with Client(house.url) as client:
        with pytest.raises(ProblemError, match="no bucket is named"):
            await client.output(job)
        made = await client.set_output(job, wanted)
        assert (made.url, made.state, made.checkpoints) == ("s3://mine/models", "waiting", True)
        assert await client.output(job) == made
    async with http.get(f"{house.api}/jobs/{job}/output") as answer:
        assert "secret" not in await answer.text()
    for wrong in ({"url": "https://mine"}, {"url": "s3://m"}, {"endpoint": "ftp://x"}, {"key": ""}, {"region": "a b"}):
        body = msgspec.to_builtins(wanted) | wrong
        async with http.put(f"{house.api}/jobs/{job}/output", json=body) as answer:
            assert answer.status == 422, wrong
    words = ["output", job, "s3://other", "--server", house.url]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert await asyncio.to_thread(main, words) == 2
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in capsys.readouterr().err
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a very secret key")
    assert await asyncio.to_thread(main, words) == 0
    told = capsys.readouterr().out
    assert "s3://other at AWS, us-east-1: 0 objects have arrived" in told
    assert "very secret" not in told
    assert await asyncio.to_thread(main, ["output", job, "--remove", "--server", house.url]) == 0
    async with http.get(f"{house.api}/jobs/{job}/output") as answer:
        assert answer.status == 404


async def test_the_records_of_an_audit_come_with_their_digests(house: House, http: aiohttp.ClientSession) -> None:
    job, audit = await started(house), "0a" * 16
    async with Client(house.url) as client:
        records = await client.records(job, audit)
        path = await client.download_record(records, "opening", house.folder)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == records.files["opening"]
    for path_, status in (
        (f"{audit}/records/passwd", 404),
        ("nonsense/records", 404),
        ("nonsense/records/opening", 404),
    ):
        async with http.get(f"{house.api}/jobs/{job}/audits/{path_}") as answer:
            assert answer.status == status, path_


async def test_a_log_is_searched_and_bad_questions_are_refused(house: House, http: aiohttp.ClientSession) -> None:
    job = await started(house)
    async with Client(house.url) as client:
        lines = await client.logs(job, search="submitted")
        assert [line.text for line in lines] == ["job a job was submitted"]
    for query in ("level=loud", "limit=0", "limit=1001", "after=-1", "before=x", f"search={'x' * 201}"):
        async with http.get(f"{house.api}/jobs/{job}/logs?{query}") as answer:
            assert answer.status == 422, query
            assert (await answer.json())["field"] == query.partition("=")[0]


async def test_a_model_is_tried_piece_by_piece(house: House, http: aiohttp.ClientSession) -> None:
    job = await started(house)
    async with Client(house.url) as client:
        pieces = [piece async for piece in client.generate(job, TrialRequest("to be or not", tokens=3))]
    assert "".join(piece.get("text", "") for piece in pieces) == " to be or"
    assert pieces[-1] == {"done": "length", "tokens": 3}
    body = json.dumps({"prompt": "x"})
    header = {"Content-Type": "application/json"}
    async with http.post(f"{house.api}/jobs/{job}/generate", data=body, headers=header) as answer:
        assert answer.content_type == "text/event-stream"
        assert (await answer.text()).startswith("event: checkpoint\ndata: ")
    async with http.post(f"{house.api}/jobs/{job}/generate?round=99", data=body, headers=header) as answer:
        assert answer.status == 404, "what is refused at once is an ordinary answer"
    for wrong in (
        {"prompt": ""},
        {"prompt": "x", "tokens": 513},
        {"prompt": "x", "temperature": -1},
        {"prompt": "x" * 8001},
    ):
        async with http.post(f"{house.api}/jobs/{job}/generate", json=wrong) as answer:
            assert answer.status == 422, wrong


async def test_a_trial_is_kept_alive_while_nothing_comes(
    house: House, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ready = await started(house), asyncio.Event()

    async def slow(
        _self: Outputs, _job: str, _round: int | None, _wanted: TrialRequest
    ) -> AsyncIterator[dict[str, Any]]:
        await ready.wait()
        yield {"text": "Hi"}
        raise UnavailableError("the model failed")

    monkeypatch.setattr(Outputs, "generate", slow)
    monkeypatch.setattr("coordinator.web.stream.PACE_S", 0.05)
    async with http.post(f"{house.api}/jobs/{job}/generate", json={"prompt": "x"}) as answer:
        assert await answer.content.readline() == b": waiting\n"
        ready.set()
        assert b'event: text\ndata: {"text":"Hi"}\n\nevent: error\n' in await answer.content.read()
    async with Client(house.url) as client:
        ready.clear()
        asyncio.get_running_loop().call_later(0.2, ready.set)
        pieces = client.generate(job, TrialRequest("x"))
        assert await anext(pieces) == {"text": "Hi"}, "comments are passed over"
        with pytest.raises(ProblemError, match="the model failed"):
            await anext(pieces)


async def test_runs_are_compared_by_whoever_may_see_them(town: House, http: aiohttp.ClientSession) -> None:
    ann, ben = await member(town, "ann"), await member(town, "ben")
    first, second = await job_of(town, http, ann), await job_of(town, http, ben)
    both = f"{town.api}/compare?jobs={first},{second}"
    async with http.get(both, headers=ann) as answer:
        assert answer.status == 404, "the other's run is not there"
    async with http.put(f"{town.api}/jobs/{second}/share", json={"shared": True}, headers=ben) as answer:
        assert answer.status == 200
    async with http.get(both, headers=ann) as answer:
        assert [curve["job"]["id"] for curve in await answer.json()] == [first, second]
    for wrong in ("", "x", ",".join([first] * 3 + ["0" * 31])):
        async with http.get(f"{town.api}/compare?jobs={wrong}", headers=ann) as answer:
            assert answer.status == 422, wrong


async def test_a_shared_job_is_looked_at_by_everybody_and_changed_by_nobody(
    town: House,
    http: aiohttp.ClientSession,
) -> None:
    ann, ben = await member(town, "ann"), await member(town, "ben")
    job = await job_of(town, http, ann)
    looks = ("", "/nodes", "/rounds", "/commits", "/audits", "/receipts", "/metrics", "/events")
    for header, refused in ((ben, 404), ({}, 401)):
        for look in looks:
            async with http.get(f"{town.api}/jobs/{job}{look}", headers=header) as answer:
                assert answer.status == refused, look
    async with http.put(f"{town.api}/jobs/{job}/share", json={"shared": True}, headers=ann) as answer:
        assert (await answer.json())["shared"]
    for header, refused in ((ben, 404), ({}, 401)):
        for look in looks:
            async with http.get(f"{town.api}/jobs/{job}{look}", headers=header) as answer:
                assert answer.status == 200, look
        for hidden in ("/logs", "/checkpoints", "/funding", "/model.zip"):
            async with http.get(f"{town.api}/jobs/{job}{hidden}", headers=header) as answer:
                assert answer.status == refused, hidden
        for change in ("pause", "stop", "cancel", "fund"):
            async with http.post(f"{town.api}/jobs/{job}/{change}", headers=header) as answer:
                assert answer.status == refused, change


async def test_an_accounts_notices_are_its_own(town: House, http: aiohttp.ClientSession) -> None:
    ann, ben = await member(town, "ann"), await member(town, "ben")
    wanted = {"webhook": "https://hooks.example.org/ann", "webhook_kinds": ["done"]}
    async with http.put(f"{town.api}/notices", json=wanted, headers=ann) as answer:
        mine = await answer.json()
        assert (mine["webhook"], mine["webhook_kinds"], mine["confirmed"]) == (wanted["webhook"], ["done"], False)
    async with http.get(f"{town.api}/notices", headers=ben) as answer:
        other = await answer.json()
        assert other["webhook"] == ""
        assert other["secret"] != mine["secret"]
    async with http.post(f"{town.api}/notices/test", headers=ann) as answer:
        assert await answer.json() == {"queued": 1}
    async with http.get(f"{town.api}/notices/deliveries", headers=ann) as answer:
        assert [one["kind"] for one in await answer.json()] == ["test"]
    async with http.get(f"{town.api}/notices/deliveries", headers=ben) as answer:
        assert await answer.json() == []
    async with http.get(f"{town.api}/notices") as answer:
        assert answer.status == 401


async def test_the_commands_say_where_the_job_stands(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    job = await started(house)

    async def run(*words: str) -> tuple[int, str]:
        status = await asyncio.to_thread(main, [*words, "--server", house.url])
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    status, shown = await run("pause", job)
    assert (status, shown.startswith("Paused: nothing runs")) == (0, True)
    status, shown = await run("pause", job)
    assert (status, "nothing to pause" in shown) == (1, True)
    assert (await run("resume", job))[0] == 0
    assert "submitted" in (await run("logs", job, "--search", "submitted"))[1]
    assert "1.23 MB" in (await run("checkpoints", job))[1]
    assert "to be or not" in (await run("try", job, "to be or not", "--tokens", "4"))[1]
    assert (await run("try", job, "x", "--tokens", "9999"))[0] == 2
    with pytest.raises(SystemExit, match="2"):
        await run("budget", job, "1e3")
    assert "write a number such as 12.50" in capsys.readouterr().err
    status, shown = await run("stop", job, "--json")
    assert (status, json.loads(shown)["state"]) == (0, "verifying")
