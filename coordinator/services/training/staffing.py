"""Who sits where: the first plan of a job, seats that became empty, spares."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any

import msgspec

from coordinator.client.text import money
from coordinator.domain import placement
from coordinator.domain.job import JobState
from coordinator.domain.lease import FAULTS, Lease
from coordinator.domain.placement import Candidate, Placement
from coordinator.domain.rounds import period
from coordinator.domain.rounds.run import Holder, Run, evaluations, lateness_of, training_of, whole_replicas
from coordinator.services.audits.auditor_capacity import Watching
from coordinator.services.core.context import Context
from coordinator.services.core.display_names import listed
from coordinator.services.core.domain_events import SeatsMoveNext
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.claims import could_go
from coordinator.services.network.link_telemetry import Links
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.payees import MAX_PAYEES, affordable, payable, payees_of
from coordinator.services.training import federating
from coordinator.services.training.job_faults import FORGIVEN_S, MAX_FAULTS_PER_NODE, too_many_at_once
from coordinator.services.training.moves import awaits_openings, movable
from coordinator.services.training.plan_search import PlanSearch
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord
from ledger import events as ledger_events
from protocol.job.job import TOGETHER, TrainingSpec
from protocol.job.sharding import sharded_from
from protocol.models.model import ModelShape, inspect_config
from protocol.task import Layers

MAX_REASONS = 3  # Why nodes have no seat, in the timeline; a large network has many that are simply not needed.
WARY_RESTARTS = 3  # Of a round, in a row: from then on those come first whose work was verified before.
SEEK_S = 1.0  # Between two looks for spares: each goes through all nodes that are here.
OPENINGS_S = 5.0  # Moves hold the next round for so long at most, until the last one's steps are opened.
UNSEEN = "what they compute in this job can be looked at by machines of their kind only, and the operator has none"


def shape_of(work: UnitOfWork) -> ModelShape:
    """Sizes of the job's model."""
    return _shape(msgspec.json.encode(work.job.config))


def memory_needed(work: UnitOfWork) -> placement.Needed:
    """What each stage of a job's run takes."""
    assert work.run is not None
    training = training_of(work.run, work.job.spec.training)
    return _needed(msgspec.json.encode(work.job.config), training, work.run.layers)


@lru_cache(maxsize=256)  # Jobs that are at work; each report of a node asks.
def _shape(config: bytes) -> ModelShape:
    return inspect_config(msgspec.json.decode(config))


@lru_cache(maxsize=256)
def _needed(config: bytes, training: TrainingSpec, layers: tuple[Layers, ...]) -> placement.Needed:
    return placement.needed(_shape(config), training, layers)


