"""Every restriction of a job's container: how it is asked for, and how one sees that it is in force. Pure.

The engine is not believed: some restrictions are accepted in silence and then missing (a kernel without AppArmor, a rootless
engine without cgroups), so what ``inspect`` and ``info`` say is compared with what was asked for.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

from desktop.agent.sandbox.base import SandboxLimits, Volume

USER = "10001:10001"  # Nobody on the host or in the image; without the right to become anybody.
INSIDE = "/job"
DATA = "/data"  # What its owner lets a federated job read, and nothing else does.
HOME_LABEL = "network.cottage.home"
LEASE_LABEL = "network.cottage.lease"
OPEN_FILES = 4096
MAX_INODES = 120_000  # Of a folder in memory: each name costs a kilobyte that no size counts.
SHARED_MB = 64  # /dev/shm; in memory, and counted as such.
# Of processor time where it is short, a quarter of the default: enough to start within the agent's patience.
WEIGHT = 256
LOG_BYTES = "1m"  # A worker that prints without end must not fill the owner's disk.
# Where NVIDIA's runtime is the usual one, an image could ask by this for all.
NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void"}
PROFILE = files("desktop.agent.sandbox").joinpath("seccomp.json").read_text()

Attributes = Mapping[str, Any]


def group_of(info: Attributes, own: str) -> str:
    """The control group in which an engine (``docker info``) is to put a job; empty: where it puts all containers.

    A weight counts among neighbours only. In the group that an engine makes for all its containers the owner's programs are
    no neighbours of a job, however little it weighs; at the root they are, as one session. Where nothing groups sessions, each
    of their threads would weigh as four jobs there, and a busy computer leave a job a fiftieth: then it stays where others are.

    Args:
        own: the agent's own groups, as in ``/proc/self/cgroup`` (cgroups(7)); empty where there are none.
    """
    if "name=rootless" in " ".join(info.get("SecurityOptions") or ()):
        return ""  # It may make groups below its own user's only.
    groups = [line.split(":", 2)[1:] for line in own.splitlines()]
    shares = [path for names, path in groups if "cpu" in names.split(",")] or [
        path for names, path in groups if not names
    ]
    if "/" in shares:
        return ""
    return {"cgroupfs": "/", "systemd": "-.slice"}.get(str(info.get("CgroupDriver")), "")


def own_groups(file: Path = Path("/proc/self/cgroup")) -> str:
    """What ``group_of`` wants to know of this process."""
    return file.read_text() if file.exists() else ""


def container_options(
    limits: SandboxLimits,
    folder: Path | None,
    labels: Mapping[str, str],
    gpu: str,
    group: str = "",
    stdio: bool = False,
    volumes: Sequence[Volume] = (),
    data: Path | None = None,
) -> dict[str, Any]:
    """Arguments of ``docker.containers.create`` for a container that may do nothing but compute and use its socket.

    Args:
        group: as ``group_of`` says.
        stdio: it has its standard streams instead, of which the engine keeps no log: they carry the job's data.
        volumes: folders in memory that it has beside its own.
        data: a file or folder of the owner's that it may read.
    """
    from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

    threads = str(limits.threads)
    return {
        "network_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true", f"seccomp={PROFILE}"],
        "user": USER,
        "mem_limit": f"{limits.memory_mb}m",
        "memswap_limit": f"{limits.memory_mb}m",
        "pids_limit": limits.processes,
        "nano_cpus": limits.threads * 10**9,
        "cpu_shares": WEIGHT,
        "cgroup_parent": group,
        "tmpfs": _temporary(limits),
        "shm_size": f"{SHARED_MB}m",
        "mounts": [
            *(Mount(to, str(source), type="bind", read_only=True) for source, to in _bound(folder, data)),
            *(Mount(one.target, one.name, read_only=not one.writable, no_copy=True) for one in volumes),
        ],
        "ulimits": [Ulimit(name=name, soft=most, hard=most) for name, most in _process_limits(limits)],
        "ipc_mode": "private",
        "hostname": "worker",
        "init": True,
        "oom_score_adj": 500,  # Where memory runs out on the host, jobs go before the owner's programs.
        "labels": dict(labels),
        "log_config": LogConfig(type="none")
        if stdio
        else LogConfig(type="json-file", config={"max-size": LOG_BYTES, "max-file": "1"}),
        "stdin_open": stdio,
        "environment": {
            "HOME": "/tmp",  # noqa: S108 - the container's own
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **({} if gpu else NO_GPU),
        },
        "device_requests": [DeviceRequest(device_ids=[gpu], capabilities=[["gpu"]])] if gpu else [],
    }


def engine_faults(info: Attributes) -> list[str]:
    """Why an engine (``docker info``) cannot hold a job; empty where it can."""
    faults = []
    security = " ".join(info.get("SecurityOptions") or ())
    if "name=seccomp" not in security:
        faults.append("its kernel filters no system calls (seccomp is missing)")
    if not info.get("MemoryLimit"):
        faults.append(
            "it cannot limit memory (cgroups are not available to it; a rootless engine needs cgroup v2 delegation)"
        )
    if not info.get("PidsLimit"):
        faults.append("it cannot limit the number of processes")
    if not (info.get("CpuCfsQuota") and info.get("CpuCfsPeriod")):
        faults.append("it cannot limit processor time")
    if info.get("OSType") not in (None, "", "linux"):
        faults.append(f"it runs {info['OSType']} containers: switch it to Linux containers")
    return faults


def _bound(folder: Path | None, data: Path | None) -> list[tuple[Path, str]]:
    """What a container sees of its computer, and where."""
    return [(source, to) for source, to in ((data, DATA), (folder, INSIDE)) if source is not None]


def container_faults(
    attributes: Attributes,
    limits: SandboxLimits,
    folder: Path | None,
    gpu: str,
    group: str = "",
    stdio: bool = False,
    volumes: Sequence[Volume] = (),
    data: Path | None = None,
) -> list[str]:
    """Which restrictions are not in force for a container (``docker inspect``); empty where all are."""
    host, config = attributes["HostConfig"], attributes["Config"]
    memory = limits.memory_mb << 20
    wanted: Sequence[tuple[str, Any, Any]] = (
        ("network", host.get("NetworkMode"), "none"),
        ("networks", sorted(attributes["NetworkSettings"].get("Networks") or ()), ["none"]),
        ("read-only root", host.get("ReadonlyRootfs"), True),
        ("privileged", host.get("Privileged"), False),
        ("dropped capabilities", host.get("CapDrop"), ["ALL"]),
        ("added capabilities", host.get("CapAdd") or [], []),
        (
            "security options",
            sorted(host.get("SecurityOpt") or ()),
            sorted(["no-new-privileges:true", f"seccomp={PROFILE}"]),
        ),
        ("memory", host.get("Memory"), memory),
        ("memory and swap", host.get("MemorySwap"), memory),
        ("processes", host.get("PidsLimit"), limits.processes),
        ("processors", host.get("NanoCpus"), limits.threads * 10**9),
        ("weight", host.get("CpuShares"), WEIGHT),
        ("control group", host.get("CgroupParent") or "", group),
        ("user", config.get("User"), USER),
        ("process namespace", host.get("PidMode") or "", ""),
        ("IPC namespace", host.get("IpcMode"), "private"),
        ("host name namespace", host.get("UTSMode") or "", ""),
        ("user namespace", host.get("UsernsMode") or "", ""),
        ("groups", host.get("GroupAdd") or [], []),
        ("kernel settings", host.get("Sysctls") or {}, {}),
        ("variables of the loader", _loader(config), []),
        ("devices", host.get("Devices") or [], []),
        ("device requests", _gpus(host), [[gpu]] if gpu else []),
        ("volumes", host.get("VolumesFrom") or [], []),
        ("binds", host.get("Binds") or [], []),
        ("mounts", _mounts(attributes, (folder, data)), _wanted_mounts(folder, data, volumes)),
        ("standard input", config.get("OpenStdin"), stdio),
        ("log", host.get("LogConfig", {}).get("Type"), "none" if stdio else "json-file"),
        ("temporary files", host.get("Tmpfs"), _temporary(limits)),
        (
            "limits of a process",
            sorted((one.get("Name"), one.get("Hard")) for one in host.get("Ulimits") or ()),
            sorted(_process_limits(limits)),
        ),
        ("shared memory", host.get("ShmSize"), SHARED_MB << 20),
    )
    return [f"{name} is {_short(found)}, not {_short(asked)}" for name, found, asked in wanted if found != asked]


def _process_limits(limits: SandboxLimits) -> list[tuple[str, int]]:
    """Of each process of a container, as ``getrlimit(2)`` names them."""
    own = [("cpu", limits.cpu_seconds)] if limits.cpu_seconds else []
    return [("nofile", OPEN_FILES), ("core", 0), *own]


def _temporary(limits: SandboxLimits) -> dict[str, str]:
    """All that a job can write to, with its quota; the rest of its disk is read-only."""
    user, group = USER.split(":")
    # runc gives it the mode of the image's own folder, which may be closed to others: so it is the user's.
    options = f"size={limits.temporary_mb}m,mode=1777,uid={user},gid={group},nosuid,nodev,noexec"
    return {"/tmp": options}  # noqa: S108 - the container's own


def _loader(config: Attributes) -> list[str]:
    """Variables that make every program of the container load code."""
    return [one for one in config.get("Env") or () if one.startswith(("LD_PRELOAD=", "LD_AUDIT="))]


def _gpus(host: Attributes) -> list[Any]:
    return [request.get("DeviceIDs") for request in host.get("DeviceRequests") or ()]


def _mounts(attributes: Attributes, sources: Sequence[Path | None]) -> list[tuple[str, str, bool]]:
    """What is mounted; a source that is Docker Desktop's name for one of ``sources`` counts as that."""
    known = {other: str(source) for source in sources if source is not None for other in desktop_names(source)}
    found = [
        (known.get(str(mount.get("Source")), _source(mount)), mount.get("Destination"), mount.get("RW"))
        for mount in attributes.get("Mounts") or ()
    ]
    return sorted(found, key=str)


