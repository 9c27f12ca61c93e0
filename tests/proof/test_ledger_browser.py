"""The ledger's pages in a real Chromium: from a job to the round that proves a payout, with the keyboard and on a phone."""

import os
import shutil
from pathlib import Path

import pytest

from tests.proof.town import town

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
playwright = pytest.importorskip("playwright.async_api")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}: apt-get install chromium"),
]
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def test_a_payout_is_followed_to_the_round_that_it_pays_for(tmp_path: Path) -> None:
    async with town(tmp_path) as place, playwright.async_playwright() as driver:
        job = await place.train("Shakespeare, small")
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        context = await browser.new_context(base_url=place.url, viewport={"width": 390, "height": 900})
        page = await context.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto("/ledger?show=payouts")
        payout = page.locator("td details").first
        await payout.locator("summary").focus()
        await page.keyboard.press("Enter")
        (entry, *_rest) = await place.parts.books.entries(("settle",), job, None, 10)
        assert entry.signature in await payout.inner_text()
        assert await page.evaluate(OVERFLOW) <= 0
        await page.click("tbody a:has-text('Shakespeare')")
        await page.click("text=Round 1")
        assert await page.locator("h1").inner_text() == "Round 1"
        assert await page.evaluate(OVERFLOW) <= 0
        await page.locator("summary:has-text('Commitments')").focus()
        await page.keyboard.press("Enter")
        (found,) = await place.parts.books.evidence(job, 0)
        assert found.memos[0].root in await page.inner_text("main")
        await page.click("tbody a[href^='/nodes/']")
        assert "Earnings by job" in await page.inner_text("main")
        assert await page.evaluate(OVERFLOW) <= 0
        assert complaints == []
        await browser.close()
