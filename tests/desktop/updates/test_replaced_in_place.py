"""A package manager puts another version in the place of an agent that runs: no job is lost, and the old one makes way."""

import asyncio
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from desktop.agent.app import status
from desktop.agent.base.config import Home, Settings
from desktop.agent.lending.keeper import LendingChange
from desktop.agent.updates.folder import AGENT
from desktop.agent.updates.keeper import UpdateOrder
from desktop.agent.updates.replaced import ProgramPlace
from desktop.layout import NOTE
from protocol.node import Assign
from protocol.task import StopTask
from tests.desktop.app.test_agent_as_a_process import PROGRAM, Program, is_alive, running_task
from tests.desktop.coordinator_double import Double
from tests.desktop.updates.test_restart_to_update import until_told

ROOT = Path(__file__).parents[3]


def put(place: Path, version: str) -> Path:
    """Install a version, as dpkg and the package's postinst do: each file in one go, the note last."""
    place.mkdir(exist_ok=True)
    lines = (
        "#!/bin/sh",
        f'export PYTHONPATH={shlex.quote(str(ROOT))} COTTAGE_PROGRAM="$0" COTTAGE_VERSION={version}',
        f'exec {sys.executable} {PROGRAM} "$@"',
    )
    for name, text in ((AGENT, "\n".join(lines)), (NOTE, f"{version} 17\n")):
        draft = place / f"{name}.new"
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(place / name)
    return place / AGENT


@asynccontextmanager
async def agent_of(place: Path, url: str, *, on: bool) -> AsyncIterator[Program]:
    home = Home.at(place.parent / "home")
    settings = Settings(coordinator=url, sandbox="process", threads=1, memory_mb=1024, always=True, loopback=True)
    home.remember(settings)
    home.switch.write_text("on\n" if on else "off\n")
    process = await asyncio.create_subprocess_exec(
        put(place, "0.1.0"), "run", "--stay", "--home", str(home.path), stderr=subprocess.PIPE
    )
    node = Program(process, home.path, home.key().address)
    try:
        yield node
        assert (await node.end(signal.SIGTERM))[0] == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def outdated_agent(coordinator: Double, place: Path) -> AsyncIterator[tuple[Program, Assign, int]]:
    """An agent with a job, which knows that another version has been put in its place; the job's worker, too."""
    async with agent_of(place, coordinator.url, on=True) as node:
        assign, worker = await running_task(coordinator, node, "checkpoint")
        put(place, "0.2.0")
        async with asyncio.timeout(30):
            while (await status.ask(Home(node.home).socket)).update.stage != "installed":
                await asyncio.sleep(0.1)
        yield node, assign, worker


async def test_an_idle_agent_becomes_what_was_installed_in_the_same_process(tmp_path: Path) -> None:
    place = tmp_path / "place"
    async with agent_of(place, "http://127.0.0.1:9", on=False) as node:
        home = Home(node.home)
        assert (await until_told(home, "0.1.0")).pid == node.process.pid
        put(place, "0.2.0")
        told = await until_told(home, "0.2.0")
        assert (told.pid, told.on, told.update.stage) == (node.process.pid, False, "off")
        await status.ask_lending(home.socket, LendingChange(on=True))
        put(place, "0.3.0")  # There is no coordinator, so no job either.
        assert (await until_told(home, "0.3.0")).on


async def test_a_job_is_completed_before_the_old_agent_makes_way(coordinator: Double, tmp_path: Path) -> None:
    async with outdated_agent(coordinator, tmp_path / "place") as (node, assign, worker):
        home = Home(node.home)
        told = await status.ask(home.socket)
        assert (told.update.version, told.renews, told.update.running) == ("0.2.0", True, "0.1.0")
        async with asyncio.timeout(30):
            while (told := await status.ask(home.socket)).lending_state != "finishing":
                await asyncio.sleep(0.1)
        assert told.lending == "Finishing what runs, then the agent begins anew."
        assert is_alive(worker)
        assert not coordinator.goodbyes
        await coordinator.command(node.address, assign, StopTask("the job has ended"))
        told = await until_told(home, "0.2.0")
        assert (told.pid, told.on, told.renews) == (node.process.pid, True, False)
        assert not is_alive(worker)
        await coordinator.until(lambda: len(coordinator.hellos) == 2)  # It lends again, as the same node.
        assert coordinator.hellos[0].node == coordinator.hellos[1].node


@pytest.mark.long
async def test_its_owner_can_have_it_at_once_and_the_job_is_handed_over(coordinator: Double, tmp_path: Path) -> None:
    async with outdated_agent(coordinator, tmp_path / "place") as (node, _, worker):
        home = Home(node.home)
        assert (await status.ask_update(home.socket, UpdateOrder(restart=True))).version == "0.2.0"
        assert (await until_told(home, "0.2.0")).on
        assert coordinator.goodbyes == ["the owner stopped the agent"]
        assert not is_alive(worker)


@pytest.mark.long
async def test_one_that_is_stopped_meanwhile_ends(coordinator: Double, tmp_path: Path) -> None:
    async with outdated_agent(coordinator, tmp_path / "place") as (node, _, _worker):
        async with asyncio.timeout(30):
            while not (await status.ask(node.home / "agent.sock")).renews:
                await asyncio.sleep(0.1)
    assert not (node.home / "agent.sock").exists()  # It ended by SIGTERM with code 0, and nothing came in its place.


@pytest.mark.parametrize(
    ("before", "now", "newer"),
    [
        ("0.1.0 1", "0.1.0 1", ""),
        ("0.1.0 1", "0.1.0 2", "0.1.0"),  # The same version, installed anew.
        ("0.1.0 1", "0.2.0 2", "0.2.0"),
        (None, "0.2.0 2", "0.2.0"),
        ("0.1.0 1", None, ""),  # Removed.
        ("0.1.0 1", "", ""),  # Just being written.
    ],
)
def test_what_tells_of_another_version(tmp_path: Path, before: str | None, now: str | None, newer: str) -> None:
    def note(text: str | None) -> None:
        (tmp_path / NOTE).unlink(missing_ok=True)
        if text is not None:
            (tmp_path / NOTE).write_text(text)

    note(before)
    place = ProgramPlace(tmp_path / AGENT)
    note(now)
    assert place.newer() == newer


def test_a_source_tree_is_replaced_by_nobody() -> None:
    assert ProgramPlace().newer() == ""
