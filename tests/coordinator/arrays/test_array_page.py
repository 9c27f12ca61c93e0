"""The page of an array job in a real Chromium: while it runs, with an element that failed, and when it is over."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import Client
from protocol.job.results import packed
from tests.coordinator.arrays.arrayed import fails, right
from tests.coordinator.arrays.test_map_command import ArrayHouse, cottage, house, numbers  # noqa: F401 - a fixture
from tests.coordinator.web.deployments.test_deployment_browser import whole
from tests.coordinator.web.pages.test_browser import chromium, pytestmark, visit  # noqa: F401 - a fixture, and marks


async def test_the_page_of_an_array_follows_it_and_offers_what_came(
    chromium: Any,  # noqa: F811
    house: ArrayHouse,  # noqa: F811
    tmp_path: Path,
) -> None:
    await house.nodes()
    inputs, out = numbers(tmp_path / "inputs", [-1, *range(15)]), tmp_path / "results"
    words = ("map", house.image, "square {input}", "--over", f"{inputs}/*.txt", "--out", str(out), "--yes")
    mapped = asyncio.create_task(cottage(house, *words, "--retries", "0", "--name", "squares of numbers"))
    async with Client(house.url) as client:
        async with asyncio.timeout(60), house.running():
            while not (jobs := await client.jobs()) or (jobs[0].array is None or jobs[0].array.done < 3):
                await asyncio.sleep(0.01)
        seen = await visit(chromium, house, f"/jobs/{jobs[0].id}")  # type: ignore[arg-type]
        page = seen.page
        await page.wait_for_selector("h1:has-text('squares of numbers')")
        assert "of 16 elements are done" in await page.inner_text("main")
        await whole(page, "array-runs")
        async with asyncio.timeout(60), house.running():
            assert await mapped == 1, "one element has failed"
        await page.wait_for_selector(".badge:has-text('settled')")
    assert "15 of 16" in await page.inner_text("main")
    assert "n-1.txt" in await page.inner_text("main"), "who failed is named"
    await whole(page, "array-over")
    async with page.expect_download() as started:
        await page.click("#results")
    assert (await started.value).suggested_filename.endswith(".tar")
    assert seen.complaints == []


@pytest.mark.long
async def test_the_page_of_an_array_with_a_checker_says_what_was_looked_at(
    chromium: Any,  # noqa: F811
    house: ArrayHouse,  # noqa: F811
    tmp_path: Path,
) -> None:
    liar, *_ = await house.nodes(4)
    liar.answer = lambda run: right(run, packed({"square.txt": b"made up"}))
    for node in house.world.nodes:
        node.look = lambda run, data: fails(run, 1) if b"made up" in data else right(run, packed({}))
    inputs, out = numbers(tmp_path / "inputs", list(range(12))), tmp_path / "results"
    words = ("map", house.image, "square {input}", "--over", f"{inputs}/*.txt", "--out", str(out), "--yes")
    async with Client(house.url) as client:
        async with asyncio.timeout(60), house.running():
            assert await cottage(house, *words, "--check", "look {input}", "--name", "looked at") == 0
        (job,) = await client.jobs()
        assert job.array is not None
        assert job.array.refused > 0
        seen = await visit(chromium, house, f"/jobs/{job.id}")  # type: ignore[arg-type]
        said = await seen.page.inner_text("main")
        assert "verdicts of the checker hold" in said
        assert f"it refused {job.array.refused} and took another owner's" in said
        await whole(seen.page, "array-checked")
    assert seen.complaints == []
