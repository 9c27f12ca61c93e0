"""A model of the Hub by name in the form, in a real Chromium."""

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.job.job import LoraSpec
from tests.coordinator.web.conftest import House
from tests.coordinator.web.hub.test_by_name import NAME, Shell, coordinators_hub, model, shell  # noqa: F401 - fixtures
from tests.coordinator.web.pages.test_browser import PICTURES, chromium, pytestmark, visit  # noqa: F401 - a fixture, and marks


@pytest.mark.long
@pytest.mark.usefixtures("coordinators_hub")
async def test_a_name_fills_the_form_with_model_tokenizer_and_licence(
    chromium: Any,  # noqa: F811
    house: House,
    shell: Shell,  # noqa: F811
    tmp_path: Path,
) -> None:
    there = shell.hub.add(NAME, model(tmp_path / "repository"), card={"license": "apache-2.0"})
    data = await house.dataset()
    seen = await visit(chromium, house, "/submit")
    page = seen.page
    page.set_default_timeout(40_000)  # The Hub's library is loaded first, and the review looks at every row.
    await page.get_by_label("A model of the Hugging Face Hub").fill("village/nothing")
    await page.keyboard.press("Enter")
    await page.get_by_text("nor such a repository on the Hub").wait_for()
    await page.get_by_label("A model of the Hugging Face Hub").fill(NAME)
    await page.get_by_role("button", name="Fetch").click()
    await page.get_by_text(f"\u2713 {NAME} at commit {there.commit[:12]}").wait_for()
    assert "licence apache-2.0" in await page.locator("#status-hub").inner_text()
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / "submit-hub.png", full_page=True)
    await page.locator("[name='dataset.artifact']").evaluate(f"element => element.value = '{data}'")
    await page.fill("#field-name", "by name")
    await page.fill("#field-budget", "9")
    await page.click("button[value=review]")
    await page.get_by_text(f"{NAME}@{there.commit}").wait_for()
    await page.click("button[value=create]")
    await page.wait_for_url("**/jobs/**")
    (job,) = await house.cluster.list(5, None)
    assert (job.spec.model.hub, job.spec.model.license) == (f"{NAME}@{there.commit}", "apache-2.0")
    assert job.spec.model.config == json.loads(there.files["config.json"])
    assert len(job.spec.model.weight_files) == 2
    assert job.spec.training.lora == LoraSpec(), "a model that has learnt gets an adapter"
    assert job.spec.tokenizer.kind == "file"
    assert job.spec.tokenizer.settings is not None
    assert [text for text in seen.complaints if "422" not in text] == []
