"""The agent by Windows' own Python under Wine: its lock, its pipe, how it is asked to end, and what a kill leaves."""

import json
import time
from pathlib import Path

import pytest

from tests.support.wait import until_true
from tests.support.windows import LACKING, PYTHON, Windows, seen

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(LACKING), reason=f"the agent on Windows is tried with {', '.join(LACKING)}"),
]

# What a program of the same user sees of the agent that runs; and which sandboxes there are.
LOOK = r"""
import asyncio, json, sys
from pathlib import Path
from desktop import pipes
from desktop.agent.app import owner_socket, status
from desktop.agent.base import file_lock
from desktop.agent.base.config import Home, Settings
from desktop.agent.errors import HomeBusyError, SandboxError
from desktop.agent.base.gpu import processor
from desktop.agent.app.startup import make_sandbox
home = Home.at(Path(sys.argv[1]))
async def main():
    told = await status.ask(home.socket)
    with owner_socket.connector(home.socket) as connector:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_pipe_connection(asyncio.Protocol, connector.path)
        handle = transport.get_extra_info("pipe").fileno()
        seen = {"list": pipes.access_of(handle), "mine": pipes.is_mine(handle), "server": pipes.server_of(handle)}
        transport.close()
        await connector.close()
    return seen | {"pid": told.pid, "node": told.node, "user": pipes.user(), "holder": file_lock.holder(home.lock)}
found = asyncio.run(main())
try:
    with home.locked():
        found["busy"] = ""
except HomeBusyError as error:
    found["busy"] = str(error)
found["stdio"] = make_sandbox(Settings(threads=1, memory_mb=1024), home, processor("")).stdio
try:
    make_sandbox(Settings(sandbox="process", threads=1, memory_mb=1024), home, processor(""))
except SandboxError as error:
    found["unprotected"] = str(error)
print(json.dumps(found))
"""
SIGNALS = """
import asyncio, signal
from common.shutdown_signals import on_end
async def main(number):
    ended = asyncio.Event()
    on_end(ended.set)
    asyncio.get_running_loop().call_later(0.1, signal.raise_signal, number)
    await asyncio.wait_for(ended.wait(), 20)
for number in (signal.SIGINT, signal.SIGBREAK, signal.SIGTERM):
    asyncio.run(main(number))
    print(number.name)
"""
# Another user's pipe under the name of ours: its owner is not this user, which is what a client goes by.
STRANGER = r"""
import asyncio, sys
from pathlib import Path
from desktop import pipes
from desktop.agent.app import status
from desktop.agent.base.config import Home
from desktop.agent.errors import NoAgentError
home = Home.at(Path(sys.argv[1]))
mine, heard = pipes.user(), []
class Listen(asyncio.Protocol):
    def data_received(self, data):
        heard.append(data)
async def main():
    await asyncio.get_running_loop().start_serving_pipe(Listen, pipes.name_of(home.socket))
    pipes.user = lambda: "S-1-5-21-1-2-3-4"
    try:
        await status.ask_leave(home.socket)
    except NoAgentError as error:
        print(error)
    pipes.user = lambda: mine
    await asyncio.sleep(0.2)
    print(heard)
    try:
        pipes.create(pipes.name_of(home.socket), True)
    except OSError as error:
        print("refused")
asyncio.run(main())
"""


# As the bundle's agent does when its owner changes the setting.
SETTING = r"""
import sys
from pathlib import Path
from desktop.agent.app.autostart import Autostart
from desktop.agent.base.config import Home
sys.frozen, sys.executable = True, r"C:\Cottage\cottage-agent.exe"
Autostart.of(Home.at(Path(sys.argv[1]))).show_entry(sys.argv[2] == "on")
"""
RUN = r"HKCU\Software\Microsoft\Windows\CurrentVersion\Run"


def test_an_agent_is_alone_in_its_home_answers_on_a_pipe_of_its_owner_and_leaves_when_asked(
    windows: Windows, tmp_path: Path
) -> None:
    home = seen(tmp_path / "home")
    agent = (str(PYTHON), "-m", "desktop.agent")
    with windows.start(*agent, "run", "--stay", "--home", home, "--coordinator", "http://127.0.0.1:9") as running:
        try:
            found = _look(windows, home)
            assert found["mine"]
            assert found["list"] == f"O:{found['user']}D:P(A;;FA;;;{found['user']})"
            assert found["pid"] == found["server"] == found["holder"] > 0
            assert f"an agent (process {found['pid']}) already runs with {home}" in found["busy"]
            assert found["stdio"]
            assert found["unprotected"] == "--sandbox process does not run on Windows: use --sandbox docker"
            said = windows.run(*agent, "uninstall", "--home", home, "--keep-images", "--keep-data")
            assert "the agent has handed over what ran, and ended" in said
            assert running.wait(30) == 0
        finally:
            running.kill()
    assert (tmp_path / "home" / "node.key").exists()


def test_what_a_killed_agent_held_is_free(windows: Windows, tmp_path: Path) -> None:
    home = seen(tmp_path / "home")
    with windows.start(str(PYTHON), "-m", "desktop.agent", "run", "--stay", "--home", home) as running:
        lock = tmp_path / "home" / "agent.lock"
        until_true(lambda: lock.exists() and lock.read_text().strip())
        running.kill()
    assert "off" in windows.run(str(PYTHON), "-m", "desktop.agent", "limits", "--home", home, "--polite", "off")


def test_each_way_in_which_windows_asks_a_program_to_end_is_heard(windows: Windows) -> None:
    assert windows.run(str(PYTHON), "-c", SIGNALS).split() == ["SIGINT", "SIGBREAK", "SIGTERM"]


def test_its_owner_says_whether_the_window_starts_with_the_computer(windows: Windows, tmp_path: Path) -> None:
    home = seen(tmp_path)
    windows.run(str(PYTHON), "-c", SETTING, home, "on")
    entry = windows.run("reg", "query", RUN, "/v", "Cottage").split("REG_SZ")[1].strip()
    assert entry == r'"C:\Cottage\cottage.exe" --hidden'
    for _ in range(2):  # The second time there is nothing to take away.
        windows.run(str(PYTHON), "-c", SETTING, home, "off")
        assert "Cottage" not in windows.run("reg", "query", RUN)


def test_nothing_is_said_to_another_users_pipe_and_no_agent_joins_it(windows: Windows, tmp_path: Path) -> None:
    said = windows.run(str(PYTHON), "-c", STRANGER, seen(tmp_path))
    assert said.splitlines() == ["another user's program answers in the place of the agent", "[]", "refused"]


def _look(windows: Windows, home: str) -> dict[str, object]:
    """What ``LOOK`` finds, once the agent answers."""
    until = time.monotonic() + 60
    while True:
        with windows.start(str(PYTHON), "-c", LOOK, home) as process:
            output, errors = process.communicate(timeout=60)
        if process.returncode == 0:
            found: dict[str, object] = json.loads(output)
            return found
        assert time.monotonic() < until, errors.decode(errors="replace")
