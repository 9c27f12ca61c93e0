"""What follows from the runs of an element: its result holds, or it fails, who is paid for it, and who was found wrong."""

from collections.abc import Sequence

import msgspec

from common.untrusted_text import untrusted
from coordinator.domain.arrays import tally as rules
from coordinator.domain.arrays.looks import decoy_rate, spoilt_runs, standing
from coordinator.domain.arrays.tally import OwedWork
from coordinator.domain.arrays.votes import ElementCourse, ElementTry, ElementVerdict
from coordinator.domain.audits.sampling import WHOLE
from coordinator.domain.lease import Lease
from coordinator.services.arrays.open_arrays import OpenArray
from coordinator.services.audits import credit
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.store.ports import col
from coordinator.store.records import NodeRecord

CONTRADICTED_PART = 5  # One in so many of a node's runs at the most may fail where others succeed.


class ElementVotes:
    """Weighs what nodes say of elements."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @staticmethod
    def given_back(work: UnitOfWork, lease: Lease) -> None:
        """A node says nothing of a run: one that does so more often than it does anything is let go."""
        assert work.run is not None
        work.change_run(tally=work.run.tally.tracked(lease.node, given_back=1))
        track = work.run.tally.track(lease.node)
        if track.gives_back and lease.id in work.leases:
            work.note("lost", f"node {lease.node} is let go: it gave back {track.given_back} elements without a result")
            work.end(lease.id, "failed", "it gave elements back without a result")

    async def weigh(self, work: UnitOfWork, array: OpenArray, course: ElementCourse) -> None:
        """Something of an element has ended, or come to nothing: see whether it is over."""
        # Perhaps one lies, perhaps elements of a batch influence each other: alone it shows.
        if course.state == "open" and (spoilt := spoilt_runs(course, array.board.rules)):
            course = array.board.part(course, spoilt)
        found = standing(course, array.board.rules)
        if found.state == "open":
            return
        if found.state == "done" and self._is_drawn(work, array, course, found):
            array.board.draw(course.index)
            return
        await self._over(work, array, course, found)

    def _is_drawn(self, work: UnitOfWork, array: OpenArray, course: ElementCourse, found: ElementVerdict) -> bool:
        """Whether an element that one owner ran is to be run by a second one: by lot, thrown once it has ended."""
        if course.checked or array.board.rules.need_checked <= array.board.rules.need or work.run is None:
            return False
        node = next(one.node for one in course.tries if one.run in found.right)
        lot = int.from_bytes(self._context.entropy(4)) % WHOLE
        return lot < rules.check_rate(work.run.tally.track(node).right)

    def draws_decoy(self, looked: int) -> bool:
        """Whether a node that has looked so often is given another element's result in the place of one: by lot."""
        return int.from_bytes(self._context.entropy(4)) % WHOLE < decoy_rate(looked)

    async def _over(self, work: UnitOfWork, array: OpenArray, course: ElementCourse, found: ElementVerdict) -> None:
        for one in course.running:
            array.drops.setdefault(one.lease, []).append(one.run)
        right = [one for one in course.tries if one.run in found.right]
        self._owe(work, array, found, right)
        winner = next((one for one in right if one.of is None and found.result is not None), None)
        tries = tuple(msgspec.structs.replace(one, paid=one.run in found.right) for one in course.tries)
        assert work.run is not None
        number = work.run.tally.settled + 1
        work.change_run(tally=msgspec.structs.replace(work.run.tally, settled=number))
        over = msgspec.structs.replace(
            course,
            settled=number,
            state=found.state,
            tries=tries,
            result=found.result,
            size=0 if winner is None else winner.size,
            files=0 if winner is None else winner.files,
            reason=untrusted(found.why),
        )
        batch = array.board.batch
        array.board.settle(over)
        if array.board.batch < batch:
            note = "batches often come to other results: from now on each element has a container of its own"
            work.note("limit", note)
        if found.state == "failed" and array.board.failed <= rules.FALSE_STARTS:
            work.note("element", f"element {course.index} failed: {found.why}")
        for one in course.tries:
            if one.run in found.wrong and one.of is None:
                await self._wrong(work, array, one)
            elif one.run in found.wrong:
                await self._outvoted(work, array, one, [other for other in right if other.of == one.of])
            elif found.state == "done" and one.run in found.refused:
                await self._refused(work, one)
            elif found.state == "done" and one.of is None and self._is_contradicted(array, one, found):
                self._contradicted(work, one)

    @staticmethod
    def _owe(work: UnitOfWork, array: OpenArray, found: ElementVerdict, right: list[ElementTry]) -> None:
        """Note what those are to be paid whose word holds."""
        assert work.run is not None
        tally = work.run.tally
        owed, compared = dict(tally.owed), sum(one.of is None for one in right) > 1
        operations, several = tally.operations, array.board.rules.need > 1
        for one in right:
            look = one.of is not None
            others = [(by.owner, by.operations) for by in right if by.of == one.of and by.owner != one.owner]
            tally = tally.ran(one.owner, one.operations, others if look or several else None, look)
        for one in right:
            known, look = owed.get(one.lease) or OwedWork(one.node, one.owner, one.replica), one.of is not None
            tally, paid = tally.due(one.owner, look or several, look)
            operations += paid
            owed[one.lease] = known.plus(paid, one.run, found.result if one.of is None else one.result)
            ran = {"looked": 1} if one.of is not None else {"right": 1, "checked": int(compared)}
            tally = tally.tracked(one.node, **ran)
        tally = msgspec.structs.replace(tally, owed=owed, paid=tally.paid + len(right), operations=operations)
        work.change_run(tally=tally)

    async def _wrong(self, work: UnitOfWork, array: OpenArray, one: ElementTry) -> None:
        """A node's result was not what several others came to: it loses pay, place and standing.

        What holds by its word alone is run again by others.
        """
        assert work.run is not None
        work.count("elements_wrong_total")
        what, gave = "a result was not what other owners came to", "a wrong result of an element"
        if one.of is not None:
            what, gave = "verdicts were not what other owners came to", "wrong verdicts about results"
        work.note("fault", f"node {one.node} gave {gave}: it is not paid, and works here no more")
        for lease in [lease.id for lease in work.leases.values() if lease.node == one.node]:
            work.end(lease, "rejected", what)
        kept = {lease: due for lease, due in work.run.tally.owed.items() if due.node != one.node}
        work.change_run(tally=msgspec.structs.replace(work.run.tally.tracked(one.node, wrong=1), owed=kept))
        for course in list(array.board.begun()):
            mine = [run for run in course.tries if run.node == one.node and run.ended]
            alone = course.state != "open" and mine and {run.node for run in course.tries if run.paid} == {one.node}
            if alone or (mine and course.state == "open"):
                array.board.reopen(course, one.node)
        await work.hold_shared()
        await credit.lose(work, one.node, everywhere=True)
        for record in await work.tx.find(NodeRecord, col(NodeRecord.address).equals(one.node)):
            await work.tx.update(msgspec.structs.replace(record, faults=record.faults + 1))

    async def _outvoted(
        self, work: UnitOfWork, array: OpenArray, one: ElementTry, others: Sequence[ElementTry]
    ) -> None:
        """A node's verdict was not what others came to. Once may be two who do not look; a habit is its own."""
        assert work.run is not None
        tally = work.run.tally
        track = tally.track(one.node).outvoted_by(other.owner for other in others)
        work.change_run(tally=msgspec.structs.replace(tally, nodes={**tally.nodes, one.node: track}))
        if track.wrong == 0 and track.looks_away:
            await self._wrong(work, array, one)

    @staticmethod
    async def _refused(work: UnitOfWork, one: ElementTry) -> None:
        """The checker refused a node's result and took another's: where that is most of what it does, it works here no more."""
        assert work.run is not None
        work.change_run(tally=work.run.tally.tracked(one.node, refused=1))
        track = work.run.tally.track(one.node)
        if track.refused < max(rules.REFUSED, track.right + 1):
            return
        for lease in [lease.id for lease in work.leases.values() if lease.node == one.node]:
            what = f"{track.refused} of its results were refused, and others' were taken"
            work.note("fault", f"node {one.node} is let go: {what}")
            work.end(lease, "rejected", what)
        await credit.lose(work, one.node, everywhere=False)

    @staticmethod
    def _is_contradicted(array: OpenArray, one: ElementTry, found: ElementVerdict) -> bool:
        """Whether a run failed that others ended well, or its batch went astray where those of others do not."""
        if one.went_astray(found.result):
            return array.board.batch > 1
        return one.ended and one.result is None

    @staticmethod
    def _contradicted(work: UnitOfWork, one: ElementTry) -> None:
        """A node failed where others succeeded, or came to something else in a batch: too often, and it is let go."""
        assert work.run is not None
        tally = work.run.tally.tracked(one.node, contradicted=1)
        work.change_run(tally=tally)
        track = tally.track(one.node)
        if track.contradicted < rules.CONTRADICTED or CONTRADICTED_PART * track.contradicted < track.right:
            return
        for lease in [lease.id for lease in work.leases.values() if lease.node == one.node]:
            work.note("lost", f"node {one.node} is let go: {track.contradicted} elements came out otherwise there")
            work.end(lease, "failed", "elements came out otherwise there than elsewhere")
