"""A deployment in a real Chromium: asked for by keyboard with a price that follows, its page that follows, and pictures."""

import asyncio
from typing import Any

import msgspec
import pytest

from coordinator.client import Client
from protocol.ids import Digest
from protocol.job.job import ModelSpec, ServeSpec, TokenizerSpec
from protocol.rest.api import JobNode
from protocol.serving import AnsweredReport, GenerateCommand, TextReport
from tests.coordinator.web.conftest import House
from tests.coordinator.web.deployments.conftest import ENOUGH, deployed, finished
from tests.coordinator.web.deployments.serving_cluster import QUIET
from tests.coordinator.web.fake_services import Outputs
from tests.coordinator.web.pages.test_adapters import LOOKS, look
from tests.coordinator.web.pages.test_browser import (  # noqa: F401 - a fixture, and marks
    AXE,
    FAULTS,
    PICTURES,
    chromium,
    pytestmark,
    tab_to,
    visit,
)
from tests.coordinator.web.pages.test_playground import Said


async def whole(page: Any, name: str) -> None:
    """Pictures of a page, wide and narrow, by day and by night; without serious faults in any."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.evaluate(AXE)
    for width, scheme in LOOKS:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert await page.evaluate(FAULTS, None) == [], (name, width, scheme)
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (name, width, scheme)
        await page.screenshot(path=PICTURES / f"{name}-{width}-{scheme}.png", full_page=True)


async def test_a_model_is_served_with_the_keyboard_alone_at_a_price_that_follows(
    chromium: Any,  # noqa: F811
    house: House,
) -> None:
    job = await finished(house)
    seen = await visit(chromium, house, f"/jobs/{job}")
    page = seen.page
    await page.locator("#field-replicas").scroll_into_view_if_needed()
    await page.wait_for_selector("#serve-quote .price")
    assert "1.20" in await page.inner_text("#serve-quote .price")
    await tab_to(page, "#field-replicas", 200)
    await page.keyboard.press("Control+a")
    await page.keyboard.type("2")
    await page.wait_for_function("() => document.querySelector('#serve-quote .price').textContent.includes('2.40')")
    assert await page.is_hidden("[data-serve] [value=quote]"), "the price comes by itself"
    await look(page, "serve", "[aria-labelledby=serve]")
    await tab_to(page, "#serve-quote [data-budget]")
    await page.keyboard.press("Enter")
    assert await page.input_value("#field-budget") == "4.80"
    await page.wait_for_function("() => !document.querySelector('#serve-quote [data-budget]')")
    await tab_to(page, "#serve-button")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("h2:has-text('Fund it')")
    await whole(page, "deployment-created")
    await page.click("#fund-button")
    await page.wait_for_selector(".badge:has-text('funded')")
    made = (await house.cluster.list(1, None))[0]
    assert (made.spec.budget, made.spec.serve) == (4_800_000, ServeSpec(2))
    assert seen.complaints == []


async def test_the_page_of_a_deployment_follows_it(chromium: Any, house: House) -> None:  # noqa: F811
    made = await deployed(house)
    house.cluster.step(made)
    seen = await visit(chromium, house, f"/jobs/{made}")
    page = seen.page
    await page.wait_for_selector("[data-live=nodes] .badge:has-text('loading')")
    house.cluster.step(made)
    await page.wait_for_selector("[data-live=nodes] .badge:has-text('answers')")
    assert "1 node answers, 1 loads the model" in await page.text_content("[data-live=spoken]")
    await whole(page, "deployment-loading")
    for _ in range(7):
        house.cluster.step(made)
    await page.wait_for_selector("[data-live=figures] :text('42 answers were drawn again, none was wrong')")
    await whole(page, "deployment")
    house.cluster._change(house.cluster._find(made), state="verifying", reason="the submitter stopped it")
    house.cluster.step(made)
    await page.wait_for_selector(".badge:has-text('settled')")
    assert await page.is_hidden("#programs"), "nobody has to reload the page for that"
    await whole(page, "deployment-settled")
    assert seen.complaints == []


async def test_the_page_of_a_deployment_in_stages_says_who_holds_what_and_whom_the_others_wait_for(
    chromium: Any,  # noqa: F811
    house: House,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Client(house.url) as client:
        made = (await client.deploy(await finished(house), 2, 8.0, ENOUGH, stages=2)).id
    for _ in range(4):
        house.cluster.step(made)
    found = house.cluster._find(made)
    assert found.view.serving is not None
    serving = msgspec.structs.replace(found.view.serving, ready=1, wrong=1, answering=2)
    house.cluster._change(found, serving=serving, sentence="Serving: 1 replica of 2 nodes answers.")
    house.cluster._say(found, "lost", "node kitchen-3060 lost its connection 4.2 s ago, is not back and is given up")
    nodes = await house.cluster.nodes(made)
    states = ("ready", "ready", "ready", "lost")
    shown = [msgspec.structs.replace(one, state=state) for one, state in zip(nodes, states, strict=False)]

    async def held(_cluster: object, _job: str) -> list[JobNode]:
        return shown

    monkeypatch.setattr(type(house.cluster), "nodes", held)
    seen = await visit(chromium, house, f"/jobs/{made}")
    page = seen.page
    rows = await page.locator("#node-table tbody tr").all_inner_texts()
    assert len(rows) == 4
    for row, place, state in zip(
        rows,
        ("1 of 2, replica 1", "2 of 2, replica 1", "1 of 2, replica 2", "2 of 2, replica 2"),
        ("answers", "answers", "waits for the others", "lost"),
        strict=True,
    ):
        assert f"stage {place}" in row
        assert state in row
    await whole(page, "deployment-stages")
    assert seen.complaints == []


@pytest.mark.long
async def test_the_playground_says_that_a_deployment_waits_for_nodes_and_has_no_start(
    chromium: Any,  # noqa: F811
    house: House,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready = asyncio.Event()

    async def slow(_self: Outputs, _job: str, _point: Any, _command: GenerateCommand) -> Said:
        await ready.wait()
        yield TextReport("1", "Here.")
        yield AnsweredReport("1", "stop", 1, 1)

    monkeypatch.setattr(Outputs, "complete", slow)
    monkeypatch.setattr("coordinator.web.stream.PACE_S", 0.1)
    made = await deployed(house)
    found, change = house.cluster._find(made), msgspec.structs.replace
    given = ModelSpec(config={"model_type": "llama"}, weights=Digest("0" * 64))
    tokenizer = TokenizerSpec("file", file=Digest("0" * 64), settings={"chat_template": "{{ messages }}"})
    house.cluster._change(
        found, state="running", serving=QUIET, spec=change(found.view.spec, model=given, tokenizer=tokenizer)
    )
    seen = await visit(chromium, house, f"/playground?model={made}")
    page = seen.page
    await page.wait_for_selector("#words:visible")
    offered = await page.locator("select option").evaluate_all("all => all.map((one) => one.value)")
    assert made in offered
    assert f"{made}@start" not in offered, "no job made it"
    for serving, words in (
        (QUIET, "The model waits for nodes … "),
        (change(QUIET, loading=1), "The model is being loaded … "),
    ):
        ready.clear()
        house.cluster._change(found, serving=serving)
        await page.fill("#words", "are you there")
        await page.press("#words", "Enter")
        await page.wait_for_selector(f".wait:has-text('{words}')")
        ready.set()
        await page.wait_for_selector("#send:visible")
    assert seen.complaints == []


async def test_it_is_served_without_scripts(chromium: Any, house: House) -> None:  # noqa: F811
    job = await finished(house)
    page = (await visit(chromium, house, f"/jobs/{job}", java_script_enabled=False)).page
    await page.fill("#field-replicas", "2")
    await page.fill("#field-hours", "many")
    await page.click("#serve-button")
    await page.wait_for_selector("#error-hours")
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / "serve-errors-1280-light.png", full_page=True)
    await page.fill("#field-hours", "8")
    await page.click("[data-serve] [value=quote]")
    await page.wait_for_selector("#serve-quote .price")
    for width, scheme in LOOKS:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await page.screenshot(path=PICTURES / f"serve-plain-{width}-{scheme}.png", full_page=True)
    await page.fill("#field-budget", "5")
    await page.click("#serve-button")
    await page.wait_for_selector("h2:has-text('Fund it')")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("path", ["/jobs", "/", "stop", "serve"])
async def test_pages_around_a_deployment_are_accessible(chromium: Any, house: House, path: str) -> None:  # noqa: F811
    made = await deployed(house, 2)
    there = {
        "stop": f"/jobs/{made}/stop",
        "serve": f"/jobs/{(await house.cluster.get(made)).spec.model.from_job}/serve",
    }
    seen = await visit(chromium, house, there.get(path, path))
    await whole(seen.page, f"deployment-on-{path.strip('/') or 'home'}")
    await seen.page.set_viewport_size({"width": 390, "height": 900})
    for table in await seen.page.locator("[aria-label='Table of jobs']").all():
        assert await table.evaluate("(one) => one.scrollWidth - one.clientWidth") <= 0, "nothing is beside the window"
        assert await table.locator("td[data-label=Paid]").first.is_visible()
    assert seen.complaints == []
