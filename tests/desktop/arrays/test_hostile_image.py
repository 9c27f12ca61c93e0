"""What an image tries that a stranger built to break out: the rows of docs/explanation/sandbox.md, from inside its container."""

import io
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from installer.image import host
from tests.desktop.arrays.conftest import Stage, StartStage, archive_of
from tests.support.arrays.images import busybox_layer, entry, layer_of

pytestmark = pytest.mark.docker

PROBE = (Path(__file__).parents[1] / "probe.py").read_bytes()
ENV = ["PATH=/usr/local/bin:/bin", "LD_LIBRARY_PATH=/usr/local/lib", "PYTHONHOME=/usr/local", "PYTHONPATH=/probe"]
FIND = """
import json, os, probe, subprocess
found = probe.findings()
found["suid"] = subprocess.run(["/suid/python", "-c", "import os; print(os.geteuid())"], capture_output=True, text=True).stdout
found["inputs"] = {"write": probe.write("/in"), "link": probe.attempt(lambda: os.link("/in/run.py", "/out/run.py"))}
found["outputs"] = {"chmod": probe.attempt(lambda: os.chmod("/out", 0)), "rmdir": probe.attempt(lambda: os.rmdir("/out"))}
found["nodes"] = sorted(os.listdir("/dev"))
found["limits"] = open("/proc/self/limits").read()
json.dump(found, open("/out/found.json", "w"))
"""
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            for place in ("/out/late", "/tmp/late", "/dev/shm/late"):
                open(place, "w").close()
            time.sleep(0.01)
time.sleep(0.3)
"""
DEEP = """
import os
for _ in range(3000):
    os.mkdir("a")
    os.chdir("a")
"""
LOUD = """
print("\\x1b]0;owned\\x07\\u202egnp.exe")
for _ in range(30_000):
    print("x" * 100)
print("\\x1b[2Jthe end")
raise SystemExit(5)
"""


@pytest.fixture
def hostile(tmp_path: Path) -> bytes:
    """Python, a copy of it that is root's and set-uid, files where the folders of elements come, a configuration to match."""
    tree = io.BytesIO()
    host.write_tree(tree, {})
    python = Path(os.path.realpath(sys.executable)).read_bytes()
    more = layer_of(
        [
            (entry("probe/probe.py"), PROBE),
            (entry("suid/python", mode=0o4755), python),
            (entry("in/run.py"), b"raise SystemExit(99)"),
            (entry("job", tarfile.SYMTYPE, linkname="/proc/1/root"), b""),
            (entry("etc/hosts"), b"127.0.0.1 everything\n"),
        ]
    )
    run = {"Env": ENV, "User": "root", "Volumes": {"/host": {}}, "Entrypoint": ["/suid/python"]}
    return archive_of(tmp_path, layers=[tree.getvalue(), more], run=run)


async def tried(it: Stage, assign: Any, script: str) -> Any:
    run = it.element("", **{"run.py": script.encode()})
    await it.send(assign, run)
    await it.coordinator.until(lambda: run.run in it.ends(assign))
    return it.ends(assign)[run.run]


