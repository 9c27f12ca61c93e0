"""The page of a federation in a real Chromium, by day and by night, wide and narrow."""

from typing import Any

from tests.coordinator.web.conftest import House
from tests.coordinator.web.deployments.test_deployment_browser import whole
from tests.coordinator.web.pages.test_browser import chromium, pytestmark, visit  # noqa: F401 - a fixture, and marks
from tests.coordinator.web.pages.test_federation_page import SECURE, SPENT, federation


async def test_the_page_of_a_federation_is_whole_at_any_width(chromium: Any, house: House) -> None:  # noqa: F811
    for name, spent in (("federation", SPENT), ("federation-secure", SECURE)):
        seen = await visit(chromium, house, f"/jobs/{await federation(house, spent)}")
        await whole(seen.page, name)
