"""Pages over plain HTTP: forms and their tokens, hostile input, errors for people and for programs."""

import asyncio
import re
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.client.client import Client
from coordinator.web.pages.forms import DEFAULTS, NO_DATASET, fill, place, read
from coordinator.web.pages.render import STATIC_FOLDER
from protocol.codec import convert
from protocol.job.job import JobSpec, LoraSpec
from protocol.rest.api import Agreement, NewJob
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake import address
from tests.protocol.test_wallets import WALLET

HTML = {"Accept": "text/html"}
GOOD = {"name": "a job", "budget": "9", "dataset.artifact": "a" * 64}
ADAPTER = {"learns": "lora", "model.weights": "a" * 64}


async def token(http: aiohttp.ClientSession, house: House) -> str:
    async with http.get(f"{house.url}/submit") as response:
        found = re.search(r'name="csrf" value="([0-9a-f]{64})"', await response.text())
    assert found
    return found[1]


def form(fields: dict[str, str], files: dict[str, bytes] | None = None) -> aiohttp.FormData:
    data = aiohttp.FormData(default_to_multipart=True)
    for name, value in fields.items():
        data.add_field(name, value)
    for name, content in (files or {}).items():
        data.add_field(name, content, filename="file.txt", content_type="text/plain")
    return data


async def test_a_form_without_the_browsers_token_changes_nothing(house: House, http: aiohttp.ClientSession) -> None:
    csrf = await token(http, house)
    fields = {**GOOD, "dataset.artifact": await house.dataset(), "action": "create"}
    for wrong in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": csrf[:-1]}):
        async with http.post(f"{house.url}/submit", data=form({**wrong, **fields})) as response:
            assert response.status == 403
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as stranger:
        await token(stranger, house)
        async with stranger.post(f"{house.url}/submit", data=form({"csrf": csrf, **fields})) as response:
            assert response.status == 403, "the token of one browser is no use to another"
    assert await house.cluster.list(9, None) == []
    async with http.post(f"{house.url}/submit", data=form({"csrf": csrf, **fields}), allow_redirects=False) as response:
        assert response.status == 303
    (job,) = await house.cluster.list(9, None)
    for action in ("fund", "cancel"):
        for body in ("", "csrf=", f"csrf={'0' * 64}", "x" * 5000):
            async with http.post(f"{house.url}/jobs/{job.id}/{action}", data=body) as response:
                assert response.status in (403, 413)
    assert (await house.cluster.get(job.id)).state == "created"


async def test_a_file_before_the_token_is_not_even_read(house: House, http: aiohttp.ClientSession) -> None:
    await token(http, house)
    async with http.post(f"{house.url}/submit", data=form({}, {"dataset.upload": b"x" * 100_000})) as response:
        assert response.status == 403
    assert list((house.folder / "uploads").iterdir()) == []


async def test_a_bad_file_in_a_plain_form_is_told_beside_its_field(house: House, http: aiohttp.ClientSession) -> None:
    fields = {"csrf": await token(http, house), "name": "n", "budget": "5"}
    async with http.post(
        f"{house.url}/submit", data=form(fields, {"dataset.upload": b"%PDF-1.7 and more"})
    ) as response:
        text = await response.text()
    assert response.status == 422
    assert "this is a PDF: extract its text first" in text
    assert "choose a file" not in text


async def test_what_the_coordinator_refuses_comes_back_into_the_form(house: House, http: aiohttp.ClientSession) -> None:
    fields = {**GOOD, "csrf": await token(http, house), "dataset.artifact": await house.dataset(), "action": "create"}
    for change, status, says in (
        ({"budget": "60"}, 402, "the wallet holds"),
        ({"budget": "0.000001"}, 422, "below the price"),
        ({"dataset.artifact": "b" * 64}, 422, "upload it first"),
        ({"model.choice": "no-such"}, 422, "no preset"),
    ):
        async with http.post(f"{house.url}/submit", data=form({**fields, **change})) as response:
            text = await response.text()
            assert (response.status, says in text) == (status, True), (change, text[:3000])
            assert 'value="a job"' in text
    assert await house.cluster.list(9, None) == []


