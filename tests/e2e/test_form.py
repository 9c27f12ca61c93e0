"""An upload in a real browser to a real coordinator that is killed in the middle of it."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.storm import Storm, Weather
from tests.coordinator.web.test_browser import ARGUMENTS, CHROMIUM

playwright = pytest.importorskip("playwright.async_api")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}: apt-get install chromium"),
]
PIECE = 4 << 20  # As the page's script sends them.
ROWS = 90_000
BAR = "document.querySelector('[data-upload=dataset] progress').value"
CHOSEN = "() => document.querySelector('[name=\"dataset.artifact\"]').value.length === 64"


def write_rows(path: Path) -> None:
    """Fifteen megabytes: four pieces."""
    way = " over the hill and through the wood and back again" * 2
    told = (f"{n} hens and {n * 17 % 1009} geese walk to the pond at {n % 24} o'clock{way}" for n in range(ROWS))
    rows = [json.dumps({"text": text}).encode() for text in told]
    path.write_bytes(b"\n".join(rows) + b"\n")


class Gate:
    """Lets as many pieces of uploads through as ``allowed`` says, so that a kill meets the upload in its middle."""

    def __init__(self) -> None:
        self.allowed = 1
        self._page = self._passed = 0

    def reloaded(self) -> None:
        """What an earlier page sent and was not let through is gone."""
        self._page += 1

    async def __call__(self, route: Any) -> None:
        page = self._page
        if route.request.method == "PATCH":
            while page == self._page and self._passed >= self.allowed:
                await asyncio.sleep(0.05)
            if page != self._page:
                return
            self._passed += 1
        await route.continue_()


async def page_of(driver: Any, storm: Storm, gate: Gate) -> Any:
    browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
    context = await browser.new_context(base_url=storm.web, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    await context.route("**/api/v1/uploads/*", gate)
    return await context.new_page()


async def test_a_dataset_goes_up_through_a_reload_and_a_kill_of_the_coordinator(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    write_rows(data)
    async with Storm(tmp_path / "network", Weather(stages=1, replicas=0, spares=0, kills=0)) as storm:
        await storm.start()
        async with playwright.async_playwright() as driver:
            gate = Gate()
            page = await page_of(driver, storm, gate)
            await page.goto("/submit")
            await page.check("[name='dataset.format'][value=jsonl]")
            await page.set_input_files("[data-upload=dataset] input[type=file]", data)
            await page.wait_for_function(f"() => {BAR} >= {PIECE}")
            await page.reload()
            gate.reloaded()
            await page.check("[name='dataset.format'][value=jsonl]")
            await page.set_input_files("[data-upload=dataset] input[type=file]", data)
            gate.allowed = 2
            await page.wait_for_function(f"() => {BAR} >= {2 * PIECE}")
            assert storm.coordinator is not None
            await storm.household.kill(storm.coordinator)
            gate.allowed = 1000
            await page.wait_for_function(
                "() => document.querySelector('#status-dataset\\\\.artifact').textContent.includes('cut')"
            )
            await storm.start_coordinator(storm.ledger_url)
            await page.wait_for_function(CHOSEN)
            uploads = list((tmp_path / "network" / "coordinator" / "uploads").glob("*.json"))
            assert len(uploads) == 1, "one upload, through a reload and a kill"
            assert await page.input_value("[name='dataset.artifact']") == hashlib.sha256(data.read_bytes()).hexdigest()
