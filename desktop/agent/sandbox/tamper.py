"""Who reaches into a job's container is seen, and the job ends within a fraction of a second.

The engine tells everything that goes through it as events: ``exec``, ``attach``, copies out and in, ``commit``, ``export``,
changed limits, a network that is connected. What does not go through it (``nsenter``, reading the engine's folders, a
debugger: root on this computer) is not seen: docs/explanation/threat-model.md. Reading logs and statistics makes no event, and
shows nothing of a job.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import requests
from docker.errors import DockerException

from desktop.agent.base.log import LOG, printable

WAYS = {
    "exec_create": "a command was run in it",
    "exec_start": "a command was run in it",
    "attach": "somebody attached to it",
    "archive-path": "a file was copied out of it",
    "extract-to-dir": "a file was copied into it",
    "commit": "an image was made of it",
    "export": "its files were exported",
    "update": "its limits were changed",
    "checkpoint": "its memory was written to disk",
    "connect": "it was connected to a network",
}
MAX_REPLAYED = 256  # The engine remembers as many events; who makes more of them while nobody listens may hide one.
RETRY_S = 0.5


class Watch:
    """Follows the engine's events in a thread of its own, from ``start`` to ``close``."""

    def __init__(
        self,
        connect: Callable[[], Any],
        seen: Callable[[str, str], None],
        died: Callable[[str], None] = lambda _container: None,
    ) -> None:
        """``connect``: a client of its own; ``seen(container, how)`` is called in the thread, with "" for: all of them.
        ``died(container)``: it has ended by itself, or was ended."""
        self._connect, self._seen, self._died = connect, seen, died
        self._closed = threading.Event()
        self._following = threading.Event()
        self._since = 0.0
        self._known: deque[tuple[int, str, str]] = deque(maxlen=MAX_REPLAYED)
        self._events: Any = None
        self._thread = threading.Thread(target=self._run, name="tamper-watch", daemon=True)

    def start(self) -> None:
        """Begin; returns once events come, or after a while where the engine does not answer."""
        self._since = time.time()
        self._thread.start()
        self._following.wait(RETRY_S * 4)

    def close(self) -> None:
        """Stop following."""
        self._closed.set()
        with contextlib.suppress(Exception):  # Whatever the engine's client makes of a stream that is cut.
            if self._events is not None:
                self._events.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._follow()
            except (DockerException, requests.RequestException, OSError, ValueError, AttributeError) as error:
                if not self._closed.is_set():
                    LOG.warning("the engine's events ended, trying again: %s", printable(str(error)))
            self._closed.wait(RETRY_S)

    def _follow(self) -> None:
        client = self._connect()
        try:
            begun, replayed = time.time(), 0
            self._events = client.events(decode=True, since=self._since, filters={"type": ["container", "network"]})
            self._following.set()
            for event in self._events:
                at = event.get("timeNano", 0) / 1e9
                replayed += at < begun
                if replayed >= MAX_REPLAYED:
                    self._seen("", "more happened at the engine than it remembers")
                    replayed = 0
                self._since = max(self._since, at)
                if event.get("Type") == "container" and event.get("Action") == "die":
                    self._died(str((event.get("Actor") or {}).get("ID", "")))
                container, how = judged(event)
                key = (event.get("timeNano", 0), container, str(event.get("Action")))
                if how and key not in self._known:  # The newest comes again when the connection was lost.
                    self._known.append(key)
                    self._seen(container, how)
        finally:
            client.close()


def judged(event: dict[str, Any]) -> tuple[str, str]:
    """The container that an event is about, and how it was reached into; "" for what is harmless."""
    action = str(event.get("Action", "")).split(":", 1)[0]
    actor = event.get("Actor") or {}
    attributes = actor.get("Attributes") or {}
    if event.get("Type") == "network":
        harmless = action != "connect" or attributes.get("name") == "none"
        return str(attributes.get("container", "")), "" if harmless else WAYS["connect"]
    return str(actor.get("ID", "")), WAYS.get(action, "") if action != "connect" else ""