class Staffing:
    """Grants leases and ends those that are in the way; it never begins a round."""

    def __init__(self, context: Context, nodes: Nodes, links: Links, watching: Watching) -> None:
        self._context = context
        self._nodes = nodes
        self._links = links
        self._watching = watching
        self._waiting: dict[str, float] = {}
        self._search = PlanSearch(links)
        self._crowded: set[str] = set()
        self._told: dict[str, str] = {}  # Of each job that waits for something, what was said of it.
        self._deserted: dict[str, float] = {}
        # Of each job the leases whose node's stake is too little, and that was said.
        self._warned: dict[str, frozenset[str]] = {}
        self._sought: dict[str, float] = {}  # When a job that has all seats last looked for spares.
        self._looked: dict[str, int] = {}  # Rounds that were done when seats were last compared with what could be.
        every = (self._waiting, self._told, self._deserted, self._warned, self._sought, self._looked)
        self._of_jobs: tuple[dict[str, Any], ...] = every

    def forget(self, job: str) -> None:
        """A job is over, or rests."""
        for known in self._of_jobs:
            known.pop(job, None)
        self._crowded.discard(job)
        self._search.forget(job)

    async def plan(self, work: UnitOfWork) -> None:
        """Put nodes on a funded job; it stays funded while there are too few.

        All replicas of the quote are waited for a little; then as many as there are nodes for will do.
        """
        if why := await too_many_at_once(work):
            self._wait(work, why)
            return
        quote, training = work.job.quote, work.job.spec.training
        free = payable(await self._willing(work, self._nodes.candidates()), frozenset())
        since = self._waiting.setdefault(work.job.id, self._context.clock.now())
        patient = self._context.clock.now() - since < self._context.config.start_grace_seconds
        shape = shape_of(work)
        federated = work.job.spec.federated
        tried = federating.replicas_tried(work.job.spec, quote.replicas, patient=patient)
        found = self._search.find(work.job, shape, free, tried, self._nodes.known_auditors())
        if found is None:
            if self._search.is_unseen(work.job.id):
                return
            if federated is not None and (why := federating.why_waiting(work.job, free)):
                self._wait(work, why)
            await self._claim(work, free)
            return
        self._nodes.claims.drop(work.job.id)
        by_node = {candidate.node: candidate for candidate in free}
        classes = {seat: by_node[node].env_class for seat, node in found.seats.items()}
        if federated is None and (why := self._watching.unseen(shape, training, found.layers, classes)):
            self._search.unseen(work.job.id)
            self._wait(work, why)
            return
        self._search.forget(work.job.id)
        self._told.pop(work.job.id, None)
        del self._waiting[work.job.id]
        rounds = period.planned(training, quote.replicas, found)
        crossing = placement.settle_crossing(shape, training, found, by_node, self._links.map)
        work.run = Run(
            layers=found.layers,
            replicas=quote.replicas,
            total_steps=rounds.steps,
            inner_steps=training.inner_steps,
            evaluate=evaluations(rounds.rounds, self._context.config.validations),
            evaluators=self._context.config.evaluators,
            stretches=rounds.stretches,
            together=training.outer in TOGETHER,
            sharded_from=sharded_from(training),
            store_every=self._context.config.store_every,
            round_seconds=None if training.outer in TOGETHER else training.round_seconds,
            lateness=None if training.outer in TOGETHER else lateness_of(training),
            crossing=None if crossing is None else crossing.crossing,
            shares=quote.replicas if training.sampling == "epochs" else None,
        )
        if federated is not None:
            learns, _ = shape.stage_learns(0, shape.layers, True, True, training.lora)
            work.run = msgspec.structs.replace(work.run, **federating.run_settings(federated, learns))
        work.change(quote=msgspec.structs.replace(quote, limit=found.limit, rounds=rounds.rounds))
        work.advance(JobState.PLANNED, _planned(quote.stages, len(found.seats) // quote.stages))
        work.note("period", period.words(training, rounds, found))
        if crossing is not None:
            work.note("crossing", crossing.reason)
        if federated is None:  # Else whoever has no seat has not joined.
            self._reasons(work, found)
        self._seat(work, [(by_node[node], seat) for seat, node in sorted(found.seats.items())])

    async def _claim(self, work: UnitOfWork, free: Sequence[Candidate]) -> None:
        """Plan with what others could give back, too, and have them do so: as many replicas as are no more than a share."""
        there = await self._with_spare(work, free)
        if not there:
            return
        quote, claims = work.job.quote, self._nodes.claims
        if (federated := work.job.spec.federated) is not None:  # Its owners' own nodes: nobody else's will do.
            claims.claim(work.job.id, {one.node for one in there} if len(there) >= federated.least_owners else ())
            return
        tried = federating.replicas_tried(work.job.spec, quote.replicas, patient=False)
        tried = [number for number in tried if number == 1 or number * quote.stages <= claims.share(len(there))]
        shape, training = shape_of(work), work.job.spec.training
        found = self._search.find(work.job, shape, there, tried, self._nodes.known_auditors(), claiming=True)
        if found is not None:
            by_node = {one.node: one.env_class for one in there}
            classes = {seat: by_node[node] for seat, node in found.seats.items()}
            if self._watching.unseen(shape, training, found.layers, classes):
                self._search.unseen(work.job.id, claiming=True)
                found = None
        claims.claim(work.job.id, () if found is None else set(found.seats.values()))

    async def _with_spare(self, work: UnitOfWork, free: Sequence[Candidate]) -> list[Candidate]:
        """Free nodes, and those that others could give back; empty where nothing new is to be claimed."""
        claims = self._nodes.claims
        if not claims.is_due(work.job.id):
            return []
        spare = claims.spare(work.job.id)
        if claims.renew(work.job.id, spare | {one.node for one in free}):
            return []
        could = await self._willing(work, [one for one in self._nodes.seatable() if one.node in spare])
        both = [*free, *could]
        return payable(both, frozenset()) if work.run is None else await self._payable(work, both)

    def _wait(self, work: UnitOfWork, why: str) -> None:
        if self._told.get(work.job.id) != why:
            work.note("limit", f"the job waits: {why}")
        self._told[work.job.id] = why

    def _reasons(self, work: UnitOfWork, found: Placement) -> None:
        """Say what bounds the plan, and why nodes that are free are not in it."""
        work.note("limit", f"the plan is limited by {found.limit}")
        reasons: dict[str, list[str]] = defaultdict(list)
        for node, reason in found.left_out.items():
            reasons[reason].append(node)
        free = self._nodes.candidates()
        asking = [c.node for c in free if c not in affordable(free, work.job.quote.rate)]
        if asking:
            reasons[f"they ask more than {money(work.job.quote.rate)} for 10^15 operations"] = asking
        unseen = [c.node for c in free if not self._watching.seats(work.job.spec.training, c.env_class)]
        if unseen:
            reasons[UNSEEN] = unseen
        for reason, nodes in list(reasons.items())[:MAX_REASONS]:
            work.note("unused", f"without a seat: {listed(nodes)}: {reason}")

    async def repair(self, work: UnitOfWork) -> None:
        """Fill empty seats with spares and free nodes, else complete one broken replica with another; then hold spares, and
        give those back that another job waits for."""
        await self._fill_seats(work)
        self.give_back(work)

    def give_back(self, work: UnitOfWork) -> None:
        """End leases of spares that another job waits for."""
        claimed = self._nodes.claims.claimed(work.job.id)
        for lease in [lease for lease in self._spares_of(work) if lease.node in claimed]:
            if self._can_go(work, lease):
                work.end(lease.id, "replaced", "another job waits for it")

    def _can_go(self, work: UnitOfWork, spare: Lease) -> bool:
        """Whether a spare looks at nothing, and others could."""
        looks = {audit.auditor_lease for audit in work.audits.values()}
        sides = {node for one in work.disputes.values() for node in (one.dispute.prover, one.dispute.challenger)}
        busy = spare.id in looks or spare.node in sides
        return not busy and could_go(spare, work.leases.values(), self._context.config.auditors)

    async def _fill_seats(self, work: UnitOfWork) -> None:
        assert work.run is not None
        holders = {lease.seat: lease for lease in work.leases.values() if lease.seat}
        seats = [(s, p) for s in range(len(work.run.layers)) for p in range(work.run.replicas)]
        missing = [seat for seat in seats if seat not in holders]
        self._release_spares(work)
        self._warn_unstaked(work)
        spares = {lease.node: lease for lease in self._spares_of(work)}
        if not missing and not self._may_move(work, holders, len(spares)):
            return
        seated = {lease.node for lease in holders.values()}  # Granted just now, they are not yet known as busy.
        willing = await self._willing(work, self._nodes.candidates(tuple(spares)))
        awaited = frozenset() if missing else self._nodes.claims.claimed(work.job.id) - spares.keys()
        free = [candidate for candidate in willing if candidate.node not in seated | awaited]
        # An owner's seat is for that owner alone, and nobody stands by.
        federated = work.job.spec.federated is not None
        if not missing:
            self._nodes.claims.drop(work.job.id)
            moved = federated or await self._replace_leaving(work, holders, spares, free)
            if not moved and not await self._improve(work, holders, spares, free):
                self._hold_spares(work, free, spares)
            return
        free = await self._payable(work, free)
        known = self._nodes.known(seated) | {c.node: c for c in free}
        held = {seat: known[lease.node] for seat, lease in holders.items() if lease.node in known}
        memory = memory_needed(work)
        filled = self._own_seats(work.run, missing, free, memory)
        returning = self._may_return(work)
        if not returning:
            rest = [seat for seat in missing if seat not in filled]
            others = [candidate for candidate in free if candidate.node not in filled.values()]
            for some in await self._steady_first(work, others):
                filled |= placement.fill([seat for seat in rest if seat not in filled], held, some, memory)
                held |= {seat: known[node] for seat, node in filled.items()}
        self._hand_over(work, filled, spares, free)
        rest = [seat for seat in missing if seat not in filled]
        left = [candidate for candidate in free if candidate.node not in filled.values()]
        if rest and not returning and (could := await self._with_spare(work, left)):
            share = len(seats) if federated else self._nodes.claims.share(len(self._nodes.everywhere()))
            room = max(share, len(work.run.layers)) - len(held)
            claimed = placement.fill(rest[: max(0, room)], held, could, memory)
            self._nodes.claims.claim(work.job.id, set(claimed.values()))
        if not returning and not federated:
            self._merge(work, [seat for seat in missing if seat not in filled], memory)

    def _may_move(self, work: UnitOfWork, holders: Mapping[tuple[int, int], Lease], spares: int) -> bool:
        """Whether anything can come of looking for nodes while all seats are taken: every report of a job asks."""
        assert work.run is not None
        if work.job.spec.federated is not None:
            return False
        now = self._context.clock.now()
        if spares < self._spares() and now - self._sought.get(work.job.id, -inf) >= SEEK_S:
            self._sought[work.job.id] = now
            return True
        looked = work.run.done - self._looked.get(work.job.id, 0) >= placement.REST_ROUNDS
        return work.run.round is None and (looked or any(self._why_leaving(x.node) for x in holders.values()))

    def _spares(self) -> int:
        """How many a job is to have."""
        return 0 if self._nodes.claims.crowded else self._context.config.spares

    def _own_seats(
        self, run: Run, missing: Sequence[tuple[int, int]], free: Sequence[Candidate], memory: placement.Needed
    ) -> dict[tuple[int, int], str]:
        """Missing seats whose last holder is free again: it still has their state, and the optimizer's moments."""
        here = {candidate.node: candidate for candidate in free}
        last = {(own.stage, own.replica): own.kept.holders[0] for own in run.moments}
        held = [seat for seat in missing if seat in last and last[seat] in here]
        return {seat: last[seat] for seat in held if here[last[seat]].holds(memory, seat[0])}

    async def _steady_first(self, work: UnitOfWork, free: Sequence[Candidate]) -> list[list[Candidate]]:
        """Nodes in the order of who is asked first; last those that took seats lately, and left before they had worked.

        Else a few of them, the quickest, could come and go until the job has failed, as often as they like. Since keys are free,
        those come later that nobody knows, once it happens again and again, and last of these who came after the job.
        """
        assert work.run is not None
        if not free:
            return []
        where: tuple[Condition, ...] = (col(Lease.job).equals(work.job.id), col(Lease.ended) > work.now - FORGIVEN_S)
        left = await work.tx.find(Lease, *where, col(Lease.end).in_(("left", "expired")))
        seats = {one.id: one for one in (*left, *work.ended) if one.seat and one.end in ("left", "expired")}
        worked = await work.tx.find(CommitRecord, col(CommitRecord.lease).in_(tuple(seats))) if seats else []
        flying = work.run.round.seats if work.run.round is not None else ()
        done = {commit.lease for commit in worked} | {seat.lease for seat in flying if seat.commit is not None}
        times = Counter(lease.node for lease in seats.values() if lease.id not in done)
        wary = work.run.restarts >= WARY_RESTARTS

        def place(candidate: Candidate) -> int:
            if times[candidate.node] >= MAX_FAULTS_PER_NODE:
                return 3
            session = self._nodes.session(candidate.node)
            if not wary or session is None or session.rounds > 0:
                return 0
            return 1 if session.began <= work.job.created else 2

        groups: dict[int, list[Candidate]] = defaultdict(list)
        for candidate in free:
            groups[place(candidate)].append(candidate)
        return [groups[number] for number in sorted(groups)]

    def _may_return(self, work: UnitOfWork) -> bool:
        """Whether a run that all nodes have left still waits for them to come back to their seats."""
        now, job = self._context.clock.now(), work.job.id
        if not self.is_deserted(work):
            self._deserted.pop(job, None)
            return False
        return now - self._deserted.setdefault(job, now) < self._context.config.start_grace_seconds

    def is_deserted(self, work: UnitOfWork) -> bool:
        """Whether of those who kept the optimizer's moments when the last round ended nobody has been here since."""
        run = work.run
        if run is None or not run.moments:
            return False
        stayed = [lease for lease in work.leases.values() if lease.seat and lease.granted <= run.advanced]
        return all(self._nodes.session(lease.node) is None for lease in stayed)

    async def _improve(
        self,
        work: UnitOfWork,
        holders: Mapping[tuple[int, int], Lease],
        spares: Mapping[str, Lease],
        free: Sequence[Candidate],
    ) -> bool:
        """Between two rounds, now and then: change seats where what is measured today is worth it; whether any was changed."""
        run = work.run
        assert run is not None
        since = run.done - self._looked.get(work.job.id, 0)
        if run.round is not None or since < placement.REST_ROUNDS:
            return False
        known = self._nodes.known(lease.node for lease in holders.values())
        if any(x.node not in known for x in holders.values()):
            return False
        if any(self._nodes.is_draining(lease.node) for lease in holders.values()):
            return False  # It would have to get another seat.
        held = {seat: known[lease.node] for seat, lease in holders.items()}
        free = await self._payable(work, free)
        training, left = training_of(run, work.job.spec.training), run.total_rounds - run.done
        found = placement.reseat(
            shape_of(work), training, run.layers, held, free, self._links.map, rounds_left=left, rounds_since=since
        )
        if found and awaits_openings(work) and work.now - run.advanced < OPENINGS_S:
            work.record(SeatsMoveNext())
            return False
        seats = movable(work, {seat: lease.node for seat, lease in holders.items()}, found.seats) if found else {}
        if found is None or len(seats) == len(found.seats):
            work.moved_memory = True
            self._looked[work.job.id] = run.done  # Else who is asked to open a step follows after the next round.
        if found is None or not seats:
            return False
        work.note("moved", found.reason)
        for seat in seats:
            work.end(holders[seat].id, "replaced", "another node takes the seat")
        self._hand_over(work, seats, spares, (*held.values(), *free))
        return True

    def _warn_unstaked(self, work: UnitOfWork) -> None:
        """Say once of each lease that its node's stake is too little by now; a spare loses it, since nothing waits for it."""
        least = money(self._context.config.min_stake)
        short = [lease for lease in work.leases.values() if self._nodes.short_of_stake(lease.node)]
        for lease in short:
            if lease.seat is None:
                work.end(lease.id, "replaced", f"its stake is below the {least} that this network asks for")
            elif lease.id not in self._warned.get(work.job.id, ()):
                text = f"the stake of node {lease.node} is below {least} by now: it gets no other seat, is audited more"
                work.note(
                    "stake", f"{text}, and a node with stake takes this one between two rounds as soon as one is free"
                )
        warned = frozenset(lease.id for lease in short)
        work.moved_memory |= warned != self._warned.get(work.job.id, frozenset())
        self._warned[work.job.id] = warned

    def _spares_of(self, work: UnitOfWork) -> list[Lease]:
        """The job's spares; the operator's auditors look, and neither step in nor count as such."""
        own = self._context.config.auditors
        return [lease for lease in work.leases.values() if lease.seat is None and lease.node not in own]

    def _release_spares(self, work: UnitOfWork) -> None:
        """Spares that drain, or that an array can use, stand by no more, since nothing waits for them."""
        spares = self._spares_of(work) if self._nodes.claims.crowded else ()
        array = [lease for lease in spares if self._can_go(work, lease)]
        for lease in [lease for lease in work.leases.values() if lease.seat is None]:
            if why := self._nodes.why_draining(lease.node) or (
                "an array can use it meanwhile" if lease in array else ""
            ):
                work.end(lease.id, "replaced", why)

    def _why_leaving(self, node: str) -> str:
        """Why a node's seat goes to another between two rounds; empty: it stays."""
        if why := self._nodes.why_draining(node):
            return why
        return "its stake is too little by now" if self._nodes.short_of_stake(node) else ""

    async def _replace_leaving(
        self,
        work: UnitOfWork,
        holders: Mapping[tuple[int, int], Lease],
        spares: Mapping[str, Lease],
        free: Sequence[Candidate],
    ) -> bool:
        """Between two rounds: give seats of nodes that drain, or have too little stake, to others; whether any was given."""
        assert work.run is not None
        leaving = {seat: lease for seat, lease in holders.items() if self._why_leaving(lease.node)}
        if not leaving or work.run.round is not None:
            return False
        known = self._nodes.known(lease.node for lease in holders.values())
        held = {s: known[lease.node] for s, lease in holders.items() if s not in leaving and lease.node in known}
        free = await self._payable(work, free)
        found = placement.fill(sorted(leaving), held, free, memory_needed(work))
        if found and awaits_openings(work) and work.now - work.run.advanced < OPENINGS_S:
            work.record(SeatsMoveNext())
            return True
        seats = movable(work, {seat: lease.node for seat, lease in holders.items()}, found)
        for seat in seats:
            why = self._why_leaving(leaving[seat].node)
            work.end(leaving[seat].id, "replaced", f"{why}: another node takes the seat")
        self._hand_over(work, seats, spares, free)
        return bool(seats)

    def _hand_over(
        self,
        work: UnitOfWork,
        seats: Mapping[tuple[int, int], str],
        spares: Mapping[str, Lease],
        candidates: Sequence[Candidate],
    ) -> None:
        """Seat these nodes, which leave what they hold as spares."""
        for node in seats.values():
            if node in spares:
                work.end(spares[node].id, "replaced", "the spare takes a seat")
        by_node = {candidate.node: candidate for candidate in candidates}
        self._seat(work, [(by_node[node], seat) for seat, node in sorted(seats.items())])

    def _merge(self, work: UnitOfWork, missing: Sequence[tuple[int, int]], memory: placement.Needed) -> None:
        """With no free node left, higher broken replicas give their members to lower ones."""
        known = self._nodes.known(lease.node for lease in work.leases.values())
        holders = {lease.seat: lease for lease in work.leases.values() if lease.seat and lease.node in known}
        fits = {
            stage: frozenset(
                seat
                for seat, lease in holders.items()
                if known[lease.node].holds(memory, stage) and not self._nodes.is_draining(lease.node)
            )
            for stage in range(len(memory["main"]))
        }
        moves = placement.moves(missing, list(holders), fits)
        moving = [(known[holders[source].node], seat) for seat, source in sorted(moves.items())]
        for source in moves.values():
            work.end(holders[source].id, "replaced", "the node completes another replica")
        self._seat(work, moving)

    def _hold_spares(self, work: UnitOfWork, free: Sequence[Candidate], spares: dict[str, Lease]) -> None:
        wanted = self._spares() - len(spares)
        memory = memory_needed(work)
        stages = range(len(memory["main"]))
        for candidate in [c for c in free if c.node not in spares][: max(0, wanted)]:
            if any(candidate.holds(memory, stage) for stage in stages):
                work.grant(candidate.node, candidate.owner, None)
                work.note("spare", f"node {candidate.node} stands by as a spare")

    def _seat(self, work: UnitOfWork, seating: Sequence[tuple[Candidate, tuple[int, int]]]) -> None:
        assert work.run is not None
        for candidate, seat in seating:
            work.grant(candidate.node, candidate.owner, seat)
            work.note("assigned", f"node {candidate.node} takes stage {seat[0]} of replica {seat[1]}")
        attempt = work.run.fence
        for event in ledger_events.assignments(work.job.id, attempt, [c.node for c, _ in seating]):
            work.memo(f"assigned:{attempt}:{event.nodes[0]}", event)

    def able(self, work: UnitOfWork) -> list[Candidate]:
        """Nodes of all cells, busy or not, that could take one of the job's seats at its price."""
        training, memory = work.job.spec.training, memory_needed(work) if work.run is not None else None
        return [
            c
            for c in affordable(self._nodes.everywhere(), work.job.quote.rate)
            if self._watching.seats(training, c.env_class)
            and (memory is None or any(c.holds(memory, stage) for stage in range(len(memory["main"]))))
        ]

    async def _willing(self, work: UnitOfWork, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that work for the job's price, can be looked at in it, have not failed it lately, and were not sent out of it."""
        if not candidates:
            return []
        of_job: tuple[Condition, ...] = (col(Lease.job).equals(work.job.id),)
        since: Condition = col(Lease.ended) > work.now - FORGIVEN_S
        faults = await work.tx.find(Lease, *of_job, col(Lease.end).in_(tuple(sorted(FAULTS))), since)
        failures = [lease.node for lease in (*faults, *(held for held in work.ended if held.end in FAULTS))]
        rejected = await work.tx.find(Lease, *of_job, col(Lease.end).equals("rejected"))
        out = {lease.node for lease in (*rejected, *work.ended) if lease.end == "rejected"}
        training, federated = work.job.spec.training, work.job.spec.federated is not None
        willing = (
            federating.owners_of(work.job, candidates) if federated else affordable(candidates, work.job.quote.rate)
        )
        return [
            c
            for c in willing
            if failures.count(c.node) < MAX_FAULTS_PER_NODE
            and c.node not in out
            and (federated or self._watching.seats(training, c.env_class))
        ]

    async def _payable(self, work: UnitOfWork, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those whose accounts the job's escrow can pay beside everybody who has worked for it."""
        if not candidates:
            return []
        stored = await work.tx.find(Lease, col(Lease.job).equals(work.job.id))
        now = {lease.id: lease for lease in (*stored, *work.ended, *work.leases.values())}
        due: tuple[Condition, ...] = (
            col(CommitRecord.job).equals(work.job.id),
            col(CommitRecord.state).in_(("pending", "verified")),
        )
        shares = await work.tx.sums(CommitRecord, col(CommitRecord.amount), (col(CommitRecord.lease),), *due)
        worked = {str(lease) for (lease,) in shares}
        if work.run is not None and work.run.round is not None:
            worked |= {seat.lease for seat in work.run.round.seats if seat.commit is not None}
        payees = payees_of(now.values(), worked)
        admitted = payable(candidates, payees)
        if len(payees) >= MAX_PAYEES and len(admitted) < len(candidates) and work.job.id not in self._crowded:
            self._crowded.add(work.job.id)
            work.moved_memory = True
            refused = next(c.node for c in candidates if c not in admitted)
            work.note(
                "crowded",
                f"node {refused} gets no seat: the escrow can pay {MAX_PAYEES} accounts, and as many have worked for the job; "
                "from now on only nodes of those accounts take seats",
            )
        return admitted


def _planned(stages: int, replicas: int) -> str:
    """The shape of a plan in a sentence."""
    nodes = stages * replicas
    if nodes == 1:
        return "one node is chosen: it trains the whole model"
    if stages == 1:
        return f"{nodes} nodes are chosen: each trains a replica of the whole model"
    if replicas == 1:
        return f"{nodes} nodes are chosen: each holds one stage of the model"
    return f"{nodes} nodes are chosen: {replicas} replicas of the model, each in {stages} stages"


def seats_ready(work: UnitOfWork) -> tuple[bool, bool]:
    """Whether every seat that is held is ready, and whether some replica is whole."""
    assert work.run is not None
    seated = [lease for lease in work.leases.values() if lease.seat]
    everybody = len(seated) == len(work.run.layers) * work.run.replicas and all(s.state == "ready" for s in seated)
    return everybody, bool(whole_replicas(work.run, holders(work)))


def holders(work: UnitOfWork) -> list[Holder]:
    """Seats whose workers are ready."""
    return [
        Holder(lease.id, lease.node, lease.stage or 0, lease.replica or 0, lease.payout, lease.env_class)
        for lease in work.leases.values()
        if lease.seat and lease.state == "ready"
    ]
