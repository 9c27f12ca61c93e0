"""The installer that an agent on Windows has fetched: what it is told, and that only the file that was signed is started."""

import asyncio
from pathlib import Path

import pytest

from common.clock import SystemClock
from desktop.agent.app.restart import install
from desktop.agent.base.config import Home
from desktop.agent.errors import UpdateError
from desktop.agent.updates.keeper import Updates, load_seen
from desktop.agent.updates.release import Release
from desktop.agent.updates.setup import SetupFile
from tests.desktop.updates.support import KEY, Server, described, manifest_of
from tests.support.wait import HANGS_S

TELLS = '#!/bin/sh\necho "$1,$COTTAGE_SETUP_HOME,$COTTAGE_SETUP_STAYS" > "$COTTAGE_SETUP_HOME/told"\n'


def lying(folder: Path, text: str = TELLS) -> SetupFile:
    file = folder / "Cottage-Setup.exe"
    file.write_text(text)
    file.chmod(0o755)
    return SetupFile(file, described(text.encode()))


@pytest.mark.parametrize(("stays", "word"), [(True, "--stay"), (False, "")])
async def test_it_is_started_without_a_question_and_told_whose_agent_goes_on_and_how(
    tmp_path: Path, stays: bool, word: str
) -> None:
    home = Home.at(tmp_path / "home of mine")
    lying(tmp_path).start(home, stays=stays)
    async with asyncio.timeout(HANGS_S):
        while not (told := home.path / "told").exists() or not told.read_text():
            await asyncio.sleep(0.02)
    assert told.read_text() == f"/S,{home.path},{word}\n"


def test_a_file_that_has_changed_since_is_not_started(tmp_path: Path) -> None:
    setup, home = lying(tmp_path), Home.at(tmp_path / "home")
    setup.file.write_text(TELLS + "\n")
    with pytest.raises(UpdateError, match="is not the file that was fetched any more"):
        setup.start(home, stays=True)
    assert not (home.path / "told").exists()


def test_where_it_cannot_be_started_this_version_begins_anew_and_the_next_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[str, ...]] = []
    monkeypatch.setattr("desktop.agent.app.restart.begin_anew", lambda words: begun.append(tuple(words)))
    setup, home = lying(tmp_path, "#!/no/such/program\n"), Home.at(tmp_path / "home")
    install(setup, "0.2.0", home, ("run", "--stay"), stays=True)
    assert begun == [("run", "--stay")]
    assert load_seen(home).failed == ("0.2.0",)


async def test_an_installation_by_an_installer_keeps_the_fetched_one_ready(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    async with Server() as server:
        server.publish(manifest_of(described(TELLS.encode())), TELLS.encode())
        updates = Updates(
            home, Release("0.1.0", KEY.address, server.url), ("setup", None), SystemClock(), lambda *_: None
        )
        view = await updates.look()
        assert (view.stage, view.version, view.text) == (
            "ready",
            "0.2.0",
            "restart to update; jobs are handed over first",
        )
        assert updates.setup is not None
        assert updates.setup.file.suffix == ".exe"
        assert updates.setup.file.read_bytes() == TELLS.encode()
        assert (await updates.look()).stage == "ready"
        assert updates.setup.file.exists()
        assert not home.updates.exists()

        then = Updates(home, Release("0.2.0", KEY.address, server.url), ("setup", None), SystemClock(), lambda *_: None)
        assert (await then.look()).stage == "none"
        assert not home.setup.exists()  # It has done its work.
