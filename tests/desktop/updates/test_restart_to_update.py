"""From one version to the next, with real processes: the agent fetches, its owner says when, and the new one must start."""

import asyncio
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.clock import SystemClock
from desktop.agent.app import status
from desktop.agent.app.restart import why_not
from desktop.agent.app.status import AgentStatus
from desktop.agent.base.config import Home
from desktop.agent.errors import AgentError, UpdateError
from desktop.agent.updates.folder import AGENT, InstallationFolder
from desktop.agent.updates.keeper import UpdateOrder, Updates, load_seen
from desktop.agent.updates.release import Release
from tests.desktop.updates.support import KEY, Server, described, installed, manifest_of, packed

PROGRAM = Path(__file__).with_name("versioned_agent.py")
ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0


def version_of(version: str, url: str) -> str:
    """An executable that is this version of the agent."""
    words = shlex.join((sys.executable, str(PROGRAM), version))
    return f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {words} "$0" {url} {KEY.address} "$@"\n'


@asynccontextmanager
async def running(folder: InstallationFolder, home: Home, code: int = 0) -> AsyncIterator[subprocess.Popen[bytes]]:
    """The version that the link names, until the end of the test, whatever it has become."""
    words = (str(folder.link / AGENT), "run", "--stay", "--home", str(home.path), "--sandbox", "process")
    process = await asyncio.to_thread(subprocess.Popen, words, start_new_session=True)
    try:
        yield process
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == code
    finally:
        process.kill()
        process.wait()


async def until_told(home: Home, version: str) -> AgentStatus:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                told = await status.ask(home.socket)
            except AgentError:
                await asyncio.sleep(0.1)
                continue
            if told.update.running == version:
                return told
            await asyncio.sleep(0.1)


async def publish(server: Server, program: str, version: str = "0.2.0", number: int = 5) -> None:
    data, size = packed({AGENT: program.encode()})
    server.publish(manifest_of(described(data, size), version=version, number=number), data)


async def test_a_restart_becomes_the_new_version_in_the_same_process_and_one_can_go_back(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    async with Server() as server:
        folder = installed(tmp_path, "0.1.0", version_of("0.1.0", server.url))
        await publish(server, version_of("0.2.0", server.url))
        home.switch.write_text("off\n")
        async with running(folder, home) as process:
            assert (await until_told(home, "0.1.0")).pid == process.pid
            with pytest.raises(AgentError, match="no new version is ready"):
                await status.ask_update(home.socket, UpdateOrder(restart=True))
            view = await status.ask_update(home.socket, UpdateOrder())
            assert (view.stage, view.version, view.running) == ("ready", "0.2.0", "0.1.0")
            asked = len(server.asked)
            assert (await status.ask_update(home.socket, UpdateOrder())).stage == "ready"
            assert len(server.asked) == asked + 2  # The manifest, and what is said of the image.
            assert folder.current.name == "0.1.0"  # Nothing changes until its owner says so.
            await status.ask_update(home.socket, UpdateOrder(restart=True))
            told = await until_told(home, "0.2.0")
            assert (told.pid, told.on) == (process.pid, False)
            assert (folder.current.name, folder.previous) == ("0.2.0", folder.of("0.1.0"))
            assert (await status.ask_update(home.socket, UpdateOrder())).stage == "none"
            folder.back()
            server.publish(manifest_of(version="0.1.9", number=6))
            assert "would go back" in (await status.ask_update(home.socket, UpdateOrder())).text
    assert not (home.path / "trial.sock").exists()
    assert not home.updates.exists()


async def test_a_version_that_does_not_start_leaves_the_old_one_running_and_is_not_tried_again(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    async with Server() as server:
        folder = installed(tmp_path, "0.1.0", version_of("0.1.0", server.url))
        await publish(server, "#!/bin/sh\nexit 3\n")
        async with running(folder, home) as process:
            await until_told(home, "0.1.0")
            await status.ask_update(home.socket, UpdateOrder())
            await status.ask_update(home.socket, UpdateOrder(restart=True))
            async with asyncio.timeout(PATIENCE_S):
                while not load_seen(home).failed:
                    await asyncio.sleep(0.1)
            assert (await until_told(home, "0.1.0")).pid == process.pid
            assert folder.current.name == "0.1.0"
            view = await status.ask_update(home.socket, UpdateOrder())
            assert (view.stage, "did not start on this computer" in view.text) == ("none", True)
            await publish(server, version_of("0.2.1", server.url), "0.2.1", 6)
            assert (await status.ask_update(home.socket, UpdateOrder())).version == "0.2.1"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("#!/no/such/program\n", "no such file"),
        (f"#!/bin/sh\nexec {sys.executable} -c 'import no_such_library'\n", "exit code 1"),
        (version_of("0.1.5", "-"), "it says that it is version '0.1.5'"),
    ],
    ids=["cannot be executed", "lacks a library", "is another version"],
)
def test_ways_not_to_start(tmp_path: Path, broken: str, why: str) -> None:
    folder = installed(tmp_path, "0.2.0", broken)
    home = Home.at(tmp_path / "home")
    assert why in why_not(str(folder.link / AGENT), "0.2.0", home, ("run", "--stay", "--home", str(home.path)))


@pytest.mark.long
async def test_an_agent_that_dies_while_it_tries_the_new_version_can_be_started_again(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    async with Server() as server:
        folder = installed(tmp_path, "0.1.0", version_of("0.1.0", server.url))
        await publish(server, f"#!/bin/sh\necho $$ > {home.path}/trying\nexec sleep 600\n")
        async with running(folder, home, code=143):
            await until_told(home, "0.1.0")
            await status.ask_update(home.socket, UpdateOrder())
            await status.ask_update(home.socket, UpdateOrder(restart=True))
            async with asyncio.timeout(PATIENCE_S):
                while not (home.path / "trying").exists() or not (home.path / "trying").read_text():
                    await asyncio.sleep(0.05)
            trying = int((home.path / "trying").read_text())
        assert folder.current.name == "0.1.0"
        assert not Path(f"/proc/{trying}").exists()
        async with running(folder, home):
            await until_told(home, "0.1.0")


async def test_the_system_of_apt_is_told_and_nothing_is_fetched(tmp_path: Path) -> None:
    home, notes = Home.at(tmp_path / "home"), list[str]()
    async with Server() as server:
        await publish(server, "")
        release = Release("0.1.0", KEY.address, server.url)
        updates = Updates(home, release, ("deb", None), SystemClock(), lambda text, _: notes.append(text))
        for _ in range(2):
            view = await updates.look()
        assert (view.stage, "apt-get install cottage" in view.text) == ("apt", True)
        assert len(notes) == 1  # Once for each version.
        assert server.asked == [""] * 4  # Each time the manifest, and what is said of the image.
        unsigned = Updates(home, Release("0.1.0"), ("deb", None), SystemClock(), lambda text, _: None)
        assert (await unsigned.look()).stage == "off"
        assert len(server.asked) == 4


async def test_what_was_seen_is_kept_over_restarts_and_a_damaged_note_stops_updates(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    async with Server() as server:
        release = Release("0.1.0", KEY.address, server.url)

        def updates() -> Updates:
            return Updates(home, release, ("deb", None), SystemClock(), lambda text, _: None)

        await publish(server, "", number=9)
        assert (await updates().look()).stage == "apt"
        await publish(server, "", number=8)
        assert "is older than 9" in (await updates().look()).text
        home.seen_updates.write_bytes(b"{")
        assert "cannot be used" in (await updates().look()).text
        with pytest.raises(UpdateError, match="Delete it"):
            load_seen(home)
