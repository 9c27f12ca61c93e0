"""The folder of versions: hostile packages, the link, going back."""

import gzip
import io
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from desktop.agent.errors import UpdateError
from desktop.agent.updates.folder import AGENT, InstallationFolder
from desktop.agent.updates.release import installation
from desktop.layout import VERSIONS
from tests.desktop.updates.support import installed, packed

OLD = "#!/bin/sh\n"
WHOLE = {AGENT: b"#!/bin/sh\n", "_internal/data": b"x" * 5000}


@pytest.fixture
def folder(tmp_path: Path) -> InstallationFolder:
    return installed(tmp_path, "0.1.0", OLD)


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "package"
    path.write_bytes(data)
    return path


def special(kind: bytes, name: str, link: str = "") -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        archive.addfile(member)
    return gzip.compress(plain.getvalue())


def test_a_package_is_laid_out_and_the_link_names_it_with_the_old_one_kept(
    folder: InstallationFolder, tmp_path: Path
) -> None:
    data, size = packed(WHOLE)
    new = folder.unpack(written(tmp_path, data), "0.2.0", size)
    assert os.access(new / AGENT, os.X_OK)
    assert folder.current.name == "0.1.0"
    folder.switch("0.2.0")
    assert (folder.current.name, folder.previous) == ("0.2.0", folder.of("0.1.0"))
    assert folder.link.readlink() == Path(VERSIONS, "0.2.0")  # The whole may be moved.
    assert folder.back() == "0.1.0"
    assert (folder.current.name, folder.previous) == ("0.1.0", folder.of("0.2.0"))
    (folder.versions / ".0.9.0.new").mkdir()
    installed(tmp_path, "0.0.9", OLD)
    folder.tidy()
    assert sorted(entry.name for entry in folder.versions.iterdir()) == ["0.1.0", "0.2.0", "previous"]


@pytest.mark.parametrize(
    ("made", "size"),
    [
        (lambda: special(tarfile.SYMTYPE, "out", "/etc/passwd"), 10240),
        (lambda: special(tarfile.SYMTYPE, "out", "../../../x"), 10240),
        (lambda: special(tarfile.CHRTYPE, "device"), 10240),
        (lambda: special(tarfile.FIFOTYPE, "pipe"), 10240),
        (lambda: packed({"../0.1.0/" + AGENT: b"mine now"})[0], 10240),
        (lambda: packed({"../../../../tmp/mine": b"mine"})[0], 10240),
        (lambda: packed({"no-agent": b"x"})[0], 10240),
        (lambda: gzip.compress(bytes(64 << 20), mtime=0), 10240),  # 64 MB of nothing in 64 KB.
        (lambda: packed({AGENT: bytes(64 << 20)})[0], 1 << 20),
        (lambda: packed({f"{number}": b"" for number in range(20_001)})[0], 1 << 30),
        (lambda: packed(WHOLE)[0][:-20], 1 << 20),
        (lambda: b"no gzip", 1 << 20),
        (lambda: b"", 1 << 20),
    ],
    ids=[
        "absolute link",
        "link upwards",
        "device",
        "pipe",
        "over the version in use",
        "outside",
        "no agent",
        "bomb of zeros",
        "bomb in a file",
        "files without end",
        "cut off",
        "garbage",
        "nothing",
    ],
)
def test_a_package_that_is_none_or_reaches_outside_leaves_everything_as_it_was(
    folder: InstallationFolder, tmp_path: Path, made: Callable[[], bytes], size: int
) -> None:
    package = written(tmp_path, made())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UpdateError, match=r"0\.2\.0"):
        folder.unpack(package, "0.2.0", size)
    assert sorted(tmp_path.rglob("*")) == before
    assert (folder.current / AGENT).read_text() == OLD
    with pytest.raises(UpdateError, match="is not in"):
        folder.switch("0.2.0")


def test_what_a_dead_process_left_of_an_unpacking_is_no_hindrance(folder: InstallationFolder, tmp_path: Path) -> None:
    for place in (".0.2.0.new", "0.2.0"):
        (folder.versions / place).mkdir()
        (folder.versions / place / "half").touch()
    (folder.versions / ".previous.new").symlink_to("nowhere")
    folder.link.with_name(".cottage.new").symlink_to("nowhere")
    data, size = packed(WHOLE)
    folder.unpack(written(tmp_path, data), "0.2.0", size)
    assert not (folder.of("0.2.0") / "half").exists()
    folder.switch("0.2.0")
    assert folder.current.name == "0.2.0"


def test_whoever_starts_the_program_while_it_is_switched_finds_a_whole_version(
    folder: InstallationFolder, tmp_path: Path
) -> None:
    installed(tmp_path, "0.2.0", OLD)
    missed, done = [], threading.Event()

    def look() -> None:
        while not done.is_set():
            try:
                assert (folder.link / AGENT).read_text() == OLD
            except OSError as error:
                missed.append(error)

    watcher = threading.Thread(target=look)
    watcher.start()
    for version in ("0.2.0", "0.1.0") * 100:
        folder.switch(version)
    done.set()
    watcher.join()
    assert missed == []


def test_how_a_program_came_here_says_who_updates_it(folder: InstallationFolder) -> None:
    assert installation(folder.link / AGENT) == ("folder", folder)
    assert installation(Path("/opt/cottage/cottage-agent")) == ("deb", None)
    assert installation(Path("/usr/bin/python3")) == ("other", None)
    assert installation() == ("other", None)
