"""The pages in a real Chromium: submit by keyboard, watch a job, see errors, resume an upload; and pictures of every page."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import Client
from tests.coordinator.web.conftest import House
from transport.wire.api import JobView

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
PICTURES = Path(__file__).resolve().parents[3] / "build" / "screenshots"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PROSE = b"the quick brown fox jumps over the lazy dog\n" * 60_000

playwright = pytest.importorskip("playwright.async_api")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}: apt-get install chromium"),
]


@pytest.fixture
async def chromium() -> AsyncIterator[Any]:
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


class Visit:
    """A page, and everything that its console complained of."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        self.requests: list[str] = []


async def visit(chromium: Any, house: House, path: str, **more: Any) -> Visit:
    context = await chromium.new_context(base_url=house.url, **{"viewport": {"width": 1280, "height": 900}, **more})
    context.set_default_timeout(8000)
    seen = Visit(await context.new_page())
    await seen.page.goto(path)
    return seen


async def some_jobs(house: House) -> JobView:
    """A settled job, a cancelled one, one that waits, and one in the middle of its training, which is returned."""
    data = await house.dataset()
    base = {"model": {"preset": "tiny-llama"}, "dataset": {"artifact": data}, "budget": 9_000_000}
    async with Client(house.url) as client:
        done = await client.create_job({**base, "name": "Shakespeare, small"})
        await client.fund(done.id)
        house.cluster.run(done.id)
        await house.cluster.finish(done.id, b"PK\5\6" + b"\0" * 18)
        gone = await client.create_job({**base, "name": "Wrong learning rate", "training": {"learning_rate": 1.0}})
        await client.fund(gone.id)
        await client.cancel(gone.id)
        await client.create_job({**base, "name": "Cookbook"})
        live = await client.create_job({**base, "name": "Python's own library", "training": {"tokens": 1_000_000}})
        await client.fund(live.id)
        for _ in range(24):
            house.cluster.step(live.id)
        return await client.get(live.id)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_every_page_fits_its_window_and_complains_of_nothing(
    chromium: Any, house: House, scheme: str, width: int
) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    job = await some_jobs(house)
    created = next(view for view in await house.cluster.list(9, None) if view.state == "created")
    settled = next(view for view in await house.cluster.list(9, None) if view.state == "settled")
    pages = {
        "home": "/",
        "network": "/network",
        "jobs": "/jobs",
        "job": f"/jobs/{job.id}",
        "job-created": f"/jobs/{created.id}",
        "job-settled": f"/jobs/{settled.id}",
        "cancel": f"/jobs/{job.id}/cancel",
        "submit": "/submit",
        "missing": "/nothing",
    }
    for name, path in pages.items():
        seen = await visit(chromium, house, path, viewport={"width": width, "height": 900}, color_scheme=scheme)
        if name == "submit":
            await seen.page.wait_for_selector("#quote .price")
        await seen.page.screenshot(path=PICTURES / f"{name}-{width}-{scheme}.png", full_page=True)
        overflow = await seen.page.evaluate(
            "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert overflow <= 0, f"{name} is {overflow} pixels too wide at {width}"
        assert [text for text in seen.complaints if "404" not in text] == [], name
        assert all(url.startswith(house.url) for url in seen.requests), "nothing is fetched from anywhere else"
        await seen.page.context.close()
