"""What a worker's pod is, for Kubernetes' own schemas, and what its first program takes from it, as this kernel has it."""

import copy
import ctypes
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from desktop.agent.cluster.door_program import FROM_AGENT, FROM_POD, REACHED_INTO, SPOKEN, Seal, strangers
from desktop.agent.cluster.manifest import DOOR, FIRST, GRACE_S, Mounted, PodPlan, PodSurroundings, faults, job, mounts
from desktop.agent.sandbox import egress
from desktop.agent.sandbox.base import SandboxLimits
from tests.desktop.cluster.api_server import VERSIONS, filled

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pods run on Linux")
PROBE = Path(__file__).parents[1] / "probe.py"
PLAN = PodPlan(
    "cottage-worker-ab",
    "home",
    "ab" * 16,
    ("-m", "trainer", "worker", "--stdio"),
    SandboxLimits(2048, 2),
    (Mounted("home-node-0", "node/jobs/1", "/job"), Mounted("records", "", "/data")),
)
AROUND = PodSurroundings(
    "registry.example.org/t@sha256:" + "ab" * 32,
    {"apiVersion": "v1", "kind": "Pod", "name": "node-0", "uid": "1"},
    "nvidia.com/gpu",
    "last",
    ({"name": "registry"},),
    {"statefulset.kubernetes.io/pod-name": "node-0"},
    {"accelerator": "nvidia"},
    ({"key": "gpu", "operator": "Exists"},),
)


@pytest.mark.parametrize(
    "around", [AROUND, PodSurroundings("i@sha256:" + "0" * 64, AROUND.owner)], ids=["full", "least"]
)
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_a_workers_job(version: str, around: PodSurroundings) -> None:
    kubernetes_validate.validate(job(PLAN, around), version, strict=True)