def _source(mount: Attributes) -> Any:
    """What is mounted; of a volume its name, since where an engine keeps it is its own."""
    return mount.get("Name") if mount.get("Type") == "volume" else mount.get("Source")


def _wanted_mounts(folder: Path | None, data: Path | None, volumes: Sequence[Volume]) -> list[tuple[str, str, bool]]:
    own = [(str(source), to, False) for source, to in _bound(folder, data)]
    return sorted([*own, *((one.name, one.target, one.writable) for one in volumes)], key=str)


def volume_options(size_mb: int) -> dict[str, str]:
    """Options of the engine's own driver for a folder in memory of a size; who may write is its container's mount."""
    size = f"size={size_mb}m,nr_inodes={MAX_INODES},mode=1777,nosuid,nodev,noexec"
    return {"type": "tmpfs", "device": "tmpfs", "o": size}


def desktop_names(folder: PurePath) -> tuple[str, ...]:
    """How Docker Desktop's virtual machine calls a folder of the computer (macOS; Windows)."""
    if isinstance(folder, PureWindowsPath):
        drive = folder.drive.rstrip(":").lower()
        return (f"/run/desktop/mnt/host/{drive}" + folder.as_posix().removeprefix(folder.drive),)
    return (f"/host_mnt{folder}",)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
