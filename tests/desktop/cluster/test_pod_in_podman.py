"""The rendered pod of a worker, run for real by ``podman kube play``, with its machine's own network: what is tried from inside.

Podman 4.3 has no word for a pod's standard input, so the second program, which waits for a key there, is left out here, and the
probes of the Docker sandbox come in its place. It knows no ``subPath`` and keeps scratch on the disk. The rest is as it was sent.
"""

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from desktop.agent.cluster.manifest import DOOR, FIRST, Mounted, PodPlan, PodSurroundings, job
from desktop.agent.sandbox import egress
from desktop.agent.sandbox.base import SandboxLimits
from installer.image import host

PROBE = Path(__file__).parents[1] / "probe.py"
IMAGE = "localhost/cottage-probe:test"
LACKS = [
    name
    for name in ("podman", "runc", "catatonit", "conmon")
    if shutil.which(name, path="/usr/bin:/usr/sbin:/usr/libexec/podman") is None
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a pod with limits here"),
    pytest.mark.skipif(
        bool(LACKS), reason=f"not installed: {', '.join(LACKS)} (apt-get install podman runc catatonit)"
    ),
]
PASSED_ON = "import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
PROCESSES = 300  # Of the user 10001 on this machine: fewer than what its memory would end.
ENVIRONMENT = {
    "PATH": "/usr/local/bin",
    "LD_LIBRARY_PATH": "/usr/local/lib",
    "PYTHONHOME": "/usr/local",
}


class Podman:
    """One that keeps everything in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = folder / "containers.conf"
        self.settings.write_text('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n')

    def __call__(self, *words: str, check: bool = True) -> str:
        places = ("--root", str(self.folder / "root"), "--runroot", str(self.folder / "run"))
        engine = ("--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "none")
        done = subprocess.run(
            ["podman", *places, *engine, *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "CONTAINERS_CONF": str(self.settings)},
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout + done.stderr

    def play(self, name: str, pod: dict[str, Any]) -> tuple[int, str]:
        """Run a pod to its end: its exit code, and what it said."""
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(pod))
        self("kube", "play", "--network", "host", str(file))
        container = f"{name}-worker"
        deadline = time.monotonic() + 60
        while "running" in self("inspect", "--format", "{{.State.Status}}", container):
            assert time.monotonic() < deadline, self("logs", container)
            time.sleep(0.1)
        code = int(self("inspect", "--format", "{{.State.ExitCode}}", container))
        return code, self("logs", container)


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    found = Podman(tmp_path_factory.mktemp("podman"))
    tree = found.folder / "root.tar"
    with tree.open("wb") as output:
        host.write_tree(output, {})
    changes = [word for name, value in ENVIRONMENT.items() for word in ("-c", f"ENV {name}={value}")]
    found("import", *changes, str(tree), IMAGE)
    tree.unlink()
    found("volume", "create", "job-claim")
    shutil.copy(PROBE, found("volume", "inspect", "job-claim", "--format", "{{.Mountpoint}}").strip())
    try:
        yield found
    finally:
        found("pod", "rm", "-fa", check=False)
        found("system", "reset", "-f", check=False)


def pod_of(name: str, first: str = FIRST) -> dict[str, Any]:
    """As the agent sends it, with the probes in the place of the door."""
    limits = SandboxLimits(512, 1, temporary_mb=100)
    plan = PodPlan(name, "home", "lease", ("/job/probe.py", "--stdio"), limits, (Mounted("job-claim", "", "/job"),))
    template = job(plan, PodSurroundings(IMAGE, {}))["spec"]["template"]
    container = template["spec"]["containers"][0]
    container["command"][-1] = first
    assert container["args"][2] == DOOR
    container["args"][0], container["args"][2] = str(PROCESSES), PASSED_ON
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **template["metadata"]},
        "spec": template["spec"],
    }


async def test_a_job_in_a_pod_can_do_nothing_but_compute(podman: Podman) -> None:
    code, said = await asyncio.to_thread(podman.play, "cottage-worker-a", pod_of("cottage-worker-a"))
    assert code == 0, said
    found = json.loads(said)
    assert set(found["interfaces"]) > {"lo"}, "this machine has a network, and so has the pod"
    assert set(found["sockets"].values()) == {"EAFNOSUPPORT"}, found["sockets"]
    assert found["unix"] == "done"
    writable = {place for place, result in found["writes"].items() if result == "done"}
    assert writable <= {"/tmp", "/dev/shm"}
    assert all(found["writes"][place] == "EROFS" for place in ("/", "/job", "/etc"))
    assert {name: value for name, value in found["status"].items() if name.startswith("Cap")} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16
    )
    assert found["status"]["NoNewPrivs"] == "1"
    assert found["status"]["Seccomp"] == "2"
    assert found["status"]["Uid"].split() == found["status"]["Gid"].split() == ["10001"] * 4
    assert {found[name] for name in ("setuid", "chown", "nice", "mknod")} <= {"EPERM", "EACCES", "ENOSYS"}
    assert "done" not in found["syscalls"].values(), found["syscalls"]
    assert 1 <= found["forks"] < PROCESSES
    assert found["job"] == ["probe.py"]
    assert found["mounts"]["/"] == found["mounts"]["/job"] == "ro"
    assert not {name for name in found["environment"] if name.startswith(("KUBERNETES", "COTTAGE"))}


async def test_without_the_filter_the_pods_network_is_found_and_no_job_begins(podman: Podman) -> None:
    weaker = FIRST.replace("    restrict()\n", "")
    code, said = await asyncio.to_thread(podman.play, "cottage-worker-b", pod_of("cottage-worker-b", weaker))
    assert code == egress.LEAK
    assert "a socket of AF_INET" in said
