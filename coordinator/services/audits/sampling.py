"""From a complete round to its drawn audits: rates are fixed, the ledger makes a block, the block draws.

The round's commitments and rates are stored in one transaction. After that the ledger's slot is read and stored, and the first
final block after that slot seeds the draw (``domain.audits.sampling``). While the ledger is slow or away the draw waits,
and rounds go on as far as workers keep the records of those that may still have to be opened.
"""

import hashlib
from collections.abc import Collection, Sequence

import msgspec

from common.untrusted_text import untrusted
from coordinator.domain.audits import auditors, trust
from coordinator.domain.audits import rate as rates
from coordinator.domain.audits import sampling as draws
from coordinator.domain.audits.boundary import exchanges
from coordinator.domain.audits.rate import Exposure, NodeStanding
from coordinator.domain.audits.sampling import WHOLE, Beacon, Drawable, Drawn
from coordinator.domain.audits.trust import Audit, AuditorCandidate, OuterClaim, Side
from coordinator.domain.lease import Lease
from coordinator.domain.rounds.run import training_of
from coordinator.services.audits import credit
from coordinator.services.audits.auditor_capacity import Watching
from coordinator.services.audits.deadlines import Deadlines
from coordinator.services.audits.evidence import outer_claim_of
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import SharesMayBeDue
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.training.staffing import shape_of
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord, NodeRecord, RoundRecord
from ledger.addresses import StepPlace
from protocol.audit import KEPT_ROUNDS, segment, step_weights
from protocol.boundary import comparable_across
from protocol.ids import NodeAddress
from protocol.task import StepChallenge

MAX_ACCUSED = 8  # Open audits of a job that bonds on the ledger asked for; others wait for their turn.

OPENED_WHOLE = 4
"""One in so many audits of lean stages can go to anybody: a cartel may have all other replicas of a stage."""

FORGOTTEN = "the coordinator was restored from a backup before it was over"
"""Of a void audit."""


def drawable_of(commits: Sequence[CommitRecord], beacon: Beacon) -> list[Drawable]:
    """Commitments of a round that can be drawn, with the rates that were fixed for them."""
    able = draws.ordered(
        [Drawable(c.stage, c.replica, c.root, c.leaves, outer=outer_claim_of(c)) for c in commits if c.drawable]
    )
    return [msgspec.structs.replace(c, rate=rate) for c, rate in zip(able, beacon.rates, strict=True)]


def _outer_claim(record: RoundRecord, commit: CommitRecord, commits: Sequence[CommitRecord]) -> OuterClaim:
    """What a member that was drawn says of its outer step, and what had come in: what the contributors committed to."""
    assert commit.outer is not None
    assert commit.parameters is not None
    counted = [c for c in commits if c.stage == commit.stage and c.replica in record.contributors]
    given = {c.replica: c.pseudo_gradient for c in counted}
    weights = step_weights({c.replica: c.leaves for c in counted})
    return OuterClaim(given, commit.outer, commit.parameters, weights)


def auditor_of(lease: Lease, operators: Collection[NodeAddress]) -> AuditorCandidate:
    """The holder of a lease as somebody who could re-run a step. ``operators``: addresses of the operator's auditors."""
    own = lease.node in operators
    return AuditorCandidate(
        lease.id, lease.node, lease.payout, lease.env_class, lease.seat is None, own, stage=lease.stage
    )


