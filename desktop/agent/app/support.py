"""What an owner may send to somebody who helps: versions, settings, what happened, the log; without what is nobody's business."""

import contextlib
import getpass
import os
import platform
import re
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import msgspec

from common.own_folders import NoHomeError, home_folder
from desktop.agent.base.activity import Activity
from desktop.agent.base.config import Home
from desktop.agent.errors import SettingsError
from desktop.agent.hardware.meters import gpus

LINES = 200
EVENTS = 50
# Of the settings; the coordinator's address may hold a password.
_PRIVATE = frozenset({"payout", "coordinator", "coordinator_key", "invitation", "name"})
_PATTERNS = (
    (re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://\S+"), "<address>"),
    (re.compile(r"\b(?:[a-z]{3,8}\s+){11,}[a-z]{3,8}\b"), "<words>"),  # Twelve words in a row may be a wallet.
    (re.compile(r"\b[1-9A-HJ-NP-Za-km-z]{32,88}\b"), "<key>"),  # Addresses, signatures, keys.
    (re.compile(r"\b[0-9a-fA-F]{24,}\b"), "<digest>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"), "<ip>"),
    (re.compile(r"\bGPU-[0-9a-f-]+"), "<gpu>"),
    (re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{0,4}(?:::)?|\b[0-9a-fA-F:]*::[0-9a-fA-F:]+"), "<ip>"),
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+"), "<mail>"),
    (re.compile(r"(?i)(token|secret|password|passphrase|authorization)(\W+)\S+"), r"\1\2<secret>"),
)


def scrub(text: str, home: Path) -> str:
    """``text`` without addresses, keys, words, folders and the names of the user and this computer."""
    folders = [(str(home), "<home of the agent>")]
    with contextlib.suppress(NoHomeError):
        folders.append((str(home_folder()), "<home>"))
    for found, put in folders:
        if len(found) > 1:
            text = text.replace(found, put)
    for pattern, put in _PATTERNS:
        text = pattern.sub(put, text)
    for name in {_user(), platform.node()} - {"", "root", "localhost"}:
        text = re.sub(rf"\b{re.escape(name)}\b", "<name>", text)
    return text


def report(home: Home, activity: Activity, version: str) -> str:
    """The whole as text."""
    return scrub("\n".join(_lines(home, activity, version)), home.path) + "\n"


def _lines(home: Home, activity: Activity, version: str) -> Iterator[str]:
    yield f"Cottage {version}, Python {platform.python_version()}, {platform.platform()}"
    yield from (f"GPU {gpu.index}: {gpu.name}, {gpu.memory_mb} MB" for gpu in gpus())
    try:
        settings = msgspec.to_builtins(home.settings())
        yield "settings: " + ", ".join(f"{name}={value}" for name, value in settings.items() if name not in _PRIVATE)
    except SettingsError as error:
        yield str(error)
    yield "what happened, the newest first:"
    for event in activity.newest(EVENTS).events:
        yield f"  {event.at:.0f} {event.severity} {event.kind}: {event.text}"
    yield "the log:"
    yield from (f"  {line.rstrip()}" for line in last_lines(home, LINES))


def last_lines(home: Home, count: int) -> deque[str]:
    """The end of the agent's log, over its files."""
    lines = deque[str](maxlen=max(count, 0))
    for file in (*_older(home), home.log):
        with contextlib.suppress(FileNotFoundError), file.open(errors="replace") as text:
            lines.extend(text)
    return lines


def followed_lines(home: Home, count: int, seconds: float = 0.5) -> Iterator[str]:
    """The log's last ``count`` lines and then, without end, what it says, also in its next file; ``seconds`` between looks.

    The end is read from the file that is followed, so that no line falls between the two.
    """
    file, rest = _opened(home.log), ""
    lines = deque[str](maxlen=max(count, 0))
    for older in _older(home):
        if file is None or _identity(older) != _identity(file.fileno()):  # It may have become an older one just now.
            with contextlib.suppress(FileNotFoundError), older.open(errors="replace") as text:
                lines.extend(text)
    if file is not None:
        *whole, rest = file.read().split("\n")
        lines.extend(whole)
    yield from lines
    while True:
        new = "" if file is None else file.read()
        if not new:
            newest = _identity(home.log)
            if newest is not None and (file is None or newest != _identity(file.fileno())):
                if file is not None:
                    new = file.read()  # Written between the last look and the new file.
                    file.close()
                file = _opened(home.log)
            else:
                time.sleep(seconds)
        *whole, rest = (rest + new).split("\n")
        yield from whole


def _older(home: Home) -> list[Path]:
    """The log's earlier files, the oldest first: it has the highest number."""
    return sorted(home.path.glob(f"{home.log.name}.*"), reverse=True)


def _opened(path: Path) -> TextIO | None:
    try:
        return path.open(errors="replace")
    except FileNotFoundError:
        return None


def _identity(path: Path | int) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
