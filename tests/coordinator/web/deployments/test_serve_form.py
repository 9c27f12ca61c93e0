"""The form for a deployment on the page of a job, and the deployment's page, as browsers without scripts have them."""

import html
import re

import aiohttp
import msgspec
import pytest

from coordinator.client import Client
from coordinator.errors import InvalidError
from coordinator.web.pages.forms import read_document
from protocol.job.job import ServeSpec
from protocol.rest import api
from tests.coordinator.web.conftest import House
from tests.coordinator.web.deployments.conftest import ENOUGH, deployed, finished
from tests.coordinator.web.deployments.serving_cluster import PER_HOUR
from tests.protocol.test_wallets import SECRETS, WALLET

HTML = {"Accept": "text/html"}


async def page(house: House, http: aiohttp.ClientSession, path: str, status: int = 200) -> str:
    async with http.get(house.url + path, headers=HTML) as response:
        assert response.status == status, path
        return await response.text()


def words(text: str) -> str:
    """What a reader sees of a page's main part."""
    main = re.sub(
        r"<(script|style|template).*?</\\1>", " ", text.split("<main")[1].split("<footer")[0], flags=re.DOTALL
    )
    said = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main)).split())
    return re.sub(r" (?=[,;.])", "", said)


async def send(
    house: House, http: aiohttp.ClientSession, job: str, fields: dict[str, str], status: int = 200, part: str = ""
) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', await page(house, http, f"/jobs/{job}"))
    assert found
    data = {"csrf": found[1], **fields}
    async with http.post(f"{house.url}/jobs/{job}/serve{part}", data=data, headers=HTML) as response:
        text = await response.text()
        assert response.status == status, words(text)
        return text


async def test_a_deployment_is_made_from_the_page_of_the_job_and_funded_on_its_own(
    house: House, http: aiohttp.ClientSession
) -> None:
    job = await finished(house)
    assert "Serve it at homes" in await page(house, http, f"/jobs/{job}")
    asked = {"replicas": "2", "hours": "8"}
    said = words(await send(house, http, job, {**asked, "action": "quote"}))
    assert "¤ 2.40 for 2 nodes being ready for 8 hours" in said
    assert "With a budget of ¤ 4.80 there is as much again for answers." in said
    assert len(await house.cluster.list(9, None)) == 1, "a price makes nothing"
    made = words(await send(house, http, job, {**asked, "budget": "5", "name": "cow", "action": "create"}))
    view = (await house.cluster.list(1, None))[0]
    assert (view.name, view.spec.serve, view.spec.budget) == ("cow", ServeSpec(2), ENOUGH)
    assert view.spec.model.from_job == job
    assert "Fund it" in made
    assert "Being ready for 8 hours costs ¤ 2.40, and answers come on top" in made


async def test_several_nodes_hold_a_model_together_and_the_page_says_who_holds_which_part(
    house: House, http: aiohttp.ClientSession
) -> None:
    job = await finished(house)
    asked = {"replicas": "2", "stages": "2", "hours": "8"}
    assert "for 2 times 2 nodes being ready" in words(await send(house, http, job, {**asked, "action": "quote"}))
    too_many = await send(house, http, job, {**asked, "stages": "17", "action": "create"}, 422)
    assert 'id="error-stages"' in too_many
    await send(house, http, job, {**asked, "budget": "5", "action": "create"})
    made = (await house.cluster.list(1, None))[0]
    assert made.spec.serve == ServeSpec(2, stages=2)
    async with Client(house.url) as client:
        await client.fund(made.id)
    house.cluster.early = 1
    for _ in range(2):
        house.cluster.step(made.id)
    said = words(await page(house, http, f"/jobs/{made.id}"))
    assert "Replicas that answer 1 of 2" in said
    table = said[said.index("each with a part of the model") : said.index("How it is checked")]
    assert [table.count(word) for word in (" answers ", " waits for the others ", " loading ")] == [2, 1, 1]
    house.cluster.early = 0
    house.cluster.step(made.id)
    said = words(await page(house, http, f"/jobs/{made.id}"))
    assert "Replicas that answer 2 of 2" in said
    assert "waits for the others" not in said
    assert "up to 2 replicas of 2 nodes, each with a part of the model" in said
    for stage, replica in ((1, 1), (2, 1), (1, 2), (2, 2)):
        assert f"stage {stage} of 2, replica {replica}" in said
    assert "2 replicas of 2 nodes answer" in words(await page(house, http, "/jobs"))


