"""Leaves a computer as it was: the agent ended, nothing that starts again, no containers, images or files. The key stays.

The packages' removers use it, and ``cottage node uninstall``. What is worth money (the node's key, and the coordinators'
promises that only it can claim) goes only where its owner says so in so many words.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from common.own_folders import cache_folder
from desktop.agent.app import status
from desktop.agent.app.autostart import Autostart
from desktop.agent.base.config import Home
from desktop.agent.base.file_lock import holder
from desktop.agent.base.log import LOG
from desktop.agent.errors import AgentError, HomeBusyError, NoEngineError

END_S = 90.0  # Twenty seconds for a worker to hand over, as the unit's own limit.
LOOK_S = 0.2
IMAGES = ("cottage-trainer", "*/cottage-trainer")
WORTH = frozenset({"node.key", "promises"})


class Removed(msgspec.Struct, frozen=True):
    """What went. ``address``: the node whose key was deleted, or is still here; ``kept``: why something stays."""

    stopped: bool
    containers: int
    images: int
    address: str
    key_kept: bool
    kept: str = ""


def uninstall(home: Home, *, images: bool = True, data: bool = True, keys: bool = False) -> Removed:
    """End the agent of ``home`` politely and remove what it left.

    Args:
        images: the sandbox images; ``data``: settings, cache, states, history; ``keys``: the key and the promises, too.
    Raises:
        HomeBusyError: the agent does not end.
    """
    Autostart.of(home).leave()
    stopped = stop(home)
    with home.locked():
        address = home.key().address if (home.path / "node.key").exists() else ""
        containers, gone, kept = _from_engine(home, images)
        if data:
            _empty(home, keys)
            if home.is_usual:
                shutil.rmtree(cache_folder(), ignore_errors=True)
    with contextlib.suppress(OSError):  # Something is left in them.
        if data:
            home.lock.unlink()
            home.path.rmdir()
            home.path.parent.rmdir()
    key_kept = (home.path / "node.key").exists()
    return Removed(stopped, containers, gone, address, key_kept, kept)


def stop(home: Home) -> bool:
    """End the agent of ``home`` and wait until it has handed over; whether there was one.

    Raises:
        HomeBusyError: it does not end.
    """
    stopped, until = False, time.monotonic() + END_S
    while True:
        try:
            with home.locked():
                return stopped
        except HomeBusyError:
            if time.monotonic() > until:
                raise
        if not stopped:
            stopped = _ask(home)
        time.sleep(LOOK_S)


def stop_everybodys(program: Path) -> int:
    """End the agents of all users that run ``program`` and wait for them, as root; returns how many ran."""
    running = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _runs(pid, program)]
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + END_S
    while any(_runs(pid, program) for pid in running) and time.monotonic() < until:
        time.sleep(LOOK_S)
    return len(running)


def _runs(pid: int, program: Path) -> bool:
    """``pid`` is an agent of ``program``, rather than this very process."""
    running = Path(f"/proc/{pid}/exe")
    try:
        if pid == os.getpid():
            return False
        # An upgrade puts another file in its place, while it still runs the one that is gone.
        return str(running.readlink()) == f"{program.resolve()} (deleted)" or running.samefile(program)
    except OSError:
        return False  # It has ended.


def _ask(home: Home) -> bool:
    """Ask whoever holds the home to end; whether that could be asked."""
    if sys.platform == "win32":  # There a signal would end it at once, in the middle of its work.
        try:
            asyncio.run(status.ask_leave(home.socket))
        except AgentError:
            return False
        return True
    pid = holder(home.lock)
    if pid is None:
        return False  # It is only just starting.
    with contextlib.suppress(OSError):  # It has ended.
        os.kill(pid, signal.SIGTERM)
    return True


def _from_engine(home: Home, images: bool) -> tuple[int, int, str]:
    """Containers and images that went, and why not where the engine cannot be asked."""
    from desktop.agent.sandbox.docker import connect, owner_of, remove_containers

    try:
        client = connect()
    except NoEngineError:
        return (
            0,
            0,
            "no Docker engine answers; containers end with it, but images stay: docker image ls shows them" * images,
        )
    try:
        owner = owner_of(home.path)
        owners = (owner, *(owner_of(card) for card in home.cards.glob("GPU-*")))
        containers = sum(remove_containers(client, one) for one in owners)
        gone = _quietly(lambda: _remove_images(client) + _remove_element_images(client, owner)) if images else 0
        return containers, gone, ""
    except AgentError as error:
        return 0, 0, str(error)
    finally:
        client.close()


def _remove_images(client: Any) -> int:
    found = {image.id for name in IMAGES for image in client.images.list(filters={"reference": name})}
    for image in found:
        client.images.remove(image, force=True)
    return len(found)


def _remove_element_images(client: Any, owner: str) -> int:
    """Images of array jobs, by the names that this home gave them: another home may have the same ones."""
    from desktop.agent.sandbox.containers import element_images, element_repository

    found = element_images(client, owner)
    for artifact in found:
        client.images.remove(f"{element_repository(owner)}:{artifact}")
    return len(found)


def _quietly(work: Callable[[], int]) -> int:
    import requests
    from docker.errors import DockerException

    try:
        return work()
    except (DockerException, requests.RequestException) as error:
        LOG.warning("the engine kept an image: %s", error)
        return 0


def _empty(home: Home, keys: bool) -> None:
    for entry in home.path.iterdir():
        if entry == home.lock or (entry.name in WORTH and not keys):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
