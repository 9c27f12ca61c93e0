"""What an array job does next: nodes are given elements, results are compared, verified work is paid. Everything on an open desk.

Its life is that of ``payments.period_jobs``. Results that are there stay, however it ends.
"""

import msgspec

from coordinator.domain import pricing
from coordinator.domain.arrays import board as boards
from coordinator.domain.arrays import tally as rules
from coordinator.domain.arrays.tally import ArrayTally
from coordinator.domain.arrays.votes import ElementTry
from coordinator.domain.job import JobState, Wish
from coordinator.domain.lease import Lease
from coordinator.services.arrays.array_staffing import ArrayStaffing
from coordinator.services.arrays.element_votes import ElementVotes
from coordinator.services.arrays.open_arrays import OpenArray, OpenArrays, array_of
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.period_jobs import AT_WORK, MAX_LOADS, PeriodJobs, PeriodJobWords, failed_leases
from coordinator.services.payments.periods import PeriodShare, store_period
from coordinator.services.payments.settlement import Settlement
from protocol.job.array import ArraySpec
from protocol.job.elements import MAX_QUEUED, ArrayReady, ElementEnd, ElementsMoved

FEED_S = 0.5  # Between two times that all nodes' queues are looked at; who reports is fed at once.
LOOK_S = 5.0  # Between two looks for what hangs, or waits though everybody passed it.


