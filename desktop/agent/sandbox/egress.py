"""The last look before a job begins, from inside its own container: no way out may be open.

``network_mode=none`` and the seccomp profile are asked for, and read back from the engine; this asks the kernel. The first
program of a container tries every family of sockets that leads out and looks for interfaces that are up; only where there
is none does it become the worker (``execv``). It is the agent's own text, so an image cannot leave it out.
"""

LEAK = 97  # Exit code; no program of ours has it.
PROBE = f"""
import os, socket, sys
open_ways = []
for name in ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_BLUETOOTH"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            socket.socket(getattr(socket, name), kind).close()
        except (OSError, AttributeError):
            continue
        open_ways.append("a socket of " + name)
        break
for name in os.listdir("/sys/class/net"):
    with open("/sys/class/net/" + name + "/flags") as file:
        if name != "lo" and int(file.read(), 16) & 1:
            open_ways.append("the interface " + name)
if open_ways:
    print(", ".join(open_ways), file=sys.stderr, flush=True)
    os._exit({LEAK})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
ARGUMENTS = ("-I", "-S", "-c", PROBE)
"""Before the arguments that ``python3`` gets for the worker."""


def leaked(said: str) -> str:
    """The reason of a job that was not begun."""
    return f"the job was not begun, for its container has a way out: {said or 'it is not known which'}"
