"""Every restriction of the sandbox, seen from inside a container of the real image on a real engine (row F24)."""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from desktop.agent.base.unixsocket import listen
from desktop.agent.errors import NoEngineError, SandboxError
from desktop.agent.sandbox import docker as docker_sandbox
from desktop.agent.sandbox import toolkit
from desktop.agent.sandbox.base import SOCKET_NAME, SandboxLimits
from desktop.agent.sandbox.docker import DockerSandbox, connect
from desktop.agent.sandbox.restrictions import (
    PROFILE,
    container_faults,
    container_options,
    engine_faults,
    group_of,
    own_groups,
)
from tests.support.docker import IMAGE

pytestmark = pytest.mark.docker

LIMITS = SandboxLimits(memory_mb=512, threads=1, processes=40, temporary_mb=100)
HERE = Path(__file__).parents[1]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    for script in ("probe.py", "scripted_worker.py"):
        shutil.copy(HERE / script, folder)
    return folder


def sandbox_for(tmp_path: Path, *entry: str, limits: SandboxLimits = LIMITS, gpu: str = "") -> DockerSandbox:
    return DockerSandbox(limits, IMAGE, owner=tmp_path, gpu=gpu, entry=entry or ("python3", "-m", "trainer"))


@pytest.fixture(params=[False, True], ids=["socket", "stdio"])
async def found(
    request: pytest.FixtureRequest, docker_engine: str, tmp_path: Path, job: Path
) -> AsyncIterator[dict[str, Any]]:
    """What ``probe.py`` found, and told over either way."""
    sandbox = DockerSandbox(LIMITS, IMAGE, owner=tmp_path, entry=("python3", "/job/probe.py"), stdio=request.param)
    await sandbox.check()
    server = listen(job / SOCKET_NAME, 0o666)
    worker = await sandbox.start("ab" * 16, job)
    try:
        async with asyncio.timeout(60):
            connection = worker.connection or (await asyncio.get_running_loop().sock_accept(server))[0]
            reader, writer = await asyncio.open_connection(sock=connection)
            result = json.loads(await reader.read())
            writer.close()
        yield result
    finally:
        server.close()
        await worker.stop(0)
        await sandbox.aclose()


async def test_a_job_can_do_nothing_but_compute_and_use_its_socket(found: dict[str, Any]) -> None:
    assert set(found["sockets"].values()) <= {"ENOSYS", "EPERM"}, found["sockets"]  # Engines differ in the default.
    assert found["unix"] == "done"
    assert found["interfaces"] == ["lo"]
    writable = {place for place, result in found["writes"].items() if result == "done"}
    assert writable <= {"/tmp", "/dev/shm"}
    assert all(found["writes"][place] == "EROFS" for place in ("/", "/job", "/usr", "/opt/cottage/trainer", "/etc"))
    assert found["unlink of the socket"] == "EROFS"
    assert found["filling /tmp"] == "ENOSPC"
    assert found["running from /tmp"] == "EACCES"
    assert {name: value for name, value in found["status"].items() if name.startswith("Cap")} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16
    )
    assert found["status"]["NoNewPrivs"] == "1"
    assert found["status"]["Seccomp"] == "2"
    assert found["status"]["Uid"].split() == found["status"]["Gid"].split() == ["10001"] * 4
    assert {found[name] for name in ("setuid", "chown", "nice")} <= {"EPERM", "EACCES", "ENOSYS"}
    assert found["mknod"] in ("EPERM", "ENOSYS")
    assert found["signal to the first process"] in ("EPERM", "done")  # The kernel shields it from its own namespace.
    assert "done" not in found["syscalls"].values(), found["syscalls"]
    assert found["syscalls"]["clone3"] == "ENOSYS"
    assert 1 <= found["forks"] < LIMITS.processes
    assert found["job"] == ["probe.py", "scripted_worker.py", "worker.sock"]
    assert found["mounts"]["/"] == "ro"
    assert found["mounts"]["/job"] == "ro"
    assert found["processes"] <= 3
    assert not found["docker"]
    assert not {name for name in found["environment"] if "DOCKER" in name or "COTTAGE" in name or "SSH" in name}


