"""A clean system in a folder: what debootstrap makes, with nothing of this machine's Python, Qt or libraries."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

MIRRORS = {
    "bookworm": "http://deb.debian.org/debian",
    "trixie": "http://deb.debian.org/debian",
    "jammy": "http://archive.ubuntu.com/ubuntu",
}
COMPONENTS = {"jammy": "main,universe"}  # What an Ubuntu desktop has from the beginning.
BASE = ("/proc", "/dev")
PACKAGES_S, COMMAND_S = 900, 120


def missing() -> list[str]:
    """What this machine lacks to make one."""
    lacking = [name for name in ("debootstrap", "unshare", "chroot") if shutil.which(name) is None]
    return lacking if os.geteuid() == 0 else [*lacking, "root"]


class Tree:
    """One system; ``user`` is an ordinary user without a password."""

    USER = 4242

    def __init__(self, folder: Path, release: str) -> None:
        """Make the system ``release`` in ``folder``; a minute or two."""
        self.release = release
        self._root = folder / release
        parts = f"--components={COMPONENTS.get(release, 'main')}"
        words = ("debootstrap", "--variant=minbase", parts, release, str(self._root), MIRRORS[release])
        done = subprocess.run(words, capture_output=True, text=True, timeout=PACKAGES_S, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
        shutil.copy("/etc/resolv.conf", self._root / "etc" / "resolv.conf")
        self.run("useradd", "--create-home", "--uid", str(self.USER), "owner")

    def file(self, path: str) -> Path:
        """A file of the system, seen from outside."""
        return self._root / path.lstrip("/")

    def words(
        self,
        *words: str,
        user: int = 0,
        env: Mapping[str, str] | None = None,
        shared: Mapping[Path, Path] | None = None,
    ) -> list[str]:
        """The command line that runs ``words`` in the system, whose mounts end with it.

        Args:
            user: its number.
            env: all that the program finds.
            shared: what of this machine the system has, and where; the place of a file must exist.
        """
        lines = ["set -e"]
        for path, place in ({Path(base): Path(base) for base in BASE} | dict(shared or {})).items():
            inside = self.file(str(place))
            lines += [f"mkdir -p {shlex.quote(str(inside))}"] if path.is_dir() else []
            lines.append(f"mount --rbind {shlex.quote(str(path))} {shlex.quote(str(inside))}")
        found = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LANG": "C.UTF-8", **(env or {})}
        program = ["env", "-i", *(f"{name}={value}" for name, value in found.items()), *words]
        lines.append(f"exec chroot --userspec={user}:{user} {shlex.join([str(self._root), *program])}")
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines)]

    def run(self, *words: str, env: Mapping[str, str] | None = None, limit: int = COMMAND_S) -> str:
        """Run a command in the system as root, to its end; returns what it prints."""
        done = subprocess.run(self.words(*words, env=env), capture_output=True, text=True, timeout=limit, check=False)
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def install(self, *packages: str) -> None:
        """Have apt install packages, and what they need, and nothing that they only recommend."""
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        self.run("apt-get", "-q", "update", env=quiet, limit=PACKAGES_S)
        self.run("apt-get", "-qy", "--no-install-recommends", "install", *packages, env=quiet, limit=PACKAGES_S)
