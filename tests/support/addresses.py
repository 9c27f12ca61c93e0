"""This machine's own addresses and ports, for tests that listen on them."""

import contextlib
import socket
from pathlib import Path


def link_local() -> list[str]:
    """This machine's addresses that need their interface's name, where it has any."""
    table = Path("/proc/net/if_inet6")
    lines = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    return [f"{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(a))}%{name}" for a, *_, name in lines if a[:3] == "fe8"]


def free_port() -> int:
    """A port of 127.0.0.1 that was free for UDP and TCP a moment ago."""
    while True:
        with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            port: int = tcp.getsockname()[1]
            with contextlib.suppress(OSError):
                udp.bind(("127.0.0.1", port))
                return port
