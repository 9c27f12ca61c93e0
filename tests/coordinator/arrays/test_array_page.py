"""The page of an array job in a real Chromium: while it runs, with an element that failed, and when it is over."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import Client
from protocol.job.results import packed
from tests.coordinator.arrays.arrayed import fails, right
from tests.coordinator.arrays.test_array_form import pushed
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


async def test_an_array_is_made_with_the_form_and_changed_once_it_is_over(
    chromium: Any,  # noqa: F811
    house: ArrayHouse,  # noqa: F811
    tmp_path: Path,
) -> None:
    await house.nodes()
    await pushed(house.url, tmp_path)
    files = sorted(numbers(tmp_path / "inputs", [3, 4]).iterdir())
    seen = await visit(chromium, house, "/submit")  # type: ignore[arg-type]
    page = seen.page
    await page.click("main a[href='/submit/array']")
    await page.click("[value=quote]")
    await whole(page, "array-form")
    await page.select_option("#field-image", index=1)
    await page.fill("#field-command", "square {input}")
    await page.fill("#field-estimate", "fast")
    await page.set_input_files("#field-elements", files)
    await page.click("[value=quote]")
    assert "is not a number" in await page.inner_text("#error-estimate")
    assert "2 files are here" in await page.inner_text("#there"), "they are not chosen again"
    await whole(page, "array-form-error")
    await page.fill("#field-estimate", "2")
    await page.fill("#field-name", "squares of two")
    await page.click("[value=quote]")
    assert "for 2 elements" in await page.inner_text("#array-quote")
    await whole(page, "array-form-price")
    await page.click("#create")
    async with asyncio.timeout(60), house.running():
        await page.click("#fund-button")
        await page.wait_for_selector(".badge:has-text('settled')", timeout=50_000)
    assert "2 of 2" in await page.inner_text("main")
    await page.click("#again")
    assert await page.input_value("#field-command") == "square {input}"
    assert "2 files are here" in await page.inner_text("#there")
    assert [one for one in seen.complaints if "422" not in one] == []


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
