"""The reference of the interface as a page."""

import asyncio
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from markupsafe import escape

from coordinator import errors
from coordinator.web.pages.guides import DOCS_FOLDER, SHOWN, shown
from coordinator.web.pages.reference import CODES
from tests.coordinator.web.conftest import House
from tests.coordinator.web.test_api import archive


async def test_the_reference_names_every_operation_and_every_link_in_it_leads_somewhere(
    house: House, http: aiohttp.ClientSession
) -> None:
    async with http.get(f"{house.url}/openapi.json") as response:
        document = await response.json()
    async with http.get(f"{house.url}/docs/api") as response:
        assert response.status == 200
        page = await response.text()
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for methods in document["paths"].values():
        for told in methods.values():
            assert told["operationId"] in ids
    for anchor in re.findall(r'href="#([^"]+)"', page):
        assert anchor in ids


async def test_every_document_is_shown_at_its_own_address(house: House, http: aiohttp.ClientSession) -> None:
    files = shown()
    assert {kind: pages for kind in SHOWN if not (pages := [file for file in files if files[file] == kind])} == {}
    assert len({file.stem for file in files}) == len(files)
    for file in files:
        name = file.stem
        (heading,) = re.findall(r"^# (.+)$", file.read_text(), re.M)[:1]
        async with http.get(f"{house.url}/docs/{name}") as response:
            headings = re.findall(r"<h1>(.*?)</h1>", await response.text())
        assert headings[:1] == [str(escape(heading.replace("`", "")))], f"{name} is hidden behind another page"


async def test_what_developers_read_is_no_page_and_links_to_it_are_words(
    house: House, http: aiohttp.ClientSession
) -> None:
    for name in (
        "architecture",
        "threat-model",
        "testing",
        "0024-a-job-rests-only-where-everything-is-safe",
        "decisions",
    ):
        async with http.get(f"{house.url}/docs/{name}") as response:
            assert response.status == 404
    async with http.get(f"{house.url}/docs/lend") as response:
        page = await response.text()
    assert "decision 26" in page
    assert ">decision 26<" not in page
    assert ".md" not in "".join(re.findall(r'href="([^"]*)"', page))


@pytest.mark.parametrize(
    "kind",
    [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and one.__module__ == "coordinator.errors" and issubclass(one, errors.CottageError)
    ],
)
def test_every_code_of_an_error_is_explained_with_its_status(kind: type[errors.CottageError]) -> None:
    assert (kind.code, kind.status) in {(code, status) for code, status, _ in CODES}


async def test_the_example_of_the_documents_runs(house: House, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS_FOLDER / "how-to" / "programs.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    (tmp_path / "corpus.txt").write_text("to be or not to be\n" * 200)

    async def network() -> None:
        while not (jobs := await house.cluster.list(1, None)) or jobs[0].state != "funded":
            await asyncio.sleep(0.05)
        await house.cluster.finish(jobs[0].id, archive())
        house.cluster.run(jobs[0].id)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(network())
        await names["main"](house.url, None, tmp_path / "corpus.txt", tmp_path / "model")
    assert (tmp_path / "model" / "config.json").exists()
