"""The tutorials' own commands, in their order, with the files that they say: none is refused."""

import asyncio
import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cottage.cli import main
from tests.coordinator.web.conftest import House
from tests.coordinator.web.test_api import archive

TUTORIALS = Path(__file__).parents[3] / "docs" / "tutorials"
# Programs that stay, what asks a real ledger, and what needs an agent that runs: tests/e2e and tests/desktop have those.
ELSEWHERE = ("ledger", "serve", "relay", "nettest", "login", "node run", "node selftest", "node status", "node now")
ELSEWHERE += ("node pause", "node resume", "node finish", "node backup")


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Language and content of each block of code."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```", (TUTORIALS / page).read_text(), re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """What a reader types after ``cottage``, without what other tests run."""
    lines = [line for kind, block in blocks(page) if kind == "console" for line in block.splitlines()]
    typed = [line.removeprefix("cottage ") for line in lines if line.startswith("cottage ")]
    return [shlex.split(line) for line in typed if not line.startswith(ELSEWHERE)]


@pytest.mark.parametrize("page", ["train-your-first-model.md", "three-homes.md"])
async def test_a_submitter_who_types_what_the_lesson_says_gets_a_model(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COTTAGE_SERVER", house.url)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "corpus.txt").write_text("to be or not to be\n" * 200)
    (document,) = [block for kind, block in blocks(page) if kind == "yaml"]
    (tmp_path / "job.yaml").write_text(document)

    async def network() -> None:
        while not (jobs := await house.cluster.list(1, None)) or jobs[0].state != "funded":
            await asyncio.sleep(0.05)
        await house.cluster.finish(jobs[0].id, archive())
        house.cluster.run(jobs[0].id)

    beside = asyncio.create_task(network())
    for words in commands(page):
        jobs = await house.cluster.list(1, None)
        told = [house.url if "cottage.example" in word else jobs[0].id if word == "JOB" else word for word in words]
        asked = ["--yes"] if words[0] == "submit" and "--yes" not in words else []
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(main, [*told, *asked]) == 0, " ".join(words)
    await beside
    (job,) = await house.cluster.list(5, None)
    assert job.state == "settled"
    assert (tmp_path / "model" / "config.json").exists() == ("download" in {words[0] for words in commands(page)})


def test_a_lender_who_types_what_the_lesson_says_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    typed = commands("lend-your-gpu.md")
    assert ["node", "limits", "--up", "5M", "--down", "40Mbit"] in typed
    for words in typed:
        with contextlib.suppress(SystemExit):
            # No agent runs here, which some of the lesson's commands ask.
            assert main(words) == 0 or "no agent answers" in capsys.readouterr().err, " ".join(words)
