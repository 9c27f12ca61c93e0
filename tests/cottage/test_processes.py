"""Roles surely end, whatever they are doing, and their deaths are noticed."""

import asyncio
import os
from pathlib import Path

import pytest

from cottage.demo.processes import Household, RoleError, output_of, wait_for_file
from tests.support.wait import HANGS_S

SLEEP = ["-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    "-c",
    "import signal, subprocess, sys, pathlib, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); time.sleep(600)",
]


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_closing_ends_every_role(tmp_path: Path) -> None:
    household = Household(tmp_path)
    roles = [await household.start(name, SLEEP) for name in ("ledger", "coordinator", "node-1", "node-2")]
    await household.close()
    assert not household.roles
    assert not any(_alive(role.pid) for role in roles)


async def test_a_role_that_ignores_sigterm_dies_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cottage.demo.processes.STOP_S", 0.2)
    household = Household(tmp_path)
    pid_file = tmp_path / "child"
    role = await household.start("node-1", [*STUBBORN, str(pid_file)])
    child = int(await wait_for_file(pid_file, role, 20))
    await household.close()
    async with asyncio.timeout(HANGS_S):
        while _alive(child):
            await asyncio.sleep(0.01)
    assert not _alive(role.pid)


async def test_a_role_that_is_killed_or_stopped_is_at_no_moment_a_fault(tmp_path: Path) -> None:
    household = Household(tmp_path)
    for end in (household.kill, household.stop):
        ending = asyncio.create_task(end(await household.start("node-1", SLEEP)))
        while not ending.done():
            household.check()
            await asyncio.sleep(0)
    assert not household.roles


async def test_a_role_that_ended_by_itself_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    household = Household(tmp_path)
    role = await household.start("coordinator", ["-c", "raise SystemExit('no room on the disk')"])
    await role.process.wait()
    with pytest.raises(RoleError, match=r"coordinator ended with status 1[\s\S]*no room on the disk"):
        household.check()
    await household.close()


async def test_waiting_for_a_role_that_dies_does_not_wait_for_the_time_limit(tmp_path: Path) -> None:
    household = Household(tmp_path)
    role = await household.start("ledger", ["-c", "raise SystemExit('port taken')"])
    with pytest.raises(RoleError, match="port taken"):
        await wait_for_file(tmp_path / "never", role, 600)
    await household.close()


async def test_output_of_a_failing_program_is_in_the_error() -> None:
    assert (await output_of(["-c", "print('yes')"])).strip() == "yes"
    with pytest.raises(RoleError, match="bad input"):
        await output_of(["-c", "raise SystemExit('bad input')"])


async def test_cancelling_ends_the_program_that_was_waited_for(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    words = ["-c", f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"]
    task = asyncio.create_task(output_of(words))
    async with asyncio.timeout(HANGS_S):
        while not pid_file.exists() or not pid_file.read_text():
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _alive(int(pid_file.read_text()))
    assert os.getpid() != int(pid_file.read_text())
