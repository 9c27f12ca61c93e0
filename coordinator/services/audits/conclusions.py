"""Shares become payable once the audits of their rounds are over, one after another for each node; then rounds are concluded.

Where the operator looks, those of one pipeline wait for each other: what one of them sends may spare the others their work.
A node's standing decides how often it is looked at, so what it did after a round that a look is still due of is not payable
before that look: or somebody who is found at last would have been paid for what it forged meanwhile. Everything on an open desk.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

import msgspec

from coordinator.domain.audits import penalty
from coordinator.domain.job import JobState
from coordinator.services.audits import credit
from coordinator.services.audits.audit_outcomes import reject
from coordinator.services.audits.evidence import correct_outcomes, seal_outcome
from coordinator.services.audits.falls_elsewhere import FallsElsewhere
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import OutcomeChanged, SharesMayBeDue
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord, RoundRecord

Key = tuple[int, int]


class Conclusion:
    """Verifies shares and concludes rounds."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._elsewhere = FallsElsewhere(context)
        self._held: set[str] = set()  # Jobs of which shares wait for looks at what their nodes did in other jobs.

    async def advance(self, work: UnitOfWork) -> None:
        """Verify what is due, in a job in which something has changed."""
        if not (work.take(SharesMayBeDue) or work.job.state is JobState.VERIFYING or work.job.id in self._held):
            return
        self._held.discard(work.job.id)
        undrawn = frozenset(() if work.run is None else work.run.undrawn)
        open_audits = [audit for audit in work.audits.values() if not audit.canary]
        waiting: tuple[Condition, ...] = (
            col(RoundRecord.job).equals(work.job.id),
            col(RoundRecord.state).equals("complete"),
            col(RoundRecord.concluded).equals(False),
        )
        records = sorted(
            await work.tx.find(RoundRecord, *waiting), key=lambda record: (record.ended or 0.0, record.epoch)
        )
        here = {_key(record) for record in records}
        busy = {audit.node for audit in open_audits if (audit.epoch, audit.round) not in here}
        pending = await _pending(work) if records else {}
        taken = len(work.recorded(OutcomeChanged))
        if await self._elsewhere.follow(work, records, [one for shares in pending.values() for one in shares]):
            self._held.add(work.job.id)
        if len(work.recorded(OutcomeChanged)) > taken:
            pending = await _pending(work)
        for record in records:
            in_round = {audit.node for audit in open_audits if (audit.epoch, audit.round) == _key(record)}
            busy |= in_round
            open_at = {
                audit.replica for audit in open_audits if (audit.epoch, audit.round) == _key(record) and not audit.outer
            }
            rejected = len(work.recorded(OutcomeChanged))
            shares = pending.get(_key(record), [])
            left = await self._verify(work, record, shares, busy, open_at, _key(record) in undrawn)
            if len(work.recorded(OutcomeChanged)) > rejected:
                pending = await _pending(work)  # Shares of other rounds may be gone with it.
            if not (left or in_round or _key(record) in undrawn):
                await seal_outcome(work, await work.tx.update(msgspec.structs.replace(record, concluded=True)))
        await correct_outcomes(work)

    async def give_up(self, work: UnitOfWork) -> None:
        """The job ends early: where the operator's auditors look, what was not drawn yet is not verified any more."""
        undrawn = () if work.run is None else work.run.undrawn
        if work.run is not None:
            work.change_run(undrawn=())
        work.record(SharesMayBeDue())
        pending = await work.tx.find(
            CommitRecord, col(CommitRecord.job).equals(work.job.id), col(CommitRecord.state).equals("pending")
        )
        watched = [commit for commit in pending if commit.look]
        elsewhere = await credit.looked_at_elsewhere(work, {commit.node for commit in watched})
        for commit in watched:
            if commit.node in elsewhere or (commit.epoch, commit.round) in undrawn:
                await reject(work, commit, "unlooked")

    async def _verify(
        self,
        work: UnitOfWork,
        record: RoundRecord,
        pending: Sequence[CommitRecord],
        busy: set[str],
        open_at: Collection[int],
        undrawn: bool,
    ) -> bool:
        """Verify the shares of a round whose nodes have nothing open; whether others are left. Adds their nodes to ``busy``.

        Args:
            pending: its shares that wait. ``open_at``: replicas of the round of which a step is still audited.
        """
        due = [commit for commit in pending if not undrawn and commit.node not in busy]
        due = [commit for commit in due if not (commit.look and commit.replica in open_at)]
        elsewhere = await credit.looked_at_elsewhere(work, {commit.node for commit in due if commit.look})
        if elsewhere:
            self._held.add(work.job.id)
        due = [commit for commit in due if commit.node not in elsewhere]
        audits = await credit.audits_of(work, record) if due else []
        spoilt = {audit.replica for audit in audits if audit.over and penalty.spoils(audit)}
        good = []
        for commit in due:
            if commit.look and commit.replica in spoilt and not await credit.stand_surety(work, commit):
                await reject(work, commit, "pipeline")
            else:
                good.append(commit)
        await work.tx.update_all([msgspec.structs.replace(commit, state="verified") for commit in good], good)
        work.change(verified=work.job.verified + sum(commit.amount for commit in good))
        await credit.earn(work, good, audits)
        busy |= {commit.node for commit in pending} - {commit.node for commit in due}
        return len(due) < len(pending)


async def _pending(work: UnitOfWork) -> dict[Key, list[CommitRecord]]:
    """Shares of the job that wait to be verified, by round."""
    found: dict[Key, list[CommitRecord]] = defaultdict(list)
    of_job = col(CommitRecord.job).equals(work.job.id)
    for commit in await work.tx.find(CommitRecord, of_job, col(CommitRecord.state).equals("pending")):
        found[commit.epoch, commit.round].append(commit)
    return found


def _key(record: RoundRecord) -> Key:
    return record.epoch, record.number
