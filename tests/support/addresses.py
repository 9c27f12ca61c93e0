"""This machine's own addresses, for tests that listen on them."""

import socket
from pathlib import Path


def link_local() -> list[str]:
    """This machine's addresses that need their interface's name, where it has any."""
    table = Path("/proc/net/if_inet6")
    lines = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    return [f"{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(a))}%{name}" for a, *_, name in lines if a[:3] == "fe8"]
