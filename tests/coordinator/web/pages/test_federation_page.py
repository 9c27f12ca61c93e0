"""The page of a federation: who takes part, what privacy was spent, and how owners join."""

import html
from typing import Any

import aiohttp
import msgspec
import pytest

from common.invitations import Invitation
from coordinator.client import Client
from coordinator.errors import InvalidError
from coordinator.web.pages.forms import read_document
from protocol.job.federated import FederatedSpec
from protocol.job.job import TokenizerSpec
from protocol.rest.federation import FederationOwner, FederationState, PrivacySpent
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake import address

OWNERS = tuple(letter * 40 for letter in "ABC")
SPENT = PrivacySpent("owner", 3.456, 8.0, 1e-5, 7, 21, 2.4, 0.5, "dp-accounting 0.6")

EXAMPLE = msgspec.structs.replace(SPENT, unit="example", sampling=0.01, per_round=20)
SECURE = msgspec.structs.replace(SPENT, sum="secure", honest=4, own_noise=1.2)


async def federation(house: House, privacy: PrivacySpent | None) -> str:
    spec: dict[str, Any] = {"name": "the wards", "model": {"preset": "tiny-llama"}, "budget": 9_000_000}
    async with Client(house.url) as client:
        job = (await client.create_job(spec | {"dataset": {"artifact": await house.dataset()}})).id
    found = house.cluster._find(job)
    made = msgspec.structs.replace(
        found.view.spec, dataset=None, tokenizer=TokenizerSpec("bytes"), federated=FederatedSpec(OWNERS, 20)
    )
    owners = (FederationOwner(OWNERS[0], 1_700_000_000.0, 1234), FederationOwner(OWNERS[1], 1_700_000_100.0))
    state = FederationState((*owners, FederationOwner(OWNERS[2])), 2, privacy)
    house.cluster._change(found, spec=made, federation=state)
    return job


async def page_of(http: aiohttp.ClientSession, house: House, job: str) -> str:
    async with http.get(f"{house.url}/jobs/{job}") as response:
        assert response.status == 200
        return html.unescape(await response.text())


async def test_the_page_says_what_was_spent_and_who_takes_part(house: House, http: aiohttp.ClientSession) -> None:
    job = await federation(house, SPENT)
    page = await page_of(http, house, job)
    for said in (
        "ε 3.46",
        "of 8 at δ 1e-05, for each owner",
        "7 of 21",
        "2 of 3 have joined",
        "1,234",
        "has not joined",
    ):
        assert said in page, said
    link = Invitation(house.url, address("coordinator"), job=job).link
    assert f"cottage node join '{link}' --data FOLDER" in page
    assert "nobody measures it" in page


async def test_the_page_says_which_sum_it_is_and_whose_noise_is_on_it(
    house: House, http: aiohttp.ClientSession
) -> None:
    page = await page_of(http, house, await federation(house, SECURE))
    assert "masked: nobody sees more than the sum of at least 2 owners" in page
    assert "2.4 clips on each sum, of 4 honest owners at least (1.2 of each)" in page
    assert "on each update" not in page
    plain = await page_of(http, house, await federation(house, SPENT))
    assert "2.4 clips on each update" in plain
    assert "masked" not in plain


async def test_the_page_says_that_the_promise_is_about_one_example(house: House, http: aiohttp.ClientSession) -> None:
    page = await page_of(http, house, await federation(house, EXAMPLE))
    for said in (
        "ε 3.46",
        "of 8 at δ 1e-05, for each example: a row or line of an owner",
        "In each step the gradient of each example is cut to a length, and there is noise on their sum.",
        "2.4 clips on each of 20 steps of a round, which takes an example with probability 0.01 at most",
        "cuts its gradient to 0.5. Accountant",
    ):
        assert said in page, said
    assert "each update" not in page


async def test_the_page_says_how_exact_the_losses_of_owners_are(house: House, http: aiohttp.ClientSession) -> None:
    page = await page_of(http, house, await federation(house, msgspec.structs.replace(SPENT, loss_error=0.0612)))
    assert "each validation loss is off by up to 0.12 as a rule" in page
    assert "owners measure it before each round" in page
    assert "nobody measures it" not in page


async def test_a_federation_without_a_budget_is_said_to_have_none(house: House, http: aiohttp.ClientSession) -> None:
    page = await page_of(http, house, await federation(house, None))
    assert "no limit" in page
    assert "may tell whole sentences of the data" in page


def test_the_form_sends_a_federations_document_to_the_command() -> None:
    with pytest.raises(InvalidError, match="cottage submit FILE"):
        read_document('{"federated": {"owners": [], "rounds": 3}}', {})


async def test_a_federation_is_not_changed_in_the_form(house: House, http: aiohttp.ClientSession) -> None:
    job = await federation(house, SPENT)
    async with http.get(f"{house.url}/submit?from={job}", allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (303, f"/jobs/{job}")
