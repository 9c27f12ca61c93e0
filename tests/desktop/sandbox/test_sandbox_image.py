"""The image from this machine's own Python, and the private engine that tests and CI run it on."""

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import docker
import pytest

from installer.image import build, engine, host
from tests.support.docker import IMAGE


@pytest.mark.docker
def test_an_image_of_the_same_code_is_not_built_again(docker_engine: str) -> None:
    exact = build.build(IMAGE, from_host=True)
    began = time.monotonic()
    said: list[str] = []
    assert build.build(IMAGE, from_host=True, say=said.append) == exact
    assert said == []
    assert time.monotonic() - began < 10
    client = docker.from_env()
    assert client.images.get(exact).id == client.images.get(IMAGE).id
    client.close()


@pytest.mark.docker
def test_the_image_holds_the_trainer_and_nothing_of_coordinator_ledger_or_agent(docker_engine: str) -> None:
    client = docker.from_env()
    code = "import os, trainer.worker.worker; print(sorted(os.listdir('/opt/cottage')), os.getuid(), os.path.exists('/bin/sh'))"
    output = client.containers.run(IMAGE, ["python3", "-c", code], network_mode="none", remove=True)
    client.close()
    assert output.decode().split("\n")[0] == "['common', 'protocol', 'trainer', 'transport'] 10001 False"


@pytest.mark.docker
def test_a_private_engine_starts_once_and_stops_for_good() -> None:
    if shutil.which(engine.ENGINE) is None or os.geteuid() != 0:
        pytest.skip(f"only root can start {engine.ENGINE}, and it must be installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            address = engine.start(folder)
            assert engine.start(folder) == address
            assert engine.answers(address)
            (held := folder / "exec" / "held by nobody").mkdir(parents=True)
            subprocess.run(["mount", "--bind", str(folder), str(held)], check=True)
            assert held in engine.mounts(folder)
        finally:
            engine.stop(folder)
        assert not engine.answers(address)
        assert not engine.mounts(folder)
        shutil.rmtree(folder / "exec")
        engine.stop(folder)


def test_a_folder_too_deep_for_an_engine_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(engine.EngineError, match="too deep"):
        engine.start(tmp_path / ("x" * 60))


def test_an_image_without_an_engine_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(build.ImageError):
        build.build(IMAGE, from_host=True)
    assert build.main([IMAGE]) == 1


def test_a_package_that_is_missing_here_is_named() -> None:
    with pytest.raises(host.HostError, match="no-such-package"):
        host.distributions(["no-such-package>=1"])


def test_packages_come_with_everything_that_they_require() -> None:
    packages = host.distributions(["safetensors>=0.5", "msgspec", "Jinja2"])
    assert {"safetensors", "msgspec", "jinja2", "markupsafe"} <= set(packages)
    assert host.digest(packages) != host.digest(host.distributions(["msgspec"]))


def test_a_tree_holds_an_interpreter_its_library_and_no_link_to_the_host() -> None:
    buffer = io.BytesIO()
    host.write_tree(buffer, host.distributions(["msgspec"]))
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as tar:
        members = {member.name: member for member in tar}
    python = host._python_name()
    assert members[f"usr/local/bin/{python}"].mode == 0o755
    assert {f"usr/local/lib/{python}/os.py", "opt/site/msgspec/__init__.py", "etc/passwd", "tmp"} <= set(members)
    assert [member.name for member in members.values() if not (member.isfile() or member.isdir())] == [
        "usr/local/bin/python3",
        "usr/local/bin/python",
    ]
    assert all(member.uid == 0 for member in members.values())
    assert any("ld-linux" in name for name in members)


def test_a_failure_while_packing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: BinaryIO) -> None:
        raise host.HostError("a library is gone")

    def read() -> Iterator[bytes]:
        with build._pipe(fail) as stream:
            yield stream.read()

    with pytest.raises(build.ImageError, match="a library is gone"):
        list(read())
