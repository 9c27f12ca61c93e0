"""Runs inside the sandbox as a job would, tries what no job may do, and tells the errors (names of errno, or "done")."""

import ctypes
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER = 0x10000000
SYSCALLS = {  # x86-64
    "unshare": (272, CLONE_NEWUSER),
    "clone a user namespace": (56, CLONE_NEWUSER | 17, 0, 0, 0, 0),
    "clone3": (435, 0, 0),
    "mount": (165, 0, 0, 0, 0, 0),
    "ptrace": (101, 0, 0, 0, 0),
    "bpf": (321, 0, 0, 0),
    "keyctl": (250, 0, 0, 0, 0, 0),
    "io_uring_setup": (425, 1, 0),
    "userfaultfd": (323, 0),
    "perf_event_open": (298, 0, 0, 0, 0, 0),
    "pivot_root": (155, 0, 0),
    "kexec_load": (246, 0, 0, 0, 0),
    "init_module": (175, 0, 0, 0),
    "reboot": (169, 0, 0, 0),
    "settimeofday": (164, 0, 0),
    "open_by_handle_at": (304, 0, 0, 0),
    "process_vm_readv": (310, 1, 0, 0, 0, 0, 0),
}
FAMILIES = {"inet": 2, "inet6": 10, "netlink": 16, "packet": 17, "alg": 38, "vsock": 40}


def attempt(action: Callable[[], object]) -> str:
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "done"


def syscall(number: int, *arguments: int) -> str:
    result = LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(value) for value in arguments))
    if result == 0 and number == 56:
        os._exit(0)  # The child of a clone that was let through.
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def write(path: str) -> str:
    return attempt(lambda: open(os.path.join(path, "probe.txt"), "w").close())


def fill(path: str, limit_mb: int) -> str:
    def run() -> None:
        with open(path, "wb", buffering=0) as file:
            for _ in range(limit_mb):
                file.write(b"x" * (1 << 20))

    try:
        return attempt(run)
    finally:
        os.unlink(path)


def run_from_tmp() -> str:
    with open("/tmp/program", "w") as file:
        file.write("#!/usr/local/bin/python3\n")
    os.chmod("/tmp/program", 0o755)
    return attempt(lambda: subprocess.run(["/tmp/program"], check=False))


def forks() -> int:
    children = []
    reading, writing = os.pipe()
    try:
        for _ in range(2000):
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                os.read(reading, 1)
                os._exit(0)
            children.append(pid)
    except OSError:
        pass
    os.close(writing)
    for pid in children:
        os.waitpid(pid, 0)
    return len(children)


def status() -> dict[str, str]:
    with open("/proc/self/status") as file:
        lines = dict(line.rstrip("\n").split(":", 1) for line in file)
    names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups")
    return {name: lines[name].strip() for name in names}


def mounts() -> dict[str, str]:
    with open("/proc/mounts") as file:
        return {line.split()[1]: line.split()[3].split(",")[0] for line in file}


def findings() -> dict[str, object]:
    places = ("/", "/job", "/usr", "/opt/cottage/trainer", "/etc", "/proc/sys/kernel", "/sys", "/dev/shm", "/tmp")
    return {
        "sockets": {
            name: attempt(lambda family=family: socket.socket(family, socket.SOCK_RAW))
            for name, family in FAMILIES.items()
        },
        "unix": attempt(lambda: socket.socket(socket.AF_UNIX)),
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "writes": {place: write(place) for place in places},
        "unlink of the socket": attempt(lambda: os.unlink("/job/worker.sock")),
        "filling /tmp": fill("/tmp/large", 400),
        "running from /tmp": run_from_tmp(),
        "status": status(),
        "setuid": attempt(lambda: os.setuid(0)),
        "chown": attempt(lambda: os.chown("/tmp", 0, 0)),
        "nice": attempt(lambda: os.nice(-5)),
        "mknod": attempt(lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(254, 0))),
        "signal to the first process": attempt(lambda: os.kill(1, 9)),
        "syscalls": {name: syscall(*call) for name, call in SYSCALLS.items()},
        "forks": forks(),
        "job": sorted(os.listdir("/job")) if not os.path.islink("/job") else [],
        "mounts": mounts(),
        "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
        "docker": os.path.exists("/var/run/docker.sock"),
        "environment": sorted(os.environ),
        "processors": os.cpu_count(),
    }


if __name__ == "__main__":
    result = json.dumps(findings()).encode()
    if "--stdio" in sys.argv:
        sys.stdout.buffer.write(result)
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(sys.argv[sys.argv.index("--socket") + 1])
        connection.sendall(result)
        connection.close()