class ArrayJobs(PeriodJobs):
    """Jobs that run containers.

    Attributes:
        staffing: which nodes work at them.
    """

    words = PeriodJobWords(
        noun="array",
        anew="submit what is left as a new job",
        resting="the submitter asked for it",
        ending="what is verified is paid",
        last="the last payments are made",
    )

    def __init__(self, context: Context, nodes: Nodes, settlement: Settlement, arrays: OpenArrays) -> None:
        super().__init__(context, settlement)
        self._nodes, self._arrays = nodes, arrays
        self.staffing = ArrayStaffing(context, nodes, arrays)
        self._votes = ElementVotes(context)

    # --- reports ----------------------------------------------------------------------------------------------------------

    def ready(self, work: UnitOfWork, lease: Lease, body: ArrayReady) -> None:
        """A node has the image."""
        if lease.state != "starting" or work.run is None:
            work.count("reports_stale_total")
            return
        work.leases[lease.id] = msgspec.structs.replace(lease, state="ready", env_class=body.env_class)
        self._change_tally(work, slots={**work.run.tally.slots, lease.id: body.slots})
        self.staffing.has_image(lease.node, array_of(work).image)
        work.note("ready", f"node {lease.node} is ready, for {body.slots} at a time")

    async def moved(self, work: UnitOfWork, lease: Lease, body: ElementsMoved) -> None:
        """Elements have begun, or ended, at a node."""
        if work.run is None or work.job.state not in AT_WORK or work.job.wish is not Wish.NONE:
            return
        array = await self._arrays.of(work)
        if body.slots is not None:
            self._change_tally(work, slots={**work.run.tally.slots, lease.id: body.slots})
        fresh = {run for run in body.begun if array.board.started(lease.id, run, work.now)}
        news = [bool(fresh), *[await self._ended(work, array, lease, end, end.run in fresh) for end in body.ended]]
        if any(news):
            array.heard[lease.id] = self._context.clock.now()
        if lease.id in work.leases:
            self._feed(work, array, work.leases[lease.id])

    async def _ended(self, work: UnitOfWork, array: OpenArray, lease: Lease, end: ElementEnd, at_once: bool) -> bool:
        """A run has ended; whether anybody waited for that. ``at_once``: its beginning is told by the same report."""
        index = array.board.of_lease(lease.id).get(end.run)
        if index is None:
            work.count("reports_stale_total")
            return False
        one = next(one for one in array.board.course(index).tries if one.run == end.run)
        # Short ones begin and end within one report, which says nothing of the time between.
        since = one.sent if at_once or one.begun is None else one.begun
        seconds = max(0.0, min(end.seconds, work.now - since, _patience(array.spec, one)))
        operations = int(seconds * (self._nodes.speed(lease.node) or 0.0))
        course = array.board.ended(lease.id, end, operations, seconds)
        if end.outcome == "owner":
            self._votes.given_back(work, lease)
        if course is not None:
            await self._votes.weigh(work, array, course)
        return True

    # --- work -------------------------------------------------------------------------------------------------------------

    async def _works(self, work: UnitOfWork) -> None:
        array = await self._arrays.of(work)
        await self._left(work, array)
        if why := await self._futile(work, array):
            await self._arrays.save(work, array)
            await self.stop(work, JobState.FAILED, why)
            return
        if array.board.over or await self._is_out(work, array):
            return
        await self.staffing.fill(work, array)
        await self._left(work, array)
        if work.job.state not in AT_WORK:
            return
        self._look(work, array)
        now = self._context.clock.now()
        if now - array.fed >= FEED_S:
            array.fed = now
            for lease in list(work.leases.values()):
                self._feed(work, array, lease)
        await self._arrays.save(work, array)
        self._move(work, array)
        if array.counted is None:
            array.counted = now
        elif now - array.counted >= rules.PERIOD_S:
            await self._count(work, array)

    async def _left(self, work: UnitOfWork, array: OpenArray) -> None:
        """What nodes had that hold nothing any more comes to nothing, and is given to others."""
        ended = {lease.id: lease for lease in work.ended}
        for lease in array.board.leases() - work.leases.keys():
            lost = lease not in ended or ended[lease].end not in ("stopped", "replaced")
            slots = 1 if work.run is None else work.run.tally.slots.get(lease, 1)
            for course in array.board.left_by(lease, slots if lost else 0):
                await self._votes.weigh(work, array, course)
        if array.board.over:
            await self._arrays.save(work, array)
            await self._finish(work, self._outcome(array))

    def _feed(self, work: UnitOfWork, array: OpenArray, lease: Lease) -> None:
        """Fill a node's queue."""
        if lease.state != "ready" or lease.id in array.draining or work.run is None:
            return
        board, held = array.board, len(array.board.of_lease(lease.id))
        slots = work.run.tally.slots.get(lease.id, 1)
        length = boards.queue_length(slots, board.usual, board.left(), len(work.leases), board.batch)
        room = min(length - held, self._affordable(work, array))
        if room <= 0 or 2 * held > length:
            return
        seat, number = self.staffing.seat(lease), work.run.tally.next_run
        stuck = board.running() == 0
        given = board.give(seat, room, number, work.now, stuck, self._votes.draws_decoy)
        if not given and held == 0:
            given = board.again(seat, slots, number, work.now)
        if given and held == 0:
            array.heard[lease.id] = self._context.clock.now()  # It had nothing to speak of until now.
        if given:
            self._change_tally(work, next_run=number + len(given))

    def _affordable(self, work: UnitOfWork, array: OpenArray) -> int:
        """How many more runs the escrow surely pays, by what elements have cost so far; many where nobody knows yet."""
        assert work.run is not None
        tally = work.run.tally
        if tally.paid == 0:
            return MAX_QUEUED
        room = work.job.escrow * pricing.PETAFLOP // max(1, work.job.quote.rate) - tally.operations
        return max(0, room // max(1, tally.operations // tally.paid) - array.board.running())

    def _look(self, work: UnitOfWork, array: OpenArray) -> None:
        """Now and then: let go of nodes that hang, and have everybody look at what waits."""
        now = self._context.clock.now()
        if now - array.looked < LOOK_S:
            return
        array.looked = now
        for lease in list(work.leases.values()):
            held = [(one, _patience(array.spec, one)) for one in array.board.under_way(lease.id)]
            late = [most for one, most in held if one.begun is not None and work.now - one.begun > most + rules.GRACE_S]
            quiet = now - array.heard.setdefault(lease.id, now)
            if late:
                why = f"an element has not ended {rules.GRACE_S:g} s after its limit of {late[0]:g} s"
            elif held and quiet > max(most for _, most in held) + rules.GRACE_S + rules.QUIET_S:
                why = f"it has said nothing of its elements for {quiet:.0f} s"
            else:
                continue
            work.note("lost", f"node {lease.node} is let go: {why}")
            work.end(lease.id, "stalled", why)
        if array.board.waiting():
            array.board.look_again()
            self._tell(work, array)

    def _tell(self, work: UnitOfWork, array: OpenArray) -> None:
        """Say once that elements wait for owners that are not here."""
        owners = {lease.payout for lease in work.leases.values()}
        need, why = array.board.rules.owners, ""
        if array.board.running() == 0 and len(owners) < need:
            why = f"{len(owners)} of the {need} owners that each needs are here, of other addresses each"
        elif self._stands_still(work, array):
            why = f"each of the {len(owners)} owners that are here has had its turn, and a further one is to decide"
        if why and why != array.told:
            work.note("limit", f"elements wait: {why}")
        array.told = why

    @staticmethod
    def _stands_still(work: UnitOfWork, array: OpenArray) -> bool:
        """Whether nobody was given anything since the last look, though all nodes are ready."""
        before, array.given = array.given, 0 if work.run is None else work.run.tally.next_run
        ready = all(lease.state == "ready" for lease in work.leases.values())
        return ready and array.board.running() == 0 and before == array.given

    async def _futile(self, work: UnitOfWork, array: OpenArray) -> str:
        """Why nothing will come of it; empty: something may."""
        if array.board.failed >= rules.FALSE_STARTS and array.board.done == 0:
            last = next((one.reason for one in array.board.begun() if one.state == "failed"), "")
            return f"the first {array.board.failed} elements have failed: {last}"
        if work.run is None or work.run.tally.paid:
            return ""
        failed = await failed_leases(work)
        tried = {one.node for one in failed.values()}
        if len(failed) < MAX_LOADS or any(one.node not in tried for one in self.staffing.able(array.spec, 0)):
            return ""
        return f"{len(failed)} times a node could not run the image: {work.ended[-1].reason}"

    def _move(self, work: UnitOfWork, array: OpenArray) -> None:
        """Whether it runs now."""
        there = [lease for lease in work.leases.values() if lease.state == "ready"]
        if there and work.job.state is JobState.PLANNED:
            work.advance(JobState.RUNNING, f"{array.board.count:,} elements are run")
        elif not there and work.job.state is JobState.RUNNING:
            work.advance(JobState.PLANNED, "no node runs elements any more: the array waits for others")
        if work.run is not None and (work.run.tally.done, work.run.tally.failed) != (
            array.board.done,
            array.board.failed,
        ):
            self._change_tally(work, done=array.board.done, failed=array.board.failed)

    @staticmethod
    def _change_tally(work: UnitOfWork, **fields: object) -> None:
        assert work.run is not None
        work.change_run(tally=msgspec.structs.replace(work.run.tally, **fields))

    # --- pay --------------------------------------------------------------------------------------------------------------

    async def _count(self, work: UnitOfWork, array: OpenArray) -> None:
        """Store what is verified since the last time as a period, with a share for each node."""
        array.counted = self._context.clock.now()
        if work.run is None or not work.run.tally.owed:
            return
        owed = work.run.tally.owed
        shares = [
            PeriodShare(lease, one.node, one.payout, 0, number, one.chain, one.elements, one.operations)
            for number, (lease, one) in rules.numbered(owed)
        ]
        await store_period(work, shares, work.now - rules.PERIOD_S, sum(one.elements for one in owed.values()), 0)
        self._change_tally(work, owed={})

    # --- the end ----------------------------------------------------------------------------------------------------------

    @staticmethod
    def _outcome(array: OpenArray) -> str:
        failed = f", {array.board.failed:,} of them failed" if array.board.failed else ""
        return f"all {array.board.count:,} elements have ended{failed}"

    async def _is_out(self, work: UnitOfWork, array: OpenArray) -> bool:
        """End it where its time or its budget is over."""
        tally = ArrayTally() if work.run is None else work.run.tally
        nothing = array.board.running() == 0 and tally.paid > 0 and self._affordable(work, array) == 0
        if work.now > work.job.deadline:
            await self._run_out(work, "hours")
        elif nothing:
            await self._run_out(work, "budget")
        else:
            return False
        return True

    async def _release(self, work: UnitOfWork, reason: str) -> None:
        """Count what was done, and let all nodes go."""
        self.staffing.forget(work.job.id)
        for lease in list(work.leases):
            work.end(lease, "stopped", reason)
        if work.run is None:
            return
        array = await self._arrays.of(work)
        for lease in array.board.leases():
            array.board.left_by(lease, lost=0)
        await self._arrays.save(work, array)
        self._change_tally(work, done=array.board.done, failed=array.board.failed)
        await self._count(work, array)

    def _forget(self, job: str) -> None:
        self._arrays.close(job)

    def _done(self, work: UnitOfWork) -> str:
        tally = ArrayTally() if work.run is None else work.run.tally
        failed = f" and {tally.failed:,} failed" if tally.failed else ""
        return f"{tally.done:,} elements are done{failed}"


def _patience(spec: ArraySpec, one: ElementTry) -> float:
    """Seconds that a run may take from its beginning. One in a batch that comes to nothing is run once more, alone."""
    return spec.limit(one.of is not None) * (2 if one.batched else 1)
