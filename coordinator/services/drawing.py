"""From a complete round to its drawn audits: rates are fixed, the ledger makes a block, the block draws.

The round's commitments and rates are stored in one transaction. After that the ledger's slot is read and stored, and the first
final block after that slot seeds the draw (``domain.draw``). While the ledger is slow or away the draw waits, and rounds go on
as far as workers keep the records of those that may still have to be opened.
"""

from collections.abc import Sequence

import msgspec

from coordinator.domain import draw as draws
from coordinator.domain import rate as rates
from coordinator.domain import trust
from coordinator.domain.draw import Beacon, Drawable, Drawn
from coordinator.domain.lease import Lease
from coordinator.domain.rate import Exposure, Standing
from coordinator.domain.trust import Audit
from coordinator.services.context import Context
from coordinator.services.work import Work
from coordinator.store.ports import Where
from coordinator.store.records import CommitRecord, NodeRecord, RoundRecord


def drawable_of(commits: Sequence[CommitRecord], beacon: Beacon) -> list[Drawable]:
    """Commitments of a round that can be drawn, with the rates that were fixed for them."""
    able = draws.ordered([Drawable(c.stage, c.replica, c.root, c.leaves) for c in commits if c.drawable])
    return [msgspec.structs.replace(c, rate=rate) for c, rate in zip(able, beacon.rates, strict=True)]


class Drawing:
    """Fixes what a draw depends on, and draws. Everything on an open desk."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def prepare(self, work: Work, record: RoundRecord, commits: Sequence[CommitRecord]) -> RoundRecord:
        """Fix the rates of a complete round before anybody can know its draw. The commits must be stored already."""
        assert work.run is not None
        config = self._context.config
        able = sorted((c for c in commits if c.drawable), key=lambda c: (c.replica, c.stage))
        beacon = Beacon(
            least=config.audits_per_round,
            twice=config.audit_twice,
            rates=tuple([await self._rate(work, commit) for commit in able]),
        )
        work.change_run(undrawn=(*work.run.undrawn, (record.epoch, record.number)))
        return msgspec.structs.replace(record, beacon=beacon)

    async def note_slot(self, work: Work, epoch: int, number: int, slot: int) -> None:
        """Keep the slot after which the draw's block is to be; a later reading changes nothing."""
        record = await work.tx.get(RoundRecord, work.job.id, epoch, number)
        if record.beacon is not None and record.beacon.after is None:
            beacon = msgspec.structs.replace(record.beacon, after=slot)
            await work.tx.update(msgspec.structs.replace(record, beacon=beacon))

    async def draw(self, work: Work, epoch: int, number: int, slot: int, block: str) -> None:
        """Draw the audits of a round from the block at ``slot``; nothing where that was done before."""
        record = await work.tx.get(RoundRecord, work.job.id, epoch, number)
        if work.run is None or (epoch, number) not in work.run.undrawn or record.beacon is None:
            return
        work.rounds_ended = True
        work.change_run(undrawn=tuple(key for key in work.run.undrawn if key != (epoch, number)))
        where: tuple[Where, ...] = (("job", "=", work.job.id), ("epoch", "=", epoch), ("round", "=", number))
        commits = await work.tx.find(CommitRecord, *where)
        drawable = drawable_of(commits, record.beacon)
        seed = draws.seed_of(work.job.id, epoch, number, drawable, block)
        seats = {(commit.stage, commit.replica): commit for commit in commits}
        beacon = msgspec.structs.replace(record.beacon, slot=slot, block=block)
        record = await work.tx.update(msgspec.structs.replace(record, beacon=beacon, seed=seed.hex()))
        for drawn in draws.draw(seed, drawable, beacon.least, beacon.twice):
            await self._open(work, record, seats[drawn.stage, drawn.replica], drawn, seed)

    async def _open(self, work: Work, record: RoundRecord, commit: CommitRecord, drawn: Drawn, seed: bytes) -> None:
        lease = work.leases.get(commit.lease) or await work.tx.get(Lease, commit.lease)
        audit = Audit(
            id=trust.audit_id(seed, drawn),
            job=work.job.id,
            epoch=record.epoch,
            round=record.number,
            step=drawn.step,
            stage=commit.stage,
            replica=commit.replica,
            lease=commit.lease,
            node=commit.node,
            payout=commit.payout,
            env_class=lease.env_class,
            plan=record.plan,
            first_step=record.first_step,
            total_steps=record.total_steps,
            rate_step=record.rate_step,
            root=commit.root,
            leaves=commit.leaves,
            pseudo_gradient=commit.pseudo_gradient,
            anchor=commit.anchor,
            carried=commit.carried,
            local=commit.local,
            deadline=work.now + self._context.config.audit_seconds,
            seed=seed.hex(),
            twice=drawn.twice,
        )
        work.audits[audit.id] = audit
        work.change(audits=work.job.audits + 1)
        place = f"stage {commit.stage} of replica {commit.replica}"
        work.note("audit", f"round {record.number + 1}: step {drawn.step} of {place} was drawn for an audit")

    async def _rate(self, work: Work, commit: CommitRecord) -> int:
        node = await work.tx.get(NodeRecord, commit.node)
        exposure = None
        if self._context.config.min_stake > 0:
            held = await work.tx.find(CommitRecord, ("job", "=", work.job.id), ("node", "=", commit.node))
            due = sum(c.amount for c in held if c.state in ("pending", "verified") and c.settlement is None)
            exposure = Exposure(commit.amount, due - commit.amount, node.stake * rates.SLASH_BPS // 10_000)
        return rates.rate(Standing(node.passed, node.faults), exposure, self._context.config.audit_floor)