async def test_weights_are_chosen_and_the_page_says_how_nodes_hold_them(
    house: House, http: aiohttp.ClientSession
) -> None:
    job = await finished(house)
    shown = await page(house, http, f"/jobs/{job}")
    assert re.findall(r'<option value="(\w+)" (selected)?>[^<]+</option>', shown[shown.index('name="weights"') :])[
        :3
    ] == [
        ("float32", "selected"),
        ("int8", ""),
        ("nf4", ""),
    ]
    asked = {"hours": "8", "weights": "int8"}
    said = await send(house, http, job, {**asked, "action": "quote"})
    assert '<option value="int8" selected>' in said
    assert "the model with its matrices in 8 bits (int8), its cache" in words(said)
    assert 'id="error-weights"' in await send(house, http, job, {**asked, "weights": "int3", "action": "create"}, 422)
    await send(house, http, job, {**asked, "budget": "5", "action": "create"})
    made = (await house.cluster.list(1, None))[0]
    assert made.spec.serve == ServeSpec(weights="int8")
    assert f'data-held="{made.id}=int8"' in await page(house, http, "/playground")
    assert "each with the whole model, its matrices in 8 bits (int8)" in words(
        await page(house, http, f"/jobs/{made.id}")
    )


async def test_the_budget_is_named_by_who_pays(house: House, http: aiohttp.ClientSession) -> None:
    job = await finished(house)
    text = await send(house, http, job, {"hours": "4", "action": "create"}, 422)
    assert "say how much it may cost at most: ¤ 1.20 is twice what being ready costs" in words(text)
    text = await send(house, http, job, {"budget": "0.01", "action": "create"}, 422)
    assert "the budget 0.01 is below 1.20" in words(text)
    assert re.search(r'id="field-budget"[^>]+value="0.01"[^>]+aria-invalid="true"', text)
    assert 'id="error-budget"' in text


async def test_the_least_in_escrow_is_not_called_twice_what_being_ready_costs(
    house: House, http: aiohttp.ClientSession
) -> None:
    job = await finished(house)
    house.cluster.least = 1_000_000  # type: ignore[attr-defined]
    said = words(await send(house, http, job, {"hours": "1", "action": "quote"}))
    assert "A budget of ¤ 1.00 is the least that a job has in escrow here; what is not spent comes back." in said
    said = words(await send(house, http, job, {"hours": "1", "action": "create"}, 422))
    assert "say how much it may cost at most: ¤ 1.00 is the least that a job has in escrow here" in said
    part = await send(house, http, job, {"hours": "1", "budget": "0.01"}, part="/quote")
    said = words(f"<main>{part}<footer>")
    assert "Never more than ¤ 0.01" in said, "as it was asked for"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("replicas", "0", "at least 1"),
        ("replicas", "x", "'x' is not a whole number"),
        ("hours", "-3", "more than 0"),
        ("hours", "soon", "'soon' is not a number"),
        ("budget", "much", "'much' is not an amount"),
        ("round", "0", "at least 1"),
        ("context", "8", "at least 64"),
        ("context", "8193", "8,193 is too many: write 8,192 at most"),
        ("budget", "1000000000000", "'1000000000000' is too large: write 999,999,999,999 at most"),
        ("submitter", "nobody", "nobody"),
    ],
)
async def test_what_is_wrong_stands_beside_its_field_with_what_was_typed(
    house: House, http: aiohttp.ClientSession, field: str, value: str, says: str
) -> None:
    job = await finished(house)
    text = await send(
        house, http, job, {field: value, "budget": "5", "action": "create", "name": "kept"} | {field: value}, 422
    )
    found = re.search(rf'id="error-{field}">(.*?)</span>', text, re.DOTALL)
    assert found, words(text)
    assert says in html.unescape(found[1])
    assert 'value="kept"' in text
    part = await send(house, http, job, {field: value}, part="/quote")
    assert "The price stands here as soon as the form can be read" in part
    assert len(await house.cluster.list(9, None)) == 1


