"""Who holds the model of a deployment: replicas of one node or several, and nodes for seats that were lost."""

from collections import Counter
from collections.abc import Collection, Sequence

from coordinator.domain import serving as rules
from coordinator.domain import teams
from coordinator.domain.job import JobState
from coordinator.domain.lease import FAULTS, Lease, LeaseEnd
from coordinator.domain.placement import MEGABYTE, Candidate, Needed
from coordinator.domain.rounds.run import Run
from coordinator.domain.serving import HeldModel
from coordinator.domain.teams import Team, TeamWishes
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.link_telemetry import Links
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.payees import affordable, payable, payees_of
from coordinator.services.training.job_faults import FORGIVEN_S, MAX_FAULTS_PER_NODE
from coordinator.services.training.staffing import shape_of
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord
from protocol.job.job import ServeSpec
from protocol.plan import MAX_REPLICAS
from protocol.task import Layers

HALF_S = 600.0  # For so long nodes of a replica wait, unpaid, for one in the place of another.


def memory_needed(work: UnitOfWork) -> Needed:
    """What the nodes of a replica need, by stage."""
    assert work.run is not None
    return rules.needed(_held(work), work.run.layers)


class ReplicaStaffing:
    """Grants leases of deployments, and ends those of replicas that do not answer."""

    def __init__(self, nodes: Nodes, links: Links) -> None:
        self._nodes = nodes
        self._links = links
        self._told: dict[str, str] = {}
        self._halves: dict[str, dict[int, float]] = {}  # Of each job the replicas with a seat to fill, and since when.
        self._broken: dict[str, Counter[str]] = {}  # Of each job, how many replicas that fell silent a node was of.

    def forget(self, job: str) -> None:
        """A job is over."""
        self._told.pop(job, None)
        self._broken.pop(job, None)
        self._halves.pop(job, None)

    def let_go(self, work: UnitOfWork, asked: str, why: str) -> None:
        """A replica does not answer. One node is at fault for it. Of several nobody knows which one hangs: all of them go, none
        is at fault, and others come first the next time."""
        seats = self._replica_of(work, work.leases[asked])
        if len(seats) == 1:
            work.note("lost", f"node {seats[0].node} is let go: {why}")
            work.end(asked, "stalled", why)
            return
        work.note("lost", f"replica {(seats[0].replica or 0) + 1} is let go: {why}")
        self.part(work, seats, why)

    def give_up(self, work: UnitOfWork, seat: Lease, why: str) -> None:
        """A node of a replica of several does not say that it is there: its seat alone is free, and others come first for it."""
        work.note("lost", f"node {seat.node} is let go: {why}")
        self.part(work, (seat,), why, "stalled")

    def part(self, work: UnitOfWork, seats: Sequence[Lease], why: str, how: LeaseEnd = "replaced") -> None:
        """Let these go; the next time others come first."""
        self._broken.setdefault(work.job.id, Counter()).update(seat.node for seat in seats)
        for seat in seats:
            work.end(seat.id, how, why)

    async def fill(
        self, work: UnitOfWork, owed: Collection[int | None], shunned: Collection[str] = frozenset()
    ) -> None:
        """Give lost seats, and replicas that are still to come, to free nodes. A replica begins whole or not at all.

        Args:
            owed: numbers of replicas that are still to be paid: a period has one share for each seat.
            shunned: nodes that get none.
        """
        stages = None if work.run is None else len(work.run.layers)
        gaps = {} if stages is None else _gaps(work, stages)
        missing = _serve(work).replicas - len({lease.replica for lease in work.leases.values()})
        if not gaps:
            self._halves.pop(work.job.id, None)
            if missing <= 0:
                self._nodes.claims.drop(work.job.id)
                return
        # A lost seat comes first, and others' claims before a further replica.
        awaited = self._nodes.claims.claimed(work.job.id) if work.leases else frozenset()
        unasked = frozenset() if gaps else awaited
        free = [one for one in self._free(work) if one.node not in unasked.union(shunned)]
        planned = self._first(work, free) is not None
        able = await self._able(work, free) if free and (work.run is not None or planned) else []
        for number, lost in gaps.items():
            near = [lease.node for lease in work.leases.values() if lease.replica == number]
            able = self._grant(work, number, self._team(work, lost, able, near), able)
        if stages is not None:
            self._break_up(work, stages)
        self._begin(work, [one for one in able if one.node not in awaited], missing, owed)
        await self._claim(work, free, shunned)

    async def _claim(self, work: UnitOfWork, free: Sequence[Candidate], shunned: Collection[str]) -> None:
        """Have arrays give back, and other jobs their spares, what lost seats need, or a first replica, or a further one that
        is no more than this job's share."""
        claims, run = self._nodes.claims, work.run
        gaps = {} if run is None else _gaps(work, len(run.layers))
        if not gaps and len({lease.replica for lease in work.leases.values()}) >= _serve(work).replicas:
            claims.drop(work.job.id)
            return
        held = {lease.node for lease in work.leases.values()}
        free, spare = [one for one in free if one.node not in held], claims.spare(work.job.id) - set(shunned)
        if not claims.is_due(work.job.id) or claims.renew(work.job.id, spare | {one.node for one in free}):
            return
        wanted = affordable(self._nodes.seatable(), work.job.quote.rate)
        there = await self._able(work, [*free, *(one for one in wanted if one.node in spare)])
        team: Team = {}
        if run is None:
            found = self._first(work, there)
            team = {} if found is None else found[1]
        elif gaps:
            number, lost = min(gaps.items())
            near = [lease.node for lease in work.leases.values() if lease.replica == number]
            team = self._team(work, lost, there, near)
        elif len(held) + len(run.layers) <= claims.share(len(there) + len(held)):
            team = self._team(work, range(len(run.layers)), there, ())
        claims.claim(work.job.id, {one.node for one in team.values()})

    def _break_up(self, work: UnitOfWork, stages: int) -> None:
        """Free the nodes of a replica that stays without some seat: at once where they may complete another one."""
        still, before = _gaps(work, stages), self._halves.get(work.job.id, {})
        self._halves[work.job.id] = halves = {number: before.get(number, work.now) for number in still}
        for number, since in halves.items():
            if (len(still) > 1 and number == max(still)) or work.now - since > HALF_S:
                why = f"replica {number + 1} is let go: it is not whole, and no free node completes it"
                work.note("lost", why)
                for seat in [lease for lease in work.leases.values() if lease.replica == number]:
                    work.end(seat.id, "replaced", why)

    def _begin(self, work: UnitOfWork, able: list[Candidate], missing: int, owed: Collection[int | None]) -> None:
        """New replicas, as far as there are nodes for them."""
        taken = {lease.replica for lease in work.leases.values()} | set(owed)
        numbers = [number for number in range(MAX_REPLICAS) if number not in taken]
        begun = 0
        for number in numbers[: max(0, missing)]:
            if work.run is None:
                found = self._first(work, able)
                if found is None:
                    break
                work.run, team = _run(found[0], _serve(work).replicas), found[1]
            else:
                team = self._team(work, range(len(work.run.layers)), able, ())
            if not team:
                break
            able = self._grant(work, number, team, able)
            begun += 1
        if work.job.state is not JobState.FUNDED:
            return
        if begun and work.run is not None:
            self._told.pop(work.job.id, None)
            work.advance(JobState.PLANNED, _chosen_words(len(work.run.layers), begun))
        else:
            self._tell(work)

    def _grant(self, work: UnitOfWork, number: int, team: Team, able: list[Candidate]) -> list[Candidate]:
        """Give the seats away; returns who is left."""
        assert work.run is not None
        stages = len(work.run.layers)
        for stage, candidate in sorted(team.items()):
            work.grant(candidate.node, candidate.owner, (stage, number))
            what = f"replica {number + 1}" if stages == 1 else f"stage {stage + 1} of {stages} of replica {number + 1}"
            work.note("assigned", f"node {candidate.node} takes {what}")
        gone = {candidate.node for candidate in team.values()}
        return [one for one in able if one.node not in gone]

    def _team(self, work: UnitOfWork, stages: Collection[int], able: Sequence[Candidate], near: Sequence[str]) -> Team:
        return teams.team(memory_needed(work), stages, able, near, self._wishes(work)) or {}

    def _wishes(self, work: UnitOfWork) -> TeamWishes:
        owners = frozenset(lease.payout for lease in work.leases.values())
        apart = frozenset(frozenset(pair) for pair in work.run.apart) if work.run is not None else frozenset()
        return TeamWishes(owners, apart, self._broken.get(work.job.id, {}), self._links.map)

    def _first(self, work: UnitOfWork, free: Sequence[Candidate]) -> tuple[tuple[Layers, ...], Team] | None:
        """The cut, and the first replica, of a deployment that has none."""
        if work.run is not None or not free:
            return None
        wishes = self._wishes(work)
        return teams.first_team(_held(work), free, _serve(work).stages, wishes)

    def _free(self, work: UnitOfWork) -> list[Candidate]:
        """Free nodes that can hold something of the model and work for its price."""
        held = {lease.node for lease in work.leases.values()}
        free = [one for one in affordable(self._nodes.candidates(), work.job.quote.rate) if one.node not in held]
        if work.run is None:
            return free
        needed, stages = memory_needed(work), range(len(work.run.layers))
        return [one for one in free if any(one.holds(needed, stage) for stage in stages)]

    async def _able(self, work: UnitOfWork, free: Sequence[Candidate]) -> list[Candidate]:
        """Those among them that have not failed here, and that can be paid."""
        of_job: Condition = col(Lease.job).equals(work.job.id)
        stored = await work.tx.find(Lease, of_job, col(Lease.ended) > work.now - FORGIVEN_S)
        known = {lease.id: lease for lease in (*stored, *work.ended)}.values()
        failures = [lease.node for lease in known if lease.end in FAULTS]
        out = {lease.node for lease in await work.tx.find(Lease, of_job, col(Lease.end).equals("rejected"))}
        out |= {lease.node for lease in work.ended if lease.end == "rejected"}
        able = [one for one in free if one.node not in out and failures.count(one.node) < MAX_FAULTS_PER_NODE]
        every = {lease.id: lease for lease in (*await work.tx.find(Lease, of_job), *work.ended, *work.leases.values())}
        commits = await work.tx.find(CommitRecord, col(CommitRecord.job).equals(work.job.id))
        return payable(able, payees_of(every.values(), {commit.lease for commit in commits}))

    def _tell(self, work: UnitOfWork) -> None:
        """Say once why a deployment waits."""
        stages = _serve(work).stages if work.run is None else len(work.run.layers)
        held = _held(work)
        cut = teams.cut_for(held.shape, stages or 1) or (Layers(0, held.shape.layers),)
        needed = rules.needed(held, cut)["main"]
        if len(cut) == 1:
            why = f"no free node holds the model with its cache ({needed[0] // MEGABYTE:,} MB) at this price"
            why += f", nor do up to {teams.MOST_STAGES} together" if stages is None else ""
        else:
            sizes = " and ".join(f"{size // MEGABYTE:,}" for size in needed)
            why = f"no {len(cut)} free nodes hold the model together at this price ({sizes} MB)"
        if self._told.get(work.job.id) != why:
            work.note("limit", f"the deployment waits: {why}")
        self._told[work.job.id] = why

    @staticmethod
    def _replica_of(work: UnitOfWork, asked: Lease) -> list[Lease]:
        seats = [lease for lease in work.leases.values() if lease.replica == asked.replica]
        return sorted(seats, key=lambda lease: lease.stage or 0)