class AuditSampling:
    """Fixes what a draw depends on, and draws. Everything on an open desk."""

    def __init__(self, context: Context, watching: Watching, deadlines: Deadlines) -> None:
        self._context = context
        self._watching = watching
        self._deadlines = deadlines

    async def prepare(self, work: UnitOfWork, record: RoundRecord, commits: Sequence[CommitRecord]) -> RoundRecord:
        """Fix the rates of a complete round before anybody can know its draw. The commits must be stored already."""
        assert work.run is not None
        config = self._context.config
        if self._context.cell.of > 1:
            # What is open in other cells is noted while the round is drawn from these standings.
            work.record(SharesMayBeDue())
        able = sorted((c for c in commits if c.drawable), key=lambda c: (c.replica, c.stage))
        watched = {commit.lease for commit in able if await self._is_watched(work, record, commit)}
        standings = await credit.standings_of(work, commits, watched) if able else {}
        for commit in able:
            if commit.lease in watched:
                look = rates.look(standings[commit.lease])
                await work.tx.update(msgspec.structs.replace(commit, look=look))
            elif config.auditors:
                work.count("audits_unwatched_total")
        beacon = Beacon(
            least=config.audits_per_round,
            twice=config.audit_twice,
            rates=tuple([await self._rate(work, commit, standings[commit.lease]) for commit in able]),
        )
        work.change_run(undrawn=(*work.run.undrawn, (record.epoch, record.number)))
        return msgspec.structs.replace(record, beacon=beacon)

    async def note_slot(self, work: UnitOfWork, epoch: int, number: int, slot: int) -> None:
        """Keep the slot after which the draw's block is to be; a later reading changes nothing."""
        record = await work.tx.get(RoundRecord, work.job.id, epoch, number)
        if record.beacon is not None and record.beacon.after is None:
            beacon = msgspec.structs.replace(record.beacon, after=slot)
            await work.tx.update(msgspec.structs.replace(record, beacon=beacon))

    async def draw(self, work: UnitOfWork, epoch: int, number: int, slot: int, block: str) -> None:
        """Draw the audits of a round from the block at ``slot``; nothing where that was done before."""
        record = await work.tx.get(RoundRecord, work.job.id, epoch, number)
        if work.run is None or (epoch, number) not in work.run.undrawn or record.beacon is None:
            return
        work.record(SharesMayBeDue())
        work.change_run(undrawn=tuple(key for key in work.run.undrawn if key != (epoch, number)))
        commits = await _commits_of(work, epoch, number)
        drawable = drawable_of(commits, record.beacon)
        seed = draws.seed_of(work.job.id, epoch, number, drawable, block)
        seats = {(commit.stage, commit.replica): commit for commit in commits}
        beacon = msgspec.structs.replace(record.beacon, slot=slot, block=block)
        record = await work.tx.update(msgspec.structs.replace(record, beacon=beacon, seed=seed.hex()))
        members = {(member.stage, member.replica): member for member in drawable}
        looked: set[tuple[int, int]] = set()
        shown: dict[int, int] = {}
        for drawn in draws.draw(seed, drawable, beacon.least, beacon.twice):
            commit, member = seats[drawn.stage, drawn.replica], members[drawn.stage, drawn.replica]
            outer = None if drawn.step < commit.leaves else _outer_claim(record, commit, commits)
            lot = draws.lot_of(seed, member)
            # What is drawn beside the rates, so that a round has enough audits, is nothing that a look was due of.
            due = outer is not None or (lot is not None and lot.step == drawn.step)
            look = due and self._looks(commit, member.rate)
            audit = await self._open(work, record, commit, drawn, seed, outer=outer, look=look)
            if outer is None:
                shown[drawn.replica] = drawn.step
                looked |= {(drawn.stage, drawn.replica)} if look else set()
            if look and outer is None and lot is not None and lot.last:
                await self._look_anywhere(work, record, commit, audit)
        for place, mate in seats.items():
            if mate.replica in shown and mate.look > WHOLE // 2 and place not in looked:
                await self._look_beside(work, record, mate, shown[mate.replica])

    def _looks(self, commit: CommitRecord, rate: int) -> bool:
        """Whether the operator's auditor looks at what was drawn, by the coordinator's own chance: nobody can know before."""
        chance = rates.looked_at(commit.look, rate) if commit.look else 0
        return int.from_bytes(self._context.entropy(8), "big") % WHOLE < chance

    async def _look_anywhere(self, work: UnitOfWork, record: RoundRecord, commit: CommitRecord, audit: Audit) -> None:
        """Look at any step of a round, too, of which the last was drawn as such: whoever forges all others would pass."""
        step = int.from_bytes(self._context.entropy(8), "big") % commit.leaves
        first, stop = segment(audit.step, work.job.spec.training.commit_every, commit.leaves)
        if not first <= step < stop:
            drawn = Drawn(commit.stage, commit.replica, step)
            await self._open(work, record, commit, drawn, self._context.entropy(32), look=True)

    async def _look_beside(self, work: UnitOfWork, record: RoundRecord, commit: CommitRecord, step: int) -> None:
        """Look at a node that is not proven, too, where another one of its pipeline is drawn.

        Should that one's part turn out false, or never be shown, this one is paid once its own was found right.
        """
        if commit.drawable and step < commit.leaves:
            drawn = Drawn(commit.stage, commit.replica, step)
            await self._open(work, record, commit, drawn, self._context.entropy(32), look=True)

    async def challenge(self, work: UnitOfWork, lease: str, wanted: StepChallenge) -> None:
        """Open an audit that somebody asks for, while the prover still has its records; one of each round for each who asks."""
        asking = work.leases[lease]
        of_number: tuple[Condition, ...] = (
            col(RoundRecord.job).equals(work.job.id),
            col(RoundRecord.number).equals(wanted.round),
            col(RoundRecord.state).equals("complete"),
        )
        rounds = await work.tx.find(RoundRecord, *of_number)
        record = max(rounds, key=lambda found: found.epoch, default=None)
        found = await work.tx.find(
            CommitRecord,
            col(CommitRecord.job).equals(work.job.id),
            col(CommitRecord.round).equals(wanted.round),
            col(CommitRecord.stage).equals(wanted.stage),
            col(CommitRecord.replica).equals(wanted.replica),
        )
        commit = next((c for c in found if record is not None and c.epoch == record.epoch and c.drawable), None)
        earlier = await work.tx.find(
            Audit,
            col(Audit.job).equals(work.job.id),
            col(Audit.round).equals(wanted.round),
            col(Audit.challenger).equals(asking.node),
        )
        reason = await self._refusal(work, asking, commit, wanted)
        if record is None or commit is None or earlier or reason:
            why = "it asked before" if earlier else reason or "there is no such commitment"
            work.note("audit", f"node {asking.node} may not challenge round {wanted.round + 1}: {why}")
            return
        drawn = Drawn(wanted.stage, wanted.replica, wanted.step)
        seed = self._context.entropy(32)
        await self._open(work, record, commit, drawn, seed, asking.node)

    async def accused(self, work: UnitOfWork, place: StepPlace, node: NodeAddress, accuser: NodeAddress) -> str:
        """Open an audit of a commitment that somebody has put a bond against on the ledger, where it can still be shown.

        Two auditors that nobody could foresee have to find it right.

        Args:
            node: whom the bond accuses.
        Returns:
            why nothing is opened, or nothing.
        """
        of_round: tuple[Condition, ...] = (
            col(RoundRecord.job).equals(work.job.id),
            col(RoundRecord.epoch).equals(place.epoch),
            col(RoundRecord.number).equals(place.round),
            col(RoundRecord.state).equals("complete"),
        )
        rounds = await work.tx.find(RoundRecord, *of_round)
        commits = [c for c in await _commits_of(work, place.epoch, place.round) if c.drawable]
        commit = next((c for c in commits if (c.stage, c.replica) == (place.stage, place.replica)), None)
        if work.run is None or not rounds or commit is None or commit.node != node:
            return "there is no such commitment"
        outer = place.step == commit.leaves and commit.outer is not None and commit.parameters is not None
        if place.step >= commit.leaves and not outer:
            return "there is no such step"
        if sum(audit.accuser is not None for audit in work.audits.values()) >= MAX_ACCUSED:
            return f"{MAX_ACCUSED} audits of the job are open that others have put bonds up for"
        before = await _audits_at(work, place)
        opened = next((a for a in before if a.opening is not None and a.anchor_in != "auditor"), None)
        opening = None if opened is None else opened.opening
        if opening is None and (commit.lease not in work.leases or place.round < work.run.done - KEPT_ROUNDS):
            return "nobody has its records any more"
        drawn = Drawn(place.stage, place.replica, place.step, twice=True)
        claim = _outer_claim(rounds[0], commit, commits) if outer else None
        audit = await self._open(
            work, rounds[0], commit, drawn, self._context.entropy(32), outer=claim, accuser=accuser, look=True
        )
        if opened is not None and opening is not None:
            audit = msgspec.structs.replace(audit, anchor_in=opened.anchor_in)
            deadline = work.now + self._context.config.audit_patience_seconds
            work.audits[audit.id] = trust.shown_before(audit, opening, deadline)
        return ""

    async def beside(self, work: UnitOfWork, audit: Audit, side: Side) -> None:
        """Audit the same step of a neighbour of an audited member, unless somebody has looked at it already."""
        place = StepPlace(audit.job, audit.epoch, audit.round, side.stage, side.replica, audit.step)
        stored = await _audits_at(work, place)
        open_now = [
            a for a in work.audits.values() if (a.epoch, a.round, a.step) == (audit.epoch, audit.round, audit.step)
        ]
        if stored or any(other.seat == side.seat and not other.canary for other in open_now):
            return
        record = await work.tx.get(RoundRecord, audit.job, audit.epoch, audit.round)
        commits = [c for c in await _commits_of(work, audit.epoch, audit.round) if (c.stage, c.replica) == side.seat]
        seed = hashlib.sha256(bytes.fromhex(audit.seed) + f"beside:{audit.id}".encode()).digest()
        drawn = Drawn(side.stage, side.replica, audit.step)
        doubted = (side,) if side.silent else ()
        await self._open(work, record, commits[0], drawn, seed, sides=doubted, look=True)

    async def _sides(self, work: UnitOfWork, record: RoundRecord, audited: CommitRecord) -> tuple[Side, ...]:
        """A member and all that it exchanged payloads with in the steps of a round, as far as they are still here."""
        assert work.run is not None
        training, here = training_of(work.run, work.job.spec.training), (audited.stage, audited.replica)
        sides = [
            Side(c.stage, c.replica, c.lease, c.root, c.leaves)
            for c in await _commits_of(work, record.epoch, record.number)
            if c.drawable
            and c.leaves == audited.leaves
            and c.lease in work.leases
            and (c.lease == audited.lease or exchanges(record.plan, training, here, (c.stage, c.replica)))
        ]
        return tuple(sides) if len(sides) > 1 and any(side.seat == here for side in sides) else ()

    async def _refusal(
        self, work: UnitOfWork, asking: Lease, commit: CommitRecord | None, wanted: StepChallenge
    ) -> str:
        """Why a challenge is not taken."""
        if work.run is None or commit is None or wanted.step >= commit.leaves:
            return "there is no such step"
        prover = work.leases.get(commit.lease)
        if prover is None or wanted.round < work.run.done - KEPT_ROUNDS:
            return "nobody has its records any more"
        challenger = auditor_of(asking, self._context.config.auditors)
        stake = (await work.tx.get(NodeRecord, asking.node)).stake
        return auditors.refusal(
            commit.node, commit.payout, challenger, prover.env_class, stake, self._context.config.min_stake
        )

    async def _open(
        self,
        work: UnitOfWork,
        record: RoundRecord,
        commit: CommitRecord,
        drawn: Drawn,
        seed: bytes,
        challenger: str | None = None,
        outer: OuterClaim | None = None,
        accuser: str | None = None,
        sides: tuple[Side, ...] | None = None,
        look: bool = False,
    ) -> Audit:
        if sides is None:
            sides = await self._sides(work, record, commit) if outer is None else ()
        lease = work.leases.get(commit.lease) or await work.tx.get(Lease, commit.lease)
        watched = commit.look > 0
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
            asked=work.now,
            seed=seed.hex(),
            twice=drawn.twice,
            challenger=challenger,
            accuser=accuser,
            outer=outer,
            sides=sides,
            ending=outer is None and self._shows_ending(work, lease, watched, asked=challenger or accuser),
            watched=watched,
            proven=commit.look <= WHOLE // 2,  # As of a node with ``rates.TRUST`` rounds.
            share=commit.amount,
            look=look and watched,
            began=work.now,
        )
        if outer is None and challenger is None and accuser is None and self._leaves_anchor_out(work, record, audit):
            audit = msgspec.structs.replace(audit, anchor_in="auditor")
        work.audits[audit.id] = audit
        work.change(audits=work.job.audits + 1)
        how = "was drawn for an audit" if challenger is None else f"is challenged by node {challenger}"
        how = how if accuser is None else f"has a bond of {accuser} against it"
        work.note("audit", f"round {record.number + 1}: {audit.place} {how}")
        if work.run is not None and record.epoch < work.run.asked_from:
            lost = msgspec.structs.replace(audit, state="void", look=False, detail=untrusted(FORGOTTEN))
            work.conclude(lost)
        return audit

    def _shows_ending(self, work: UnitOfWork, lease: Lease, watched: bool, asked: NodeAddress | None) -> bool:
        """Whether a prover shows what its segment came to as well: machines of other classes have to look at it.

        Args:
            asked: who has asked for the audit; None: it was drawn.
        """
        if not comparable_across(training_of(work.run, work.job.spec.training)):
            return False
        if watched:
            return not self._watching.exactly(lease.env_class)
        operators = self._context.config.auditors
        others = [auditor_of(other, operators) for other in work.leases.values() if other.state == "ready"]
        return asked is None and auditors.alone(lease.env_class, lease.payout, others)

    def _leaves_anchor_out(self, work: UnitOfWork, record: RoundRecord, audit: Audit) -> bool:
        """Whether somebody who trains the stage too runs a lean step again, from an anchor of its own, while it has that.

        Two thirds of such an opening would be its anchor. The next round but one waits for it (``Verification.may_begin``), so it
        has to come within a round like this one.
        """
        if work.job.spec.training.memory != "lean" or audit.anchor is None or audit.ending:
            return False
        if audit.look or (audit.watched and not audit.proven):
            return False  # The operator's auditors train nothing.
        if int(audit.id[:8], 16) % OPENED_WHOLE == 0:
            return False
        operators = self._context.config.auditors
        others = [auditor_of(lease, operators) for lease in work.leases.values() if lease.state == "ready"]
        near = {a.payout for a in others if a.stage == audit.stage and a.env_class == audit.env_class}
        took = (record.ended or work.now) - record.started
        return len(near - {audit.payout}) > audit.twice and self._deadlines.brings_short(work, audit, took)

    async def _rate(self, work: UnitOfWork, commit: CommitRecord, standing: NodeStanding) -> int:
        """Fix how probable it is that a step is drawn."""
        exposure = None
        if self._context.config.min_stake > 0:
            held = await work.tx.find(
                CommitRecord, col(CommitRecord.job).equals(work.job.id), col(CommitRecord.node).equals(commit.node)
            )
            due = sum(c.amount for c in held if c.state in ("pending", "verified") and not c.bound)
            stake = (await work.tx.get(NodeRecord, commit.node)).stake
            exposure = Exposure(commit.amount, due - commit.amount, stake * rates.SLASH_BPS // 10_000)
        return rates.rate(standing, exposure, self._context.config.audit_floor)

    async def _is_watched(self, work: UnitOfWork, record: RoundRecord, commit: CommitRecord) -> bool:
        lease = work.leases.get(commit.lease) or await work.tx.get(Lease, commit.lease)
        if not (self._context.config.auditors and self._context.config.unwatched):
            return bool(self._context.config.auditors)  # Plans have no work that nobody could look at.
        training, layers = training_of(work.run, work.job.spec.training), record.plan.layers
        return self._watching.watches(shape_of(work), training, layers, commit.stage, lease.env_class)


async def _commits_of(work: UnitOfWork, epoch: int, number: int) -> list[CommitRecord]:
    """What members of a round of the job committed to."""
    of_round: tuple[Condition, ...] = (
        col(CommitRecord.job).equals(work.job.id),
        col(CommitRecord.epoch).equals(epoch),
        col(CommitRecord.round).equals(number),
    )
    return await work.tx.find(CommitRecord, *of_round)


async def _audits_at(work: UnitOfWork, place: StepPlace) -> list[Audit]:
    """Stored audits of one step; tests of auditors are none."""
    there: tuple[Condition, ...] = (
        col(Audit.job).equals(work.job.id),
        col(Audit.epoch).equals(place.epoch),
        col(Audit.round).equals(place.round),
        col(Audit.stage).equals(place.stage),
        col(Audit.replica).equals(place.replica),
        col(Audit.step).equals(place.step),
        col(Audit.canary).equals(False),
    )
    return await work.tx.find(Audit, *there)
