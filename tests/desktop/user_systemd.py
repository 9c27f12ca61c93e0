"""A real ``systemd --user`` for a test, in a mount namespace of its own, on systems that systemd has not booted, too."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYSTEMD = "/lib/systemd/systemd"
RUNTIME = "/run/user/0"
HIERARCHIES = [path for path in map(Path, ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")) if path.is_dir()] or [
    Path("/sys/fs/cgroup")
]
LACKING = [name for name in ("systemctl", "unshare", "nsenter") if shutil.which(name) is None]
LACKING += [] if Path(SYSTEMD).exists() else ["systemd"]
LACKING += [] if os.geteuid() == 0 else ["root, for a mount namespace"]


@dataclass(frozen=True)
class UserSystemd:
    """The manager of the user whose home is ``home``."""

    pid: int
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": RUNTIME,
            "LANG": "C.UTF-8",
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_DATA_HOME": str(self.home / ".local/share"),
            "XDG_CACHE_HOME": str(self.home / ".cache"),
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of that user, who sees that manager."""
        command = ("nsenter", f"--mount=/proc/{self.pid}/ns/mnt", *words)
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """A program of that user, outside of the manager; its process is the one that is returned."""
        command = ("nsenter", f"--mount=/proc/{self.pid}/ns/mnt", *words)
        return subprocess.Popen(command, env=self.environment, start_new_session=True)

    def ctl(self, *words: str) -> str:
        """What ``systemctl --user`` prints."""
        done = self.run("systemctl", "--user", *words)
        return (done.stdout or done.stderr).strip()


@contextlib.contextmanager
def user_systemd(home: Path) -> Iterator[UserSystemd | None]:
    """The manager, until the end; None where the kernel does not let one start."""
    groups = [hierarchy / f"cottage-test-{os.getpid()}" for hierarchy in HIERARCHIES]
    joined = " ".join(f"{group}/cgroup.procs" for group in groups)
    script = (
        f"for file in {joined}; do echo $$ >$file || exit 3; done; mount -t tmpfs tmpfs /run && "
        f"mkdir -p -m 700 /run/systemd/system {RUNTIME} && exec {SYSTEMD} --user --unit=default.target"
    )
    manager = UserSystemd(0, home)
    log = home / "systemd.log"
    with contextlib.suppress(OSError):
        for group in groups:
            group.mkdir()
    with log.open("wb") as output:
        process = subprocess.Popen(
            ("unshare", "--mount", "--propagation", "private", "sh", "-c", script),
            env=manager.environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    manager = UserSystemd(process.pid, home)
    try:
        yield manager if _answers(manager, process) else None
    finally:
        if process.poll() is None:
            manager.ctl("exit")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        process.kill()
        process.wait()
        for group in groups:
            for folder in sorted(group.rglob("*/"), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            with contextlib.suppress(OSError):
                group.rmdir()


def _answers(manager: UserSystemd, process: subprocess.Popen[bytes]) -> bool:
    until = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < until:
        if manager.ctl("is-system-running") in ("running", "degraded"):
            return True
        time.sleep(0.1)
    return False
