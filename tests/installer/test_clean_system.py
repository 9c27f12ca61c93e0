"""The Debian package on systems that have nothing else: installed by apt, used by an ordinary user, paid for a job, removed.

``COTTAGE_TREES="bookworm trixie jammy"`` tries several; Debian 12 alone by default.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import Client
from cottage.demo.options import parse
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from tests.desktop.screens import screen
from tests.installer.hand import picture
from tests.installer.test_program_of_a_provider import LACKING, flip
from tests.installer.tree import Tree, missing
from tests.support.docker import IMAGE
from tests.support.wait import until_true

RELEASES = os.environ.get("COTTAGE_TREES", "bookworm").split()
NEEDED = [*LACKING, *missing()]
PAID_S = 300.0  # For three containers on two cores to train and be paid; the network is the demo's.

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.docker,
    pytest.mark.skipif(bool(NEEDED), reason=f"a clean system is made with {', '.join(NEEDED)}"),
]


@pytest.fixture(scope="module", params=RELEASES)
def tree(request: pytest.FixtureRequest, package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("trees")
    system = Tree(folder, request.param)
    shutil.copy(package, system.file("/tmp/cottage.deb"))
    system.install("/tmp/cottage.deb")
    yield system
    shutil.rmtree(folder)


class Owner:
    """An ordinary user of the system, with a home that the engine sees in the same place, and who may use the engine."""

    def __init__(self, tree: Tree, home: Path, engine: str) -> None:
        self._tree, self._home = tree, home
        self.socket = home / ".local/share/cottage/node/agent.sock"
        socket = Path(engine.removeprefix("unix://"))
        socket.chmod(0o666)
        (home / "docker.sock").touch()
        os.chown(home, tree.USER, tree.USER)
        self._shared = {home: home, socket: home / "docker.sock"}

    async def start(self, *words: str, **env: str) -> asyncio.subprocess.Process:
        """Start a program of the system."""
        given = {
            "HOME": str(self._home),
            "XDG_RUNTIME_DIR": str(self._home),
            "DOCKER_HOST": f"unix://{self._home}/docker.sock",
            **env,
        }
        command = self._tree.words(*words, user=self._tree.USER, env=given, shared=self._shared)
        return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)

    async def asked(self, *words: str) -> Any:
        """What the agent answers in JSON; None where it does not."""
        process = await self.start("cottage-agent", *words)
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
        return json.loads(output) if process.returncode == 0 else None


@pytest.fixture
def owner(tree: Tree, docker_engine: str) -> Iterator[Owner]:
    with tempfile.TemporaryDirectory(prefix="cottage-home-") as folder:
        yield Owner(tree, Path(folder), docker_engine)


@pytest.fixture
async def network(tmp_path: Path, docker_engine: str) -> AsyncIterator[DemoRun]:
    """Ledger, coordinator and two nodes, which a job for three waits for."""
    folder = str(tmp_path / "network")
    options = parse(
        ["--nodes", "3", "--stages", "1", "--tokens", "60000", "--sandbox", "docker", "--no-reference", "--dir", folder]
    )
    async with DemoRun(options, LineScreen()) as run:
        await run.network.start_ledger()
        await run.network.start_coordinator()
        for name in ("one", "two"):
            await run.network.add_provider(name, ["--image", IMAGE])
        yield run


async def test_its_owner_flips_the_switch_and_is_paid_for_a_job_in_docker(
    tree: Tree, owner: Owner, network: DemoRun
) -> None:
    coordinator = network.network.web
    settings = ("--coordinator", coordinator, "--image", IMAGE, "--loopback", "--always", "--threads", "1")
    with screen("openbox", "tint2") as display:
        window = await owner.start("cottage", "--", *settings, "--stake", "50", "--name", "attic", DISPLAY=display)
        try:
            await asyncio.to_thread(flip, display)
            await network._until_online(3)
            assert network.network.ledger is not None
            async with Client(coordinator) as client:
                job = await network._submit(client, network.network.ledger)
                job = await network._watch(client, job.id)
                paid = {node.name: node.paid for node in await client.nodes(job.id)}
            assert paid["attic"] > 0, paid
            async with asyncio.timeout(PAID_S):
                while (earned := await owner.asked("earnings", "--json"))["paid"] != paid["attic"]:
                    await asyncio.sleep(1)
            assert earned["paid"] > 0
            picture(display, f"clean_{tree.release}")
        finally:
            if window.returncode is None:
                window.terminate()
            await window.wait()
            status = await owner.asked("status", "--json")
            if status is not None:
                os.kill(status["pid"], signal.SIGTERM)  # The window's end is not the agent's.
            await asyncio.to_thread(until_true, lambda: not owner.socket.exists())


def test_removing_it_leaves_nothing_and_purging_not_even_a_setting(tree: Tree) -> None:
    environment = {"HOME": "/home/owner", "XDG_RUNTIME_DIR": "/home/owner"}
    agent = subprocess.Popen(tree.words("cottage-agent", "run", "--stay", user=tree.USER, env=environment))
    try:
        until_true(tree.file("/home/owner/.local/share/cottage/node/agent.sock").exists)
        tree.run("apt-get", "-qy", "remove", "cottage")
        assert agent.wait(10) == 0  # It was asked to hand over first.
    finally:
        agent.kill()
        agent.wait()
    assert tree.file("/home/owner/.local/share/cottage/node/node.key").exists()
    assert not tree.file("/opt/cottage").exists()
    assert not tree.file("/usr/bin/cottage-agent").is_symlink()
    assert tree.file("/etc/xdg/autostart/cottage.desktop").exists()
    tree.run("apt-get", "-qy", "purge", "cottage")
    tree.run("mkdir", "-p", "/opt")  # Goes with its only tenant where the system came without it.
    assert tree.run("find", "/etc", "/opt", "/usr", "/var/lib/systemd", "-name", "*cottage*") == ""
