"""Falls in jobs of other cells: shares here were drawn with the standing that such an audit has undone.

Within a cell the shares of the account that wait are rejected with the audit (``credit.unsure``). Those of another cell are for
that one to change, so it looks by itself before they become payable: at what was open while a share waited, and at what was drawn
since. What was open it remembers; what falls while a cell has no coordinator, and was drawn before the share, is not seen.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from coordinator.domain.audits import penalty
from coordinator.domain.audits.trust import Audit
from coordinator.services.audits import credit
from coordinator.services.audits.audit_outcomes import reject
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord, RoundRecord

Place = tuple[int, int, int, int]


class FallsElsewhere:
    """Rejects what they have undone."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # Job -> audits in jobs of other cells that were open, and the shares here that waited meanwhile.
        self._open: dict[str, Mapping[str, Collection[Place]]] = {}

    async def follow(self, work: UnitOfWork, records: Sequence[RoundRecord], pending: Collection[CommitRecord]) -> bool:
        """Look at the shares of a job that wait; whether an audit elsewhere is open, so that this is to be done again soon.

        Args:
            records: complete rounds that are not concluded. pending: shares of the job that wait.
        """
        if self._context.cell.of == 1:
            return False
        rounds = {(record.epoch, record.number): record for record in records}
        shares = {_place(one): one for one in pending if one.look and (one.epoch, one.round) in rounds}
        if not shares:
            self._open.pop(work.job.id, None)
            return False
        before = {audit: shares.keys() & places for audit, places in self._open.get(work.job.id, {}).items()}
        # First: what ends between these two questions is found by the second.
        opened = self._others(await credit.open_elsewhere(work, {one.node for one in shares.values()}))
        ended = {place: rounds[one.epoch, one.round].ended or 0.0 for place, one in shares.items()}
        undone = {
            place
            for audit in await self._fallen(work, {one.node for one in shares.values()}, min(ended.values()), before)
            for place, one in shares.items()
            if one.node == audit.node and (place in before.get(audit.id, ()) or audit.began > ended[place])
        }
        await _undo(work, [shares[place] for place in sorted(undone)], rounds)
        waits = {audit.id: [place for place, one in shares.items() if one.node == audit.node] for audit in opened}
        # What has ended is known until what follows of it is stored: then none of its shares waits any more.
        self._open[work.job.id] = {audit: places for audit, places in (before | waits).items() if places}
        return bool(opened)

    async def _fallen(
        self, work: UnitOfWork, nodes: Collection[str], since: float, known: Collection[str]
    ) -> list[Audit]:
        """Audits that have cost these nodes their standing: of those that are ``known``, and of what was drawn ``since``."""
        of_nodes: tuple[Condition, ...] = (
            col(Audit.node).in_(tuple(sorted(nodes))),
            col(Audit.canary).equals(False),
            col(Audit.state).in_(("failed", "void")),
        )
        found = await work.tx.everywhere.find(Audit, *of_nodes, col(Audit.began) > since)
        if known:
            found += await work.tx.everywhere.find(Audit, *of_nodes, col(Audit.id).in_(tuple(sorted(known))))
        every = {audit.id: audit for audit in found if penalty.falls(audit)}.values()
        return await credit.of_account(work, self._others(every))

    def _others(self, audits: Collection[Audit]) -> list[Audit]:
        return [audit for audit in audits if not self._context.cell.has(audit.job)]


async def _undo(
    work: UnitOfWork, shares: Sequence[CommitRecord], rounds: Mapping[tuple[int, int], RoundRecord]
) -> None:
    """Reject those in which no look has found nothing, or still may."""
    rejected = Counter[str]()
    for one in shares:
        if not await credit.has_look(work, one, rounds[one.epoch, one.round]):
            await reject(work, one, "unlooked")
            rejected[one.node] += 1
    for node, count in rejected.items():
        what = "a share" if count == 1 else f"{count} shares"
        lost = "of work that nobody has looked at, will not be paid: its standing was lost in another job"
        work.note("rejected", f"node {node}: {what}, {lost}")


def _place(commit: CommitRecord) -> Place:
    return commit.epoch, commit.round, commit.stage, commit.replica
