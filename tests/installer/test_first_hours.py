"""A new owner's first hours, on a desktop that has no Docker: an invitation, three clicks, one password; paid, and sent on.

A clean Debian or Ubuntu boots with systemd; its owner is logged in at its seat, with polkit and an agent of it. The browser hands
the invitation to whatever the system opens such links with. ``COTTAGE_TREES="bookworm trixie jammy"`` tries several; Debian 12
alone by default. The times go into build/first_hours.json.
"""

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import docker
import pytest
from aiohttp import web

from common.invitations import Invitation
from coordinator.client import Client
from cottage.demo.network import DemoNetwork
from cottage.demo.options import parse
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from desktop.agent.earnings.earnings_estimate import ask_network
from desktop.agent.sandbox.statement import sign
from desktop.agent.updates.release import FILE as RELEASE
from desktop.agent.updates.release import Release
from desktop.gui.theme import LIGHT
from installer.desktop.build import VERSION
from installer.image.sign import described
from protocol.codec import encode_json
from protocol.identity import NodeKey
from tests.desktop.screens import screen
from tests.desktop.updates.support import KEY
from tests.installer.hand import Hand
from tests.installer.machine import NEEDED, Machine, booted
from tests.installer.test_program_of_a_provider import LACKING
from tests.installer.tree import Tree
from tests.support.docker import IMAGE

RELEASES = os.environ.get("COTTAGE_TREES", "bookworm").split()
BUILD = Path(__file__).resolve().parents[2] / "build"
POLKIT = {"jammy": ("policykit-1",)}
DESKTOP = ("systemd-sysv", "dbus-user-session", "libpam-systemd", "lxpolkit", "xdg-utils", "desktop-file-utils")
HOME, PASSWORD = "/home/owner", "a password"
# Who lent only while nobody is there would wait for five quiet minutes: the one rule that the story changes.
NO_QUIET = ("cottage-agent", "rules", "--idle", "0")
ARRIVED_S, MENDED_S, PAID_S = 60, 600, 600
SESSION = f"""#!/bin/sh
systemctl --user import-environment DISPLAY
lxpolkit &
while read -r link; do xdg-open "$link" & done <>{HOME}/clicked
"""
UNIT = """
[Unit]
After=systemd-logind.service dbus.service systemd-user-sessions.service
Wants=systemd-logind.service
[Service]
User=owner
PAMName=login
WorkingDirectory=~
Environment=XDG_SESSION_TYPE=x11 XDG_SESSION_CLASS=user XDG_SEAT=seat0 DISPLAY={display}
ExecStart=/usr/local/bin/session
[Install]
WantedBy=multi-user.target
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.docker,
    pytest.mark.skipif(bool(NEEDED + LACKING), reason=f"it is shown with {', '.join(NEEDED + LACKING)}"),
]


class Network(DemoNetwork):
    """Lets nodes in that hold no token yet, as a new owner's."""

    def _coordinator_arguments(self, folder: Path, ready: Path, port: int) -> Sequence[str]:
        return [*super()._coordinator_arguments(folder, ready, port), "--min-stake", "0"]


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[DemoRun]:
    """Ledger and coordinator; nobody lends yet."""
    words = ["--nodes", "1", "--stages", "1", "--tokens", "20000", "--no-reference", "--dir", str(tmp_path / "network")]
    async with DemoRun(parse(words), LineScreen()) as run:
        run.network = Network(run.options, run.household)
        await run.network.start_ledger()
        await run.network.start_coordinator()
        yield run


@pytest.fixture
async def releases(tmp_path: Path, docker_engine: str) -> AsyncIterator[str]:
    """Where the image lies that the release key has signed; the address of the manifest beside it."""
    folder = tmp_path / "releases"
    folder.mkdir()
    archive = folder / "image.tar"
    await asyncio.to_thread(_save, docker_engine, archive)
    image = described(archive, 1, "cottage-trainer:0", KEY.address, int(time.time()), 1)
    (folder / "image.json").write_bytes(sign(image, KEY))
    app = web.Application()
    app.router.add_static("/", folder)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/update.json"
    await runner.cleanup()
    archive.unlink()


def _save(engine: str, archive: Path) -> None:
    client = docker.DockerClient(engine)
    try:
        with archive.open("wb") as file:
            for piece in client.images.get(IMAGE).save(named=True):
                file.write(piece)
    finally:
        client.close()