@pytest.mark.slow
async def test_the_real_trainer_measures_the_machine_inside_the_image(docker_engine: str, tmp_path: Path) -> None:
    sandbox = sandbox_for(tmp_path, limits=SandboxLimits(memory_mb=2048, threads=1))
    try:
        await sandbox.check()
        output = await sandbox.measure(("bench", "--threads", "1", "--device", "cpu"), 120)
    finally:
        await sandbox.aclose()
    assert json.loads(output)["flops"] > 0


@pytest.mark.parametrize(
    ("weaker", "way"),
    [
        ({"security_opt": ["no-new-privileges:true"]}, "a socket of AF_INET"),
        ({"network_mode": "host"}, "the interface "),
    ],
    ids=["no filter of our own", "the network of this computer"],
)
async def test_nothing_begins_where_a_way_out_is_open_though_the_engine_says_that_none_is(
    docker_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weaker: dict[str, Any], way: str
) -> None:
    asked = docker_sandbox.container_options
    sandbox = sandbox_for(tmp_path, "python3")
    try:
        await sandbox.check()
        assert await sandbox.measure(("-c", "print('begun')"), 60) == b"begun\n"
        monkeypatch.setattr(docker_sandbox, "container_options", lambda *given: asked(*given) | weaker)
        monkeypatch.setattr(docker_sandbox, "container_faults", lambda *_: [])
        with pytest.raises(SandboxError, match=f"the job was not begun, for its container has a way out: .*{way}"):
            await sandbox.measure(("-c", "print('begun')"), 60)
    finally:
        await sandbox.aclose()


def weight_of(pid: int) -> tuple[int, int]:
    """What the kernel has for a process's group, and what it has for one that nobody has changed."""
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    for _, names, path in lines:
        if "cpu" in names.split(","):
            return int(Path(f"/sys/fs/cgroup/{names}{path}/cpu.shares").read_text()), 1024
    [path] = [path for _, names, path in lines if not names]
    return int(Path(f"/sys/fs/cgroup{path}/cpu.weight").read_text()), 100


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def programs_of_the_owner(command: str, processor: int) -> Iterator[int]:
    """A process in a group beside the engine's, as a desktop session's programs are; whatever this test's own group weighs."""
    client = docker.from_env()
    group = {"/": "/cottage-owner", "-.slice": "cottage-owner.slice"}[group_of(client.info(), own_groups())]
    options: dict[str, Any] = {"network_mode": "none", "cgroup_parent": group, "cpuset_cpus": str(processor)}
    container = client.containers.run(IMAGE, ["-c", command], entrypoint=["python3"], detach=True, **options)
    try:
        container.reload()
        yield int(container.attrs["State"]["Pid"])
    finally:
        container.remove(force=True)
        client.close()
        for folder in [*Path("/sys/fs/cgroup").glob("*/cottage-owner"), *Path("/sys/fs/cgroup").glob("cottage-owner")]:
            folder.rmdir()


