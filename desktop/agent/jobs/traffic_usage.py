"""The allowance of this node's links, and what this month has used of it, kept over restarts."""

from pathlib import Path

from desktop.agent.base.log import LOG
from desktop.agent.jobs.line_limits import LineLimits
from protocol.codec import MessageError, decode_json, encode_json
from transport.sctp.allowance import Allowance, Usage, month_of

SAVE_S = 30.0  # A killed agent forgets as much at most.


def load_usage(path: Path, now: float) -> Usage:
    """What was kept of this month; nothing where the file is of an earlier month, missing or damaged.

    Args:
        now: unix seconds.
    """
    month = month_of(now)
    try:
        usage: Usage = decode_json(path.read_bytes(), Usage)
    except FileNotFoundError:
        return Usage(month, 0)
    except (OSError, MessageError) as error:
        LOG.warning("%s cannot be used, this month is counted from here on: %s", path, error)
        return Usage(month, 0)
    return usage if usage.month >= month and usage.used >= 0 else Usage(month, 0)


class LineShare:
    """What links may use of the line: ``allowance`` is what they ask."""

    def __init__(self, path: Path, limits: LineLimits, now: float) -> None:
        """Go on from what ``path`` holds; ``now`` in unix seconds."""
        self._path = path
        usage = load_usage(path, now)
        self.allowance = Allowance(limits.up, limits.down, limits.month, usage=usage, on_threshold=_warn)
        self._saved, self._saved_at = usage, now

    @property
    def usage(self) -> Usage:
        """This month so far."""
        return self.allowance.usage

    def change(self, limits: LineLimits) -> None:
        """Keep to other limits from now on."""
        self.allowance.change(limits.up, limits.down, limits.month)

    def look(self, now: float) -> None:
        """Begin a new month when there is one, and keep the count now and then."""
        self.allowance.set_month(month_of(now))
        if not 0 <= now - self._saved_at < SAVE_S:
            self.save(now)

    def save(self, now: float) -> None:
        """Keep the count, if it has changed."""
        self._saved_at = now
        if self.usage == self._saved:
            return
        draft = self._path.with_name(f"{self._path.name}.new")
        try:
            draft.write_bytes(encode_json(self.usage))
            draft.replace(self._path)
        except OSError as error:
            LOG.warning("what this month has used cannot be kept in %s: %s", self._path, error)
            return
        self._saved = self.usage


def _warn(percent: int) -> None:
    if percent < 100:
        LOG.warning("%d %% of this month's cap is used", percent)
    else:
        LOG.warning("this month's cap is used up: links stand still until next month, or `cottage node limits --month`")
