"""The interface over real services keeps to its document too: what a stand-in does not refuse, a store may."""

import asyncio
import os
from pathlib import Path

import aiohttp

from tests.coordinator.web.schema import ask
from tests.proof.test_disputes import LIAR, disputed
from tests.proof.town import Town, town

CASES = int(os.environ.get("COTTAGE_SCHEMA_CASES", "300"))


async def keep_going(place: Town) -> None:
    """Time passes: what a request waits for on the ledger comes."""
    while True:
        await place.turn()
        await asyncio.sleep(0.02)


async def test_every_answer_of_the_real_services_is_one_that_the_document_has(tmp_path: Path) -> None:
    async with town(tmp_path, {LIAR: {"lie": "skips"}}, audits=2) as place:
        job, found = await disputed(place)
        known = {"job": job, "node": found.prover, "audit": found.audit, "round": "0", "stage": "0", "name": "opening"}
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{place.url}/api/v1/ledger", params={"job": "0" * 32}) as answer:
                assert answer.status == 404, "the ledger of a job that is not there"
            async with http.get(f"{place.url}/openapi.json") as answer:
                assert "404" in (await answer.json())["paths"]["/api/v1/ledger"]["get"]["responses"]
        going = asyncio.create_task(keep_going(place))
        try:
            told = await asyncio.to_thread(ask, place.url, CASES, None, known)
        finally:
            going.cancel()
    assert told.total() >= CASES // 2
    assert not [status for status in told if status >= 500 and status not in (503, 507)]
    assert told[200] > CASES // 5, "what is there is found"
    assert told[404] > CASES // 20, "and what is not, is not"
