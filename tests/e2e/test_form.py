"""From an empty browser to a job that is paid for: a real coordinator, killed in the middle of the upload, and a real node."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import Client
from tests.chaos.storm import Storm, Weather
from tests.coordinator.web.test_browser import ARGUMENTS, CHROMIUM, PICTURES

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
    """Rows with faults: one without text, one that is not UTF-8, a key, an address, one that comes twice."""
    rows = [
        json.dumps({"text": f"{n} hens and {n * 17 % 1009} geese walk to the pond at {n % 24} o'clock"}).encode()
        for n in range(ROWS)
    ]
    rows[10] = b'{"txt": "no text"}'
    rows[20] = b'{"text": "caf\xe9"}'
    rows[30] = json.dumps({"text": "the key is AKIA" + "QWERTZU2345LKJHG"}).encode()
    rows[40] = b'{"text": "ask jane.doe@acme.org"}'
    rows[50] = rows[3]
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


async def test_a_dataset_goes_up_through_a_reload_and_a_kill_is_looked_at_and_paid_for(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    write_rows(data)
    async with Storm(tmp_path / "network", Weather(stages=1, replicas=0, spares=0, kills=0)) as storm:
        await storm.start()
        await storm.add("node0")  # It measures its machine while the upload is under way.
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
            await page.wait_for_selector("#report .findings")
            said = await page.inner_text("#report")
            for words in (
                "no text in the field",
                "not UTF-8",
                "keys of AWS",
                "e-mail addresses",
                "the same as an earlier one",
            ):
                assert words in said
            assert "2 of 90,000 rows cannot be read" in said
            assert "jane.doe" not in said
            await finish(page, storm)


async def finish(page: Any, storm: Storm) -> None:
    """Leave the bad rows out, look at the price, review, create, fund."""
    await page.select_option("[name='dataset.faulty']", "skip")
    await page.check("[name='tokenizer.kind'][value=bytes]")
    await page.fill("[name='training.tokens']", "5000")
    await page.fill("[name=name]", "hens and geese")
    await page.fill("[name=budget]", "50")
    await storm.until_online(1)
    await page.wait_for_selector("#report:not([data-again]) >> text=89,998 of 90,000 rows to train on")
    await page.wait_for_selector("#quote .price")
    await page.wait_for_selector("#quote:not([aria-busy])")
    assert " to " in await page.inner_text("#quote dt:has-text('Takes') + dd"), "hours are a range"
    await page.click("button[value=review]")
    await page.wait_for_selector("h1:has-text('Is this right?')")
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / "review-real-1280-light.png", full_page=True)
    assert "hard cap" in await page.inner_text("main")
    await page.click("button[value=create]")
    await page.wait_for_selector("#fund-button")
    await page.click("#fund-button")
    async with Client(storm.web) as client, asyncio.timeout(120):
        while (jobs := await client.jobs()) and jobs[0].state == "created":
            await asyncio.sleep(0.25)
    assert (jobs[0].name, jobs[0].escrow) == ("hens and geese", 50_000_000)
    assert jobs[0].spec.dataset.faulty == "skip"
    assert jobs[0].state in ("funded", "planned", "running", "verifying", "settled")
