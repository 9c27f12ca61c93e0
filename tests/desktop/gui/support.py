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

Orders = list[tuple[str, Any]]
SHOTS = Path(__file__).parents[3] / "build" / "shots"


def wait_for(condition: Callable[[], object], what: str, patience_s: float = 30) -> None:
    """Run Qt's event loop until ``condition`` holds once: what a tray draws may be gone again a moment later."""
    loop, tick, clock = QEventLoop(), QTimer(interval=5), QElapsedTimer()
    clock.start()
    held = bool(condition())

    def look() -> None:
        nonlocal held
        held = held or bool(condition())
        if held or clock.elapsed() > patience_s * 1000:
            loop.quit()

    tick.timeout.connect(look)
    if not held:
        tick.start()
        loop.exec()
        tick.stop()
    assert held, f"{what}: not within {patience_s} s"


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
                # It may wait for a question from a window that waits for this thread.
                caller.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        assert not thread.is_alive()


def http(body: bytes, first: str = "HTTP/1.1 200 OK", length: int | None = None) -> Behaviour:
    """Answer with ``body``, properly."""

    def behave(caller: socket.socket) -> None:
        caller.recv(4096)
        caller.sendall(f"{first}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body)

    return behave


def agent(documents: dict[str, bytes], orders: list[tuple[str, Any]] | None = None) -> Behaviour:
    """Answers for an agent: the document of each resource; what is sent to one is kept in ``orders``."""

    def behave(caller: socket.socket) -> None:
        asked = caller.recv(65536)
        if not asked:
            return  # The window was closed before it had asked.
        head, _, body = asked.partition(b"\r\n\r\n")
        method, target = head.split(b" ", 2)[:2]
        name = target.decode().removeprefix("/v1/")
        if method == b"POST" and orders is not None:
            orders.append((name, json.loads(body)))
        found = documents.get(f"POST {name}" if method == b"POST" else name, documents.get(name))
        first = "HTTP/1.1 200 OK"
        if found is None:
            first, found = "HTTP/1.1 422 Unprocessable", b'{"detail": "the agent of this test cannot do that"}'
        caller.sendall(f"{first}\r\nContent-Length: {len(found)}\r\n\r\n".encode() + found)

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
        "job": "ab" * 16,
        "job_name": "tiny-llama",
        "stage": 1,
        "replica": 0,
        "state": "running",
        "reason": "",
        "round": 12,
        "step": 345,
        "loss": 2.3125,
    }
    return good | changes


def status(**changes: Any) -> bytes:
    """A status as an agent would send it."""
    good = {
        "node": "7Kq9dT3mVxXbq5rQ2nWgYh8sLpZcJfRtAeUvBnMkDiEo",
        "payout": "7Kq9dT3mVxXbq5rQ2nWgYh8sLpZcJfRtAeUvBnMkDiEo",
        "name": "attic",
        "coordinator": "https://cottage.example",
        "state": "online",
        "reason": "",
        "note": "",
        "pid": 1,
        "uptime": 60.0,
        "profile": {
            "name": "attic",
            "device": "NVIDIA GeForce RTX 4090",
            "kind": "cuda",
            "memory_mb": 24564,
            "flops": 1e13,
            "env_class": "x",
            "sandbox": "docker",
            "agent_version": "0.1.0",
        },
        "tasks": [],
        "links": [],
        "dropped": {},
        "verified": 153_240_000,
        "paid": 143_200_000,
        "today": 1_240_000,
        "week": 9_870_000,
        "meters": METERS,
        "max_celsius": 78,
        "memory_mb": 16000,
        "last_event": 7,
        "gpu": METERS["gpus"][0]["uuid"],
    }
    return json.dumps(good | changes).encode()


