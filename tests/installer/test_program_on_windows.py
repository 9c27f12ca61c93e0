"""The program for Windows, built by Windows' own Python and packed by NSIS: installed, run and replaced by itself, under Wine."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from desktop.agent.updates.manifest import UpdateManifest
from desktop.agent.updates.release import FILE, Release
from installer.desktop import build
from installer.desktop.sign import described, manifest_of
from protocol.codec import encode_json
from tests.desktop.updates.support import KEY, Server
from tests.support.windows import LACKING, PYTHON, Windows, seen

LACKS = [*LACKING, *([] if shutil.which("makensis") else ["makensis"])]
LISTED = r"HKCU\Software\Microsoft\Windows\CurrentVersion\Uninstall\Cottage"
PATIENCE_S = 120.0
# What a build on Windows runs, without its last step: NSIS is this system's.
BUILD = "import sys; from pathlib import Path; from installer.desktop.build import bundle; bundle(Path(sys.argv[1]))"

READY = os.environ.get("COTTAGE_WINDOWS_BUNDLE")  # A folder with both executables, instead of building them.

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.xdist_group("windows-bundle"),
    pytest.mark.skipif(bool(LACKS), reason=f"the program for Windows is built and tried with {', '.join(LACKS)}"),
]


def installer(payload: Path, version: str, url: str) -> Path:
    """Of a bundle that calls itself ``version`` and follows ``url``."""
    said = payload / "_internal" / "desktop" / "agent" / "updates" / FILE
    said.write_bytes(encode_json(Release(version, KEY.address, url)))
    return build.windows(payload, payload.parent, version, small=False)


def broken(folder: Path, payload: Path, version: str) -> Path:
    """An installer of programs that lack everything beside them."""
    folder.mkdir()
    for name in ("cottage.exe", "cottage-agent.exe"):
        shutil.copyfile(payload / name, folder / name)
    return build.windows(folder, folder.parent, version, small=False)


def publish(server: Server, package: Path, number: int) -> UpdateManifest:
    version, found = described(package)
    manifest = manifest_of(number, version, "0.1.0", 2_000_000_000, [found])
    server.publish(manifest)
    server.files[f"channel/{package.name}"] = package.read_bytes()
    return manifest


def runs(windows: Windows, name: str) -> list[int]:
    """Processes of an installed program, by the names that this system gives them."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
            ours = (
                words
                and f"WINEPREFIX={windows.environment['WINEPREFIX']}\0".encode() in (process / "environ").read_bytes()
            )
        except OSError:
            continue
        if ours and words[0].decode(errors="replace").endswith(rf"\Programs\Cottage\{name}"):
            found.append(int(process.name))
    return found


async def test_it_is_built_installed_and_becomes_the_next_version_or_stays_what_it_was(
    windows: Windows, tmp_path: Path
) -> None:
    programs = windows.user / "AppData" / "Local" / "Programs"
    home, payload = tmp_path / "home", tmp_path / "built" / "cottage"
    agent = str(programs / "Cottage" / "cottage-agent.exe")

    async def word(*words: str) -> str:
        return await asyncio.to_thread(windows.run, agent, *words, "--home", seen(home))

    async def told() -> dict[str, object]:
        with windows.start(agent, "status", "--json", "--home", seen(home)) as asked:
            output, _ = await asyncio.to_thread(asked.communicate, timeout=60)
        document: dict[str, object] = json.loads(output or b"{}")  # Nothing of one that the installer has ended.
        return document

    async def until(is_so: Callable[[dict[str, object]], object]) -> dict[str, object]:
        async with asyncio.timeout(PATIENCE_S):
            while not ((now := await told()) and is_so(now)):
                await asyncio.sleep(0.2)
        return now

    if READY:
        shutil.copytree(READY, payload)
    else:
        await asyncio.to_thread(windows.run, str(PYTHON), "-c", BUILD, seen(payload.parent), patience_s=600)
    async with Server() as server:
        first, second = [
            await asyncio.to_thread(installer, payload, version, server.url) for version in ("0.1.0", "0.2.0")
        ]
        await asyncio.to_thread(windows.run, str(first), "/S", patience_s=PATIENCE_S)
        assert windows.value(LISTED, "DisplayVersion") == "0.1.0"

        window = windows.start(str(programs / "Cottage" / "cottage.exe"), "--home", seen(home))
        try:
            before = await until(lambda now: now["update"]["running"] == "0.1.0")  # type: ignore[index]
            with pytest.raises(AssertionError, match="no new version is ready"):
                await word("update", "--restart")
            publish(server, second, 1)
            assert "version 0.2.0: restart to update" in await word("update")
            assert windows.value(LISTED, "DisplayVersion") == "0.1.0"  # Nothing changes until its owner says so.
            await word("update", "--restart")
            after = await until(lambda now: now["update"]["running"] == "0.2.0")  # type: ignore[index]
        finally:
            window.kill()
        assert after["node"] == before["node"]
        assert len(runs(windows, "cottage.exe")) == 1
        assert len(runs(windows, "cottage-agent.exe")) == 1
        assert {path.name for path in programs.iterdir()} == {"Cottage"}
        assert windows.value(LISTED, "DisplayVersion") == "0.2.0"

        publish(server, await asyncio.to_thread(broken, tmp_path / "broken", payload, "0.3.0"), 2)
        await word("update")
        (agents,) = runs(windows, "cottage-agent.exe")
        await word("update", "--restart")
        async with asyncio.timeout(PATIENCE_S):
            while agents in (now := runs(windows, "cottage-agent.exe")) or not now:
                await asyncio.sleep(0.2)
        await until(lambda now: now["update"]["running"] == "0.2.0")  # type: ignore[index]
        assert "did not start on this computer" in await word("update")
        assert {path.name for path in programs.iterdir()} == {"Cottage"}
        assert windows.value(LISTED, "DisplayVersion") == "0.2.0"

    await word("uninstall", "--keep-images", "--keep-data")
    uninstall = programs / "Cottage" / "uninstall.exe"
    await asyncio.to_thread(windows.run, str(uninstall), "/S", f"_?={seen(uninstall.parent)}")
    assert not runs(windows, "cottage.exe")
    left = {path.name for path in programs.rglob("*") if path.is_file()}
    assert left <= {"uninstall.exe"}, "it cannot remove itself"
    assert (home / "node.key").exists()