def _gaps(work: UnitOfWork, stages: int) -> dict[int, list[int]]:
    """Stages that nobody holds, of each replica that somebody holds a part of."""
    held: dict[int, set[int | None]] = {}
    for lease in work.leases.values():
        if lease.replica is not None:
            held.setdefault(lease.replica, set()).add(lease.stage)
    lost = {number: [stage for stage in range(stages) if stage not in held[number]] for number in sorted(held)}
    return {number: missing for number, missing in lost.items() if missing}


def _chosen_words(stages: int, replicas: int) -> str:
    if stages == 1:
        return (
            f"{replicas} nodes are chosen: each loads the whole model"
            if replicas > 1
            else "one node is chosen: it loads the whole model"
        )
    if replicas == 1:
        return f"{stages} nodes are chosen: together they load the whole model"
    return f"{replicas} replicas of {stages} nodes are chosen: those of each load the whole model together"


def _serve(work: UnitOfWork) -> ServeSpec:
    assert work.job.spec.serve is not None
    return work.job.spec.serve


def _held(work: UnitOfWork) -> HeldModel:
    return rules.held_model(shape_of(work), _serve(work))


def _run(cut: tuple[Layers, ...], replicas: int) -> Run:
    """A run without rounds: its leases have numbers, and its nodes hold the whole model."""
    return Run(cut, replicas, total_steps=0, inner_steps=1, evaluate=())