async def test_a_wallet_of_ones_own_is_shown_the_exact_escrow(house: House, http: aiohttp.ClientSession) -> None:
    house.cluster.test_wallet = False
    csrf = await token(http, house)
    fields = {**GOOD, "csrf": csrf, "dataset.artifact": await house.dataset(), "action": "create", "payer": "own"}
    async with http.post(f"{house.url}/submit", data=form({**fields, "submitter": "me"})) as response:
        assert response.status == 422
    async with http.post(f"{house.url}/submit", data=form({**fields, "submitter": WALLET})) as response:
        text = await response.text()
    (job,) = await house.cluster.list(9, None)
    assert job.submitter == WALLET
    assert "9000000 millionths" in text
    assert address("escrow" + job.id) in text
    async with http.post(f"{house.url}/jobs/{job.id}/fund", data=f"csrf={csrf}") as response:
        assert response.status == 402
        assert "open it, then try again" in await response.text()


async def test_people_get_pages_and_programs_get_problems(house: House, http: aiohttp.ClientSession) -> None:
    for path in ("/nothing", "/jobs/xyz", f"/jobs/{'0' * 32}", "/jobs/%00"):
        async with http.get(house.url + path, headers=HTML) as response:
            assert (response.status, response.content_type) == (404, "text/html")
        async with http.get(house.url + path) as response:
            assert (response.status, response.content_type) == (404, "application/problem+json")
    for path in ("/static/..%2f..%2fapi.py", "/static/../api.py", "/static/nothing.js", "/static/"):
        async with http.get(house.url + path) as response:
            assert response.status in (403, 404)
    async with http.get(f"{house.api}/nothing", headers=HTML) as response:
        assert response.content_type == "application/problem+json"


@pytest.mark.parametrize(
    "query", ["", "?before=abc", "?before=-1", "?before=1e999", "?before=1795000100", "?live", "?" + "x" * 5000]
)
async def test_the_list_of_jobs_takes_any_query(house: House, http: aiohttp.ClientSession, query: str) -> None:
    async with http.get(f"{house.url}/jobs{query}", headers=HTML) as response:
        assert response.status == 200


async def test_forms_of_another_shape_are_refused(house: House, http: aiohttp.ClientSession) -> None:
    csrf = await token(http, house)
    url = f"{house.url}/submit/quote"
    for data, headers, status in (
        (b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}, 422),
        (b"nonsense", {"Content-Type": "multipart/form-data; boundary=x"}, 422),
        (b"nonsense", {"Content-Type": "multipart/form-data"}, 422),
        (form({"csrf": csrf, **{f"f{n}": "x" for n in range(200)}}), {}, 422),
        (form({"csrf": csrf, "model.config": "x" * 1_100_000}), {}, 413),
        (form({"csrf": csrf, "training.tokens": "1e9"}), {}, 200),
    ):
        async with http.post(url, data=data, headers=headers) as response:
            assert response.status == status, await response.text()


async def test_a_wallet_that_lacks_the_budget_is_told_beside_the_price(
    house: House, http: aiohttp.ClientSession
) -> None:
    csrf, says = await token(http, house), "the wallet holds 50,000,000, the budget is 60,000,000"
    for budget, told in (("60", True), ("50", False), ("", False), ("nothing", False)):
        typed = GOOD | {"csrf": csrf, "budget": budget, "dataset.artifact": await house.dataset()}
        async with http.post(f"{house.url}/submit/quote", data=form(typed)) as response:
            assert response.status == 200
            assert (says in await response.text()) is told, budget
        async with http.post(f"{house.url}/submit", data=form(typed | {"action": "review"})) as response:
            assert (says in await response.text()) is told, budget


async def test_a_ledger_that_does_not_answer_holds_no_price_up(
    house: House, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(new: NewJob) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(house.cluster, "check_funds", never)
    monkeypatch.setattr("coordinator.web.pages.submit.FUNDS_S", 0.05)
    typed = GOOD | {"csrf": await token(http, house), "dataset.artifact": await house.dataset()}
    async with http.post(f"{house.url}/submit/quote", data=form(typed)) as response:
        assert 'class="price"' in await response.text()


async def test_files_of_the_pages_are_cached_and_the_pages_are_not(house: House, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{house.url}/") as response:
        text = await response.text()
        assert response.headers["Cache-Control"] == "no-store"
    assert "<script>" not in text
    assert " style=" not in text
    assert " onclick=" not in text
    for path in set(re.findall(r'(?:src|href)="(/static/[^"#]+)', text)):
        async with http.get(house.url + path) as response:
            assert response.status == 200
            assert "max-age" in response.headers["Cache-Control"]


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(DEFAULTS)), st.text(max_size=40), max_size=8))
def test_whatever_is_typed_is_a_job_or_has_an_error(typed: dict[str, str]) -> None:
    for draft in (True, False):
        filled = read(typed, draft)
        assert (filled.spec is None) == bool(filled.errors)
        assert all(name == "" or name in DEFAULTS for name in filled.errors)
        assert all(filled.errors.values())


