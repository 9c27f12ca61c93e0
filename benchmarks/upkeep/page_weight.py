"""Weight and time to first paint of every page in Chromium, cold and warm.

    python -m benchmarks.upkeep.page_weight [PAGE ...]

The pages are served over the cluster in memory of the tests, with jobs in every state; Chromium fetches them on loopback, and
once more over an emulated line of 1.6 Mbit/s and 150 ms, as DevTools' "slow 4G" is. Writes build/bench/pages.json.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, async_playwright

from benchmarks.common import publish
from tests.coordinator.web.conftest import House
from tests.coordinator.web.pages.test_browser import ARGUMENTS, CHROMIUM, addresses

REPEATS = 3
SLOW = {"offline": False, "latency": 150, "downloadThroughput": 1.6e6 / 8, "uploadThroughput": 0.75e6 / 8}
MEASURE = """() => {
  const paint = performance.getEntriesByType("paint").find((entry) => entry.name === "first-contentful-paint");
  const page = performance.getEntriesByType("navigation")[0];
  const files = performance.getEntriesByType("resource");
  return {
    paint_ms: paint ? paint.startTime : null,
    html_bytes: page.encodedBodySize,
    bytes: files.reduce((sum, file) => sum + file.transferSize, page.transferSize),
    requests: files.length + 1,
    elements: document.querySelectorAll("*").length,
  };
}"""


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        house = House(Path(folder))
        await house.start()
        every = await addresses(house)
        pages = {name: every[name] for name in sys.argv[1:] or every}
        async with async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            found = {name: await weigh(browser, house.url, path) for name, path in pages.items()}
            await browser.close()
        await house.stop()
    publish(
        "pages",
        "weight and time to first paint of every page",
        {
            "line": "1.6 Mbit/s down, 150 ms",
            "repeats": REPEATS,
            "heaviest_cold_bytes": max(page["cold_bytes"] for page in found.values()),
            "slowest_paint_ms": max(page["paint_ms"] for page in found.values()),
            "slowest_paint_slow_line_ms": max(page["paint_slow_line_ms"] for page in found.values()),
            "pages": found,
        },
    )


async def weigh(browser: Browser, url: str, path: str) -> dict[str, Any]:
    """A page's figures: medians of several visits, each with an empty cache, and one with a full one."""
    cold = [await visit(browser, url, path) for _ in range(REPEATS)]
    slow = [await visit(browser, url, path, slow=True) for _ in range(REPEATS)]
    warm = await visit(browser, url, path, twice=True)
    return {
        "html_bytes": cold[0]["html_bytes"],
        "cold_bytes": cold[0]["bytes"],
        "warm_bytes": warm["bytes"],
        "requests": cold[0]["requests"],
        "elements": cold[0]["elements"],
        "server_ms": round(statistics.median(one["server_ms"] for one in cold), 1),
        "paint_ms": round(statistics.median(one["paint_ms"] for one in cold), 1),
        "paint_slow_line_ms": round(statistics.median(one["paint_ms"] for one in slow), 1),
    }


async def visit(browser: Browser, url: str, path: str, *, slow: bool = False, twice: bool = False) -> dict[str, Any]:
    context = await browser.new_context(base_url=url, viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    if slow:
        session = await context.new_cdp_session(page)
        await session.send("Network.enable")
        await session.send("Network.emulateNetworkConditions", SLOW)
    for _ in range(1 + twice):
        began = time.perf_counter()
        response = await page.goto(path, wait_until="load")
        assert response is not None
        timing = response.request.timing
        await page.wait_for_function("() => performance.getEntriesByType('paint').length > 0")
    found: dict[str, Any] = await page.evaluate(MEASURE)
    await context.close()
    return found | {
        "server_ms": timing["responseStart"] - timing["requestStart"],
        "wall_s": time.perf_counter() - began,
    }


if __name__ == "__main__":
    asyncio.run(main())
