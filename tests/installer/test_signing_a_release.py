"""From a folder to a manifest that an installation follows, by the commands of whoever releases."""

import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import TransportError
from desktop.agent.errors import UpdateError
from desktop.agent.updates.folder import InstallationFolder
from desktop.agent.updates.manifest import MANIFEST, Seen, judge
from desktop.agent.updates.release import Release, platform_name
from installer.desktop import build
from protocol.codec import encode_json
from tests.desktop.updates.support import installed

NOW = 0.0


def signing(*words: object) -> subprocess.CompletedProcess[bytes]:
    command = (sys.executable, "-m", "installer.desktop.sign", *map(str, words))
    return subprocess.run(command, capture_output=True, check=False)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    bundle = tmp_path / "bundle"
    (bundle / "_internal").mkdir(parents=True)
    (bundle / "_internal" / "data").write_text("x")
    (bundle / "cottage-agent").write_text("#!/bin/sh\n")
    (bundle / "cottage-agent").chmod(0o755)
    (bundle / "library.so").symlink_to("_internal/data")
    return build.update_package(bundle, tmp_path, "0.2.0")


def test_what_is_built_and_signed_is_followed_and_unpacked(tmp_path: Path, package: Path) -> None:
    key = tmp_path / "release.key"
    address = signing("key", key).stdout.decode().strip()
    assert key.stat().st_mode & 0o077 == 0
    assert signing("key", key).returncode == 1  # A lost key is every installation lost.
    done = signing("manifest", "--key", key, "--number", 7, "--minimum", "0.1.0", package)
    assert done.returncode == 0, done.stderr
    manifest = MANIFEST.read(done.stdout, address)
    described = judge(manifest, "0.1.0", platform_name(), Seen(), NOW)
    assert described is not None
    assert described.size == package.stat().st_size
    folder: InstallationFolder = installed(tmp_path / "opt", "0.1.0", "")
    new = folder.unpack(package, "0.2.0", described.unpacked)
    assert sorted(str(path.relative_to(new)) for path in new.rglob("*") if not path.is_dir()) == [
        "_internal/data",
        "agent.sh",
        "cottage-agent",
        "library.so",
        "uninstall.sh",
    ]
    assert (new / "library.so").read_text() == "x"
    with pytest.raises(UpdateError, match="larger than its manifest says"):
        folder.unpack(package, "0.2.0", described.unpacked - 1)


def test_a_manifest_that_nobody_could_follow_is_not_signed(tmp_path: Path, package: Path) -> None:
    key = tmp_path / "release.key"
    signing("key", key)
    other = package.with_name(package.name.replace("0.2.0", "0.3.0"))
    other.write_bytes(package.read_bytes())
    nameless = tmp_path / "x.tar.gz"
    nameless.write_bytes(b"")
    for words, why in (
        (("--number", 0, "--minimum", "0.1.0", package), "number"),
        (("--number", 7, "--minimum", "0.3.0", package), "nobody could follow"),
        (("--number", 7, "--minimum", "newest", package), "minimum"),
        (("--number", 7, "--minimum", "0.1.0", package, other), "several versions"),
        (("--number", 7, "--minimum", "0.1.0", nameless), "not named like"),
    ):
        done = signing("manifest", "--key", key, *words)
        assert (done.returncode, why in done.stderr.decode()) == (1, True), done.stderr


def test_a_build_does_not_follow_an_address_that_others_could_answer_for(tmp_path: Path) -> None:
    file = tmp_path / "release.json"
    file.write_bytes(encode_json(Release(key="11111111111111111111111111111111", url="https://example.org/u.json")))
    with pytest.raises(TransportError, match="small order"):
        build.release_of(file)
    file.write_bytes(encode_json(Release(key="x", url="http://example.org/u.json")))
    with pytest.raises(UpdateError, match="https"):
        build.release_of(file)
    assert build.release_of(None) == Release(build.VERSION)
    assert not build.release_of(None).follows


def test_an_installer_is_windows_package_of_its_version(tmp_path: Path, package: Path) -> None:
    key, setup = tmp_path / "release.key", tmp_path / "Cottage-Setup-0.2.0.exe"
    setup.write_bytes(b"MZ" * 50)
    address = signing("key", key).stdout.decode().strip()
    done = signing("manifest", "--key", key, "--number", 7, "--minimum", "0.1.0", package, setup)
    assert done.returncode == 0, done.stderr
    manifest = MANIFEST.read(done.stdout, address)
    found = judge(manifest, "0.1.0", "windows-amd64", Seen(), NOW)
    assert found is not None
    assert (found.file, found.size, found.unpacked) == (setup.name, 100, 100)
    other = setup.rename(tmp_path / "Cottage-Setup-0.3.0.exe")
    done = signing("manifest", "--key", key, "--number", 7, "--minimum", "0.1.0", package, other)
    assert b"packages of several versions, 0.2.0, 0.3.0" in done.stderr