async def test_an_image_that_was_built_to_break_out_can_do_nothing_but_compute(
    stage: StartStage, hostile: bytes
) -> None:
    async with stage(archive=hostile) as it:
        assign = await it.array(command=("python3", "/in/run.py"), memory_mb=512, disk_mb=8, seconds=30.0)
        await it.ready(assign)
        end = await tried(it, assign, FIND)
        assert (end.outcome, end.code) == ("exited", 0), end.tail
        found = json.loads(it.files(end)["found.json"])
        assert set(found["sockets"].values()) <= {"ENOSYS", "EPERM"}, found["sockets"]
        assert found["interfaces"] == ["lo"]
        assert {place for place, result in found["writes"].items() if result == "done"} <= {"/tmp", "/dev/shm"}
        assert found["filling /tmp"] == "ENOSPC"
        assert found["running from /tmp"] == "EACCES"
        assert {value for name, value in found["status"].items() if name.startswith("Cap")} == {"0" * 16}
        assert (found["status"]["NoNewPrivs"], found["status"]["Seccomp"]) == ("1", "2")
        assert found["status"]["Uid"].split() == found["status"]["Gid"].split() == ["10001"] * 4
        assert found["suid"] == "10001\n"
        assert {found[name] for name in ("setuid", "chown", "nice")} <= {"EPERM", "EACCES", "ENOSYS"}
        assert found["mknod"] in ("EPERM", "ENOSYS")
        assert "done" not in found["syscalls"].values(), found["syscalls"]
        assert 1 <= found["forks"] < 512
        assert found["inputs"] == {"write": "EROFS", "link": "EXDEV"}
        assert set(found["outputs"].values()) <= {"EPERM", "EBUSY", "EROFS"}
        assert found["mounts"]["/"] == "ro"
        assert not {place for place in found["mounts"] if place.startswith(("/host", "/job", "/home", "/root", "/var"))}
        assert not {
            name
            for name in found["nodes"]
            if name.startswith(("sd", "vd", "nvme", "mem", "kmsg", "fuse", "kvm", "nvidia"))
        }
        assert not found["docker"]
        assert not {name for name in found["environment"] if "DOCKER" in name or "SSH" in name}
        assert "NVIDIA_VISIBLE_DEVICES" in found["environment"]  # It says: none.
        assert found["processes"] <= 3
        assert "Max cpu time              90                   90" in found["limits"]


async def test_what_an_image_leaves_or_says_harms_neither_the_agent_nor_the_next_run(
    stage: StartStage, hostile: bytes
) -> None:
    async with stage(archive=hostile) as it:
        assign = await it.array(command=("python3", "/in/run.py"), memory_mb=128, disk_mb=8, seconds=30.0)
        await it.ready(assign)
        sparse = await tried(it, assign, "open('/out/holes', 'wb').truncate(1 << 40)")
        assert (sparse.outcome, sparse.tail) == ("disk", ("it left more than 8,388,608 bytes",))
        deep = await tried(it, assign, DEEP)
        assert (deep.outcome, deep.tail[-1]) == ("disk", "it left folders that are nested more than 16 deep")
        name = await tried(it, assign, "open(b'/out/\\xff', 'w')")
        assert (name.outcome, "a name that is no text" in name.tail[-1]) == ("disk", True)
        assert (await tried(it, assign, DAEMON)).outcome in ("exited", "disk")
        after = await tried(
            it, assign, "import os; print(os.listdir('/out'), os.listdir('/tmp'), os.listdir('/dev/shm'))"
        )
        assert after.tail == ("[] [] []",)
        loud = await tried(it, assign, LOUD)
        assert (loud.outcome, loud.code, len(loud.tail)) == ("exited", 5, 20)
        assert loud.tail[-1] == "\N{REPLACEMENT CHARACTER}[2Jthe end"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("mode", [None, 0o755, 0o700])
async def test_an_image_may_have_nothing_but_one_program_and_folders_that_are_closed(
    stage: StartStage, tmp_path: Path, mode: int | None, batch: int
) -> None:
    bare = busybox_layer()
    with tarfile.open(fileobj=io.BytesIO(bare)) as tar:
        program = tar.extractfile("bin/busybox").read()  # type: ignore[union-attr]
    closed = [(entry(name, tarfile.DIRTYPE, mode=mode), b"") for name in ("in", "out", "tmp") if mode is not None]
    shell = [(entry("bin/sh", tarfile.SYMTYPE, linkname="/busybox"), b"")]
    archive = archive_of(tmp_path, layers=[layer_of([(entry("busybox"), program), *closed, *shell])], run={})
    async with stage(archive=archive) as it:
        assign = await it.array(command=("/busybox", "sh", "/in/run.sh"), batch=batch)
        await it.ready(assign)
        ends = await it.run(assign, "echo x > /tmp/x; /busybox cat /tmp/x > x", "/busybox ls -A /tmp > x")
        assert [it.files(end) for end in ends] == [{"x": b"x\n"}, {"x": b""}], [end.tail for end in ends]
