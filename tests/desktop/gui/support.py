"""Waiting with Qt's event loop running, and a listener that answers as badly as a test wants."""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PySide6.QtCore import QElapsedTimer, QEventLoop, QTimer
from PySide6.QtWidgets import QWidget

SHOTS = Path(__file__).parents[3] / "build" / "screenshots"


def wait_for(condition: Callable[[], object], what: str, patience_s: float = 30) -> None:
    """Run Qt's event loop until ``condition`` holds."""
    loop, tick, clock = QEventLoop(), QTimer(interval=5), QElapsedTimer()
    clock.start()
    tick.timeout.connect(lambda: loop.quit() if condition() or clock.elapsed() > patience_s * 1000 else None)
    tick.start()
    if not condition():
        loop.exec()
    tick.stop()
    assert condition(), f"{what}: not within {patience_s} s"


class Pulse:
    """How long the event loop has been held up at most, in milliseconds."""

    def __init__(self) -> None:
        self.longest = 0
        self._clock = QElapsedTimer()
        self._clock.start()
        self._timer = QTimer(interval=10)
        self._timer.timeout.connect(self._beat)
        self._timer.start()

    def _beat(self) -> None:
        self.longest = max(self.longest, self._clock.restart())


def save_picture(widget: QWidget, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    assert widget.grab().save(str(SHOTS / f"{name}.png"))


Behaviour = Callable[[socket.socket], None]


@contextlib.contextmanager
def listener(path: Path, behave: Behaviour) -> Iterator[None]:
    """Something on the agent's socket that is no agent: each caller meets ``behave``."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_RDONLY)
    server.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)
    server.listen(16)

    callers: list[socket.socket] = []
    closing = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = server.accept()
                callers[:] = [caller]
                with contextlib.suppress(OSError), caller:
                    if closing.is_set():
                        return
                    behave(caller)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for caller in callers:
            with contextlib.suppress(OSError):
                caller.shutdown(
                    socket.SHUT_RDWR
                )  # It may wait for a question from a window that waits for this thread.
        thread.join(10)
        assert not thread.is_alive()


def http(body: bytes, first: str = "HTTP/1.1 200 OK", length: int | None = None) -> Behaviour:
    """Answer with ``body``, properly."""

    def behave(caller: socket.socket) -> None:
        caller.recv(4096)
        caller.sendall(f"{first}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body)

    return behave


def raw(data: bytes) -> Behaviour:
    """Send ``data`` and nothing else."""

    def behave(caller: socket.socket) -> None:
        caller.recv(4096)
        caller.sendall(data)

    return behave


def endless(piece: bytes, pause_s: float = 0) -> Behaviour:
    """Send ``piece`` again and again until the caller has had enough."""

    def behave(caller: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller.sendall(piece)
                time.sleep(pause_s)

    return behave


def silent(caller: socket.socket) -> None:
    """Take the question, and keep quiet until the caller leaves."""
    while caller.recv(4096):
        pass


def task(**changes: Any) -> dict[str, Any]:
    good = {
        "job": "ab" * 16, "job_name": "tiny-llama", "stage": 1, "replica": 0, "state": "running", "reason": "",
        "round": 12, "step": 345, "loss": 2.3125,
    }  # fmt: skip
    return good | changes


def status(**changes: Any) -> bytes:
    """A status as an agent would send it."""
    good = {
        "node": "7Kq9dT3mVxXbq5rQ2nWgYh8sLpZcJfRtAeUvBnMkDiEo", "payout": "7Kq9dT3mVxXbq5rQ2nWgYh8sLpZcJfRtAeUvBnMkDiEo",
        "name": "attic", "coordinator": "https://cottage.example", "state": "online", "reason": "", "note": "", "pid": 1,
        "uptime": 60.0,
        "profile": {"name": "attic", "device": "NVIDIA GeForce RTX 4090", "kind": "cuda", "memory_mb": 24564,
                    "flops": 1e13, "env_class": "x", "sandbox": "docker", "agent_version": "0.1.0"},
        "tasks": [], "links": [], "dropped": {}, "verified": 1_240_000, "paid": 143_200_000,
    }  # fmt: skip
    return json.dumps(good | changes).encode()
