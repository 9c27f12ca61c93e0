"""The interface keeps to its document, whatever it is asked (row F28)."""

import asyncio
import os

from tests.coordinator.web.conftest import House
from tests.coordinator.web.schema import ask
from tests.coordinator.web.test_api import submitted

CASES = int(os.environ.get("COTTAGE_SCHEMA_CASES", "300"))


async def test_every_answer_to_made_up_requests_is_one_that_the_document_has(house: House) -> None:
    job = await submitted(house)
    await house.cluster.fund(job.id)
    house.cluster.run(job.id)
    told = await asyncio.to_thread(ask, house.url, CASES)
    assert told.total() >= CASES // 2, "operations without parameters have one request each"
    assert not [status for status in told if status >= 500 and status not in (503, 507)]
    assert told[200] > CASES // 20, "requests get through to the services"
