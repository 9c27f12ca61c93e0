"""A model's folder in the form, in a real Chromium: chosen or dragged, with shards, or something else than a model."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from protocol.job.job import LoraSpec
from tests.coordinator.serving.small_model import TEMPLATE, small_model
from tests.coordinator.web.conftest import House
from tests.coordinator.web.pages.test_browser import PICTURES, chromium, pytestmark, visit  # noqa: F401 - a fixture, and marks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In two shards, with its template in a file of its own."""
    made = small_model(tmp_path_factory.mktemp("chosen") / "made")
    tensors = load_file(made / "model.safetensors")
    names = sorted(tensors)
    shards = {f"model-{n + 1:05}-of-00002.safetensors": names[n::2] for n in range(2)}
    for file, some in shards.items():
        save_file({name: tensors[name].contiguous() for name in some}, made / file)
    (made / "model.safetensors").unlink()
    weight_map = {name: file for file, some in shards.items() for name in some}
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    settings = json.loads((made / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (made / "tokenizer_config.json").write_text(json.dumps(settings))
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


async def test_a_folder_fills_the_form_with_all_that_a_job_needs_of_it(
    chromium: Any,  # noqa: F811
    house: House,
    folder: Path,
) -> None:
    data = await house.dataset()
    seen = await visit(chromium, house, "/submit")
    page = seen.page
    page.set_default_timeout(40_000)
    await page.get_by_label("Or its folder").set_input_files(folder)
    await page.get_by_text("\u2713 2 files of weights with config and tokenizer").wait_for()
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / "submit-folder.png", full_page=True)
    await page.locator("[name='dataset.artifact']").evaluate(f"element => element.value = '{data}'")
    await page.fill("#field-name", "by folder")
    await page.fill("#field-budget", "9")
    await page.click("button[value=review]")
    await page.click("button[value=create]")
    await page.wait_for_url("**/jobs/**")
    (job,) = await house.cluster.list(5, None)
    assert job.spec.model.config == json.loads((folder / "config.json").read_text())
    assert len(job.spec.model.weight_files) == 2
    assert job.spec.training.lora == LoraSpec(), "a model that has learnt gets an adapter"
    assert job.spec.tokenizer.settings is not None
    assert job.spec.tokenizer.settings["chat_template"] == TEMPLATE
    assert [text for text in seen.complaints if "422" not in text] == []


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda here: next(here.glob("model-00002*")).unlink(), "has not model-00002-of-00002.safetensors, a part"),
        (lambda here: (here / "config.json").unlink(), "has no config.json"),
        (lambda here: (here / "tokenizer.json").unlink(), "has no tokenizer.json, to which the model belongs"),
        (lambda here: (here / "config.json").write_text("{"), "config.json is no JSON, or was cut"),
    ],
    ids=["shard", "config", "tokenizer", "cut"],
)
async def test_a_folder_that_lacks_something_is_told_and_nothing_is_sent(
    change: Any,
    words: str,
    chromium: Any,  # noqa: F811
    house: House,
    folder: Path,
    tmp_path: Path,
) -> None:
    (here := tmp_path / "here").mkdir()
    for path in folder.iterdir():
        (here / path.name).write_bytes(path.read_bytes())
    change(here)
    await told(chromium, house, here, words)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("adapter_config.json", "adapter_model.safetensors"), "holds an adapter, not a model"),
        (("model-q8_0.gguf", "README.md"), "GGUF is made for running"),
        (("notes.txt",), "has no *.safetensors"),
    ],
    ids=["adapter", "gguf", "other"],
)
async def test_what_is_no_model_is_told_with_the_way_out(
    files: tuple[str, ...],
    words: str,
    chromium: Any,  # noqa: F811
    house: House,
    tmp_path: Path,
) -> None:
    (here := tmp_path / "here").mkdir()
    for name in files:
        (here / name).write_text("{}")
    await told(chromium, house, here, words)


async def told(browser: Any, house: House, folder: Path, words: str) -> None:
    page = (await visit(browser, house, "/submit")).page
    await page.get_by_label("Or its folder").set_input_files(folder)
    await page.locator("#status-folder.error").get_by_text(words).wait_for()
    assert await page.locator("[name='model.weights']").input_value() == ""


async def test_a_folder_can_be_dragged(chromium: Any, house: House) -> None:  # noqa: F811
    page = (await visit(chromium, house, "/submit")).page
    dragged = await page.evaluate_handle(
        """() => {
            const file = (name) => ({ isFile: true, name, file: (found) => found(new File(["{}"], name)) });
            let left = [file("adapter_config.json"), file("README.md")];
            const reader = { readEntries: (found) => found(left.splice(0, 1)) };
            const entry = { isFile: false, name: "mine", createReader: () => reader };
            const event = new Event("drop", { bubbles: true, cancelable: true });
            event.dataTransfer = { items: [{ webkitGetAsEntry: () => entry }] };
            return event;
        }"""
    )
    await page.locator("[data-folder]").evaluate("(element, event) => element.dispatchEvent(event)", dragged)
    await page.locator("#status-folder.error").get_by_text("holds an adapter, not a model").wait_for()
