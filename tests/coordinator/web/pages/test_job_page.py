"""The job's page: whose it is, its buttons, sharing, its log, trying the model, and what renews itself."""

import asyncio
import gzip
import html
import re

import aiohttp
import msgspec
import pytest

from common.untrusted_text import untrusted
from coordinator.client import Client
from coordinator.client.cli import main
from coordinator.client.show import evaluation_section
from coordinator.web.pages.fresh import LIVE_HEADER, MAX_KEPT, Fresh
from coordinator.web.pages.render import STATIC_FOLDER
from protocol.evaluation import EvaluationRow, EvaluationSpec, EvaluationView
from protocol.rest.api import JobView
from tests.coordinator.web.conftest import House

HTML = {"Accept": "text/html"}


async def running(house: House, rounds: int = 4) -> JobView:
    async with Client(house.url) as client:
        spec = {"model": {"preset": "tiny-llama"}, "dataset": {"artifact": await house.dataset()}, "budget": 2_000_000}
        job = await client.create_job({**spec, "name": "a run"})
        await client.fund(job.id)
    for _ in range(2 + rounds):
        house.cluster.step(job.id)
    return await house.cluster.get(job.id)


async def test_what_was_said_with_the_price_stands_on_the_page(house: House, http: aiohttp.ClientSession) -> None:
    job = await running(house, 0)
    found = house.cluster._find(job.id)
    said = ("the weights hold 1 tensor that this model has not, '<b>.weight'", "another reason")
    found.view = msgspec.structs.replace(found.view, quote=msgspec.structs.replace(job.quote, reasons=said))
    async with http.get(f"{house.url}/jobs/{job.id}", headers=HTML) as response:
        text = await response.text()
    assert "<b>.weight" not in text
    assert all(reason in html.unescape(text) for reason in said)


