"""Lenders take earnings out over the interface without signing in: the signature under the transaction says whose they are."""

import base64

import aiohttp
import pytest

from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake import address
from tests.coordinator.web.test_signin import HTML

ASKED = {"owner": address("owner"), "target": address("target"), "amount": 5_000_000}
SIGNED = {
    "request": ASKED,
    "arrives": 4_998_500,
    "fee": 1_500,
    "opens": False,
    "transaction": base64.b64encode(b"a transaction").decode(),
}


async def test_what_it_costs_is_told_to_everybody_and_shown_on_the_network_page(
    town: House, http: aiohttp.ClientSession
) -> None:
    async with http.get(f"{town.api}/withdrawals") as answer:
        terms = await answer.json()
    assert (answer.status, terms["sol_price"], terms["fee"], terms["account"]) == (200, 150_000_000, 1_500, 305_892)
    async with http.get(f"{town.url}/network", headers=HTML) as answer:
        page = await answer.text()
    assert "Taking earnings out" in page
    assert "needs no SOL" in page
    assert "0.305892" in page


async def test_an_offer_and_a_refusal_are_answers(town: House, http: aiohttp.ClientSession) -> None:
    async with http.post(f"{town.api}/withdrawals/offers", json=ASKED) as answer:
        found = await answer.json()
    assert answer.status == 200
    assert found["refused"] is None
    assert base64.b64decode(found["offer"].pop("transaction")) == b"a transaction"
    assert found["offer"] == {"arrives": 4_998_500, "fee": 1_500, "opens": False}
    async with http.post(f"{town.api}/withdrawals/offers", json=ASKED | {"amount": 1_500}) as answer:
        found = await answer.json()
    assert found == {
        "offer": None,
        "refused": {"reason": "too little", "text": "withdraw more", "amount": 2_500, "seconds": 0},
    }


async def test_what_comes_back_signed_is_answered_likewise(town: House, http: aiohttp.ClientSession) -> None:
    async with http.post(f"{town.api}/withdrawals", json=SIGNED) as answer:
        found = await answer.json()
    assert (answer.status, found["signature"], found["refused"]["reason"]) == (200, "", "altered")


@pytest.mark.parametrize(
    "bad",
    [
        {},
        ASKED | {"amount": 0},
        ASKED | {"amount": 2**63},
        ASKED | {"amount": "1"},
        ASKED | {"owner": "me"},
        ASKED | {"more": 1},
    ],
)
async def test_what_is_no_question_is_refused_at_the_door(
    town: House, http: aiohttp.ClientSession, bad: dict[str, object]
) -> None:
    async with http.post(f"{town.api}/withdrawals/offers", json=bad) as answer:
        assert answer.status == 422, await answer.text()


async def test_no_more_is_read_than_a_transaction_has(town: House, http: aiohttp.ClientSession) -> None:
    long = base64.b64encode(bytes(1_233)).decode()
    async with http.post(f"{town.api}/withdrawals", json=SIGNED | {"transaction": long}) as answer:
        assert answer.status == 422
    async with http.post(f"{town.api}/withdrawals", json=SIGNED | {"transaction": long * 9}) as answer:
        assert answer.status == 413


async def test_another_site_cannot_ask_with_a_visitor_s_browser(town: House, http: aiohttp.ClientSession) -> None:
    async with http.post(f"{town.api}/withdrawals", json=SIGNED, headers={"Origin": "https://evil.example"}) as answer:
        assert answer.status == 403