@pytest.fixture(params=RELEASES)
def tree(request: pytest.FixtureRequest, package: Path, releases: str, tmp_path: Path) -> Iterator[Tree]:
    """A desktop with the package of a release, and an owner who may become root by a password."""
    system = Tree(tmp_path, request.param)
    shutil.copy(package, system.file("/tmp/cottage.deb"))
    system.install(*DESKTOP, *POLKIT.get(request.param, ("pkexec", "polkitd")), "/tmp/cottage.deb")
    assert not system.file("/usr/sbin/dockerd").exists()
    told = system.file(f"/opt/cottage/_internal/desktop/agent/updates/{RELEASE}")
    told.write_bytes(encode_json(Release(VERSION, KEY.address, releases)))
    system.run("usermod", "-aG", "sudo", "-s", "/bin/sh", "owner")
    system.run("sh", "-c", f"echo 'owner:{PASSWORD}' | chpasswd")
    system.run("mkfifo", "-m", "666", f"{HOME}/clicked")
    system.file("/usr/local/bin/session").write_text(SESSION)
    system.file("/usr/local/bin/session").chmod(0o755)
    yield system
    shutil.rmtree(tmp_path / request.param)


@pytest.fixture
def seat(tree: Tree) -> Iterator[tuple[Machine, Hand]]:
    """The system runs, its owner is logged in at a screen."""
    with screen("openbox", "tint2") as display:
        tree.file("/etc/systemd/system/session.service").write_text(UNIT.format(display=display))
        tree.run("systemctl", "enable", "session.service")
        with booted(tree, "--bind-ro=/tmp/.X11-unix") as machine:
            yield machine, Hand(display, f"first_hours_{tree.release}")


async def asked(machine: Machine, *words: str) -> Any:
    """What the owner's agent answers in JSON; None where it does not."""
    env = {"HOME": HOME, "XDG_RUNTIME_DIR": f"/run/user/{Tree.USER}"}
    command = machine.words("cottage-agent", *words, "--json", user="owner", env=env)
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    return json.loads(output) if process.returncode == 0 else None


async def lends(machine: Machine, network: DemoRun) -> None:
    """Wait until the coordinator has it; where it does not come, the agent's own word."""
    try:
        async with asyncio.timeout(MENDED_S), Client(network.network.web) as client:
            while not (await client.network()).nodes_online:
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(str(await asked(machine, "status")))


async def paid(client: Client, job: str, node: str) -> int:
    """What the coordinator has paid to ``node``; the auditor is another."""
    return sum(one.paid for one in await client.nodes(job) if one.node == node)


async def test_from_an_invitation_to_money_in_another_wallet(
    tree: Tree, network: DemoRun, seat: tuple[Machine, Hand]
) -> None:
    machine, hand = seat
    address, ledger, took = network.network.web, network.network.ledger, dict[str, float]()
    assert ledger is not None
    machine.run("env", f"HOME={HOME}", *NO_QUIET, user="owner")
    link = Invitation(address, (await ask_network(address)).coordinator).link
    began = time.monotonic()
    tree.file(f"{HOME}/clicked").write_text(link + "\n")
    await asyncio.to_thread(hand.click, "An invitation", LIGHT.brand, ARRIVED_S)
    await asyncio.to_thread(hand.click, "Cottage", LIGHT.brand, MENDED_S)
    await asyncio.to_thread(hand.click, "Cottage", LIGHT.off, ARRIVED_S)
    await asyncio.to_thread(hand.type, "Authentication", PASSWORD, ARRIVED_S)
    entered = time.monotonic()
    await lends(machine, network)
    took["from double-click to lending"] = time.monotonic() - began
    took["from the password to lending"] = time.monotonic() - entered
    assert (hand.clicks, hand.typed) == (3, [PASSWORD])
    hand.look()

    node = (await asked(machine, "status"))["node"]
    async with Client(address) as client:
        job, began = await network._submit(client, ledger), time.monotonic()
        watching = asyncio.create_task(network._watch(client, job.id))
        async with asyncio.timeout(PAID_S):
            while not await paid(client, job.id, node):
                await asyncio.sleep(0.2)
        took["from job to first payment"] = time.monotonic() - began
        await watching
        earned = await paid(client, job.id, node)
    async with asyncio.timeout(PAID_S):
        while (await asked(machine, "earnings"))["paid"] != earned:
            await asyncio.sleep(2)  # Each question starts a program.
    hand.look()

    other = NodeKey.generate().address
    hand.key("alt+w")
    await asyncio.to_thread(hand.type, "Withdraw", other, ARRIVED_S)
    await asyncio.to_thread(hand.click, "Withdraw", LIGHT.brand, ARRIVED_S)
    async with asyncio.timeout(PAID_S):
        while not (arrived := await ledger.balance(other)):
            await asyncio.sleep(0.02)
    took["from payment to another wallet"] = time.monotonic() - hand.at
    assert 0 < arrived <= earned, "the fee, which this network does not ask for, would be taken out of it"
    hand.look()
    keep(tree.release, took)


def keep(release: str, took: dict[str, float]) -> None:
    """Add a run to what docs/how-to/lend.md has its table from."""
    file = BUILD / "first_hours.json"
    runs = json.loads(file.read_text()) if file.exists() else []
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps([*runs, {"release": release} | took], indent=1))