def test_a_pod_keeps_to_the_restricted_standard_and_has_nothing_beside() -> None:
    """Pod Security Standards, "restricted": kubernetes.io/docs/concepts/security/pod-security-standards."""
    spec = job(PLAN, AROUND)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {next(iter({*volume} - {"name"})) for volume in spec["volumes"]} == {"emptyDir", "persistentVolumeClaim"}
    assert spec["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "256Mi"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["terminationGracePeriodSeconds"] == GRACE_S == 2
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert [one for one in container["volumeMounts"] if not one.get("readOnly")] == [
        {"name": "scratch", "mountPath": "/tmp"}
    ]


def pod_of(asked: dict[str, Any]) -> dict[str, Any]:
    template = copy.deepcopy(asked["spec"]["template"])
    template["metadata"]["labels"]["job-name"] = "x"
    filled(template["spec"])
    template["spec"]["nodeName"] = "machine"
    return {"metadata": template["metadata"], "spec": template["spec"]}


def leaves(found: Any) -> list[tuple[Any, Any]]:
    """Every place of a document that could be changed."""
    if isinstance(found, dict):
        return [place for key in found for place in [(found, key), *leaves(found[key])]]
    if isinstance(found, list):
        return [place for key in range(len(found)) for place in [(found, key), *leaves(found[key])]]
    return []


def test_every_single_thing_of_a_pod_that_is_changed_or_missing_is_found() -> None:
    asked = job(PLAN, AROUND)
    assert faults(pod_of(asked), asked) == []
    asked_paths = len(leaves(asked["spec"]["template"]["spec"]))
    assert asked_paths > 80
    own = {"schedulerName", "serviceAccount", "serviceAccountName", "priority", "preemptionPolicy", "nodeName"}
    own |= {"terminationMessagePath", "terminationMessagePolicy", "resizePolicy", "resourceName", "restartPolicy"}
    for number in range(len(leaves(pod_of(asked)["spec"]))):
        for change in ("other", None):
            found = pod_of(asked)
            above, key = leaves(found["spec"])[number]
            if key in own or above is found["spec"]["containers"][0].get("resizePolicy"):
                continue
            if change is None:
                del above[key]
            else:
                above[key] = change
            assert faults(found, asked), (key, change)


def test_folders_are_found_on_the_claims_of_the_agents_own_pod() -> None:
    own = {
        "spec": {
            "volumes": [
                {"name": "home", "persistentVolumeClaim": {"claimName": "home-0"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "records"}},
                {"name": "tmp", "emptyDir": {}},
            ],
            "containers": [
                {
                    "name": "node",
                    "volumeMounts": [
                        {"name": "home", "mountPath": "/var/lib/cottage", "subPath": "a"},
                        {"name": "data", "mountPath": "/var/lib/cottage/data/"},
                        {"name": "tmp", "mountPath": "/tmp"},
                    ],
                }
            ],
        }
    }
    sources = {"/job": "/var/lib/cottage/node/jobs/1", "/data": "/var/lib/cottage/data"}
    assert mounts(own, "node", sources) == (Mounted("home-0", "a/node/jobs/1", "/job"), Mounted("records", "", "/data"))
    for elsewhere in ("/tmp/x", "/var/lib/cottagers/x"):
        with pytest.raises(ValueError, match="no volume claim"):
            mounts(own, "node", {"/job": elsewhere})


# --- the first program, on this kernel ------------------------------------------------------------------------------------

needs_number = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are of x86-64")


def run(
    *arguments: str, first: str = FIRST, data: bytes = b"k" * 32, door: str = DOOR
) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-I", "-S", "-c", first, "4096", "0", "1", door, *arguments]
    return subprocess.run(command, input=data, capture_output=True, timeout=60, check=False)


@needs_number
def test_no_way_out_is_left_though_the_machine_has_a_network() -> None:
    asked = f"""
import json, sys
sys.argv = ["x"]
exec(open({str(PROBE)!r}).read().split("def findings")[0])
sockets = {{name: attempt(lambda family=family: socket.socket(family, socket.SOCK_RAW)) for name, family in FAMILIES.items()}}
calls = {{name: syscall(*call) for name, call in SYSCALLS.items()}}
unix, pair = attempt(lambda: socket.socket(socket.AF_UNIX)), attempt(lambda: socket.socketpair(socket.AF_UNIX))
print(json.dumps([sockets, calls, unix, pair, status()["NoNewPrivs"], status()["Seccomp"]]))
"""
    done = run(asked, door="import os,sys; os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])")
    assert done.returncode == 0, done.stderr.decode()
    sockets, calls, unix, pair, privileges, filters = json.loads(done.stdout)
    assert set(sockets.values()) == {"EAFNOSUPPORT"}, sockets
    assert (unix, pair, privileges, filters) == ("done", "done", "1", "2")
    assert set(calls.values()) <= {"EPERM", "ENOSYS"}, calls
    assert calls["clone3"] == "ENOSYS"


@needs_number
def test_each_refused_call_is_refused_by_the_filter_and_not_for_want_of_rights() -> None:
    if os.geteuid() != 0:
        pytest.skip("only who may do everything shows that it is the filter which refuses")
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(308, -1, 0) == -1  # setns
    assert ctypes.get_errno() != 1, "without the filter root is told that the file descriptor is bad"


@needs_number
def test_programs_of_32_bits_and_x32_calls_do_not_pass_the_filter() -> None:
    x32 = "import ctypes; l=ctypes.CDLL(None,use_errno=True); print(l.syscall(0x40000000|41,2,1,0), ctypes.get_errno())"
    done = run(x32, door="import os,sys; os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])")
    assert done.stdout.split() == [b"-1", b"38"]


def test_without_its_filter_the_first_program_does_not_go_on() -> None:
    weaker = FIRST.replace("    restrict()\n", "")
    assert weaker != FIRST
    done = run("print('a job')", first=weaker)
    assert done.returncode == egress.LEAK
    assert b"a socket of AF_INET" in done.stderr
    assert done.stdout == b""


def test_without_a_key_no_worker_is_started() -> None:
    done = run("-c", "import sys; sys.stderr.write('a job')", data=b"short")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


@pytest.mark.parametrize(("code", "ends"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_a_workers_end_is_its_pods(code: str, ends: int) -> None:
    assert run("-c", f"import os,sys; {code}").returncode == ends


def test_a_frame_opens_once_in_its_direction_and_order() -> None:
    key = b"k" * 32
    out, into = Seal(key, FROM_AGENT), Seal(key, FROM_AGENT)
    first, second = out.seal(0, b"one"), out.seal(0, b"two")
    assert into.open(first[4:]) == (0, b"one")
    attempts: list[Callable[[], object]] = [
        lambda: into.open(first[4:]),
        lambda: Seal(key, FROM_POD).open(first[4:]),
        lambda: Seal(key, FROM_AGENT).open(second[4:]),
        lambda: Seal(key, FROM_AGENT).open(first[4:-1] + b"x"),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidTag):
            attempt()


def test_no_file_grows_beyond_the_size_of_scratch(tmp_path: Path) -> None:
    """What Kubernetes has for last words is a file on the machine's disk, and its limits do not count that one."""
    file = tmp_path / "last words"
    assert run("-c", f"open({str(file)!r}, 'wb').write(bytes(3 << 20))").returncode == 1
    assert file.stat().st_size == 1 << 20
    assert job(PLAN, AROUND)["spec"]["template"]["spec"]["containers"][0]["args"][:3] == ["1024", "0", "256"]


@pytest.mark.parametrize("code", [egress.LEAK, REACHED_INTO])
def test_a_worker_cannot_end_as_if_its_cluster_had_done_something(code: int) -> None:
    assert run("-c", f"import sys; sys.exit({code})").returncode == 1


@pytest.mark.parametrize("said", [b"\xff" * 4, (40).to_bytes(4, "big") + b"x" * 40], ids=["too long", "not sealed"])
def test_what_only_another_can_have_said_to_a_worker_ends_it(said: bytes) -> None:
    # Its worker has ended long before.
    slow = DOOR.replace("        os.write(2,", "        time.sleep(0.3); os.write(2,")
    assert slow != DOOR
    done = run("-c", "import sys; sys.stdin.read()", data=b"k" * 32 + said, door=slow)
    assert (done.returncode, done.stderr.decode().strip()) == (REACHED_INTO, SPOKEN)


def test_a_frame_without_a_kind_is_refused() -> None:
    key = b"k" * 32
    sealed = AESGCM(key).encrypt(Seal(key, FROM_POD).nonce(), b"", None)
    with pytest.raises(ValueError, match="no kind"):
        Seal(key, FROM_POD).open(sealed)


def test_a_worker_opens_neither_the_streams_nor_the_memory_of_what_holds_its_key() -> None:
    """Both are one user without capabilities, as in a pod."""
    # PR_CAPBSET_DROP, which holds from the next program on.
    lost = (
        "import ctypes,os,sys\nfor right in range(64): ctypes.CDLL(None).prctl(24, right, 0, 0, 0)\n"
        "os.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])"
    )
    asks = (
        "import os,sys\nfor name in ('fd/1', 'mem'):\n"
        " try: os.open(f'/proc/{os.getppid()}/{name}', os.O_WRONLY)\n"
        " except PermissionError: continue\n"
        " sys.exit(name)"
    )
    done = run(DOOR, "-c", asks, door=lost)
    assert done.returncode == 0, done.stderr.decode()


def test_a_program_may_have_any_bytes_for_a_name() -> None:
    named = subprocess.Popen(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff\\xfe', 0, 0, 0); input()"],
        stdin=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 20
        while Path(f"/proc/{named.pid}/comm").read_bytes() != b"\xff\xfe\n":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert str(named.pid) not in strangers()
    finally:
        named.communicate(b"\n")