@pytest.mark.parametrize("kind", SECRETS)
async def test_a_secret_in_the_place_of_the_wallet_is_shown_to_nobody(
    kind: str, house: House, http: aiohttp.ClientSession
) -> None:
    job = await finished(house)
    text = await send(house, http, job, {"submitter": SECRETS[kind], "budget": "5", "action": "create"}, 422)
    assert not any(part in text for part in SECRETS[kind].split() if len(part) > 8)


async def test_a_wallet_of_ones_own_pays(house: House, http: aiohttp.ClientSession) -> None:
    await send(house, http, await finished(house), {"submitter": WALLET, "budget": "5", "action": "create"})
    assert (await house.cluster.list(1, None))[0].submitter == WALLET


async def test_a_form_without_the_pages_token_makes_nothing(house: House, http: aiohttp.ClientSession) -> None:
    job = await finished(house)
    for path in ("serve", "serve/quote"):
        async with http.post(f"{house.url}/jobs/{job}/{path}", data={"budget": "5", "action": "create"}) as response:
            assert response.status == 403
    assert len(await house.cluster.list(9, None)) == 1


async def test_before_the_model_is_finished_its_newest_checkpoint_is_served(
    house: House, http: aiohttp.ClientSession
) -> None:
    spec = {"name": "x", "model": {"preset": "tiny-llama"}, "dataset": {"artifact": await house.dataset()}}
    async with Client(house.url) as client:
        job = (await client.create_job(spec | {"budget": 9_000_000})).id
        await client.fund(job)
    assert "There is a model to serve once the first checkpoint is there." in words(
        await page(house, http, f"/jobs/{job}")
    )
    for _ in range(8):
        house.cluster.step(job)
    assert re.search(r'name="round" value="5"', await page(house, http, f"/jobs/{job}"))


async def test_the_page_of_a_deployment_has_its_numbers_and_nothing_of_training(
    house: House, http: aiohttp.ClientSession
) -> None:
    made = await deployed(house, 3)
    text = await page(house, http, f"/jobs/{made}")
    said = words(text)
    for there in (
        "It answers on 2 of 2 nodes.",
        "Nodes that answer 2 of 2 3 answers under way, 1 waiting",
        "Answers 120 18,000 tokens, for prompts of 27,000",
        "18 answers were drawn again, none was wrong",
        "so far; never more than ¤ 5.00",
        "A million tokens ¤ 1.20 of answers; of prompts ¤ 0.24, an hour of a ready node ¤ 0.15",
        "From your programs",
        "Period 3",
        f"curl {house.url}/v1/completions",
    ):
        assert there in said, there
    assert f'<code id="api-model">{made}</code>' in text
    assert f'href="/playground?model={made}"' in text
    for gone in (
        "Loss",
        "loss",
        "Checkpoint",
        "Dataset",
        "Download",
        "round",
        "Learning rate",
        "A bucket of",
        "Train on",
    ):
        assert gone not in said.split("Settings and quote")[0].replace("playground", ""), gone
    assert re.search(r'id="pause"', text)
    assert re.search(r'id="stop"', text)
    assert 'id="cancel"' not in text


async def test_a_deployment_is_paused_and_stopped_from_its_page(house: House, http: aiohttp.ClientSession) -> None:
    made = await deployed(house, 1)
    assert "The model itself stays, and can be served again." in words(await page(house, http, f"/jobs/{made}/stop"))
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', await page(house, http, f"/jobs/{made}"))
    assert found
    for order, state in (("pause", "paused"), ("stop", "verifying")):
        async with http.post(f"{house.url}/jobs/{made}/{order}", data={"csrf": found[1]}, headers=HTML) as response:
            assert response.status == 200
        assert (await house.cluster.get(made)).state == state
    house.cluster.step(made)
    said = words(await page(house, http, f"/jobs/{made}"))
    assert "Serve it again" in said
    assert "¤ 0.03 paid, ¤ 4.97 came back" in said
    assert "It answers no more. Beside the coordinator the model still does" in said
    for gone in ("curl", "From your programs", "playground"):
        assert gone not in said, "it answers no more"