def test_the_form_as_it_comes_is_the_document_as_it_comes() -> None:
    filled = read(GOOD)
    assert filled.errors == {}
    assert filled.spec is not None
    assert filled.spec.training == type(filled.spec.training)(learning_rate=3e-3)
    assert filled.spec.parallel == type(filled.spec.parallel)()
    assert filled.spec.tokenizer == type(filled.spec.tokenizer)()
    assert filled.spec.deadline_hours == 24.0
    assert filled.spec.dataset.heldout == 0.02
    draft = read({}, draft=True).spec
    assert draft is not None
    assert draft.dataset.artifact == NO_DATASET


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"training.tokens": "0"}, "training.tokens", "at least 1"),
        ({"training.tokens": "1.5"}, "training.tokens", "not a whole number"),
        ({"training.learning_rate": "nan"}, "training.learning_rate", "more than 0"),
        ({"training.learning_rate": "inf"}, "training.learning_rate", "at most 1"),
        ({"dataset.heldout": "0,5"}, "dataset.heldout", "at most 0.2"),
        ({"deadline_hours": "x"}, "deadline_hours", "not a number"),
        ({"budget": "1.0000001"}, "budget", "finer than a millionth"),
        ({"budget": "99999999999999"}, "budget", "is too large"),
        ({"budget": "0"}, "budget", "at least 1"),
        ({"name": " "}, "name", "give the job a name"),
        ({"name": "a\tb"}, "name", "not taken here"),
        ({"name": "x" * 101}, "name", "at most 100 characters"),
        ({"model.choice": "config"}, "model.config", "paste or choose"),
        ({"model.choice": "config", "model.config": "{"}, "model.config", "not a config.json"),
        ({"model.choice": "config", "model.config": "[1]"}, "model.config", "begins with {"),
        ({"model.choice": "config", "model.config": '{"a": NaN}'}, "model.config", "finite"),
        ({"model.choice": "config", "model.config": "[" * 99_999}, "model.config", "not a config.json"),
        ({"tokenizer.kind": "file"}, "tokenizer.file", "choose a tokenizer.json"),
        ({"tokenizer.kind": "magic"}, "tokenizer.kind", "it is one of "),
        ({"dataset.format": "xml"}, "dataset.format", "it is one of "),
        ({"training.activations": "int1"}, "training.activations", "it is one of "),
        ({"learns": "lora"}, "learns", "choose its weights"),
        ({**ADAPTER, "training.lora.rank": "0"}, "training.lora.rank", "at least 1"),
        (
            {"learns": "lora", "training.lora.targets": "Q PROJ", "model.weights": "a" * 64},
            "training.lora.targets",
            "not taken here",
        ),
        ({"payer": "own", "submitter": "x"}, "submitter", "no address of Solana"),
        ({"parallel.stages": "0"}, "parallel.stages", "at least 1"),
    ],
)
def test_each_field_says_what_is_wrong_with_it(change: dict[str, str], field: str, says: str) -> None:
    filled = read({**GOOD, **change})
    assert list(filled.errors) == [field]
    assert says in filled.errors[field]


def test_an_adapter_is_filled_in_and_asked_for_again() -> None:
    typed = {
        "learns": "lora",
        "training.lora.rank": "8",
        "training.lora.targets": "q_proj, v_proj",
        "model.weights": "a" * 64,
    }
    spec = read({**GOOD, **typed}).spec
    assert spec is not None
    assert spec.training.lora == LoraSpec(rank=8, targets=("q_proj", "v_proj"))
    again = fill(spec)
    assert (again["training.lora.targets"], again["training.lora.alpha"]) == ("q_proj, v_proj", "32")
    assert read({**GOOD, **again}).spec == spec
    plain = read(GOOD).spec
    assert plain is not None
    assert plain.training.lora is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("budget", "budget"),
        ("spec.budget", "budget"),
        ("model.config.hidden_size", "model.config"),
        ("model", "model.choice"),
        ("model.preset", "model.choice"),
        ("dataset", "dataset.artifact"),
        ("training", "training.tokens"),
        ("tokenizer.file", "tokenizer.file"),
        ("spec", ""),
        ("nonsense", ""),
        ("", ""),
    ],
)
def test_an_error_of_the_document_finds_its_field(name: str, expected: str) -> None:
    assert place(name) == expected