async def test_what_tasks_came_to_stands_on_the_page_and_on_the_command_line_and_in_the_readme(
    house: House, http: aiohttp.ClientSession, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs: list[str] = []
    rows = (
        EvaluationRow("<i>arc</i>|x", "acc", 0.25, 0.0625, 0.5, None, 50),
        EvaluationRow("b", "ppl", None, None, 3.0, None, None),
    )

    async def shown(state: str, note: str = "", rows: tuple[EvaluationRow, ...] = ()) -> str:
        job = await running(house, 0)
        jobs.append(job.id)
        found, asked = house.cluster._find(job.id), EvaluationSpec(("arc", "b"), 50)
        seen = EvaluationView(state, rows, untrusted(note))  # type: ignore[arg-type]
        spec = msgspec.structs.replace(job.spec, evaluation=asked)
        found.view = msgspec.structs.replace(found.view, spec=spec, evaluation=seen)
        async with http.get(f"{house.url}/jobs/{job.id}", headers=HTML) as response:
            assert response.status == 200
            return html.unescape(re.sub(r"<(?!i>|/i>)[^>]+>", " ", await response.text()))

    assert "The model is tried with its tasks once the job is settled" in await shown("waiting")
    assert "The model is being evaluated: task 1 of 2, the finished model." in await shown(
        "running", "task 1 of 2, the finished model"
    )
    assert "The model could not be evaluated: it took too long" in await shown("failed", "it took too long")
    page = await shown("done", "", rows)
    assert "Evaluation" in page
    assert "0.2500 ± 0.0625" in page
    assert "0.5000" in page
    async with Client(house.url) as client:
        assert (await client.get(jobs[-1])).evaluation == EvaluationView("done", rows)
    assert await asyncio.to_thread(main, ["show", jobs[-1], "--server", house.url]) == 0
    assert re.search(r"acc +0\.2500 ± 0\.0625 +0\.5000 +50", capsys.readouterr().out)
    section = evaluation_section(EvaluationView("done", rows))
    assert "| <i>arc</i>\\|x | acc | 0.2500 ± 0.0625 | 0.5000 | 50 |" in section.splitlines()
    assert evaluation_section(EvaluationView("failed", note=untrusted("it took too long"))) == ""


async def press(house: House, http: aiohttp.ClientSession, job: str, word: str, **fields: str) -> tuple[int, str]:
    """Send a form of the job's page, with the token that the page has."""
    async with http.get(f"{house.url}/jobs/{job}", headers=HTML) as response:
        found = re.search(r'name="csrf" value="([0-9a-f]{64})"', await response.text())
    assert found
    async with http.post(f"{house.url}/jobs/{job}/{word}", data={"csrf": found[1], **fields}, headers=HTML) as response:
        return response.status, await response.text()


async def test_a_job_is_paused_goes_on_gets_more_budget_and_stops_with_its_model(
    house: House, http: aiohttp.ClientSession
) -> None:
    job = await running(house)
    status, text = await press(house, http, job.id, "pause")
    assert (status, (await house.cluster.get(job.id)).state) == (200, "paused")
    assert 'id="resume"' in text
    assert 'id="pause"' not in text, "only what can be done is offered"
    await press(house, http, job.id, "resume")
    assert (await house.cluster.get(job.id)).state == "planned"
    for wrong in ("", "0", "-1", "1e3", "x"):
        status, text = await press(house, http, job.id, "budget", amount=wrong)
        assert status == 422, wrong
        assert 'role="alert"' in text
    assert (await house.cluster.get(job.id)).spec.budget == job.spec.budget
    found = house.cluster._find(job.id)
    found.view = msgspec.structs.replace(found.view, quote=msgspec.structs.replace(job.quote, price=3_000_000))
    await press(house, http, job.id, "budget", amount="0.5")
    assert (await house.cluster.get(job.id)).spec.budget == job.spec.budget + 500_000
    async with http.get(f"{house.url}/jobs/{job.id}/stop", headers=HTML) as response:
        assert "newest verified checkpoint" in await response.text()
    await press(house, http, job.id, "stop")
    assert (await house.cluster.get(job.id)).state == "verifying"
    for word in ("pause", "resume", "stop", "budget", "share", "try"):
        async with http.post(f"{house.url}/jobs/{job.id}/{word}", data={"amount": "1", "shared": "1"}) as response:
            assert response.status == 403, f"{word} without the page's token"


async def test_a_bucket_of_ones_own_is_named_on_the_page(house: House, http: aiohttp.ClientSession) -> None:
    job = await running(house)
    typed = {"url": "s3://mine/models", "key": "a key", "secret": "a very secret key", "region": "us-east-1"}
    status, text = await press(house, http, job.id, "output", **typed | {"url": "mine"})
    assert (status, 'role="alert"' in text) == (422, True)
    status, text = await press(house, http, job.id, "output", **typed, checkpoints="1")
    assert status == 200
    assert "0 objects have arrived" in text
    assert "very secret" not in text
    status, text = await press(house, http, job.id, "output", url="")
    assert 'id="output-set"' in text, "it can be named again"
    async with http.post(f"{house.url}/jobs/{job.id}/output", data=typed) as response:
        assert response.status == 403, "without the page's token"


async def test_an_audit_says_until_when_its_node_opens_and_since_when_it_is_away(
    house: House, http: aiohttp.ClientSession
) -> None:
    job = await running(house)
    audits = house.cluster._find(job.id).audits
    for state, away, words in (
        ("opening", None, r"The node opens the step until <time[^>]*>1970-01-01 01:00"),
        ("opening", 3_000.0, r"Its node is away since <time[^>]*>1970-01-01 00:50[^<]*</time>: it may come back"),
    ):
        deadline = 3_600.0
        audits[-1] = msgspec.structs.replace(audits[-1], state=state, detail="", deadline=deadline, away=away)
        async with http.get(f"{house.url}/jobs/{job.id}", headers=HTML) as response:
            assert re.search(words, await response.text())
        async with http.get(f"{house.api}/jobs/{job.id}/audits") as response:
            told = {audit["audit"]: audit for audit in await response.json()}[audits[-1].audit]
        assert (told["deadline"], told["away"]) == (deadline, away)


async def test_a_shared_page_has_no_buttons_files_or_log_for_others(house: House, http: aiohttp.ClientSession) -> None:
    job = await running(house)
    await press(house, http, job.id, "share", shared="1")
    house.auth.open_to_all = False  # Now nobody is signed in.
    async with http.get(f"{house.url}/jobs/{job.id}", headers=HTML) as response:
        assert response.status == 200
        text = await response.text()
    assert 'id="loss-wide"' in text
    for mine in ("<form", "/cancel", "model.zip", "/logs", "/stages/", "Try the model", "Download the model"):
        assert mine not in text.split("<footer")[0].split("<main")[1], mine
    async with http.get(f"{house.url}/runs", headers=HTML) as response:
        assert f"/jobs/{job.id}" in await response.text()
    for path in ("logs", "stop", "cancel"):
        async with http.get(f"{house.url}/jobs/{job.id}/{path}", headers=HTML, allow_redirects=False) as response:
            assert response.status in (303, 401, 404), path
    house.auth.open_to_all = True
    await press(house, http, job.id, "share", shared="0")
    house.auth.open_to_all = False
    async with http.get(f"{house.url}/jobs/{job.id}", headers=HTML, allow_redirects=False) as response:
        assert response.status in (303, 401, 404)
    async with http.get(f"{house.url}/runs", headers=HTML) as response:
        assert job.id not in await response.text()


async def test_what_renews_a_page_is_packed_and_has_no_secret(house: House, http: aiohttp.ClientSession) -> None:
    job = await running(house)
    path = f"{house.url}/jobs/{job.id}"
    async with http.get(path, headers=HTML) as response:
        whole = await response.text()
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', whole)
    assert found
    live = {**HTML, LIVE_HEADER: "1", "Accept-Encoding": "gzip"}
    async with http.get(path, headers=live) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        text = await response.text()
    assert found[1] not in text
    assert text.count('data-live="') == whole.count('data-live="')
    assert len(gzip.compress(text.encode())) * 3 < len(whole)
    async with http.get(path, headers={**HTML, LIVE_HEADER: "1", "Accept-Encoding": "identity"}) as response:
        assert "Content-Encoding" not in response.headers


async def test_a_page_is_made_once_for_all_who_ask_within_a_second() -> None:
    fresh, made = Fresh(), []

    async def make() -> str:
        made.append(1)
        return "page"

    for _ in range(50):
        answer = await fresh.answer("a", make)
    assert len(made) == 1
    assert isinstance(answer.body, bytes)
    assert gzip.decompress(answer.body) == b"page"
    for key in range(2 * MAX_KEPT):
        await fresh.answer(key, make)
    assert len(fresh._entries) == MAX_KEPT

    async def fail() -> str:
        raise RuntimeError("not now")

    with pytest.raises(RuntimeError):
        await fresh.answer("b", fail)
    assert (await fresh.answer("b", make)).status == 200, "a failure is not kept"


async def test_who_asks_a_second_after_the_last_news_gets_it() -> None:
    now, state = [100.0], ["running"]
    fresh = Fresh(lambda: now[0])

    async def make() -> str:
        read = state[0]
        now[0] += 0.5
        state[0] = "settled"  # While the page is made, and nothing follows.
        return read

    await fresh.answer("job", make)
    gap = re.search(r"GAP_MS = (\d+)", (STATIC_FOLDER / "live.js").read_text())
    assert gap is not None
    now[0] = 100.0 + int(gap[1]) / 1000
    answer = await fresh.answer("job", make)
    assert isinstance(answer.body, bytes)
    assert gzip.decompress(answer.body) == b"settled"


async def test_the_log_is_searched_and_hostile_lines_stay_text(house: House, http: aiohttp.ClientSession) -> None:
    job = await running(house)
    house.cluster._say(house.cluster._find(job.id), "fault", "<script>alert(1)</script> a node failed")
    asked = {"": True, "?search=node+failed": True, "?search=nothing-like-it": False, "?before=x&level=%00": True}
    for query, there in asked.items():
        async with http.get(f"{house.url}/jobs/{job.id}/logs{query}", headers=HTML) as response:
            assert response.status == 200, query
            text = await response.text()
        assert ("a node failed" in text.split("<main")[1]) is there, query
        assert "<script>alert" not in text


async def test_the_model_is_tried_without_scripts(house: House, http: aiohttp.ClientSession) -> None:
    job = await running(house)
    status, text = await press(house, http, job.id, "try", prompt="once <b>upon</b> a time")
    assert status == 200
    assert "&lt;b&gt;upon&lt;/b&gt;" in text
    assert "<b>upon" not in text
    status, text = await press(house, http, job.id, "try", prompt="")
    assert (status, "1 to 8,000 characters" in text) == (422, True)


async def test_the_owner_finds_what_programs_need(house: House, http: aiohttp.ClientSession) -> None:
    job = (await running(house)).id
    async with http.get(f"{house.url}/jobs/{job}", headers=HTML) as response:
        page = await response.text()
    assert f'<code id="api-address">{house.url}/v1</code>' in page
    assert f'<code id="api-model">{job}</code>' in page
    async with http.get(f"{house.url}/docs/use-a-model") as response:
        assert response.status == 200


async def test_a_checkpoint_is_trained_on_from_its_page(house: House, http: aiohttp.ClientSession) -> None:
    job = await running(house)
    async with http.get(f"{house.url}/jobs/{job.id}", headers=HTML) as answer:
        found = re.search(r'href="(/submit\?start=\w+&amp;round=(\d+))"', await answer.text())
    assert found
    async with http.get(house.url + html.unescape(found[1]), headers=HTML) as answer:
        form = await answer.text()
    fields = dict(re.findall(r'name="(model\.from_\w+)"[^>]*value="(\w+)"', form))
    assert fields == {"model.from_job": job.id, "model.from_round": found[2]}