@pytest.mark.parametrize("state", ["funded", "planned", "running", "paused"])
async def test_from_its_escrow_on_a_deployment_is_stopped(
    state: api.JobStateName, house: House, http: aiohttp.ClientSession
) -> None:
    made = await deployed(house)
    house.cluster._change(house.cluster._find(made), state=state)
    text = await page(house, http, f"/jobs/{made}")
    assert 'id="stop"' in text
    assert 'id="cancel"' not in text


async def test_before_it_is_paid_for_a_deployment_is_cancelled(house: House, http: aiohttp.ClientSession) -> None:
    made = await deployed(house)
    house.cluster._change(house.cluster._find(made), state="created")
    text = await page(house, http, f"/jobs/{made}")
    assert 'id="cancel"' in text
    assert 'id="stop"' not in text
    assert "It answers no more from now on." in words(await page(house, http, f"/jobs/{made}/cancel"))


async def test_a_wrong_answer_is_told_in_words(house: House, http: aiohttp.ClientSession) -> None:
    made = await deployed(house, 2)
    found = house.cluster._find(made)
    assert found.view.serving is not None
    found.view = msgspec.structs.replace(found.view, serving=msgspec.structs.replace(found.view.serving, wrong=1))
    assert "12 answers were drawn again, 1 was wrong" in words(await page(house, http, f"/jobs/{made}"))


async def test_a_page_is_whole_without_numbers_of_serving(house: House, http: aiohttp.ClientSession) -> None:
    made = await deployed(house)
    found = house.cluster._find(made)
    found.view = msgspec.structs.replace(found.view, serving=None, sentence="", cap=0)
    assert "The budget is in escrow. Nodes are being chosen." in words(await page(house, http, f"/jobs/{made}"))
    assert "moo at homes" in words(await page(house, http, "/jobs"))


async def test_others_see_a_shared_deployment_without_what_programs_need(
    house: House, http: aiohttp.ClientSession
) -> None:
    made = await deployed(house, 1)
    async with Client(house.url) as client:
        await client.share(made)
    house.auth.open_to_all = False
    text = await page(house, http, f"/jobs/{made}")
    main = text.split("<footer")[0].split("<main")[1]
    for mine in ("<form", "api-model", "/stop", "/logs", "/serve"):
        assert mine not in main.replace("/docs/serve-at-homes", ""), mine
    assert "drawing some of it again" in words(text)


async def test_lists_show_a_deployment_as_one_and_compare_none(house: House, http: aiohttp.ClientSession) -> None:
    made = await deployed(house, 1)
    text = await page(house, http, "/jobs")
    assert "2 nodes answer" in words(text)
    assert "40 answers" in words(text)
    assert f"choose-{made}" not in text
    assert "serves a model" in words(await page(house, http, "/"))


async def test_the_form_for_training_sends_documents_that_serve_elsewhere(
    house: House, http: aiohttp.ClientSession
) -> None:
    made = await deployed(house)
    async with http.get(f"{house.url}/submit?from={made}", headers=HTML, allow_redirects=False) as response:
        assert response.headers["Location"] == f"/jobs/{(await house.cluster.get(made)).spec.model.from_job}/serve"
    with pytest.raises(InvalidError, match=r"this one answers.*cottage deploy JOB") as caught:
        read_document('{"model": {"from_job": "' + "a" * 32 + '"}, "serve": {}}', {})
    assert caught.value.field == "document"


async def test_the_price_is_a_part_of_the_page_that_follows_what_is_typed(
    house: House, http: aiohttp.ClientSession
) -> None:
    job = await finished(house)
    part = await send(house, http, job, {"replicas": "3", "hours": "2", "budget": "0.5"}, part="/quote")
    assert f"</span>{3 * 2 * PER_HOUR / 1e6:.2f}</span>" in part
    assert "what 3 nodes ready for 2 hours cost" in part
    part = await send(house, http, job, {"round": "99", "budget": "5"}, part="/quote")
    assert "¤" in part
