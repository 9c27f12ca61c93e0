"""The rendered pod of a worker, run for real by ``podman kube play``, with its machine's own network: what is tried from inside.

Podman 4.3 knows no ``subPath``, keeps scratch on the disk, and has no word for a pod's standard input. So the probes of
Docker's sandbox come in the place of the second program, which waits for a key there; or it has two pipes of the claim instead.
The rest is as it was sent.
"""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from desktop.agent.cluster.door_program import DATA, FROM_AGENT, FROM_POD, HOW, KEY, REACHED_INTO, Seal
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
    "PYTHONPATH": "/opt/site",
}


class Podman:
    """One that keeps everything in a folder of its own."""

    def __init__(self, folder: Path, running: Path) -> None:
        self.folder, self.running = folder, running
        self.settings = folder / "containers.conf"
        self.settings.write_text('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n')

    def __call__(self, *words: str, check: bool = True) -> str:
        places = ("--root", str(self.folder / "root"), "--runroot", str(self.running))
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

    def start(self, name: str, pod: dict[str, Any]) -> str:
        """Start a pod; the name of its container."""
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(pod))
        self("kube", "play", "--network", "host", str(file))
        return f"{name}-worker"

    def ended(self, container: str) -> tuple[int, str]:
        """Its exit code, and what it said, once it has ended."""
        deadline = time.monotonic() + 60
        while "running" in self("inspect", "--format", "{{.State.Status}}", container):
            assert time.monotonic() < deadline, self("logs", container)
            time.sleep(0.1)
        code = int(self("inspect", "--format", "{{.State.ExitCode}}", container))
        return code, self("logs", container)

    @property
    def claim(self) -> Path:
        """Where what workers see at /job lies."""
        return Path(self("volume", "inspect", "job-claim", "--format", "{{.Mountpoint}}").strip())


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    running = Path(tempfile.mkdtemp())  # Podman takes no path here of more than 50 characters.
    found = Podman(tmp_path_factory.mktemp("podman"), running)
    tree = found.folder / "root.tar"
    with tree.open("wb") as output:
        host.write_tree(output, host.distributions(["cryptography"]))
    changes = [word for name, value in ENVIRONMENT.items() for word in ("-c", f"ENV {name}={value}")]
    found("import", *changes, str(tree), IMAGE)
    tree.unlink()
    found("volume", "create", "job-claim")
    shutil.copy(PROBE, found.claim)
    for pipe in ("in", "out"):
        os.mkfifo(found.claim / pipe)
        (found.claim / pipe).chmod(0o666)
    try:
        yield found
    finally:
        found("pod", "rm", "-fa", check=False)
        found("volume", "rm", "-fa", check=False)
        found("rmi", "-fa", check=False)
        shutil.rmtree(running, ignore_errors=True)


def pod_of(name: str, first: str = FIRST) -> dict[str, Any]:
    """As the agent sends it, with the probes in the place of the door."""
    limits = SandboxLimits(512, 1, temporary_mb=100)
    plan = PodPlan(name, "home", "lease", ("/job/probe.py", "--stdio"), limits, (Mounted("job-claim", "", "/job"),))
    template = job(plan, PodSurroundings(IMAGE, {}))["spec"]["template"]
    container = template["spec"]["containers"][0]
    container["command"][-1] = first
    assert container["args"][3] == DOOR
    container["args"][0], container["args"][3] = str(PROCESSES), PASSED_ON
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **template["metadata"]},
        "spec": template["spec"],
    }


def test_a_job_in_a_pod_can_do_nothing_but_compute(podman: Podman) -> None:
    code, said = podman.ended(podman.start("cottage-worker-a", pod_of("cottage-worker-a")))
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
    assert found["job"] == ["in", "out", "probe.py"]
    assert found["mounts"]["/"] == found["mounts"]["/job"] == "ro"
    assert not {name for name in found["environment"] if name.startswith(("KUBERNETES", "COTTAGE"))}


def test_without_the_filter_the_pods_network_is_found_and_no_job_begins(podman: Podman) -> None:
    weaker = FIRST.replace("    restrict()\n", "")
    code, said = podman.ended(podman.start("cottage-worker-b", pod_of("cottage-worker-b", weaker)))
    assert code == egress.LEAK
    assert "a socket of AF_INET" in said


PIPED = """import os, sys
os.dup2(os.open("/job/in", os.O_RDONLY), 0)
os.dup2(os.open("/job/out", os.O_WRONLY), 1)
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""


def test_words_pass_sealed_and_a_command_that_is_run_in_the_pod_ends_it(podman: Podman) -> None:
    pod, answers = (
        pod_of("cottage-worker-c"),
        "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)",
    )
    container = pod["spec"]["containers"][0]
    container["args"][3:] = [PIPED, DOOR, "-c", answers]
    into, out = (os.open(podman.claim / pipe, os.O_RDWR) for pipe in ("in", "out"))
    try:
        name = podman.start("cottage-worker-c", pod)
        key = os.urandom(KEY)
        mine, theirs = Seal(key, FROM_AGENT), Seal(key, FROM_POD)
        os.write(into, key + mine.seal(DATA, b"the words of a job\n"))
        heard = {}
        while DATA not in heard:
            readable, _, _ = select.select([out], [], [], 60)
            assert readable, podman("logs", name)
            kind, data = theirs.open(os.read(out, int.from_bytes(os.read(out, 4), "big")))
            heard[kind] = data
        assert heard[DATA] == b"THE WORDS OF A JOB\n"
        assert podman("inspect", "--format", "{{.State.Status}}", name).strip() == "running"
        podman("exec", name, "python3", "-c", "import time; time.sleep(20)", check=False)
        code, said = podman.ended(name)
        assert code == REACHED_INTO
        assert HOW in said
    finally:
        os.close(into)
        os.close(out)
