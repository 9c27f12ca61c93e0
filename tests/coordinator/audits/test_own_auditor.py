"""The auditor that a coordinator runs beside itself: one process that steps back and comes back.

That it ends with a coordinator that is killed, ``tests/coordinator/test_serve.py`` has with the program itself.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.clock import SystemClock
from coordinator import ownauditor
from coordinator.ownauditor import FOLDER, OwnAuditor, lacks
from tests.desktop.coordinator_double import Double

PATIENCE_S = 300.0  # The first one on a machine measures it, beside whatever else runs.


@pytest.fixture
async def coordinator() -> AsyncIterator[Double]:
    double = Double()
    await double.start()
    yield double
    await double.stop()


@contextlib.asynccontextmanager
async def running(data: Path, url: str) -> AsyncIterator[OwnAuditor]:
    own = OwnAuditor(data, SystemClock())
    task = asyncio.create_task(own.run(url))
    try:
        yield own
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


def processes(data: Path) -> list[int]:
    """Auditors with this folder, their workers left out."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"auditor" in words and str(data / FOLDER).encode() in words:
                found.append(int(entry.name))
    return found


@pytest.mark.long
async def test_it_steps_back_is_alone_in_its_folder_comes_back_with_its_key_and_ends_in_order(
    coordinator: Double, tmp_path: Path
) -> None:
    """One story, as each start of the program measures and imports for many seconds."""
    async with running(tmp_path, coordinator.url) as own:
        await coordinator.until(lambda: coordinator.nodes, PATIENCE_S)
        [hello] = coordinator.hellos
        profile = hello.profile
        assert (hello.node, profile.auditor, profile.sandbox, profile.kind) == (own.address, True, "process", "cpu")
        assert profile.env_class.endswith("|threads-1")
        [pid] = processes(tmp_path)
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 10
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == 700
        await no_second_one(coordinator, tmp_path)
        assert processes(tmp_path) == [pid]
        os.kill(pid, signal.SIGKILL)
        await coordinator.until(lambda: len(coordinator.hellos) == 2, PATIENCE_S)
        assert {hello.node for hello in coordinator.hellos} == {own.address}
        assert processes(tmp_path) != [pid]
        coordinator.beats.clear()
        await coordinator.until(lambda: coordinator.beats)  # Now it can say goodbye.
    assert not processes(tmp_path)
    await coordinator.until(lambda: coordinator.goodbyes)
    assert coordinator.goodbyes == ["the auditor was stopped"]


async def no_second_one(coordinator: Double, data: Path) -> None:
    """Another coordinator on the same folder starts one, which ends without a word to anybody."""
    async with running(data, coordinator.url):
        async with asyncio.timeout(PATIENCE_S):
            while len(processes(data)) < 2:
                await asyncio.sleep(0.02)
            while len(processes(data)) > 1:
                await asyncio.sleep(0.02)
        assert len(coordinator.hellos) == 1


async def test_one_that_cannot_start_is_tried_ever_more_rarely(
    coordinator: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ownauditor, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    async with running(tmp_path, coordinator.url):
        async with asyncio.timeout(30):
            while "in 0.4 s" not in caplog.text:
                await asyncio.sleep(0.05)
    waits = [record.args[1] for record in caplog.records if "started again" in record.message]
    assert waits[:4] == [0.05, 0.1, 0.2, 0.4]


async def test_a_program_that_is_not_there_is_no_end_of_the_coordinator(
    coordinator: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    async with running(tmp_path, coordinator.url):
        async with asyncio.timeout(30):
            while "cannot be started" not in caplog.text:
                await asyncio.sleep(0.05)


def test_what_is_not_installed_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not lacks()
    there = ownauditor.find_spec
    monkeypatch.setattr(ownauditor, "find_spec", lambda name: None if name == "torch" else there(name))
    assert lacks() == "torch is not installed beside the coordinator: pip install 'cottage[trainer]'"
    monkeypatch.setattr(ownauditor, "find_spec", lambda name: None)
    assert "pip install 'cottage[agent,trainer]'" in lacks()
