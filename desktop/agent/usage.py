"""What links have used of this month, kept over restarts."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from desktop.agent.log import LOGGER
from desktop.agent.network import wire_bytes
from transport.stats import LinkStats
from transport.wire.codec import MessageError, decode_json, encode_json
from transport.wire.ids import Count

SAVE_SECONDS = 30.0  # A killed agent forgets as much at most.


class Usage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes on the wire in a calendar month (UTC), written ``2031-05``."""

    month: Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}$")]
    sent: Count = 0
    received: Count = 0

    @property
    def total(self) -> int:
        """Both ways together, as lines with a cap count."""
        return self.sent + self.received


def month_of(now: float) -> str:
    """The month of a moment in unix seconds."""
    return time.strftime("%Y-%m", time.gmtime(now))


def load_usage(path: Path, now: float) -> Usage:
    """What was kept of this month; nothing where the file is of an earlier month, missing or damaged."""
    try:
        usage: Usage = decode_json(path.read_bytes(), Usage)
    except FileNotFoundError:
        return Usage(month_of(now))
    except (OSError, MessageError) as error:
        LOGGER.warning("%s cannot be used, this month is counted from here on: %s", path, error)
        return Usage(month_of(now))
    return usage if usage.month == month_of(now) else Usage(month_of(now))


class Meter:
    """Counts what links put on the wire and take from it."""

    def __init__(self, path: Path, now: float) -> None:
        """Go on from what ``path`` holds; ``now`` in unix seconds."""
        self._path = path
        self._usage = load_usage(path, now)
        self._seen: dict[str, tuple[int, int]] = {}
        self._saved = (self._usage, now)

    @property
    def usage(self) -> Usage:
        """This month so far."""
        return self._usage

    def count(self, links: Mapping[str, LinkStats], now: float) -> Usage:
        """Add what is new since the last call, and keep it now and then; a new month begins at nothing."""
        sent = received = 0
        for peer, link in links.items():
            total, before = wire_bytes(link), self._seen.get(peer, (0, 0))
            if total[0] < before[0] or total[1] < before[1]:
                before = (0, 0)  # The peer was gone meanwhile, and its counters with it.
            sent, received = sent + total[0] - before[0], received + total[1] - before[1]
            self._seen[peer] = total
        self._seen = {peer: seen for peer, seen in self._seen.items() if peer in links}
        month = month_of(now)
        kept = self._usage if self._usage.month == month else Usage(month)
        self._usage = Usage(month, kept.sent + sent, kept.received + received)
        if now - self._saved[1] >= SAVE_SECONDS or now < self._saved[1]:
            self.save(now)
        return self._usage

    def save(self, now: float) -> None:
        """Keep the count, if it has changed."""
        if self._usage == self._saved[0] and self._path.exists():
            return
        draft = self._path.with_name(f"{self._path.name}.new")
        try:
            draft.write_bytes(encode_json(self._usage))
            draft.replace(self._path)
            self._saved = (self._usage, now)
        except OSError as error:
            LOGGER.warning("what this month has used cannot be kept in %s: %s", self._path, error)