async def test_an_earlier_job_fills_the_form_for_the_next(house: House, http: aiohttp.ClientSession) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}
    spec = convert(
        {
            "name": "again",
            "model": {"config": config, "weights": ["1" * 64, "2" * 64]},
            "dataset": {"artifact": await house.dataset(), "format": "parquet", "text_field": "body", "heldout": 0.05},
            "budget": 1_234_567_890,
            "training": {
                "tokens": 123_456,
                "learning_rate": 1e-4,
                "activations": "fp32",
                "clip_norm": 0.5,
                "precision": "bf16",
                "decay": "wsd",
                "optimizer": "muon",
                "final_rate": 0.0,
            },
            "parallel": {"stages": 2},
            "deadline_hours": 1.5,
        },
        JobSpec,
    )
    assert read(fill(spec)).spec == spec
    house.cluster.balance = 10**12
    job = await house.cluster.create(NewJob(spec))
    async with http.get(f"{house.url}/submit?from={job.id}") as response:
        text = await response.text()
    assert 'value="1234.56789"' in text
    assert "&#34;hidden_size&#34;: 64" in text
    for other in ("0" * 32, "x"):
        async with http.get(f"{house.url}/submit?from={other}") as response:
            assert response.status == (404 if other != "x" else 200)


PROBLEM = {"type", "title", "status", "detail", "instance", "code", "field"}  # RFC 9457, and two of our own.
_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
_PARTS = st.sampled_from(
    ["name", "model", "dataset", "budget", "tokenizer", "training", "parallel", "deadline_hours", "spec"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.dictionaries(_PARTS, _JSON, max_size=8))
async def test_no_document_makes_the_coordinator_stumble(house: House, body: dict[str, Any]) -> None:
    async with aiohttp.ClientSession() as http:
        for path in ("quote", "jobs", "uploads"):
            async with http.post(f"{house.api}/{path}", json=body) as response:
                assert 400 <= response.status < 500
                assert set(await response.json()) == PROBLEM


async def test_a_job_s_page_and_its_document_say_whose_word_the_held_out_loss_is(
    house: House, http: aiohttp.ClientSession
) -> None:
    spec = {"name": "a", "model": {"preset": "tiny-llama"}, "budget": 9_000_000}
    async with Client(house.url) as client:
        made = await client.create_job(spec | {"dataset": {"artifact": await house.dataset()}})
        await client.fund(made.id)
        for words, whose in (("one computer&#39;s word", (1, 0, 1)), ("the same on 2 of 2 computers", (2, 0, 2))):
            for _ in range(2):
                house.cluster.step(made.id)
            async with http.get(f"{house.url}/jobs/{made.id}") as response:
                assert words in await response.text()
            assert (await client.get(made.id)).agreement == Agreement(*whose)
        async with http.get(f"{house.url}/jobs/{made.id}") as response:
            assert f'<span class="under">{words}</span>' in await response.text(), "beside its round"
        async with http.get(f"{house.api}/jobs/{made.id}/rounds") as response:
            assert (await response.json())[0]["agreement"] == {"same": 2, "near": 0, "of": 2}


def test_the_pages_and_the_desktop_have_one_icon() -> None:
    served = STATIC_FOLDER / "cottage.svg"
    assert served.read_bytes() == (STATIC_FOLDER.parents[2] / "assets" / "icons" / "cottage.svg").read_bytes()


async def test_the_network_page_shows_relays_without_their_words_becoming_markup(
    house: House, http: aiohttp.ClientSession
) -> None:
    first = house.cluster.relays[0]
    house.cluster.relays[0] = msgspec.structs.replace(first, region="<script>alert(1)</script>", state="full")
    async with http.get(f"{house.url}/network") as response:
        page = await response.text()
    assert "relay-1.cottage.example:3478" in page
    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page
    assert "328.0 Mbit/s" in page
    assert "does not report" in page
    assert f'href="/jobs/{1:032x}"' in page
    house.cluster.relays.clear()
    async with http.get(f"{house.url}/network") as response:
        assert "No relay is known" in await response.text()
