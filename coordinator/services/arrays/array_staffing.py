"""Which nodes work at an array: as many as it can use, beside other arrays no more than its share, and none that a job waits for
which needs several at once (``services.network.claims``). Arrays of other cells count as others do; nodes that are free there are
wished for, and come if nobody there has a use for them (``services.network.cell_nodes``)."""

from collections.abc import Collection, Mapping

from coordinator.domain.arrays.apart import block_of
from coordinator.domain.arrays.board import ElementSeat
from coordinator.domain.arrays.tally import fair_share
from coordinator.domain.job import JobState
from coordinator.domain.lease import FAULTS, Lease
from coordinator.domain.placement import Candidate
from coordinator.domain.rounds.run import Run
from coordinator.services.arrays.open_arrays import OpenArray, OpenArrays, array_of
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.payees import affordable, payable, payees_of
from coordinator.services.payments.period_jobs import give_up_late
from coordinator.services.training.job_faults import FORGIVEN_S, MAX_FAULTS_PER_NODE
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord
from protocol.ids import Digest
from protocol.job.array import ArraySpec
from protocol.plan import MAX_REPLICAS
from protocol.task import Layers

START_S = 1_800.0  # To fetch the image, which may have gigabytes, and to try it.
STAFF_S = 1.0  # Between two looks at who is free.
MAX_IMAGES = 1_000  # Of which it is remembered who has them, those used last.


def runs_it(node: Candidate, array: ArraySpec, containers: bool) -> bool:
    """Whether a node can run an array's elements. ``containers``: it runs those at all."""
    if not containers or (array.gpu and not node.card):
        return False
    return memory_of(node) >= array.memory_mb and (array.verify != "trusted" or node.owner in array.trusted)


def memory_of(node: Candidate) -> int:
    """Main memory in which a node may run elements, in MB."""
    return node.memory_mb if not node.card else (node.beside_mb or 0)