async def test_where_processor_time_is_short_the_owners_programs_come_first(
    docker_engine: str, tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = "while True:\n    pass\n"
    (job / "busy.py").write_text(busy)
    asked, processor = docker_sandbox.container_options, min(os.sched_getaffinity(0))
    one = {"cpuset_cpus": str(processor), "init": False}  # For both to want; and its first process is the busy one.
    monkeypatch.setattr(docker_sandbox, "container_options", lambda *given: asked(*given) | one)
    sandbox = sandbox_for(tmp_path, "python3", "/job/busy.py")
    await sandbox.check()
    worker = await sandbox.start("ab" * 16, job)
    try:
        assert worker.pid is not None
        found, default = weight_of(worker.pid)
        assert 1 < found <= default / 4
        with programs_of_the_owner(busy, processor) as program:
            before = [processor_seconds(pid) for pid in (worker.pid, program)]
            await asyncio.sleep(3)
            jobs, programs = (
                processor_seconds(pid) - then for pid, then in zip((worker.pid, program), before, strict=True)
            )
        assert jobs < programs / 2
    finally:
        await worker.stop(0)
        await sandbox.aclose()


async def test_an_engine_that_takes_no_job_at_its_root_runs_it_where_it_runs_all_others(
    docker_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A file of the kernel's: no folder can be in it.
    monkeypatch.setattr(docker_sandbox, "group_of", lambda *_: "/cgroup.procs")
    sandbox = sandbox_for(tmp_path, "python3")
    try:
        await sandbox.check()
        for _ in range(2):
            assert await sandbox.measure(("-c", "print('begun')"), 60) == b"begun\n"
        assert await sandbox.sweep() == 0
    finally:
        await sandbox.aclose()
    assert caplog.text.count("the processor is shared evenly") == 1


async def test_a_job_that_takes_too_much_memory_is_stopped_and_says_so(
    docker_engine: str, tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job / "hog.py").write_text("data = []\nwhile True:\n    data.append(bytearray(1 << 22))\n")
    sandbox = sandbox_for(tmp_path, "python3", "/job/hog.py", limits=SandboxLimits(memory_mb=64, threads=1))
    try:
        await sandbox.check()
        worker = await sandbox.start("ab" * 16, job)
        async with asyncio.timeout(60):
            while (ended := await worker.ended()) is None:
                await asyncio.sleep(0.05)
        assert "needed more memory than the 64 MB" in ended.reason
        assert ended.memory
        container, told = worker.container, iter((False, False))
        reload = container.reload

        def reload_before_it_is_known() -> None:
            reload()
            container.attrs["State"]["OOMKilled"] &= next(told, True)

        monkeypatch.setattr(container, "reload", reload_before_it_is_known)
        assert await worker.ended() == ended
        assert next(told, None) is None
        await worker.stop(0)
    finally:
        await sandbox.aclose()


async def test_what_a_dead_agent_left_is_swept_and_what_others_run_is_not(
    docker_engine: str, tmp_path: Path, job: Path
) -> None:
    (job / "idle.py").write_text("import threading\nthreading.Event().wait()\n")
    mine, other = (sandbox_for(tmp_path / name, "python3", "/job/idle.py") for name in ("mine", "other"))
    for sandbox in (mine, other):
        await sandbox.check()
    left, foreign = await mine.start("ab" * 16, job), await other.start("cd" * 16, job)
    heir = sandbox_for(tmp_path / "mine", "python3", "/job/idle.py")
    await heir.check()
    try:
        assert await heir.sweep() == 1
        ended = await left.ended()
        assert ended is not None
        assert "removed" in ended.reason
        assert await foreign.ended() is None
    finally:
        await foreign.stop(0)
        for sandbox in (mine, other, heir):
            await sandbox.aclose()


async def test_a_missing_image_says_how_to_make_it(docker_engine: str, tmp_path: Path) -> None:
    sandbox = DockerSandbox(LIMITS, "cottage-nothing:here", owner=tmp_path)
    with pytest.raises(SandboxError, match=r"python -m installer\.image\.build cottage-nothing:here"):
        await sandbox.check()
    await sandbox.aclose()


async def test_a_gpu_job_without_the_nvidia_runtime_says_what_to_install(
    docker_engine: str, tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = sandbox_for(tmp_path, gpu="GPU-5d1c0e2a-1111")
    for said, why in ((None, "is not known"), ("NVIDIA Container Toolkit CLI version 1.17.7\n", "CVE-2025-23266")):
        monkeypatch.setattr(toolkit, "installed", lambda said=said: said)
        with pytest.raises(SandboxError, match=why):
            await sandbox.check()
    monkeypatch.setattr(toolkit, "installed", lambda: "NVIDIA Container Toolkit CLI version 1.17.8\n")
    await sandbox.check()
    with pytest.raises(SandboxError, match="nvidia-container-toolkit"):
        await sandbox.start("ab" * 16, job)
    assert await sandbox.sweep() == 0
    await sandbox.aclose()


async def test_no_engine_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    sandbox = DockerSandbox(LIMITS, IMAGE, owner=tmp_path)
    with pytest.raises(SandboxError, match=r"no Docker engine answers at unix://.*apt-get install docker.io"):
        await sandbox.check()
    await sandbox.aclose()


@pytest.mark.parametrize(
    "address", ["tcp://[::1", "tcp://[::1]:99999", "tcp://host:port", "tcp://", "nonsense", "fd://", "npipe://x", " "]
)
def test_an_address_that_is_none_is_told_with_one_that_is(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(NoEngineError) as refused:
        connect()
    assert str(refused.value) == (
        f"DOCKER_HOST is {address!r}, no engine's address: write it as unix:///var/run/docker.sock or tcp://HOST:PORT, "
        "or leave it out for this system's engine"
    )


def test_keys_of_an_engine_that_are_not_there_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    with pytest.raises(NoEngineError, match=f"and {tmp_path} holds no usable ca.pem, cert.pem and key.pem"):
        connect()


WEAKER: dict[str, dict[str, Any]] = {
    "network": {"network_mode": "host"},
    "read-only root": {"read_only": False},
    "privileged": {"privileged": True},
    "dropped capabilities": {"cap_drop": ["NET_RAW"]},
    "added capabilities": {"cap_add": ["SYS_ADMIN"]},
    "security options": {"security_opt": ["no-new-privileges:true", "seccomp=unconfined"]},
    "memory": {"mem_limit": "1g", "memswap_limit": "1g"},
    "memory and swap": {"memswap_limit": -1},
    "processes": {"pids_limit": -1},
    "processors": {"nano_cpus": 2 * 10**9},
    "weight": {"cpu_shares": 1024},
    "control group": {"cgroup_parent": "/elsewhere"},
    "user": {"user": "0:0"},
    "process namespace": {"pid_mode": "host"},
    "IPC namespace": {"ipc_mode": "host"},
    "user namespace": {"userns_mode": "host"},
    "groups": {"group_add": ["0"]},
    "kernel settings": {"sysctls": {"net.ipv4.ip_unprivileged_port_start": "0"}},
    "variables of the loader": {"environment": {"LD_PRELOAD": "/job/evil.so"}},
    "devices": {"devices": ["/dev/null:/dev/other:rwm"]},
    "mounts": {"mounts": [docker.types.Mount("/job", "/etc", type="bind")]},
    "binds": {"mounts": [], "volumes": ["/etc:/job"]},
    "temporary files": {"tmpfs": {"/tmp": ""}},
    "shared memory": {"shm_size": "1g"},
    "standard input": {"stdin_open": True},
    "log": {"log_config": docker.types.LogConfig(type="none")},
}


@pytest.mark.parametrize("restriction", WEAKER)
def test_a_container_that_lacks_a_restriction_is_recognised(docker_engine: str, job: Path, restriction: str) -> None:
    client = docker.from_env()
    options = container_options(LIMITS, job, {}, gpu="")
    options |= WEAKER[restriction]
    container = client.containers.create(IMAGE, ["true"], **options)
    try:
        container.reload()
        faults = container_faults(container.attrs, LIMITS, job, gpu="")
    finally:
        container.remove(force=True)
        client.close()
    assert any(fault.startswith(f"{restriction} is ") for fault in faults), faults


async def test_what_runs_is_the_image_that_was_checked_whatever_its_name_means_later(
    docker_engine: str, tmp_path: Path, job: Path
) -> None:
    client = docker.from_env()
    name = f"cottage-test-{tmp_path.name.replace('_', '-')}:latest".lower()
    client.images.get(IMAGE).tag(name)
    sandbox = DockerSandbox(LIMITS, name, owner=tmp_path, entry=("python3", "/job/scripted_worker.py"))
    try:
        checked = await sandbox.check()
        assert checked.startswith("sha256:")
        client.images.remove(name)  # A name that moves, as ``latest`` does: nothing is behind it any more.
        worker = await sandbox.start("cd" * 16, job)
        try:
            assert worker.container.attrs["Image"] == checked
        finally:
            await worker.stop(0)
    finally:
        await sandbox.aclose()
        client.close()


def test_this_engine_has_no_faults_and_a_rootless_one_without_limits_has(docker_engine: str) -> None:
    client = docker.from_env()
    info = client.info()
    client.close()
    assert engine_faults(info) == []
    bare = {"SecurityOptions": ["name=rootless"], "MemoryLimit": False, "PidsLimit": False, "CpuCfsQuota": False}
    assert len(engine_faults(info | bare)) == 4
    assert engine_faults(info | {"OSType": "windows"}) != []


def test_a_job_is_a_neighbour_of_the_owners_programs_where_the_engine_may_put_it_there() -> None:
    session = "1:name=systemd:/user.slice\n0::/user.slice/user-1000.slice\n"
    systemd = {"CgroupDriver": "systemd", "SecurityOptions": ["name=seccomp,profile=default"]}
    assert group_of({"CgroupDriver": "cgroupfs"}, session) == "/"
    assert group_of(systemd, session) == "-.slice"
    assert group_of(systemd, "") == "-.slice"  # Elsewhere than on Linux the engine's machine has groups of its own.
    assert group_of({"CgroupDriver": "systemd", "SecurityOptions": ["name=rootless"]}, session) == ""
    assert group_of({"CgroupDriver": "none"}, session) == ""


@pytest.mark.parametrize(
    ("own", "grouped"),
    [
        ("0::/\n", False),
        ("0::/init.scope\n", True),
        ("9:name=systemd:/\n1:cpu:/cottage-tests\n0::/\n", True),
        ("4:memory:/some\n3:cpu,cpuacct:/\n0::/user.slice\n", False),
        ("2:cpuset:/\n1:cpuacct:/\n0::/user.slice\n", True),
    ],
)
def test_where_nothing_groups_the_owners_programs_a_job_is_no_neighbour_of_each(own: str, grouped: bool) -> None:
    assert group_of({"CgroupDriver": "cgroupfs"}, own) == ("/" if grouped else "")


def test_the_filter_of_system_calls_names_no_way_out() -> None:
    profile = json.loads(PROFILE)
    allowed = {name for rule in profile["syscalls"] if "args" not in rule for name in rule["names"]}
    allowed -= {"clone3"}
    forbidden = {"socket", "clone", "unshare", "mount", "setns", "ptrace", "bpf", "keyctl", "add_key", "userfaultfd"}
    forbidden |= {
        "io_uring_setup",
        "perf_event_open",
        "process_vm_writev",
        "open_by_handle_at",
        "kexec_load",
        "pivot_root",
    }
    assert not allowed & forbidden
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert all(not arch["subArchitectures"] for arch in profile["archMap"])


async def test_a_frozen_container_computes_nothing_until_it_is_thawed_and_can_be_stopped(
    docker_engine: str, tmp_path: Path, job: Path
) -> None:
    (job / "count.py").write_text("import time\nwhile True:\n    print('.', flush=True)\n    time.sleep(0.01)\n")
    sandbox = sandbox_for(tmp_path, "python3", "/job/count.py")
    await sandbox.check()
    worker = await sandbox.start("ab" * 16, job)

    async def printed() -> int:
        return len(await asyncio.to_thread(worker.container.logs))

    async def grows() -> bool:
        before = await printed()
        await asyncio.sleep(0.3)  # Thirty dots, if it runs.
        return await printed() > before

    try:
        while not await printed():
            await asyncio.sleep(0.05)
        await worker.freeze()
        await worker.freeze()
        assert not await grows()
        assert await worker.ended() is None
        await worker.thaw()
        await worker.thaw()
        assert await grows()
        await worker.freeze()
        await worker.stop(2)
        await worker.freeze()
        assert await worker.ended() is not None
    finally:
        await worker.stop(0)
        await sandbox.aclose()
