"""A private Docker engine for tests and CI: ``python -m installer.image.engine start|stop DIR``, then ``DOCKER_HOST=unix://DIR/docker.sock``.

It has no bridge and no packet filter, so it leaves the host's network alone; jobs have no network anyway.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import docker
import requests
from docker.errors import DockerException

START_S = 30.0  # It answers within a second on an idle machine.
STOP_S = 20.0
LOOK_S = 0.1
ENGINE = "dockerd"
MAX_FOLDER_BYTES = 60  # Sockets lie up to 47 bytes deeper, and the kernel takes 107.


class EngineError(Exception):
    """The engine cannot be started or stopped."""


def address(folder: Path) -> str:
    """What ``DOCKER_HOST`` must be for the engine in ``folder``."""
    return f"unix://{folder / 'docker.sock'}"


def answers(host: str) -> bool:
    """Whether an engine answers there."""
    try:
        client = docker.DockerClient(host, timeout=5)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except (DockerException, requests.RequestException):
        return False


def start(folder: Path) -> str:
    """Start an engine that keeps everything in ``folder``; returns its address once it answers.

    Raises:
        EngineError: it is not installed, ended at once, or does not answer; or the folder's path is too long.
    """
    folder = folder.resolve()
    if len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
        raise EngineError(f"{folder} is too deep for the engine's sockets: at most {MAX_FOLDER_BYTES} bytes")
    folder.mkdir(parents=True, exist_ok=True)
    host = address(folder)
    if answers(host):
        return host
    with (folder / "dockerd.log").open("wb") as log:
        try:
            process = subprocess.Popen(
                _command(folder, host), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        except FileNotFoundError:
            raise EngineError(f"{ENGINE} is not installed: apt-get install docker.io iptables") from None
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if answers(host):
            return host
        if process.poll() is not None:
            break
        time.sleep(LOOK_S)
    process.terminate()
    process.wait()
    tail = (folder / "dockerd.log").read_text(errors="replace")[-2000:]
    raise EngineError(f"{ENGINE} does not answer on {host}:\n{tail}")


def stop(folder: Path) -> None:
    """End the engine of ``folder`` and everything in it; the folder can be removed then.

    Raises:
        EngineError: it does not end, or what it mounted cannot be unmounted.
    """
    folder = folder.resolve()
    try:
        pid = int((folder / "dockerd.pid").read_text())
        os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        pass
    else:
        _await_end(pid)
    for place in reversed(mounts(folder)):  # The engine leaves its network namespace mounted, and all if it was killed.
        left = subprocess.run(["umount", "--lazy", str(place)], capture_output=True, text=True, check=False)
        if left.returncode:
            raise EngineError(f"{place} cannot be unmounted: {left.stderr.strip()}")


def mounts(folder: Path) -> list[Path]:
    """What is mounted below ``folder``, the oldest first; nothing where the system has no list of mounts (proc(5))."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except FileNotFoundError:
        return []
    places = (Path(line.split()[4].replace("\\040", " ")) for line in lines)
    return [place for place in places if place.is_relative_to(folder)]


def _await_end(pid: int) -> None:
    deadline = time.monotonic() + STOP_S
    while Path(f"/proc/{pid}").exists() and not _is_zombie(pid):
        if time.monotonic() > deadline:
            raise EngineError(f"{ENGINE} (process {pid}) has not ended within {STOP_S:.0f} s")
        time.sleep(LOOK_S)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _command(folder: Path, host: str) -> list[str]:
    places = ["-H", host, "--data-root", str(folder / "root"), "--exec-root", str(folder / "exec")]
    quiet = ["--iptables=false", "--ip6tables=false", "--bridge=none", "--ip-forward=false", "--ip-masq=false"]
    return [ENGINE, *places, "--pidfile", str(folder / "dockerd.pid"), *quiet]


def main(argv: Sequence[str] | None = None) -> int:
    """Start or stop; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m installer.image.engine", description=__doc__)
    parser.add_argument("action", choices=("start", "stop"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    try:
        if options.action == "start":
            sys.stdout.write(f"DOCKER_HOST={start(options.folder)}\n")
        else:
            stop(options.folder)
    except EngineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