class ArrayStaffing:
    """Grants leases of arrays, and lets nodes go that others wait for."""

    def __init__(self, context: Context, nodes: Nodes, arrays: OpenArrays) -> None:
        self._context, self._nodes, self._arrays = context, nodes, arrays
        self._wants: dict[str, tuple[int, int]] = {}  # Job -> nodes that it could use, and that it has.
        self._elsewhere: Mapping[str, tuple[int, int]] = {}  # The same of other cells.
        self._has: dict[Digest, set[str]] = {}  # Image -> nodes that had it since the coordinator began.

    def has_image(self, node: str, image: Digest) -> None:
        """A node has fetched it, so it is asked first where somebody runs it again: an image may have gigabytes."""
        self._has[image] = self._has.pop(image, set()) | {node}
        if len(self._has) > MAX_IMAGES:
            del self._has[next(iter(self._has))]

    def needs(self) -> Mapping[str, tuple[int, int]]:
        """How many nodes each array could use, and how many it has."""
        return dict(self._wants)

    def hear(self, needs: Mapping[str, tuple[int, int]]) -> None:
        """The same of arrays of other cells, from now on those alone."""
        self._elsewhere = needs

    def forget(self, job: str) -> None:
        """It wants nobody any more."""
        self._wants.pop(job, None)
        self._nodes.claims.lends(job, None)

    def able(self, array: ArraySpec, rate: int) -> list[Candidate]:
        """Nodes that could run its elements at this price, busy or not."""
        return [one for one in affordable(self._nodes.seatable(), rate) if self._runs(one, array)]

    def why_none(self, array: ArraySpec, rate: int) -> str:
        """What the nodes lack of which none is ``able``."""
        nodes = [one for one in self._nodes.seatable() if self._has_containers(one)]
        if not nodes:
            begin = "owners begin with `cottage node images accept KEY`, and nodes tell it within seconds"
            return f"no node runs containers here: {begin}"
        most = max(map(memory_of, nodes))
        lacks = (
            (affordable(nodes, rate), "works for this price"),
            ([one for one in nodes if array.verify != "trusted" or one.owner in array.trusted], "is of array.trusted"),
            ([one for one in nodes if one.card or not array.gpu], "lends a graphics card"),
            (
                [one for one in nodes if memory_of(one) >= array.memory_mb],
                f"lends {array.memory_mb:,} MB of memory, {most:,} at most",
            ),
        )
        lacking = next((words for found, words in lacks if not found), "has all that an element needs at once")
        return f"of {len(nodes)} nodes that run containers here none {lacking}"

    def seat(self, lease: Lease) -> ElementSeat:
        """A lease as elements are given to it."""
        session = self._nodes.session(lease.node)
        block = "" if session is None else block_of(session.address)
        return ElementSeat(lease.id, lease.node, lease.payout, block, lease.replica or 0)

    async def fill(self, work: UnitOfWork, array: OpenArray) -> None:
        """Have as many nodes at work as are free, can be used and are this array's share."""
        now = self._context.clock.now()
        if now - array.staffed < STAFF_S and work.job.state is not JobState.FUNDED:
            return
        array.staffed = now
        self._let_go(work)
        spec, claims = array_of(work), self._nodes.claims
        claimed = claims.claimed()
        array.asked_back = self._spare(work, array) & claimed
        claims.lends(work.job.id, self._spare(work, array))
        self._hand_back(work, array)
        held = len(work.leases)
        free = [one for one in self._nodes.candidates() if self._runs(one, spec) and one.node not in claimed]
        free = affordable(free, work.job.quote.rate)
        self._wants[work.job.id] = (self._useful(work, array), held)
        if array.board.left() == 0:
            return
        there = len(free)
        if self._wants[work.job.id][0] > held + there:
            there += self._wish(work, claimed, held + there)
        share = self._share(work.job.id, there)
        every = {**self._elsewhere, **self._wants}
        others_wait = any(wants > has for job, (wants, has) in every.items() if job != work.job.id)
        self._give_back(work, array, held - share if others_wait else 0)
        if share > held and free:
            await self._grant(work, [one for one in free if one.node not in self._nodes_of(work)], share - held)

    @staticmethod
    def _useful(work: UnitOfWork, array: OpenArray) -> int:
        """How many nodes it could use. Who is here may have run what is left, so further ones are needed where nothing moves."""
        board = array.board
        if board.running() == 0 and board.waiting():
            return min(MAX_REPLICAS, len(work.leases) + board.left())
        return min(MAX_REPLICAS, board.left() + sum(bool(board.of_lease(one)) for one in work.leases))

    def _wish(self, work: UnitOfWork, claimed: Collection[str], here: int) -> int:
        """Wish for free nodes of other cells beside so many that are here; returns how many there are, or are on their way."""
        job, spec, elsewhere = work.job.id, array_of(work), self._nodes.elsewhere
        free = [one for one in elsewhere.free() if self._runs(one, spec) and one.node not in claimed]
        far = [one.node for one in affordable(free, work.job.quote.rate)]
        known = {*far, *elsewhere.all()}
        coming = [x for x in self._nodes.claims.wished(job) if x not in known and self._nodes.session(x) is None]
        more = self._share(job, len(far) + len(coming) + here - len(work.leases)) - here - len(coming)
        self._nodes.claims.wish(job, far[: max(0, more)])
        return len(far) + len(coming)

    def _share(self, job: str, free: int) -> int:
        every = {**self._elsewhere, **self._wants}
        wants = {one: useful for one, (useful, _) in every.items()}
        return fair_share(wants, {one: held for one, (_, held) in every.items()}, free)[job]

    def _give_back(self, work: UnitOfWork, array: OpenArray, surplus: int) -> None:
        """Nodes beyond the share get nothing more, and go once they have ended what they have."""
        keen = sorted(work.leases, key=lambda lease: (lease not in array.draining, len(array.board.of_lease(lease))))
        asked_back = {lease.id for lease in work.leases.values() if lease.node in array.asked_back}
        array.draining = asked_back | set(keen[: max(0, surplus)])
        for lease in [one for one in array.draining - asked_back if not array.board.of_lease(one)]:
            array.draining.discard(lease)
            work.end(lease, "replaced", "another array job waits for nodes")

    def _hand_back(self, work: UnitOfWork, array: OpenArray) -> None:
        """Nodes that a job waits for which needs all its seats at once get nothing more, and go once they have ended theirs."""
        for lease in [one for one in work.leases.values() if one.node in array.asked_back]:
            array.draining.add(lease.id)
            if not array.board.of_lease(lease.id):
                array.draining.discard(lease.id)
                work.end(lease.id, "replaced", "a job that needs several nodes at once waits for this one")

    @staticmethod
    def _spare(work: UnitOfWork, array: OpenArray) -> frozenset[str]:
        """Nodes without which it goes on: all but those of as many owners as an element needs, who were here first."""
        kept: dict[str, str] = {}
        for lease in sorted(work.leases.values(), key=lambda one: (one.granted, one.id)):
            if len(kept) < array.board.rules.owners:
                kept.setdefault(lease.payout, lease.node)
        return frozenset(lease.node for lease in work.leases.values()) - set(kept.values())

    async def _grant(self, work: UnitOfWork, free: list[Candidate], most: int) -> None:
        has = self._has.get(array_of(work).image, ())
        able = sorted(await self._forgiven(work, free), key=lambda one: one.node not in has)
        if work.run is None and able:
            work.run = Run((Layers(0, 0),), MAX_REPLICAS, total_steps=0, inner_steps=1, evaluate=())
        owed = set() if work.run is None else {one.replica for one in work.run.tally.owed.values()}
        taken = {lease.replica for lease in work.leases.values()} | owed
        numbers = (number for number in range(MAX_REPLICAS) if number not in taken)
        for candidate, number in zip(able[:most], numbers, strict=False):
            work.grant(candidate.node, candidate.owner, (0, number))
            work.note("assigned", f"node {candidate.node} runs elements")
        if work.job.state is JobState.FUNDED and work.leases:
            one = "one node fetches" if len(work.leases) == 1 else f"{len(work.leases)} nodes fetch"
            work.advance(JobState.PLANNED, f"{one} the image")

    async def _forgiven(self, work: UnitOfWork, free: list[Candidate]) -> list[Candidate]:
        """Those that have not failed here often lately, were not found wrong, and can be paid."""
        of_job: Condition = col(Lease.job).equals(work.job.id)
        stored = await work.tx.find(Lease, of_job)
        known = {lease.id: lease for lease in (*stored, *work.ended, *work.leases.values())}.values()
        failures = [one.node for one in known if one.end in FAULTS and (one.ended or 0.0) > work.now - FORGIVEN_S]
        out = {one.node for one in known if one.end == "rejected"}
        able = [one for one in free if one.node not in out and failures.count(one.node) < MAX_FAULTS_PER_NODE]
        commits = await work.tx.find(CommitRecord, col(CommitRecord.job).equals(work.job.id))
        return payable(able, payees_of(known, {commit.lease for commit in commits}))

    def _let_go(self, work: UnitOfWork) -> None:
        give_up_late(work, START_S)
        for lease in list(work.leases.values()):
            if self._nodes.is_draining(lease.node):
                work.end(lease.id, "replaced", self._nodes.why_draining(lease.node))

    def _runs(self, node: Candidate, array: ArraySpec) -> bool:
        return runs_it(node, array, self._has_containers(node))

    def _has_containers(self, node: Candidate) -> bool:
        return self._nodes.runs_containers(node.node)

    def _nodes_of(self, work: UnitOfWork) -> set[str]:
        return {lease.node for lease in work.leases.values()}
