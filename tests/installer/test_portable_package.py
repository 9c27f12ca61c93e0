"""The package for one user, without root: installed, upgraded while the agent runs, removed."""

import asyncio
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from desktop.agent.updates.release import Release
from installer.desktop import build, sign
from installer.image import build as image
from protocol.codec import encode_json
from tests.desktop.updates.support import KEY, Server, manifest_of
from tests.support.docker import IMAGE
from tests.support.wait import until_true

LACKING = [name for name in ("makeself", "setpriv") if shutil.which(name) is None]
LACKING += [] if os.geteuid() == 0 else ["root, to become an ordinary user"]
USER = 4243

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(LACKING), reason=f"the package for one user is tried with {', '.join(LACKING)}"),
]


@pytest.fixture(scope="module")
def archive(bundle: Path) -> Path:
    return build.portable(bundle, bundle.parent)


class Owner:
    """Somebody who is not root, and may use the engine through a socket in the home folder."""

    def __init__(self, home: Path, engine: str) -> None:
        self.home = home
        self._engine = engine.removeprefix("unix://")
        os.chmod(self._engine, 0o666)
        (home / "docker.sock").touch()

    def words(self, *words: str) -> list[str]:
        become = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.home),
            "DOCKER_HOST": f"unix://{self.home}/docker.sock",
        }
        inside = shlex.join((*become, "env", "-i", *(f"{name}={value}" for name, value in env.items()), *words))
        mount = shlex.join(("mount", "--bind", self._engine, str(self.home / "docker.sock")))
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{mount} && exec {inside}"]

    def run(self, *words: str, expect: int = 0) -> str:
        """Run a command; what it prints, complaints included."""
        done = subprocess.run(
            self.words(*words), capture_output=True, text=True, timeout=180, check=False, cwd=self.home
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout + done.stderr

    def said(self, *words: str) -> str:
        """What a command prints; "" where it fails."""
        done = subprocess.run(
            self.words(*words), capture_output=True, text=True, timeout=60, check=False, cwd=self.home
        )
        return done.stdout if done.returncode == 0 else ""

    def agent_pid(self) -> int:
        """The process that holds the agent's folder; 0 where none does."""
        lock = self.home / ".local/share/cottage/node/agent.lock"
        if not lock.exists():
            return 0
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0)
        return 0


@pytest.fixture
def owner(docker_engine: str) -> Iterator[Owner]:
    with tempfile.TemporaryDirectory(prefix="cottage-home-") as folder:
        os.chown(folder, USER, USER)
        yield Owner(Path(folder), docker_engine)
    image.build(IMAGE, from_host=True)  # What leaves a computer takes the image along, which other tests share.


def test_it_installs_upgrades_a_running_agent_and_leaves_only_the_key(archive: Path, owner: Owner) -> None:
    home = owner.home
    mine = shutil.copy(archive, home / archive.name)
    install = ("sh", str(mine), "--quiet", "--", "--quiet")
    owner.run(*install)
    opt, agent = home / ".local/opt/cottage", home / ".local/bin/cottage-agent"
    autostart = home / ".config/autostart/cottage.desktop"
    assert f"Exec={opt}/cottage --hidden" in autostart.read_text()
    entry = (home / ".local/share/applications/cottage.desktop").read_text()
    assert f"Exec={opt}/cottage %u\nIcon=cottage\nMimeType=x-scheme-handler/cottage;" in entry
    assert os.access(opt / "_internal/desktop/gui/engine/install-engine.sh", os.X_OK)
    assert f"ExecStart={opt}/cottage-agent run" in (home / ".config/systemd/user/cottage-agent.service").read_text()
    assert json.loads(owner.run(str(agent), "rules", "--json"))["rules"]["idle_minutes"] == 5

    autostart.unlink()  # The owner does not want it to start by itself.
    (opt / "of-an-older-version").touch()
    settings = ("--coordinator", "http://127.0.0.1:9", "--always", "--image", IMAGE, "--threads", "1")
    process = subprocess.Popen(owner.words(str(agent), "run", *settings), stderr=subprocess.DEVNULL)
    try:
        until_true(owner.agent_pid)
        before = owner.agent_pid()
        owner.run(*install)
        assert process.wait(10) == 0
        until_true(lambda: owner.agent_pid() not in (0, before))  # With the settings that it had.
    finally:
        process.kill()
        process.wait()
    assert not (opt / "of-an-older-version").exists()
    assert not autostart.exists()

    assert "is removed" in owner.run("sh", str(opt / "uninstall.sh"), "--purge")
    left = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() or path.is_symlink()}
    assert left == {archive.name, "docker.sock", ".local/share/cottage/node/node.key"}


def released(bundle: Path, target: Path, release: Release) -> Path:
    """The bundle as another release of the same program."""
    subprocess.run(("cp", "-al", bundle, target), check=True)
    [file] = target.rglob("release.json")
    file.unlink()
    file.write_bytes(encode_json(release))
    return target


@pytest.mark.long
async def test_it_replaces_itself_by_a_signed_version_and_goes_on(bundle: Path, owner: Owner, tmp_path: Path) -> None:
    home = owner.home
    async with Server() as server:
        releases = [Release(version, KEY.address, server.url) for version in ("0.1.0", "0.2.0")]
        old, new = (released(bundle, tmp_path / release.version, release) for release in releases)
        await asyncio.to_thread(build.portable, old, tmp_path)
        mine = shutil.copy(tmp_path / f"Cottage-{build.VERSION}-x86_64.run", home / "old.run")
        await asyncio.to_thread(owner.run, "sh", str(mine), "--quiet", "--", "--quiet")
        package = await asyncio.to_thread(build.update_package, new, tmp_path, "0.2.0")
        _, described = sign.described(package)
        server.files[f"channel/{package.name}"] = package.read_bytes()
        server.publish(manifest_of(described))
        opt, agent = home / ".local/opt/cottage", str(home / ".local/bin/cottage-agent")
        process = await asyncio.create_subprocess_exec(*owner.words(agent, "run", "--stay"))
        try:
            async with asyncio.timeout(60):
                while not (home / ".local/share/cottage/node/agent.sock").exists():
                    await asyncio.sleep(0.1)
            view = json.loads(await asyncio.to_thread(owner.run, agent, "update", "--json"))
            assert (view["stage"], view["version"]) == ("ready", "0.2.0"), view
            before = owner.agent_pid()
            await asyncio.to_thread(owner.run, agent, "update", "--restart")
            async with asyncio.timeout(120):
                while opt.readlink() != Path("cottage-versions/0.2.0"):
                    await asyncio.sleep(0.1)
                while not (said := owner.said(agent, "status", "--json")):
                    await asyncio.sleep(0.5)
            assert (json.loads(said)["update"]["running"], owner.agent_pid()) == ("0.2.0", before)
            assert "0.1.0" in await asyncio.to_thread(owner.run, agent, "update", "--back")
            os.kill(before, signal.SIGTERM)
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert opt.readlink() == Path("cottage-versions/0.1.0")


def test_root_is_told_to_take_the_other_package_and_a_damaged_one_is_refused(archive: Path, owner: Owner) -> None:
    done = subprocess.run(
        ("sh", str(archive), "--quiet", "--", "--quiet"), capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode != 0
    assert "not as root" in done.stderr
    whole = archive.read_bytes()
    damaged = owner.home / "damaged.run"
    damaged.write_bytes(whole[:-100_000] + bytes(100_000))
    os.chown(damaged, USER, USER)
    owner.run("sh", str(damaged), "--quiet", "--", "--quiet", expect=2)
    assert not (owner.home / ".local").exists()
