"""The first program of a worker's pod: takes from itself what a pod cannot refuse, looks whether it is gone, and goes on.

A pod always has a network, whatever a NetworkPolicy says of it, and a cluster's own filter of system calls lets it be used.
So this text installs a filter of its own before any code of a job is there. The kernel keeps such a filter for all that is
started from here, and nobody inside takes it off: seccomp(2). The agent sends this text, so no image can leave it out.

``python3 -I -S -c TEXT processes cpu_seconds file_mb NEXT arguments``: ``NEXT`` is the text of the program that follows. Only the
standard library. It says why on standard error, and ends with ``LEAK``, where a way out is open.
"""

import ctypes
import os
import platform
import resource
import socket
import struct
import sys

assert sys.platform != "win32", "it runs in a container of Linux"

LEAK = 97  # As in ``sandbox.egress``.
OPEN_FILES = 4096
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
NEW_SPACES = 0x7E020000  # CLONE_NEWNS, CLONE_NEWCGROUP to CLONE_NEWNET.
AF_UNIX = 1
X32 = 0x40000000  # Another set of numbers for the same calls.
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # Offsets in struct seccomp_data.
# Of each architecture: its own number, socket, socketpair, clone, and what nobody here needs.
MACHINES = {
    "x86_64": (
        0xC000003E, 41, 53, 56,
        (
            101, 310, 311, 272, 308, 165, 166, 155, 161, 321, 248, 249, 250, 323, 298, 304, 303, 246, 320, 175, 313,
            176, 169, 103, 167, 168, 179, 172, 173, 256, 279, 312, 164, 227,
        ),
    ),
    "aarch64": (
        0xC00000B7, 198, 199, 220,
        (
            117, 270, 271, 97, 268, 40, 39, 41, 51, 280, 217, 218, 219, 282, 241, 265, 264, 104, 294, 105, 273, 106,
            142, 116, 224, 225, 60, 238, 239, 272, 170, 112,
        ),
    ),
}  # fmt: skip
"""ptrace, process_vm_*, unshare, setns, mount, umount2, pivot_root, chroot, bpf, add_key, request_key, keyctl, userfaultfd,
perf_event_open, open_by_handle_at, name_to_handle_at, kexec, modules, reboot, syslog, swap, quotas, ports, moving of pages, kcmp,
clocks."""
EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442)  # io_uring, the newer ways to mount, pidfd_getfd.
CLONE3 = 435


def program(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter, as instructions of classic BPF: code, jump if true, jump if false, value."""
    architecture, open_socket, socket_pair, clone, refused = MACHINES[machine]
    lines = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),  # 32-bit programs have other numbers.
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32),
        (RETURN, 0, 0, ERRNO | ENOSYS),
    ]
    for number in (*refused, *EVERYWHERE):
        lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | EPERM)]
    # Its flags are in memory; libraries fall back to clone.
    lines += [
        (EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, ERRNO | ENOSYS),
    ]
    lines += [
        (EQUAL, 0, 3, clone),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 0, 6, NEW_SPACES),
        (RETURN, 0, 0, ERRNO | EPERM),
        (EQUAL, 1, 0, open_socket),
        (EQUAL, 0, 3, socket_pair),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (EQUAL, 1, 0, AF_UNIX),
        (RETURN, 0, 0, ERRNO | EAFNOSUPPORT),
        (RETURN, 0, 0, ALLOW),
    ]
    return lines


def restrict() -> None:
    """Put the filter in force; raises OSError where the kernel does not take it."""
    lines = program(platform.machine())
    code = b"".join(struct.pack("=HBBI", *line) for line in lines)
    text = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    found = Program(len(lines), ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_filter, by_program = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(set_filter, by_program, ctypes.byref(found), 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


def limit(processes: int, cpu_seconds: int, file_mb: int) -> None:
    """What a pod cannot ask for: open files, no core files, processes of its user, processor time of one, size of one file.

    Scratch has a size of its own. ``/dev/termination-log`` has none, though it is on the disk and anybody in a pod writes to it.
    """
    wanted = [
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_FSIZE, file_mb << 20),
    ]
    for kind, most in [*wanted, *([(resource.RLIMIT_CPU, cpu_seconds)] if cpu_seconds else [])]:
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def open_ways() -> list[str]:
    """Families of sockets that lead out, and can be had."""
    found = []
    for name in ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_BLUETOOTH", "AF_ALG"):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            try:
                socket.socket(getattr(socket, name), kind).close()
            except (OSError, AttributeError):
                continue
            found.append("a socket of " + name)
            break
    return found


def tell(text: str) -> None:
    """The last words: on standard error, and where Kubernetes takes them from for a container's state."""
    os.write(2, text.encode() + b"\n")
    try:
        with open("/dev/termination-log", "r+") as file:
            file.write(text)
    except OSError:
        return  # No pod.


def main() -> None:
    """Restrict, look, and become the next program."""
    processes, cpu_seconds, file_mb, following, *arguments = sys.argv[1:]
    limit(int(processes), int(cpu_seconds), int(file_mb))
    restrict()
    if found := open_ways():
        tell(", ".join(found))
        os._exit(LEAK)
    os.execv(sys.executable, [sys.executable, "-c", following, *arguments])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
