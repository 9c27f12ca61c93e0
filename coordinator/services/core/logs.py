"""A job's log: what the coordinator noted and what its workers wrote, bounded, searchable, kept after the end.

Workers' lines are strangers' text: printable characters only, cut, and no more of them than MAX_LINES a job, and than LINES and
one in LINE_S seconds of a node. They come without acknowledgement, so a line may be missing; the coordinator's own never is.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, get_args

from common.untrusted_text import untrusted
from coordinator.domain.lease import Lease
from coordinator.services.accounts.throttle import Throttle
from coordinator.services.core.context import Context
from coordinator.services.core.display_names import names_in, readable
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import EventRecord, LogRecord
from protocol.rest import api
from protocol.task import WorkerLog

MAX_LINES = 20_000  # Of a job; beyond it the oldest are forgotten.
MAX_UNSAVED = 5_000  # Lines between two flushes, of all jobs.
# Of a node: so many at once, and then one in so many seconds; a flood would leave no other's line.
LINES, LINE_S = 1_000.0, 0.5
CLOCKS_S = 600.0  # A worker's clock that is further off is not believed.
_WARNINGS = frozenset({"fault", "lost", "void", "rejected", "ledger", "slashed", "pausing", "paused", "cancelled"})

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)


class JobLogs:
    """Takes lines in, and gives pages of them out."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._unsaved: list[LogRecord] = []
        self._pace = Throttle(context.clock, 1 / LINE_S, LINES)

    def offer(self, lease: Lease, log: WorkerLog) -> None:
        """Take what a worker wrote; it is stored with the next flush."""
        now = self._context.clock.time()
        place = (lease.node, lease.stage, lease.replica)
        if log.dropped:
            said = untrusted(f"{log.dropped} lines of this worker were too many")
            self._offer(LogRecord(lease.job, now, "warning", said, *place))
        for line in log.lines:
            at = line.time if abs(line.time - now) < CLOCKS_S else now
            self._offer(LogRecord(lease.job, at, line.level, line.text, *place))

    async def flush(self, tx: Transaction) -> int:
        """Store what has come in, and forget the oldest of jobs that have too many; how many lines that was."""
        lines = tuple(self._unsaved)
        by_job: dict[str, int] = defaultdict(int)
        for line in lines:
            by_job[line.job] = (await tx.insert(line)).id
        for job in by_job:
            beyond = await tx.find(LogRecord, col(LogRecord.job).equals(job), newest=True, limit=1, offset=MAX_LINES)
            if beyond:
                await tx.forget(LogRecord, col(LogRecord.job).equals(job), col(LogRecord.id) < beyond[0].id + 1)

        return len(lines)

    def flushed(self, lines: int) -> None:
        """So many lines are stored for good."""
        del self._unsaved[:lines]

    @property
    def waiting(self) -> bool:
        """Whether anything is to be flushed."""
        return bool(self._unsaved)

    async def page(
        self, job: str, after: int, before: int | None, search: str, level: Level, limit: int
    ) -> Sequence[api.LogLine]:
        """Lines with a larger id than ``after``, oldest first; with ``before``, or without both, the newest before it.

        Args:
            search: text that is in the line, in any case.
            level: of the least important lines.
        """
        where: list[Condition] = [
            col(LogRecord.job).equals(job),
            col(LogRecord.level).in_(LEVELS[LEVELS.index(level) :]),
        ]
        where += [col(LogRecord.text).contains(search)] if search else []
        where += [col(LogRecord.id) < before] if before is not None else []
        where += [col(LogRecord.id) > after] if after else []
        newest = not after
        async with self._context.everywhere.transaction() as tx:
            found = await tx.find(LogRecord, *where, newest=newest, limit=limit)
            names = await names_in(tx, [*(line.text for line in found), *(line.node for line in found)])
        lines = found[::-1] if newest else found
        return [
            api.LogLine(
                line.id,
                line.time,
                line.level,
                readable(line.text, names),
                readable(line.node, names),
                line.stage,
                line.replica,
            )
            for line in lines
        ]

    def _offer(self, line: LogRecord) -> None:
        if len(self._unsaved) < MAX_UNSAVED and not self._pace.take(line.node):
            self._unsaved.append(line)
        else:
            self._context.metrics.count("log_lines_dropped_total")


def log_of(event: EventRecord) -> LogRecord:
    """A line of the timeline as a line of the log."""
    level: Level = "error" if event.kind == "failed" else "warning" if event.kind in _WARNINGS else "info"
    return LogRecord(event.job, event.time, level, event.text)
