"""One line for each event, for people; or one JSON object, for programs."""

import json
import logging
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from common.untrusted_text import Untrusted, untrusted, untrusted_lines

LOG = logging.getLogger("cottage.agent")
FILE_BYTES = 2 << 20
FILES = 2  # Beside the newest.
MAX_TEXT = 2000  # Text from elsewhere (a coordinator, a worker) may be long; a log line need not be.


def printable(text: str) -> Untrusted:
    """``text`` without what could move a terminal's cursor or forge a second line, cut to ``MAX_TEXT`` characters."""
    return untrusted(text, MAX_TEXT)


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        line = f"{when} {mark}{printable(record.getMessage())}"
        if not record.exc_info:
            return line
        trace = untrusted_lines(self.formatException(record.exc_info)).replace("\n", "\n    ")
        return f"{line}\n    {trace}"


class _Dated(_Plain):
    def format(self, record: logging.LogRecord) -> str:
        return f"{time.strftime('%Y-%m-%d', time.localtime(record.created))} {super().format(record)}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": printable(record.getMessage()),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def set_up(as_json: bool, stream: TextIO | None = None, file: Path | None = None) -> None:
    """Send the log of this process to ``stream`` (standard error), and keep the last weeks of it in ``file``."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if as_json else _Plain())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    if file is not None:
        kept = RotatingFileHandler(file, maxBytes=FILE_BYTES, backupCount=FILES, delay=True)
        kept.setFormatter(_Dated())
        root.addHandler(kept)
    root.setLevel(logging.WARNING)
    LOG.setLevel(logging.INFO)
