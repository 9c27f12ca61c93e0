"""What learns beside a model that has learnt, two answers in a report, a trial without scripts: in a real Chromium."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.coordinator.web.conftest import House
from tests.coordinator.web.pages.test_browser import (  # noqa: F401 - a fixture, and marks
    AXE,
    FAULTS,
    PICTURES,
    chromium,
    pytestmark,
    visit,
    with_tokenizer,
)
from tests.coordinator.web.test_typed_from_docs import published
from tests.support.chat_templates import CHATML, small_tokenizer

LOOKS = ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark"))
RADIO = "[name=learns][value={}]"


async def look(page: Any, name: str, part: str) -> None:
    """Pictures of a part of a page, wide and narrow, by day and by night; without serious faults in any."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.evaluate(AXE)
    for width, scheme in LOOKS:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert await page.evaluate(FAULTS, None) == [], (width, scheme)
        await page.locator(part).first.screenshot(path=PICTURES / f"{name}-{width}-{scheme}.png")
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (width, scheme)


async def test_an_adapter_learns_beside_weights_unless_somebody_chose(
    chromium: Any,  # noqa: F811
    house: House,
    tmp_path: Path,
) -> None:
    published(tmp_path / "model")
    page = (await visit(chromium, house, "/submit")).page
    assert await page.is_checked(RADIO.format("model"))
    assert await page.is_hidden("#adapted")
    await page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    weights = "[data-upload=weights] input[type=file]"
    await page.set_input_files(weights, tmp_path / "model" / "model.safetensors")
    await page.wait_for_selector("#adapted:not([hidden])")
    assert await page.is_checked(RADIO.format("lora"))
    assert await page.input_value("[name='training.lora.rank']") == "16"
    await page.wait_for_function(
        "() => JSON.parse(document.querySelector('#field-document').value).training.lora?.rank === 16"
    )
    await look(page, "adapter", "[aria-labelledby=part-2]")
    await page.set_input_files(weights, [])
    await page.wait_for_selector("#adapted", state="hidden")
    assert await page.is_checked(RADIO.format("model")), "without weights there is nothing to adapt"
    await page.check(RADIO.format("lora"))
    await page.check(RADIO.format("model"))
    await page.set_input_files(weights, tmp_path / "model" / "model.safetensors")
    await page.wait_for_function("() => document.querySelector('[name=\"model.weights\"]').value !== ''")
    await page.get_by_text("✓ model.safetensors").wait_for()
    assert await page.is_checked(RADIO.format("model")), "somebody chose"
    assert await page.is_hidden("#adapted")


@pytest.mark.long
async def test_two_answers_are_beside_each_other_in_the_report(
    chromium: Any,  # noqa: F811
    house: House,
    tmp_path: Path,
) -> None:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Should I water the {number}th cactus again today, or wait?"}],
            "chosen": [{"role": "assistant", "content": "Wait. A cactus drinks once in two weeks."}],
            "rejected": [{"role": "assistant", "content": "Yes, water it every day, and twice on Sundays."}],
        }
        for number in range(40)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = await house.dataset(small_tokenizer().to_str().encode())
    page = (await visit(chromium, house, "/submit")).page
    page.set_default_timeout(40_000)
    await page.evaluate(
        """([file, settings]) => { const form = document.querySelector('form[data-submit]').elements;
        form['training.sequence'].value = '512';
        form['tokenizer.kind'].value = 'file'; form['tokenizer.file'].value = file;
        form['tokenizer.settings'].value = settings }""",
        [tokenizer, json.dumps({"chat_template": CHATML})],
    )
    await page.set_input_files("[data-upload=dataset] input[type=file]", tmp_path / "pairs.jsonl")
    await page.wait_for_selector("#report .rendered")
    told = await page.inner_text("#report")
    assert "prompts with two answers" in told
    places = [
        told.index(part) for part in ("its chosen answer", "once in two weeks", "its rejected answer", "on Sundays")
    ]
    assert places == sorted(places)
    await look(page, "two-answers", "[aria-labelledby=part-1]")


async def test_a_model_is_tried_without_scripts_and_what_was_chosen_stays(
    chromium: Any,  # noqa: F811
    house: House,
) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4}
    job = await with_tokenizer(
        house, {"chat_template": "{{ messages }}"}, {"config": config, "weights": await house.dataset()}
    )
    page = (await visit(chromium, house, f"/jobs/{job}", java_script_enabled=False)).page
    await page.fill(
        "#prompt", "A small donkey walked to the market, and nobody there had seen one before.\nWhat did it say?"
    )
    await page.click("#try-button")
    await page.wait_for_selector("h1:has-text('Try the model')")
    said = page.locator(".said")
    assert [await said.nth(at).text_content() for at in range(2)] == [
        " A small donkey walked to the market, and nobody there had seen one before. What did it say?",
        " before",
    ]
    PICTURES.mkdir(parents=True, exist_ok=True)
    for width, scheme in LOOKS:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await page.screenshot(path=PICTURES / f"try-plain-{width}-{scheme}.png", full_page=True)
    await page.uncheck("[name=chat]")
    await page.uncheck("[name=start]")
    await page.get_by_role("button", name="Go on").click()
    await page.wait_for_selector("h1:has-text('Try the model')")
    assert await said.count() == 1
    assert not await page.is_checked("[name=chat]"), "it stays as it was left"
    assert not await page.is_checked("[name=start]")
