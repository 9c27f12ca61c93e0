"""The commands and programs of "Serve a model at homes" (serve-at-homes), typed as they stand there."""

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cottage.cli import main
from tests.coordinator.conftest import BUSY_S
from tests.coordinator.web.conftest import House
from tests.coordinator.web.deployments.conftest import deployed, finished, model_folder
from tests.cottage.test_commands_in_docs import commands

PAGE = Path(__file__).parents[4] / "docs/how-to/serve-at-homes.md"
ELSEWHERE = ("ledger",)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


async def loaded(house: House) -> None:
    """The network, for what is funded next."""
    while not (jobs := await house.cluster.list(1, None)) or jobs[0].state != "funded":
        await asyncio.sleep(0.02)
    house.cluster.step(jobs[0].id)
    house.cluster.step(jobs[0].id)


async def test_every_command_of_the_page_is_typed(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTTAGE_SERVER", house.url)
    job = await finished(house)
    beside_it = {"BASE": await finished(house), "OTHER": await finished(house)}
    seen = set()
    for command in commands(PAGE):
        words = shlex.split(command)[1:]
        if words[0] in ELSEWHERE or (len(words) == 1 and words[0] != "jobs"):
            continue
        seen.add(words[0])
        stands = {**beside_it, "JOB": job, "FOLDER": str(model_folder(tmp_path / "cow"))}
        if "DEPLOYMENT" in words:
            stands["DEPLOYMENT"] = made = await deployed(house, 1, of=job)
            found = house.cluster._find(made)
            if words[0] == "resume":
                house.cluster._change(found, state="paused")
            if words[0] == "watch":
                house.cluster._change(found, state="verifying")
                house.cluster.step(made)
            if words[0] == "budget":  # The double adds no more than a price has room for.
                continue
        beside = asyncio.create_task(loaded(house)) if words[0] == "deploy" else None
        more = ["--yes"] if words[0] == "deploy" else []
        async with asyncio.timeout(BUSY_S):
            assert await asyncio.to_thread(main, [*(stands.get(word, word) for word in words), *more]) == 0, command
        if beside is not None:
            await beside
    assert seen == {"jobs", "deploy", "watch", "pause", "resume", "stop", "budget"}


async def test_the_program_of_the_page_deploys(house: House) -> None:
    (program,) = (code for code in blocks("python") if "Client(" in code)
    names: dict[str, Any] = {}
    exec(program, names)
    job = await finished(house)
    beside = asyncio.create_task(loaded(house))
    async with asyncio.timeout(BUSY_S):
        made = await names["deploy"](house.url, None, job)
    await beside
    assert (await house.cluster.get(made)).state == "running"


async def test_the_document_of_the_page_is_taken(house: House, tmp_path: Path) -> None:
    (document,) = blocks("yaml")
    (tmp_path / "serve.yaml").write_text(document.replace("JOB", f"'{await finished(house)}'"))
    typed = ["submit", str(tmp_path / "serve.yaml"), "--yes", "--server", house.url]
    assert await asyncio.to_thread(main, typed) == 0
    assert (await house.cluster.list(1, None))[0].state == "funded"
