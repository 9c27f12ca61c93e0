"""Whose package the Docker engine is on this distribution. Pure."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

PAGE = "https://docs.docker.com/engine/install/"
DESKTOP_PAGE = "https://docs.docker.com/get-started/get-docker/"  # Of Windows and macOS.


@dataclass(frozen=True)
class EngineSource:
    """``manager``: a word that ``install-engine.sh`` takes; ``package``: what it installs; ``command``: the same by hand."""

    manager: str
    package: str
    command: str


SOURCES = {
    "apt": EngineSource("apt", "docker.io", "sudo apt-get install docker.io"),
    "dnf": EngineSource("dnf", "moby-engine", "sudo dnf install moby-engine"),
    "pacman": EngineSource("pacman", "docker", "sudo pacman -S docker"),
    "zypper": EngineSource("zypper", "docker", "sudo zypper install docker"),
}
_FAMILIES = {
    "debian": "apt",
    "ubuntu": "apt",
    "fedora": "dnf",
    "arch": "pacman",
    "suse": "zypper",
    "opensuse": "zypper",
}
_TOOLS = {"apt": "apt-get"}
# The first has no engine among its packages, the second a system that is read only.
_OTHERS = frozenset({"rhel", "steamos"})
START = "sudo systemctl enable --now docker"
ALLOW = "sudo usermod -aG docker $USER"


def os_release(text: str) -> dict[str, str]:
    """``/etc/os-release`` taken apart (os-release(5)); lines that are none are left out."""
    found = {}
    for line in text.splitlines():
        name, mark, value = line.strip().partition("=")
        if not mark or name.startswith("#"):
            continue
        try:
            found[name] = "".join(shlex.split(value))
        except ValueError:
            continue
    return found


def source_of(release: Mapping[str, str], has: Callable[[str], bool]) -> EngineSource | None:
    """The engine of the distribution that ``release`` names, or of the one that it is made of; None where none is known.

    Args:
        has: whether there is a program of this name.
    """
    kinds = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    if _OTHERS & set(kinds) or has("rpm-ostree"):
        return None
    for kind in kinds:
        manager = _FAMILIES.get(kind.partition("-")[0])
        if manager is not None and has(_TOOLS.get(manager, manager)):
            return SOURCES[manager]
    return None


def commands(why: str, source: EngineSource | None) -> str:
    """What people type instead; ``why``: what is missing, as the agent says. Empty where it is not known."""
    if why == "stopped":
        return f"{START} && {ALLOW}"
    if why == "denied":
        return ALLOW
    return "" if source is None else f"{source.command} && {START} && {ALLOW}"


def fault_of(code: int, log: str) -> str:
    """What an exit code of ``pkexec install-engine.sh`` means, in a word; "" where all went well.

    ``log``: what the script and the tools have said, in English.
    """
    if code == 10 and any(word in log for word in _NO_NETWORK):
        return "network"
    return _CODES.get(code, "failed")


_CODES = {0: "", 10: "packages", 11: "service", 12: "user", 20: "login", 126: "cancelled", 127: "refused"}
_NO_NETWORK = (
    "Temporary failure resolving",
    "Could not resolve",
    "Could not connect",
    "Failed to fetch",
    "Curl error",
    "failed retrieving file",
    "Download (curl) error",
    "Network is unreachable",
)