METERS = {
    "gpus": [
        {
            "index": 0,
            "name": "NVIDIA GeForce RTX 4090",
            "memory_mb": 24564,
            "percent": 97,
            "used_mb": 14540,
            "celsius": 67,
            "watts": 292.0,
            "power_cap": 300.0,
            "uuid": "GPU-5d1c0e2a-1111-2222-3333-444455556666",
        }
    ],
    "processor": 12.0,
    "jobs_mb": 3100,
    "up": 600_000.0,
    "down": 610_000.0,
}
SETTINGS = {
    "settings": {
        "coordinator": "https://cottage.example",
        "name": "attic",
        "payout": "",
        "sandbox": "docker",
        "threads": 0,
        "memory_mb": 16000,
        "image": "cottage-trainer:latest",
        "stake": 0,
        "floor": 0,
        "loopback": False,
        "up": 0,
        "down": 0,
        "month": 0,
        "polite": False,
        "always": False,
        "gpu": 0,
        "disk_gb": 20,
        "watts": 0,
        "electricity": 300_000,
        "currency": "EUR",
        "worth": 0,
        "bond": 0,
    },
    "address": "7Kq9dT3mVxXbq5rQ2nWgYh8sLpZcJfRtAeUvBnMkDiEo",
    "processors": 16,
    "memory_mb_here": 32000,
    "gpus": METERS["gpus"],
    "version": "0.1.0",
}
RULES = {
    "idle_minutes": 5,
    "on_battery": False,
    "for_games": True,
    "programs": ["blender"],
    "max_celsius": 78,
    "band_celsius": 6,
    "hours": ("0" * 8 + "1" * 16) * 7,
    "on_metered": False,
    "free_disk": 10.0,
    "own_vram": 6.0,
}
LIMITS = {
    "limits": {"up": 5_000_000, "down": None, "month": 500_000_000_000, "polite": True},
    "month": "2026-11",
    "used": 12_340_000_000,
    "applied": True,
}
TOLD = [
    ("job began", "info", {"name": "tiny-llama-code"}),
    ("lending", "info", {"state": "lending"}),
    ("lending", "info", {"state": "away", "cause": "game", "what": "bg3"}),
    ("paid", "info", {"amount": "1240000"}),
    ("job failed", "warning", {"name": "qwen3 (LoRA)", "why": "out of memory"}),
    ("earned", "info", {"amount": "1240000"}),
    ("started", "info", {}),
]
DAY_S = 86_400


ADA, OTHER = "5rArie7XKukPCaEwq5XGQJnM9Fc5aZE3M9HAPVfMU2xC", "9rArie7XKukPCaEwq5XGQJnM9Fc5aZE3M9HAPVfMU2xD"
IMAGES = [
    {
        "name": "sweep:1",
        "publisher": ADA,
        "size": 412_000_000,
        "memory_mb": 1024,
        "gpu": False,
        "accepted": True,
        "here": True,
    },
    {
        "name": "render:3",
        "publisher": OTHER,
        "size": 2_100_000_000,
        "memory_mb": 8192,
        "gpu": True,
        "accepted": False,
        "here": False,
    },
]
PUBLISHERS = {
    "publishers": [
        {"key": "3".ljust(44, "k"), "name": "Cottage", "since": 0.0, "own": True},
        {"key": ADA, "name": "Ada's lab", "since": 1_790_000_000.0},
    ],
    "images": IMAGES,
}


def documents(**changes: bytes) -> dict[str, bytes]:
    """Every document of an agent that has worked for a while."""
    now = time.time()
    amounts = (0, 620_000, 1_400_000, 2_100_000, 1_310_000, 3_200_000, 1_240_000)
    days = [
        {"day": time.strftime("%Y-%m-%d", time.localtime(now - (29 - n) * DAY_S)), "verified": amounts[n % 7] * (n > 9)}
        for n in range(30)
    ]

    def job(number: int, name: str, **more: Any) -> dict[str, Any]:
        first = {
            "job": f"{number:02}" * 16,
            "name": name,
            "coordinator": "https://cottage.example",
            "signature": "5x" * 30,
        }
        amounts = {
            "verified": 1_240_000,
            "paid": 1_240_000,
            "first": now - number * DAY_S,
            "changed": now,
            "seconds": 9000.0,
        }
        proof = "cottage ledger check " + f"{number:02}" * 16
        return first | amounts | {"standing": "paid", "reasons": [], "proof": proof} | more

    saving = {"why": "saving", "shares": 4, "amount": 1_240_000}
    failed = {"why": "failed", "detail": "out of memory"}
    jobs = [
        job(0, "tiny-llama-code", standing="working", paid=0),
        job(1, "a story teller", standing="pending", reasons=[saving], paid=0),
        job(2, "gpt2-jsonl"),
        job(3, "qwen3 (LoRA)", standing="not paid", reasons=[failed], verified=0, paid=0),
    ]
    earnings = {
        "verified": 153_240_000,
        "paid": 143_200_000,
        "wallet": None,
        "jobs": jobs,
        "today": 1_240_000,
        "week": 9_870_000,
        "days": days,
    }
    events = [
        {"number": 7 - n, "at": now - n * 3700, "severity": severity, "kind": kind, "text": kind, "detail": detail}
        for n, (kind, severity, detail) in enumerate(TOLD)
    ]
    found = {
        "earnings": earnings,
        "activity": {"events": events},
        "settings": SETTINGS,
        "lending": {"rules": RULES, "bound": True},
        "limits": LIMITS,
        "support": {"text": "Cottage 0.1.0\n<name> <address>\n"},
        "publishers": PUBLISHERS,
    }
    encoded = {name: json.dumps(one).encode() for name, one in found.items()}
    return {"status": status(tasks=[task(share=0.62)])} | encoded | changes
