"""Leaving a computer: what goes, what stays, and what is asked first."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import docker
import pytest

from desktop.agent.app import uninstall
from desktop.agent.app.autostart import UNIT
from desktop.agent.base.config import Home, Settings
from desktop.agent.cli import cli
from desktop.agent.errors import HomeBusyError
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.docker import DockerSandbox
from tests.desktop.app import test_starting_at_login
from tests.desktop.user_systemd import UserSystemd
from tests.support.docker import IMAGE
from tests.support.wait import until_true

AGENT = Path(__file__).parents[1].joinpath("agent_program.py")
ROOT = Path(__file__).parents[3]
SLEEPER = "import threading; threading.Event().wait()"
manager, needs_systemd = test_starting_at_login.manager, test_starting_at_login.needs_systemd


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home that was used, and an engine that is not there."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    home = Home.at(None)
    home.key()
    home.remember(Settings(coordinator="http://127.0.0.1:9", sandbox="process", threads=1, memory_mb=1024, always=True))
    home.promises.mkdir()
    (home.promises / "one").write_text("worth money")
    home.cache.mkdir()
    (home.cache / "file").write_text("x")
    (tmp_path / "cache" / "cottage").mkdir(parents=True)
    return home


def left(home: Home) -> set[str]:
    return {str(path.relative_to(home.path)) for path in home.path.rglob("*") if path.is_file()}


def test_everything_goes_but_what_is_worth_money(
    home: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    address = home.key().address
    assert cli.main(["uninstall"]) == 0
    said = capsys.readouterr().out
    assert f"the key of {address} stays" in said
    assert "no Docker engine answers" in said
    assert left(home) == {"node.key", "promises/one"}
    assert not (tmp_path / "cache" / "cottage").exists()
    assert cli.main(["uninstall"]) == 0  # Again harms nothing.
    assert left(home) == {"node.key", "promises/one"}


def test_the_key_goes_only_after_a_clear_word(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = iter(("", "no\n", "YES\n"))
    for _ in range(3):
        monkeypatch.setattr("sys.stdin.readline", lambda: next(answers), raising=False)
        assert cli.main(["uninstall", "--purge-keys"]) == 2
        assert "settings.json" in left(home)
    assert cli.main(["uninstall", "--purge-keys", "--keep-data"]) == 2
    assert cli.main(["uninstall", "--purge-keys", "--yes"]) == 0
    assert not home.path.exists()
    assert not (tmp_path / "share" / "cottage").exists()


def test_data_is_kept_where_that_is_asked_for(home: Home) -> None:
    before = left(home)
    assert cli.main(["uninstall", "--keep-data", "--keep-images"]) == 0
    assert left(home) - {"agent.lock"} == before


def test_another_home_does_not_touch_what_the_usual_one_has(home: Home, tmp_path: Path) -> None:
    other = Home.at(tmp_path / "other")
    entry = tmp_path / "config" / "autostart" / "cottage.desktop"
    entry.parent.mkdir(parents=True)
    entry.touch()
    uninstall.uninstall(other)
    assert entry.exists()
    assert (tmp_path / "cache" / "cottage").exists()
    assert "settings.json" in left(home)


def test_an_agent_that_runs_hands_over_first_and_one_that_does_not_end_stays_whole(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen((sys.executable, str(AGENT), "run", "--stay"), env=environment)
    try:
        until_true(home.socket.exists)
        assert uninstall.uninstall(home).stopped
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
    assert left(home) == {"node.key", "promises/one"}

    holder = (
        "import fcntl,os,signal,sys,time; signal.signal(15, signal.SIG_IGN); f=open(sys.argv[1],'w'); fcntl.flock(f,2);"
    )
    stubborn = subprocess.Popen(
        (
            sys.executable,
            "-c",
            holder + "f.write(str(os.getpid())); f.flush(); time.sleep(60)",
            str(home.path / "agent.lock"),
        )
    )
    try:
        until_true(lambda: (home.path / "agent.lock").exists() and (home.path / "agent.lock").read_text())
        monkeypatch.setattr(uninstall, "END_S", 0.5)
        with pytest.raises(HomeBusyError):
            uninstall.uninstall(home)
    finally:
        stubborn.kill()
        stubborn.wait()
    assert {"node.key", "promises/one"} <= left(home)


def test_the_agents_of_all_users_that_run_one_program_are_ended_and_no_others(tmp_path: Path) -> None:
    mine, other = (Path(shutil.copy("/bin/sleep", tmp_path / name)) for name in ("agent", "other"))
    running = [subprocess.Popen((str(program), "60")) for program in (mine, mine, other)]
    try:
        assert uninstall.stop_everybodys(mine) == 2
        until_true(lambda: all(process.poll() is not None for process in running[:2]))
        assert running[2].poll() is None
    finally:
        for process in running:
            process.kill()
            process.wait()


@needs_systemd
def test_the_unit_ends_with_its_agent_and_starts_no_more(manager: UserSystemd) -> None:
    home = Home.at(manager.home / ".local/share/cottage/node")
    home.remember(Settings(coordinator="http://127.0.0.1:9", sandbox="process", threads=1, memory_mb=1024, always=True))
    agent = str(manager.home / "cottage-agent")
    assert manager.run(agent, "on").returncode == 0
    until_true(home.socket.exists)
    done = manager.run(agent, "uninstall", "--json", "--keep-images")
    assert done.returncode == 0, done.stderr
    assert (manager.ctl("is-active", UNIT), manager.ctl("is-enabled", UNIT)) == ("inactive", "disabled")
    assert json.loads(done.stdout)["key_kept"]
    assert left(home) == {"node.key"}


@pytest.mark.docker
async def test_containers_of_this_home_and_images_go_and_those_of_others_stay(
    docker_engine: str, tmp_path: Path
) -> None:
    client, job = docker.from_env(), tmp_path / "job"
    job.mkdir()
    (job / "idle.py").write_text(SLEEPER)
    image = client.images.get(IMAGE)
    homes = [Home.at(tmp_path / name) for name in ("mine", "other")]
    workers = []
    for home in homes:
        sandbox = DockerSandbox(SandboxLimits(256, 1), IMAGE, owner=home.path, entry=("python3", "/job/idle.py"))
        await sandbox.check()
        workers.append((sandbox, await sandbox.start("ab" * 16, job)))
    try:
        removed = await asyncio.to_thread(uninstall.uninstall, homes[0], images=False)
        assert removed.containers == 1
        names = {container.id for container in client.containers.list()}
        assert workers[1][1].container.id in names
        assert workers[0][1].container.id not in names
        assert client.images.get(IMAGE).id == image.id
    finally:
        for sandbox, worker in workers:
            await worker.stop(0)
            await sandbox.aclose()


def test_images_of_the_sandbox_are_removed_by_their_name_and_no_others() -> None:
    class Engine:
        """An engine with three images, two of them of the sandbox under one id."""

        def __init__(self) -> None:
            self.images, self.removed = self, list[str]()

        def list(self, filters: dict[str, str]) -> list[object]:
            held = {"cottage-trainer": ["a"], "*/cottage-trainer": ["a", "b"]}
            return [type("Image", (), {"id": name})() for name in held[filters["reference"]]]

        def remove(self, name: str, force: bool) -> None:
            self.removed.append(name)

    engine = Engine()
    assert uninstall._remove_images(engine) == 2
    assert sorted(engine.removed) == ["a", "b"]
